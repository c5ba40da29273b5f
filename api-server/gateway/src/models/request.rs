//! What the three APIs' requests have in common: address, parameters of the Model's author, arguments.

use cadre_protocol::model::{ModelError, ModelErrorCategory, ModelRequest};
use serde_json::{Map, Value, json};
use url::Url;

use super::{anthropic, openai_chat, openai_responses};
use crate::config::{Api, ModelConfig};
use crate::egress::check_form;
use crate::failure::failure;

/// Fields that `extra` may not set, because the gateway writes them or because they would bring in what the gateway
/// keeps out: stored objects, provider-executed tools, remote sources.
const RESERVED: [&str; 22] = [
    "background",
    "container",
    "conversation",
    "file_ids",
    "function_call",
    "functions",
    "input",
    "instructions",
    "mcp_servers",
    "messages",
    "model",
    "n",
    "previous_response_id",
    "prompt",
    "store",
    "stream",
    "stream_options",
    "system",
    "tool_choice",
    "tool_resources",
    "tools",
    "web_search_options",
];

/// Where a Model's requests go: its base URL or the provider's, and the API's path.
pub(crate) fn endpoint(model: &ModelConfig) -> Result<Url, ModelError> {
    let wrong = |why: &str| failure(ModelErrorCategory::BadRequest, format!("Model {}: {why}", model.name));
    let own = || model.provider.default_base().and_then(|base| Url::parse(base).ok());
    let mut url = model
        .base_url
        .clone()
        .or_else(own)
        .ok_or_else(|| wrong(&format!("provider {} needs spec.baseUrl", model.provider.as_str())))?;
    check_form(&url).map_err(|error| wrong(&error.to_string()))?;
    let base = url.path().trim_end_matches('/');
    let path = match model.api {
        // Anthropic's base URLs come without the version, OpenAI's with it.
        Api::Messages if base.ends_with("/v1") => format!("{base}/messages"),
        Api::Messages => format!("{base}/v1/messages"),
        Api::Responses => format!("{base}/responses"),
        Api::ChatCompletions => format!("{base}/chat/completions"),
    };
    url.set_path(&path);
    url.set_fragment(None);
    Ok(url)
}

/// The body of a request, in the Model's API.
pub(crate) fn body(model: &ModelConfig, request: &ModelRequest) -> Result<Value, ModelError> {
    let mut body = match model.api {
        Api::Messages => anthropic::body(model, request),
        Api::Responses => openai_responses::body(model, request),
        Api::ChatCompletions => openai_chat::body(model, request),
    };
    for (name, value) in &model.parameters.extra {
        if RESERVED.contains(&name.as_str()) {
            return Err(failure(
                ModelErrorCategory::BadRequest,
                format!("Model {}: parameters.extra may not set {name}", model.name),
            ));
        }
        merge(&mut body, name, value);
    }
    Ok(Value::Object(body))
}

/// Objects are joined, so that `extra` can add to one that the gateway writes; all else is replaced.
fn merge(body: &mut Map<String, Value>, name: &str, value: &Value) {
    match (body.get_mut(name), value) {
        (Some(Value::Object(old)), Value::Object(new)) => {
            old.extend(new.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        _ => {
            body.insert(name.to_owned(), value.clone());
        }
    }
}

/// Sets a field if there is a value for it.
pub(super) fn set<T: Into<Value>>(body: &mut Map<String, Value>, name: &str, value: Option<T>) {
    if let Some(value) = value {
        body.insert(name.to_owned(), value.into());
    }
}

/// A call's arguments as an object. Providers refuse a conversation with malformed JSON in it, so what a model wrote
/// badly is shown back to it as text.
pub(super) fn arguments(text: &str) -> Value {
    if text.trim().is_empty() {
        return json!({});
    }
    match serde_json::from_str(text) {
        Ok(value @ Value::Object(_)) => value,
        _ => json!({ "malformed_arguments": text }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Provider;

    #[test]
    fn endpoints_follow_the_conventions() {
        let cases = [
            (Provider::Anthropic, Api::Messages, None, "https://api.anthropic.com/v1/messages"),
            (Provider::Anthropic, Api::Messages, Some("https://p.example"), "https://p.example/v1/messages"),
            (Provider::Anthropic, Api::Messages, Some("https://p.example/a/v1/"), "https://p.example/a/v1/messages"),
            (Provider::OpenAI, Api::Responses, None, "https://api.openai.com/v1/responses"),
            (
                Provider::OpenAICompatible,
                Api::ChatCompletions,
                Some("http://vllm:8000/v1?api-version=2"),
                "http://vllm:8000/v1/chat/completions?api-version=2",
            ),
        ];
        for (provider, api, base, expected) in cases {
            let base_url = base.map(|url| url.parse().unwrap());
            let model = ModelConfig { provider, api, base_url, ..ModelConfig::scripted("n", "m", None) };
            assert_eq!(endpoint(&model).unwrap().as_str(), expected);
        }
        for bad in [None, Some("ftp://x"), Some("https://user:pw@x")] {
            let base_url = bad.map(|url| url.parse().unwrap());
            let provider = Provider::OpenAICompatible;
            let model = ModelConfig { provider, base_url, ..ModelConfig::scripted("n", "m", None) };
            assert_eq!(endpoint(&model).unwrap_err().category, ModelErrorCategory::BadRequest, "{bad:?}");
        }
    }

    #[test]
    fn extra_joins_objects_and_can_not_reach_what_is_reserved() {
        let mut model = ModelConfig { provider: Provider::OpenAI, ..ModelConfig::scripted("n", "m", None) };
        model.api = Api::Responses;
        model.parameters.reasoning_effort = Some("low".into());
        model.parameters.extra.insert("reasoning".into(), json!({"summary": "auto"}));
        model.parameters.extra.insert("service_tier".into(), json!("flex"));
        let request =
            ModelRequest { model: "m".into(), messages: vec![], tools: vec![], tool_choice: None, output_schema: None };
        let body_value = body(&model, &request).unwrap();
        assert_eq!(body_value["reasoning"], json!({"effort": "low", "summary": "auto"}));
        assert_eq!(body_value["service_tier"], json!("flex"));
        for name in RESERVED {
            model.parameters.extra = Map::from_iter([(name.to_owned(), json!(true))]);
            assert_eq!(body(&model, &request).unwrap_err().category, ModelErrorCategory::BadRequest, "{name}");
        }
    }

    #[test]
    fn arguments_are_always_objects() {
        assert_eq!(arguments(""), json!({}));
        assert_eq!(arguments(r#"{"a":1}"#), json!({"a": 1}));
        assert_eq!(arguments("[1]"), json!({"malformed_arguments": "[1]"}));
        assert_eq!(arguments("{\"a"), json!({"malformed_arguments": "{\"a"}));
    }
}
