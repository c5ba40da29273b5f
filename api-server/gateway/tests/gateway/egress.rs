//! Security rule 16, through the `http` tool and through Models.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cadre_gateway::{EgressPolicy, Gateway, Lookup, ModelConfig, Provider};
use cadre_protocol::model::ModelErrorCategory;
use cadre_protocol::worker::RemoteToolResult;
use serde_json::{Map, Value, json};
use wiremock::matchers::{body_json, header, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::server::{Server, closed_by_client};
use crate::support::{ask, gateway, hello, model, secrets};

const TIMEOUT: Duration = Duration::from_secs(120);

/// Answers one look-up after the other.
struct Script(Mutex<VecDeque<Vec<IpAddr>>>);

impl Script {
    fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parse = |answer: &&[&str]| answer.iter().map(|address| address.parse().unwrap()).collect();
        Arc::new(Self(Mutex::new(answers.iter().map(parse).collect())))
    }

    fn left(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[async_trait]
impl Lookup for Script {
    async fn lookup(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        self.0.lock().unwrap().pop_front().ok_or_else(|| io::Error::other("no further answer"))
    }
}

fn strict(lookup: Arc<Script>, allowed: &[&str]) -> Gateway {
    let allowed_cidrs = allowed.iter().map(|cidr| cidr.parse().unwrap()).collect();
    let policy = EgressPolicy { allowed_cidrs, ..EgressPolicy::default() };
    Gateway::with_lookup(policy, secrets(), lookup).unwrap()
}

async fn fetch(gateway: &Gateway, hosts: &[&str], arguments: Value) -> RemoteToolResult {
    let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
    let arguments: Map<String, Value> = serde_json::from_value(arguments).unwrap();
    gateway.http_tool(&hosts, arguments, TIMEOUT).await
}

#[tokio::test]
async fn written_addresses_are_judged_in_every_form() {
    let gateway = strict(Script::new(&[]), &[]);
    let cases = [
        ("http://127.0.0.1/", "loopback"),
        ("http://2130706433/", "loopback"),
        ("http://0x7f000001/", "loopback"),
        ("http://0177.0.0.1/", "loopback"),
        ("http://127.1/", "loopback"),
        ("http://0x7f.1/", "loopback"),
        ("http://[::1]/", "loopback"),
        ("http://[::ffff:127.0.0.1]/", "loopback"),
        ("http://169.254.169.254/latest/meta-data", "metadata"),
        ("http://[::ffff:169.254.169.254]/", "metadata"),
        ("http://[::ffff:a9fe:a9fe]/", "metadata"),
        ("http://2852039166/", "metadata"),
        ("http://[64:ff9b::169.254.169.254]/", "metadata"),
        ("http://[::169.254.169.254]/", "reserved"),
        ("http://[2002:a9fe:a9fe::]/", "reserved"),
        ("http://[fd00:ec2::254]/", "metadata"),
        ("http://10.96.0.1/", "private"),
        ("http://100.64.0.1/", "private"),
        ("http://192.168.0.1:8080/", "private"),
        ("http://0.0.0.0/", "reserved"),
        ("http://224.0.0.1/", "multicast"),
        ("http://[fe80::1]/", "link-local"),
    ];
    for (url, kind) in cases {
        let host = url::Url::parse(url).unwrap().host_str().unwrap().to_owned();
        let result = fetch(&gateway, &[&host], json!({"url": url})).await;
        assert!(result.error && result.content.contains(&format!("{kind} address")), "{url}: {}", result.content);
        let mut config = model(Provider::OpenAICompatible, url);
        config.auth = None;
        assert_eq!(ask(&gateway, &config, hello()).await.unwrap_err().category, ModelErrorCategory::Policy, "{url}");
    }
}

#[tokio::test]
async fn names_are_judged_by_their_addresses() {
    for answer in [&["169.254.169.254"][..], &["10.0.0.1", "127.0.0.1"], &["::ffff:10.0.0.1"], &["fd12::1"]] {
        let lookup = Script::new(&[answer]);
        let gateway = strict(lookup.clone(), &[]);
        let result = fetch(&gateway, &["*.example.com"], json!({"url": "http://inside.example.com/"})).await;
        assert!(result.error && result.content.contains("may not be reached"), "{}", result.content);
        assert_eq!(lookup.left(), 0);
    }
}

#[tokio::test]
async fn a_name_that_changes_its_address_is_not_followed() {
    let server = MockServer::start().await;
    Mock::given(method("GET")).respond_with(ResponseTemplate::new(200)).expect(1).mount(&server).await;
    // The connection goes to the address that was judged: the closed ones beside it are not tried, and the name is
    // not asked again.
    let lookup = Script::new(&[&["127.0.0.9", "127.0.0.1"], &["127.0.0.9"]]);
    let gateway = strict(lookup.clone(), &["127.0.0.1/32"]);
    let url = format!("http://rebind.example.com:{}/", server.address().port());
    let result = fetch(&gateway, &["rebind.example.com"], json!({"url": url, "headers": {"accept": "*/*"}})).await;
    assert!(!result.error, "{}", result.content);
    assert_eq!(lookup.left(), 1);
    // A later connection is judged anew; another name can't use the first one's connection.
    let url = url.replace("rebind", "other");
    let result = fetch(&gateway, &["*.example.com"], json!({"url": url})).await;
    assert!(result.error && result.content.contains("loopback"), "{}", result.content);
    assert_eq!(lookup.left(), 0);
}

#[tokio::test]
async fn redirects_are_shown_but_not_followed() {
    let server = MockServer::start().await;
    let there = ResponseTemplate::new(302).insert_header("location", "/secret");
    Mock::given(path("/")).respond_with(there).mount(&server).await;
    Mock::given(path("/secret")).respond_with(ResponseTemplate::new(200)).expect(0).mount(&server).await;
    let result = fetch(&gateway(secrets()), &["127.0.0.1"], json!({"url": server.uri()})).await;
    assert!(result.error);
    assert!(result.content.starts_with("HTTP 302 Found\nlocation: /secret\n"), "{}", result.content);
}

#[tokio::test]
async fn arguments_are_parsed_and_refused() {
    let server = MockServer::start().await;
    let gateway = gateway(secrets());
    let url = server.uri();
    let cases = [
        (json!({}), "url is missing"),
        (json!({"url": 1}), "url must be text"),
        (json!({"url": "not a url"}), "url is malformed"),
        (json!({"url": format!("{url}/\r\nHost: evil")}), "url is malformed"),
        (json!({"url": "http://other.example/"}), "not among the hosts"),
        (json!({"url": "ftp://127.0.0.1/"}), "must begin with http"),
        (json!({"url": "http://u:p@127.0.0.1/"}), "user name or password"),
        (json!({"url": url, "method": "CONNECT"}), "method must be"),
        (json!({"url": url, "method": "GET / HTTP/1.1\r\nX:"}), "method must be"),
        (json!({"url": url, "headers": {"Host": "evil"}}), "header host may not be set"),
        (json!({"url": url, "headers": {"X-Forwarded-Host": "evil"}}), "may not be set"),
        (json!({"url": url, "headers": {"connection": "upgrade"}}), "may not be set"),
        (json!({"url": url, "headers": {"content-length": "0"}}), "may not be set"),
        (json!({"url": url, "headers": {"x": "a\r\nb: c"}}), "header x is malformed"),
        (json!({"url": url, "headers": {"a\nb": "c"}}), "name is malformed"),
        (json!({"url": url, "headers": {"x": 1}}), "must be text"),
        (json!({"url": url, "body": "x".repeat((1 << 20) + 1)}), "larger than"),
    ];
    for (arguments, expected) in cases {
        let result = fetch(&gateway, &["127.0.0.1"], arguments.clone()).await;
        assert!(result.error && result.content.contains(expected), "{expected}: {}", result.content);
    }
    assert!(fetch(&gateway, &[], json!({"url": url})).await.error);
    assert_eq!(server.received_requests().await.unwrap().len(), 0);
}

#[tokio::test]
async fn requests_are_made_and_answers_cut() {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(header("x-a", "b"))
        .and(header("content-type", "application/json"))
        .and(body_json(json!({"k": [1]})))
        .respond_with(ResponseTemplate::new(201).set_body_string("made"))
        .mount(&server)
        .await;
    Mock::given(path("/long"))
        .respond_with(ResponseTemplate::new(200).set_body_string("é".repeat(100_000)))
        .mount(&server)
        .await;
    let bytes = ResponseTemplate::new(200).set_body_raw(vec![0, 159, 146], "image/png");
    Mock::given(path("/binary")).respond_with(bytes).mount(&server).await;
    let gateway = gateway(secrets());
    let url = server.uri();
    let post = json!({"url": url, "method": "post", "headers": {"x-a": "b"}, "body": {"k": [1]}});
    let result = fetch(&gateway, &["127.0.0.1"], post).await;
    assert!(!result.error && result.content.starts_with("HTTP 201 Created\n") && result.content.ends_with("\n\nmade"));
    let long = fetch(&gateway, &["127.0.0.1"], json!({"url": format!("{url}/long")})).await;
    assert!(long.content.len() < 70_000 && long.content.ends_with("(cut after 65536 bytes)"));
    let binary = fetch(&gateway, &["127.0.0.1"], json!({"url": format!("{url}/binary")})).await;
    assert!(
        binary.content.contains("content-type: image/png") && binary.content.ends_with("(3 bytes that are not text)")
    );
    let missing = fetch(&gateway, &["127.0.0.1"], json!({"url": format!("{url}/none")})).await;
    assert!(missing.error && missing.content.starts_with("HTTP 404"));
}

#[tokio::test]
async fn a_host_that_says_nothing_costs_no_more_than_the_time_limit() {
    let server = Server::start().await;
    let gateway = gateway(secrets());
    let arguments = Map::from_iter([("url".to_owned(), json!(server.url()))]);
    let hosts = ["127.0.0.1".to_owned()];
    let call = gateway.http_tool(&hosts, arguments, Duration::from_millis(2_500));
    let serve = async { closed_by_client(server.accept().await).await };
    let (result, ()) = tokio::join!(call, serve);
    assert!(result.error && result.content == "no complete answer within 2.5 s", "{}", result.content);
}

#[tokio::test]
async fn certificates_are_read_once_a_model_needs_them() {
    let gateway = gateway(secrets());
    let chat = |base| ModelConfig { retries: 0, ..model(Provider::OpenAICompatible, base) };
    let (plain, secure) = (chat("http://127.0.0.1:1"), chat("https://127.0.0.1:1"));
    assert!(!gateway.prepare([&plain]).await, "plain HTTP needs none");
    assert!(gateway.prepare([&plain, &secure]).await);
    assert!(gateway.prepare([]).await, "there is nothing left to get ready");
    let error = ask(&gateway, &secure, hello()).await.unwrap_err();
    assert_eq!(error.category, ModelErrorCategory::Network, "nobody listens there: {error}");
}

/// Proxy variables are ignored, and without any CA certificate plain HTTP still works. The environment belongs to a
/// process, so another test of this file runs again in one of its own.
#[test]
fn the_environment_changes_nothing() {
    let test = "egress::requests_are_made_and_answers_cut";
    let nowhere = "http://127.0.0.1:1";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test]).env("SSL_CERT_FILE", "/dev/null").env("SSL_CERT_DIR", "/dev/null");
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        child.env(name, nowhere).env(name.to_lowercase(), nowhere);
    }
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
