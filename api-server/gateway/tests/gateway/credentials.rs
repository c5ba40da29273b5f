//! Security rule 5: a Secret goes only where it says.

use cadre_gateway::{CredentialState, Gateway, ModelConfig, Provider};
use cadre_protocol::model::ModelErrorCategory;
use wiremock::MockServer;
use wiremock::matchers::method;
use wiremock::{Mock, Request};

use crate::support::{ask, chat_stream, gateway, hello, model, models, secrets, sse};

async fn server() -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(sse(&chat_stream("hi"))).mount(&server).await;
    server
}

async fn state(gateway: &Gateway, model: &ModelConfig) -> CredentialState {
    gateway.credential_state(model).await.0
}

#[tokio::test]
async fn anothers_secret_and_a_foreign_base_url_send_nothing() {
    let server = server().await;
    let secrets = secrets();
    // Somebody's key for Anthropic, a Secret that is no credential, a credential for other hosts.
    secrets.put("anthropic", None, true);
    secrets.put("database", Some(&["127.0.0.1"]), false);
    secrets.put("elsewhere", Some(&["api.example.com", "*.127.0.0.1"]), true);
    secrets.put("empty", Some(&[]), true);
    let gateway = gateway(secrets);
    for provider in [Provider::Anthropic, Provider::OpenAI, Provider::OpenAICompatible] {
        for secret in ["anthropic", "database", "elsewhere", "empty", "absent"] {
            let mut config = ModelConfig { retries: 2, ..model(provider, &server.uri()) };
            config.auth.as_mut().unwrap().secret_name = secret.into();
            let error = ask(&gateway, &config, hello()).await.unwrap_err();
            assert_eq!(error.category, ModelErrorCategory::Authentication, "{secret}");
            assert!(error.message.contains("kubectl"), "{}", error.message);
            let expected = if secret == "absent" { CredentialState::Missing } else { CredentialState::NotAllowed };
            assert_eq!(state(&gateway, &config).await, expected, "{secret}");
        }
    }
    // The same Secret through a Model of another namespace.
    let other = ModelConfig { namespace: "other".into(), ..model(Provider::OpenAICompatible, &server.uri()) };
    assert_eq!(ask(&gateway, &other, hello()).await.unwrap_err().category, ModelErrorCategory::Authentication);
    assert_eq!(server.received_requests().await.unwrap().len(), 0);
}

#[tokio::test]
async fn the_providers_own_host_needs_no_list_but_obeys_one() {
    let secrets = secrets();
    secrets.put("plain", None, true);
    secrets.put("elsewhere", Some(&["proxy.example.com"]), true);
    let gateway = gateway(secrets);
    for provider in [Provider::Anthropic, Provider::OpenAI] {
        let mut config = ModelConfig { base_url: None, ..model(provider, "http://x") };
        config.auth.as_mut().unwrap().secret_name = "plain".into();
        assert_eq!(state(&gateway, &config).await, CredentialState::Present);
        config.auth.as_mut().unwrap().secret_name = "elsewhere".into();
        assert_eq!(state(&gateway, &config).await, CredentialState::NotAllowed);
        // Its own name, but without TLS or on another port, is not its own host.
        for base in ["http://api.anthropic.com", "https://api.openai.com:8443/v1", "http://api.openai.com/v1"] {
            config.base_url = Some(base.parse().unwrap());
            config.auth.as_mut().unwrap().secret_name = "plain".into();
            assert_eq!(state(&gateway, &config).await, CredentialState::NotAllowed, "{base}");
        }
        config.base_url = None;
        config.auth = None;
        assert_eq!(state(&gateway, &config).await, CredentialState::Missing);
    }
}

#[tokio::test]
async fn states_come_with_the_command_that_mends_them() {
    let secrets = secrets();
    secrets.put("database", None, false);
    secrets.put("elsewhere", Some(&["a.example"]), true);
    let gateway = gateway(secrets);
    let cases = [
        ("database", "key", "kubectl label secret database -n team cadre.dev/credential=true"),
        (
            "elsewhere",
            "key",
            "kubectl annotate secret elsewhere -n team --overwrite cadre.dev/hosts=a.example,llm.example",
        ),
        (
            "absent",
            "key",
            "kubectl cadre credential create absent -n team --from-env VARIABLE --key key --hosts llm.example",
        ),
        ("llm", "other", "has no key \"other\": kubectl cadre credential create llm -n team"),
    ];
    for (secret, key, command) in cases {
        let mut config = model(Provider::OpenAICompatible, "https://llm.example/v1");
        let auth = config.auth.as_mut().unwrap();
        (auth.secret_name, auth.secret_key) = (secret.into(), key.into());
        let (_, message) = gateway.credential_state(&config).await;
        assert!(message.contains(command), "{message}");
    }
}

#[tokio::test]
async fn a_secret_that_goes_and_comes_back_is_seen_at_once() {
    let server = server().await;
    let secrets = secrets();
    let gateway = gateway(secrets.clone());
    let config = model(Provider::OpenAICompatible, &server.uri());
    assert!(ask(&gateway, &config, hello()).await.is_ok());
    secrets.remove("llm");
    assert!(ask(&gateway, &config, hello()).await.is_err());
    assert_eq!(state(&gateway, &config).await, CredentialState::Missing);
    secrets.put("llm", Some(&["127.0.0.1"]), true);
    assert!(ask(&gateway, &config, hello()).await.is_ok());
    assert_eq!(server.received_requests().await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_model_without_auth_sends_no_key() {
    let server = server().await;
    let gateway = gateway(secrets());
    let config = ModelConfig { auth: None, ..model(Provider::OpenAICompatible, &server.uri()) };
    assert_eq!(state(&gateway, &config).await, CredentialState::NotRequired);
    ask(&gateway, &config, hello()).await.unwrap();
    let seen: Vec<Request> = server.received_requests().await.unwrap();
    assert!(!seen[0].headers.contains_key("authorization"));
}

#[tokio::test]
async fn a_model_can_not_smuggle_headers() {
    let server = server().await;
    let gateway = gateway(secrets());
    for (name, value) in [
        ("Authorization", "Bearer x"),
        ("Host", "evil.example"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("Transfer-Encoding", "chunked"),
        ("x-a", "1\r\nx-b: 2"),
        ("x a", "1"),
    ] {
        for mut config in models(&server.uri()) {
            config.headers.insert(name.into(), value.into());
            let error = ask(&gateway, &config, hello()).await.unwrap_err();
            assert_eq!(error.category, ModelErrorCategory::BadRequest, "{name}");
        }
    }
    assert_eq!(server.received_requests().await.unwrap().len(), 0);
}
