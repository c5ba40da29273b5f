//! A kube-apiserver with the CRDs, a scripted API server, and the controllers between them, with the rights that the chart
//! gives them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use cadre_e2e::ControlPlane;
use cadre_operator::config::Settings;
use cadre_operator::metrics::Metrics;
use cadre_operator::run::controllers;
use cadre_protocol::feed::{FeedItem, RunReport, SubmitRun};
use cadre_protocol::run::RunStatus;
use clap::Parser;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::{Client, Config, ResourceExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "the-operator";

/// The account whose rights the operator has.
const ACCOUNT: &str = "system:serviceaccount:cadre-system:cadre-operator";

async fn config() -> Config {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let path =
        tokio::task::spawn_blocking(|| ControlPlane::shared().map(ControlPlane::kubeconfig)).await.unwrap().unwrap();
    let config = Kubeconfig::read_from(path).unwrap();
    Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap()
}

/// Requests that write, as method and path. Those that change nothing leave no other trace.
type Writes = Arc<Mutex<Vec<String>>>;

/// A client with the operator's rights and no more, which notes what is written.
async fn of_operator(writes: &Writes) -> Client {
    let noted = writes.clone();
    let note = tower::util::MapRequestLayer::new(move |request: axum::http::Request<kube::client::Body>| {
        if request.method() != axum::http::Method::GET {
            noted.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
        }
        request
    });
    let mut config = config().await;
    config.auth_info.impersonate = Some(ACCOUNT.to_owned());
    kube::client::ClientBuilder::try_from(config).unwrap().with_layer(&note).build()
}

/// Gives the operator's account what the chart gives it in a namespace.
async fn grant(client: &Client, namespace: &str) {
    let chart = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../charts/cadre");
    let values = format!("namespaces={{{namespace}}}");
    let mut helm = std::process::Command::new(cadre_e2e::binaries::program("helm").unwrap());
    helm.args(["template", "cadre", "--namespace", "cadre-system", "--show-only", "templates/rbac.yaml"]);
    let output = helm.args(["--set", &values]).arg(chart).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for document in serde_yaml::Deserializer::from_slice(&output.stdout) {
        let object = DynamicObject::deserialize(document).unwrap();
        let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap());
        let api: Api<DynamicObject> = match object.namespace() {
            // What is of the whole cluster or of the operator's own namespace is about nodes, tokens and its lease.
            Some(of) if of != namespace => continue,
            Some(of) => Api::namespaced_with(client.clone(), &of, &kind),
            None => Api::all_with(client.clone(), &kind),
        };
        let params = PatchParams::apply("test").force();
        api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await.unwrap();
    }
}

/// A client of the shared control plane, with the CRDs and a namespace of its own.
pub async fn cluster(namespace: &str) -> Client {
    let client = Client::try_from(config().await).unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for manifest in cadre_crds::manifest::all().unwrap() {
        let name = format!("{}.cadre.dev", manifest.plural);
        crds.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(manifest.object)).await.unwrap();
        eventually(&name, async || {
            let status = crds.get(&name).await.unwrap().status.unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            conditions.iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
        })
        .await;
    }
    let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
    grant(&client, namespace).await;
    client
}

/// Looks until true.
pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let looking = async {
        let mut pause = tokio::time::interval(Duration::from_millis(50));
        while !check().await {
            pause.tick().await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(300), looking).await.is_ok(), "waited for {what}");
}

/// Removes a pod at once, as a node would. One that has gone by itself meanwhile is as good.
pub async fn remove(pods: &Api<Pod>, name: &str) {
    let removed = pods.delete(name, &DeleteParams::default().grace_period(0)).await.map(drop);
    let has_gone = matches!(&removed, Err(kube::Error::Api(refused)) if refused.code == 404);
    assert!(removed.is_ok() || has_gone, "{name}: {removed:?}");
}

/// Creates an object of ours from its JSON.
pub async fn create<K>(client: &Client, namespace: &str, kind: &str, name: &str, spec: Value) -> K
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + serde::de::DeserializeOwned
        + serde::Serialize
        + Clone
        + std::fmt::Debug,
{
    let object = json!({"apiVersion": "cadre.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let object: K = serde_json::from_value(object).unwrap();
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &object).await.unwrap()
}

/// The API server's worker port, as far as the operator sees it.
#[derive(Clone)]
pub struct FakeApi {
    pub url: String,
    inner: Arc<Inner>,
}

struct Inner {
    known: Mutex<Vec<FeedItem>>,
    changes: broadcast::Sender<FeedItem>,
    submitted: Mutex<Vec<SubmitRun>>,
    cancelled: Mutex<Vec<String>>,
    refusal: Mutex<Option<StatusCode>>,
    /// Runs that the feed does not speak of any more.
    archive: Mutex<Vec<RunReport>>,
}

impl FakeApi {
    pub async fn start() -> Self {
        let inner = Arc::new(Inner {
            known: Mutex::default(),
            changes: broadcast::channel(64).0,
            submitted: Mutex::default(),
            cancelled: Mutex::default(),
            refusal: Mutex::default(),
            archive: Mutex::default(),
        });
        let router = Router::new()
            .route("/operator/v1/feed", get(feed))
            .route("/operator/v1/runs", post(submit))
            .route("/operator/v1/runs/{namespace}/{uid}", get(look))
            .route("/operator/v1/runs/{namespace}/{uid}/cancel", post(cancel))
            .with_state(inner.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, inner }
    }

    pub fn tell(&self, item: FeedItem) {
        self.inner.known.lock().unwrap().push(item.clone());
        let _ = self.inner.changes.send(item);
    }

    /// A run ended so long ago that the feed does not speak of it.
    pub fn archive(&self, report: RunReport) {
        self.forget(&report.uid);
        self.inner.archive.lock().unwrap().push(report);
    }

    /// A run is known no more.
    pub fn forget(&self, uid: &str) {
        let is_other = |item: &FeedItem| !matches!(item, FeedItem::Run(run) if run.uid == uid);
        self.inner.known.lock().unwrap().retain(is_other);
    }

    pub fn submitted(&self) -> Vec<SubmitRun> {
        self.inner.submitted.lock().unwrap().clone()
    }

    pub fn cancelled(&self) -> Vec<String> {
        self.inner.cancelled.lock().unwrap().clone()
    }

    pub fn refuse(&self, status: Option<StatusCode>) {
        *self.inner.refusal.lock().unwrap() = status;
    }
}

pub fn report(run: &SubmitRun, status: RunStatus) -> RunReport {
    RunReport {
        uid: run.uid.clone(),
        namespace: run.namespace.clone(),
        name: run.name.clone(),
        run_id: format!("run-of-{}", run.name),
        session_id: "session".into(),
        status,
        attempts: 1,
        started_at_ms: None,
        finished_at_ms: status.is_terminal().then_some(1_700_000_000_000),
        metrics: None,
        output: status.is_terminal().then(|| "42".to_owned()),
        output_truncated: false,
        error: None,
        waiting_on: None,
        waiting_for: None,
        pending_approvals: Vec::new(),
    }
}

fn allowed(headers: &HeaderMap) -> Result<(), StatusCode> {
    let bearer = headers.get("authorization").and_then(|value| value.to_str().ok());
    if bearer == Some(&format!("Bearer {TOKEN}")) { Ok(()) } else { Err(StatusCode::UNAUTHORIZED) }
}

async fn feed(State(inner): State<Arc<Inner>>, headers: HeaderMap) -> Result<Body, StatusCode> {
    allowed(&headers)?;
    let changes = BroadcastStream::new(inner.changes.subscribe()).filter_map(Result::ok);
    let mut known = inner.known.lock().unwrap().clone();
    known.push(FeedItem::Synced {});
    let lines = tokio_stream::iter(known).chain(changes).map(|item| {
        let line = serde_json::to_string(&item).unwrap() + "\n";
        Ok::<_, std::io::Error>(Bytes::from(line))
    });
    Ok(Body::from_stream(lines))
}

async fn submit(
    State(inner): State<Arc<Inner>>,
    headers: HeaderMap,
    Json(run): Json<SubmitRun>,
) -> Result<Json<RunReport>, (StatusCode, Json<Value>)> {
    allowed(&headers).map_err(|status| (status, Json(json!({}))))?;
    if let Some(status) = *inner.refusal.lock().unwrap() {
        return Err((status, Json(json!({"detail": "not like this"}))));
    }
    let answer = report(&run, RunStatus::Pending);
    inner.submitted.lock().unwrap().push(run);
    inner.known.lock().unwrap().push(FeedItem::Run(Box::new(answer.clone())));
    Ok(Json(answer))
}

async fn look(
    State(inner): State<Arc<Inner>>,
    Path((_, uid)): Path<(String, String)>,
) -> Result<Json<RunReport>, StatusCode> {
    let archive = inner.archive.lock().unwrap();
    archive.iter().find(|run| run.uid == uid).cloned().map(Json).ok_or(StatusCode::NOT_FOUND)
}

async fn cancel(State(inner): State<Arc<Inner>>, Path((_, uid)): Path<(String, String)>) -> StatusCode {
    inner.cancelled.lock().unwrap().push(uid);
    StatusCode::NOT_FOUND
}

/// Running controllers.
pub struct Operator {
    pub metrics: Arc<Metrics>,
    pub writes: Writes,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _token: tempfile::NamedTempFile,
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    settings: Settings,
}

impl Operator {
    pub async fn start(namespace: &str, api: &FakeApi) -> Self {
        Self::start_with(namespace, api, |_| {}).await
    }

    pub async fn start_with(namespace: &str, api: &FakeApi, change: impl FnOnce(&mut Settings)) -> Self {
        let token = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(token.path(), format!("{TOKEN}\n")).unwrap();
        let mut settings = settings(&api.url, namespace, token.path().into());
        change(&mut settings);
        let (metrics, stop, writes) = (Arc::new(Metrics::new()), CancellationToken::new(), Writes::default());
        let client = of_operator(&writes).await;
        let tasks = controllers(client, settings, metrics.clone(), &stop).unwrap();
        Self { metrics, writes, stop, tasks, _token: token }
    }

    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

pub fn settings(url: &str, namespace: &str, token: PathBuf) -> Settings {
    let flags = [
        "operator",
        "--worker-url",
        url,
        "--namespaces",
        namespace,
        "--agent-image",
        "localhost/cadre-agent:dev",
        "--sandbox-image",
        "localhost/cadre-sandbox:dev",
        "--kubernetes-host",
        "10.96.0.1",
        "--cluster-cidrs",
        "10.96.0.0/12,10.244.0.0/16",
    ];
    let mut settings = Flags::try_parse_from(flags).unwrap().settings;
    settings.token_file = token;
    settings
}
