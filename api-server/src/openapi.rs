//! The OpenAPI document of the user port, made from the same list as its router.

use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};

use crate::listen::user;
use crate::routes::responses::{ErrorBody, ValidationErrorBody, ValidationItem};

/// What the document says before its operations.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Cadre",
        description = "Runs of AI agents: durable, resumable, each session in its own pod. Compatible with the HTTP API of AgentOS.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(ErrorBody, ValidationErrorBody, ValidationItem))
)]
struct Head;

/// The document.
#[must_use]
pub fn api() -> utoipa::openapi::OpenApi {
    let mut api = Head::openapi();
    api.merge(user::operations().into_openapi());
    api.info.version = env!("CARGO_PKG_VERSION").to_owned();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    api.components.get_or_insert_default().add_security_scheme("securityKey", bearer);
    api.security = Some(vec![SecurityRequirement::new("securityKey", Vec::<String>::new())]);
    api
}

/// The document as committed in `api-server/openapi.json`: indented JSON with a line break at its end.
#[must_use]
pub fn document() -> String {
    // A document of plain data always serializes.
    api().to_pretty_json().unwrap_or_default() + "\n"
}
