//! The controllers between a real kube-apiserver and a scripted API server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;

use cadre_crds::agent::Agent;
use cadre_crds::model::Model;
use cadre_crds::run::Run;
use cadre_crds::sandbox::Sandbox;
use cadre_protocol::feed::{CredentialReport, CredentialState, FeedItem};
use cadre_protocol::run::RunStatus;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use support::{FakeApi, Operator, cluster, create, eventually, report};

fn is(conditions: &[Condition], kind: &str, status: &str, reason: &str) -> bool {
    conditions.iter().any(|c| c.type_ == kind && c.status == status && c.reason == reason)
}

fn credential(namespace: &str, state: CredentialState) -> FeedItem {
    FeedItem::Credential(CredentialReport {
        namespace: namespace.into(),
        model: "gpt".into(),
        generation: 1,
        state,
        message: "label the Secret".into(),
    })
}

/// Versions of all objects that the operator writes.
async fn versions(client: &Client, namespace: &str) -> BTreeMap<String, String> {
    async fn add<K>(client: &Client, namespace: &str, versions: &mut BTreeMap<String, String>)
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        let list = Api::<K>::namespaced(client.clone(), namespace).list(&ListParams::default()).await.unwrap();
        for object in list {
            let key = format!("{}/{}", K::kind(&()), object.name_any());
            versions.insert(key, object.resource_version().unwrap());
        }
    }
    let mut versions = BTreeMap::new();
    add::<Model>(client, namespace, &mut versions).await;
    add::<Agent>(client, namespace, &mut versions).await;
    add::<Run>(client, namespace, &mut versions).await;
    add::<Sandbox>(client, namespace, &mut versions).await;
    add::<Pod>(client, namespace, &mut versions).await;
    add::<NetworkPolicy>(client, namespace, &mut versions).await;
    add::<ServiceAccount>(client, namespace, &mut versions).await;
    add::<PersistentVolumeClaim>(client, namespace, &mut versions).await;
    add::<Event>(client, namespace, &mut versions).await;
    versions
}

#[tokio::test(flavor = "multi_thread")]
async fn models_and_agents_heal_when_a_credential_comes() {
    let namespace = "heals";
    let client = cluster(namespace).await;
    let api = FakeApi::start().await;
    let operator = Operator::start(&client, namespace, &api);
    let _: Agent = create(&client, namespace, "Agent", "helper", json!({"modelRef": {"name": "gpt"}})).await;
    let (models, agents) =
        (Api::<Model>::namespaced(client.clone(), namespace), Api::<Agent>::namespaced(client.clone(), namespace));
    let model = async |status: &str, reason: &str| {
        eventually(reason, async || {
            let model = models.get("gpt").await.unwrap().status.unwrap_or_default();
            is(&model.conditions, "Ready", status, reason)
        })
        .await;
    };
    let agent = async |status: &str, reason: &str| {
        eventually(reason, async || {
            let agent = agents.get("helper").await.unwrap().status.unwrap_or_default();
            is(&agent.conditions, "Ready", status, reason)
        })
        .await;
    };
    agent("False", "ModelNotFound").await;
    let _: Model = create(&client, namespace, "Model", "gpt", json!({"provider": "OpenAI", "model": "m"})).await;
    model("Unknown", "CredentialUnknown").await;
    api.tell(credential(namespace, CredentialState::NotAllowed));
    model("False", "CredentialNotAllowed").await;
    agent("False", "ModelNotReady").await;
    api.tell(credential(namespace, CredentialState::Present));
    model("True", "Ready").await;
    agent("True", "Ready").await;
    let status = agents.get("helper").await.unwrap().status.unwrap();
    assert_eq!(status.observed_generation, Some(1));
    assert_eq!(status.revision.unwrap().len(), 64);
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_gets_its_closed_pod_and_resyncs_write_nothing() {
    let namespace = "settles";
    let client = cluster(namespace).await;
    let api = FakeApi::start().await;
    let operator = Operator::start(&client, namespace, &api);
    let _: Model = create(&client, namespace, "Model", "echo", json!({"provider": "Scripted", "model": "echo"})).await;
    let _: Agent = create(&client, namespace, "Agent", "helper", json!({"modelRef": {"name": "echo"}})).await;
    let input = json!({"target": {"name": "helper"}, "input": {"type": "Text", "text": "hi"}});
    let _: Run = create(&client, namespace, "Run", "first", input).await;
    let session = json!({
        "sessionId": "s", "agentRef": {"name": "helper"},
        "template": {
            "workspace": {"persistence": "Volume"},
            "network": {"mode": "Allowlist", "allow": [{"cidr": "203.0.113.0/24", "ports": [443]}]},
        },
    });
    let sandbox: Sandbox = create(&client, namespace, "Sandbox", "box", session).await;
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    eventually("the pod's UID", async || {
        sandboxes.get("box").await.unwrap().status.unwrap_or_default().pod_uid.is_some()
    })
    .await;
    let pod = pods.get("box-0").await.unwrap();
    let status = sandboxes.get("box").await.unwrap().status.unwrap();
    assert_eq!((status.pod_uid, status.pod_name.as_deref()), (pod.uid(), Some("box-0")));
    assert_eq!(pod.owner_references()[0].uid, sandbox.uid().unwrap());
    let policies = Api::<NetworkPolicy>::namespaced(client.clone(), namespace);
    for name in ["cadre-agents", "box"] {
        let policy = policies.get(name).await.unwrap();
        assert!(policy.creation_timestamp() <= pod.creation_timestamp(), "{name} came after the pod");
    }
    eventually("the submission", async || api.submitted().len() == 1).await;
    let settled = |metrics: String| {
        ["Model", "Agent", "Run", "Sandbox"]
            .iter()
            .all(|kind| metrics.contains(&format!("reconciles_total{{kind=\"{kind}\",result=\"ok\"}}")))
    };
    eventually("the agent to be ready", async || {
        let agents = Api::<Agent>::namespaced(client.clone(), namespace);
        is(&agents.get("helper").await.unwrap().status.unwrap_or_default().conditions, "Ready", "True", "Ready")
    })
    .await;
    eventually("the run's status", async || {
        let runs = Api::<Run>::namespaced(client.clone(), namespace);
        runs.get("first").await.unwrap().status.unwrap_or_default().run_id.is_some()
    })
    .await;
    operator.stop().await;

    let before = versions(&client, namespace).await;
    for _ in 0..10 {
        // A new leader reads everything anew and remembers nothing.
        let operator = Operator::start(&client, namespace, &api);
        eventually("all kinds", async || settled(operator.metrics.text())).await;
        let text = operator.metrics.text();
        operator.stop().await;
        assert!(!text.contains("status_writes_total{"), "{text}");
    }
    assert_eq!(versions(&client, namespace).await, before);
    assert_eq!(api.submitted().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_pod_is_told_and_replaced_by_the_next_incarnation() {
    let namespace = "loses";
    let client = cluster(namespace).await;
    let api = FakeApi::start().await;
    let operator = Operator::start(&client, namespace, &api);
    let template = json!({"network": {"mode": "Internet"}});
    let session = json!({"sessionId": "s", "agentRef": {"name": "helper"}, "template": template});
    let _: Sandbox = create(&client, namespace, "Sandbox", "box", session).await;
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let has_pod = async |name: &str| {
        eventually(name, async || {
            let status = sandboxes.get("box").await.unwrap().status.unwrap_or_default();
            status.pod_name.as_deref() == Some(name) && status.pod_uid.is_some()
        })
        .await;
    };
    has_pod("box-0").await;
    pods.delete("box-0", &DeleteParams::default().grace_period(0)).await.unwrap();
    eventually("PodEnded", async || {
        let status = sandboxes.get("box").await.unwrap().status.unwrap_or_default();
        is(&status.conditions, "Ready", "False", "PodEnded")
    })
    .await;
    assert!(pods.get_opt("box-0").await.unwrap().is_none(), "the same incarnation never has a second pod");
    let merge = |spec: serde_json::Value| Patch::Merge(json!({ "spec": spec }));
    let params = PatchParams::default();
    sandboxes.patch("box", &params, &merge(json!({"incarnation": 1}))).await.unwrap();
    has_pod("box-1").await;
    sandboxes.patch("box", &params, &merge(json!({"operatingMode": "Suspended"}))).await.unwrap();
    eventually("no pod", async || pods.get_opt("box-1").await.unwrap().is_none()).await;
    eventually("Suspended", async || {
        let status = sandboxes.get("box").await.unwrap().status.unwrap_or_default();
        is(&status.conditions, "Suspended", "True", "Suspended") && status.pod_uid.is_none()
    })
    .await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_submitted_once_mirrored_and_cancelled_when_they_are_gone() {
    let namespace = "runs";
    let client = cluster(namespace).await;
    let api = FakeApi::start().await;
    let operator = Operator::start(&client, namespace, &api);
    let runs: Api<Run> = Api::namespaced(client.clone(), namespace);
    let input = json!({"target": {"name": "helper"}, "input": {"type": "Text", "text": "hi"}});
    let first: Run = create(&client, namespace, "Run", "first", input.clone()).await;
    let has = async |name: &str, kind: &str, status: &str, reason: &str| {
        eventually(&format!("{name}: {kind}={status} {reason}"), async || {
            let run = runs.get(name).await.unwrap().status.unwrap_or_default();
            is(&run.conditions, kind, status, reason)
        })
        .await;
    };
    has("first", "Reconciling", "True", "AgentNotFound").await;
    let _: Agent = create(&client, namespace, "Agent", "helper", json!({"modelRef": {"name": "echo"}})).await;
    has("first", "Reconciling", "True", "Pending").await;
    let submitted = api.submitted();
    assert_eq!((submitted.len(), submitted[0].uid.as_str()), (1, first.uid().unwrap().as_str()));
    api.tell(FeedItem::Run(Box::new(report(&submitted[0], RunStatus::Completed))));
    has("first", "Complete", "True", "Completed").await;
    let status = runs.get("first").await.unwrap().status.unwrap();
    assert_eq!((status.output.as_deref(), status.run_id.as_deref()), (Some("42"), Some("run-of-first")));

    let second: Run = create(&client, namespace, "Run", "second", input.clone()).await;
    has("second", "Reconciling", "True", "Pending").await;
    runs.delete("second", &DeleteParams::default()).await.unwrap();
    eventually("the cancel", async || api.cancelled().contains(&second.uid().unwrap())).await;
    assert!(!api.cancelled().contains(&first.uid().unwrap()), "a run that has ended is not cancelled");

    api.refuse(Some(axum::http::StatusCode::UNPROCESSABLE_ENTITY));
    let _: Run = create(&client, namespace, "Run", "refused", input.clone()).await;
    has("refused", "Failed", "True", "Rejected").await;
    has("refused", "Stalled", "True", "Rejected").await;

    api.refuse(None);
    let mut short_lived = input;
    short_lived["ttlSecondsAfterFinished"] = json!(0);
    let _: Run = create(&client, namespace, "Run", "brief", short_lived).await;
    has("brief", "Reconciling", "True", "Pending").await;
    let brief = api.submitted().into_iter().find(|run| run.name == "brief").unwrap();
    api.tell(FeedItem::Run(Box::new(report(&brief, RunStatus::Cancelled))));
    eventually("the end of its time", async || runs.get_opt("brief").await.unwrap().is_none()).await;
    assert_eq!(api.submitted().len(), 3);
    operator.stop().await;
}
