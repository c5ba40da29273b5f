//! One attempt at a provider: address, key, request, answer.

use cadre_protocol::model::{ModelError, ModelErrorCategory, ModelRequest};
use url::Url;

use crate::config::ModelConfig;
use crate::credentials::{self, Credentials};
use crate::egress::Egress;
use crate::failure::failure;
use crate::models::{Answer, Sink};

/// Where a Model's requests go.
pub(crate) fn endpoint(model: &ModelConfig) -> Result<Url, ModelError> {
    let bad = |why: &str| failure(ModelErrorCategory::BadRequest, format!("Model {}: {why}", model.name));
    model.base_url.clone().or_else(|| Url::parse(model.provider.default_base()?).ok()).ok_or_else(|| bad("no baseUrl"))
}

/// Asks once.
pub(crate) async fn ask(
    egress: &Egress,
    credentials: &dyn Credentials,
    model: &ModelConfig,
    request: &ModelRequest,
    sink: &mut Sink<'_>,
) -> Result<Answer, ModelError> {
    let url = endpoint(model)?;
    let _ = (egress, request, sink, credentials::resolve(credentials, model, &url).await?);
    Err(failure(ModelErrorCategory::Provider, "not connected"))
}
