//! Short ways to a gateway, a model, a request, an answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cadre_gateway::{
    Api, AuthConfig, Credential, CredentialError, Credentials, EgressPolicy, Gateway, ModelConfig, Provider,
};
use cadre_protocol::message::{Message, Role, ToolCall};
use cadre_protocol::model::{ModelDelta, ModelError, ModelReply, ModelRequest};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;
use wiremock::ResponseTemplate;

/// The key that must never be seen anywhere but in its header.
pub const CANARY: &str = "sk-canary-0123456789";

/// Secrets of the namespace `team`.
#[derive(Debug, Default)]
pub struct Secrets(pub Mutex<HashMap<String, Credential>>);

impl Secrets {
    pub fn put(&self, name: &str, hosts: Option<&[&str]>, labelled: bool) {
        let hosts = hosts.map(|hosts| hosts.iter().map(|&host| host.to_owned()).collect());
        let credential = Credential { value: SecretString::from(CANARY), hosts, labelled };
        self.0.lock().unwrap().insert(name.to_owned(), credential);
    }

    pub fn remove(&self, name: &str) {
        self.0.lock().unwrap().remove(name);
    }
}

#[async_trait]
impl Credentials for Secrets {
    async fn get(&self, namespace: &str, secret: &str, key: &str) -> Result<Credential, CredentialError> {
        let all = self.0.lock().unwrap();
        let found = all.get(secret).filter(|_| namespace == "team").ok_or(CredentialError::MissingSecret)?;
        if key == "key" { Ok(found.clone()) } else { Err(CredentialError::MissingKey) }
    }
}

/// Secrets with one that may go to the test servers.
pub fn secrets() -> Arc<Secrets> {
    let secrets = Secrets::default();
    secrets.put("llm", Some(&["127.0.0.1"]), true);
    Arc::new(secrets)
}

/// A gateway that may reach loopback.
pub fn gateway(secrets: Arc<Secrets>) -> Gateway {
    Gateway::new(EgressPolicy { allow_private: true, ..EgressPolicy::default() }, secrets).unwrap()
}

pub fn model(provider: Provider, base: &str) -> ModelConfig {
    ModelConfig {
        namespace: "team".into(),
        provider,
        api: provider.default_api(),
        model_id: "asked-model".into(),
        base_url: Some(base.parse().unwrap()),
        auth: Some(AuthConfig { secret_name: "llm".into(), secret_key: "key".into(), header: None, scheme: None }),
        timeout: Duration::from_secs(120),
        ..ModelConfig::scripted("team", "main", None)
    }
}

/// A model of each API at the same server.
pub fn models(base: &str) -> [ModelConfig; 3] {
    let with = |api: Api| ModelConfig { api, ..model(Provider::OpenAICompatible, base) };
    [with(Api::Messages), with(Api::Responses), with(Api::ChatCompletions)]
}

pub fn request(messages: Vec<Message>) -> ModelRequest {
    ModelRequest { model: "main".into(), messages, tools: vec![], tool_choice: None, output_schema: None }
}

pub fn user(text: &str) -> Message {
    Message::text(Role::User, text, 0)
}

pub fn hello() -> ModelRequest {
    request(vec![user("hello")])
}

pub fn tool_result(call: &ToolCall, text: &str) -> Message {
    Message::tool_result(call, text, false, 0)
}

/// Asks, and gathers the pieces.
pub async fn ask_all(
    gateway: &Gateway,
    model: &ModelConfig,
    request: ModelRequest,
) -> (Result<ModelReply, ModelError>, Vec<ModelDelta>) {
    let mut deltas = Vec::new();
    let reply = gateway.call(model, request, &mut |delta| deltas.push(delta), &CancellationToken::new()).await;
    (reply, deltas)
}

pub async fn ask(gateway: &Gateway, model: &ModelConfig, request: ModelRequest) -> Result<ModelReply, ModelError> {
    ask_all(gateway, model, request).await.0
}

pub fn sse(stream: &str) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_raw(stream.as_bytes().to_vec(), "text/event-stream")
}

/// A short stream in Chat Completions.
pub fn chat_stream(text: &str) -> String {
    let event = serde_json::json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]});
    format!("data: {event}\n\ndata: [DONE]\n\n")
}
