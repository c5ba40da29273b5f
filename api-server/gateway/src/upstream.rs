//! One attempt at a provider: key, request, answer.

use cadre_protocol::model::{ModelError, ModelErrorCategory, ModelRequest};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use secrecy::{ExposeSecret, SecretString};

use crate::config::{Api, AuthConfig, ModelConfig};
use crate::credentials::{self, Credentials};
use crate::egress::{Egress, EgressError, Outgoing, headers};
use crate::failure::{failure, from_status, redact, retry_after};
use crate::models::{self, Answer, Sink};

/// Most bytes of an error answer that are read.
const MAX_ERROR_BYTES: usize = 64 << 10;
const ANTHROPIC_VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");

/// Asks once.
pub(crate) async fn ask(
    egress: &Egress,
    credentials: &dyn Credentials,
    model: &ModelConfig,
    request: &ModelRequest,
    sink: &mut Sink<'_>,
) -> Result<Answer, ModelError> {
    let url = models::endpoint(model)?;
    let body = models::body(model, request)?;
    let body = serde_json::to_vec(&body)
        .map_err(|_| failure(ModelErrorCategory::BadRequest, "the request can't be written as JSON"))?;
    let key = credentials::resolve(credentials, model, &url).await?;
    let headers = request_headers(model, key.as_ref())?;
    let outgoing = Outgoing { method: Method::POST, url, headers, body: Some(body.into()) };
    // Whatever comes back may repeat the key.
    exchange(egress, model, outgoing, sink).await.map_err(|error| redact(error, key.as_ref()))
}

async fn exchange(
    egress: &Egress,
    model: &ModelConfig,
    outgoing: Outgoing,
    sink: &mut Sink<'_>,
) -> Result<Answer, ModelError> {
    let response = egress.send(outgoing).await.map_err(unreachable)?;
    let status = response.status();
    if status.is_success() {
        sink.begin();
        return models::read(response, model, sink).await;
    }
    let wait = retry_after(response.headers());
    let body = error_body(response).await;
    Err(from_status(model.provider.as_str(), status.as_u16(), wait, &body))
}

fn unreachable(error: EgressError) -> ModelError {
    let category = match error {
        EgressError::Url(_) => ModelErrorCategory::BadRequest,
        EgressError::TooLarge => ModelErrorCategory::ContextWindow,
        EgressError::Refused { .. } => ModelErrorCategory::Policy,
        EgressError::Timeout(_) => ModelErrorCategory::Timeout,
        EgressError::Connect { .. } => ModelErrorCategory::Network,
    };
    failure(category, error.to_string())
}

async fn error_body(mut response: reqwest::Response) -> String {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = MAX_ERROR_BYTES - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == MAX_ERROR_BYTES {
            break;
        }
    }
    String::from_utf8_lossy(&body).into_owned()
}

/// The Model's own headers, the API's, and the key.
fn request_headers(model: &ModelConfig, key: Option<&SecretString>) -> Result<HeaderMap, ModelError> {
    let wrong = |why: String| failure(ModelErrorCategory::BadRequest, format!("Model {}: {why}", model.name));
    let own = model.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let mut all = headers::build(own, false).map_err(|error| wrong(error.to_string()))?;
    all.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    all.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
    if model.api == Api::Messages {
        all.entry("anthropic-version").or_insert(ANTHROPIC_VERSION);
    }
    if let (Some(auth), Some(key)) = (&model.auth, key) {
        let (name, value) = key_header(model.api, auth, key).map_err(wrong)?;
        all.insert(name, value);
    }
    Ok(all)
}

fn key_header(api: Api, auth: &AuthConfig, key: &SecretString) -> Result<(HeaderName, HeaderValue), String> {
    let name = match (auth.header.as_deref(), auth.scheme.as_deref()) {
        (Some(name), _) => name,
        (None, None) if api == Api::Messages => "x-api-key",
        (None, _) => "authorization",
    };
    headers::build([(name, "")], true).map_err(|error| error.to_string())?;
    let name: HeaderName = name.parse().map_err(|_| "auth.header is malformed".to_owned())?;
    let scheme = match auth.scheme.as_deref() {
        None if name == header::AUTHORIZATION => "Bearer",
        None => "",
        Some(scheme) => scheme,
    };
    // Files and `echo` leave a line break at the end of many a key.
    let key = key.expose_secret().trim();
    let text = if scheme.is_empty() { key.to_owned() } else { format!("{scheme} {key}") };
    let mut value = HeaderValue::from_str(&text).map_err(|_| "the credential can't be sent in a header".to_owned())?;
    value.set_sensitive(true);
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_into_the_header_that_the_api_or_the_model_names() {
        let key = SecretString::from("k\n");
        let auth = |header: Option<&str>, scheme: Option<&str>| AuthConfig {
            secret_name: "s".into(),
            secret_key: "k".into(),
            header: header.map(str::to_owned),
            scheme: scheme.map(str::to_owned),
        };
        let cases = [
            (Api::Messages, None, None, "x-api-key", "k"),
            (Api::Messages, None, Some("Bearer"), "authorization", "Bearer k"),
            (Api::Responses, None, None, "authorization", "Bearer k"),
            (Api::ChatCompletions, Some("api-key"), None, "api-key", "k"),
            (Api::ChatCompletions, Some("Authorization"), Some("Token"), "authorization", "Token k"),
        ];
        for (api, header, scheme, name, value) in cases {
            let (got_name, got_value) = key_header(api, &auth(header, scheme), &key).unwrap();
            assert_eq!((got_name.as_str(), got_value.to_str().unwrap()), (name, value));
            assert!(got_value.is_sensitive());
        }
        for bad in ["Host", "X-Forwarded-For", "a b", "Transfer-Encoding"] {
            assert!(key_header(Api::Messages, &auth(Some(bad), None), &key).is_err(), "{bad}");
        }
    }
}
