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
use support::{FakeApi, Operator, cluster, create, eventually, remove, report};

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
    let operator = Operator::start(namespace, &api).await;
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
    let operator = Operator::start(namespace, &api).await;
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
        let operator = Operator::start(namespace, &api).await;
        eventually("all kinds", async || settled(operator.metrics.text())).await;
        let (text, writes) = (operator.metrics.text(), operator.writes.clone());
        operator.stop().await;
        assert_eq!(*writes.lock().unwrap(), Vec::<String>::new());
        assert!(!text.contains("status_writes_total{"), "{text}");
    }
    assert_eq!(versions(&client, namespace).await, before);
    assert_eq!(api.submitted().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_closes_the_network_is_put_back_while_pods_run() {
    let namespace = "closes";
    let client = cluster(namespace).await;
    let api = FakeApi::start().await;
    let operator = Operator::start(namespace, &api).await;
    let allow = json!({"mode": "Allowlist", "allow": [{"cidr": "203.0.113.0/24"}]});
    for (name, network) in [("open", json!({"mode": "Internet"})), ("narrow", allow)] {
        let session = json!({"sessionId": name, "agentRef": {"name": "a"}, "template": {"network": network}});
        let _: Sandbox = create(&client, namespace, "Sandbox", name, session).await;
    }
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    for name in ["open", "narrow"] {
        eventually("the pod", async || sandboxes.get(name).await.unwrap().status.unwrap_or_default().pod_uid.is_some())
            .await;
    }
    let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), namespace);
    let names = ["cadre-agents", "cadre-agents-internet", "narrow"];
    let rules = async |name: &str| policies.get_opt(name).await.unwrap().and_then(|policy| policy.spec);
    for name in names {
        let as_made = rules(name).await;
        assert!(as_made.is_some(), "{name}");
        policies.delete(name, &DeleteParams::default()).await.unwrap();
        eventually(&format!("{name} after its deletion"), async || rules(name).await == as_made).await;
        let open = Patch::Merge(json!({"spec": {
            "podSelector": {"matchLabels": {"some": "other"}}, "policyTypes": ["Ingress", "Egress"],
            "egress": [{}], "ingress": [{}],
        }}));
        policies.patch(name, &PatchParams::default(), &open).await.unwrap();
        eventually(&format!("{name} after a change"), async || rules(name).await == as_made).await;
    }
    operator.stop().await;

    // A leader with other settings.
    let operator = Operator::start_with(namespace, &api, |settings| {
        settings.cluster_cidrs = vec!["198.51.100.0/24".parse().unwrap()];
        settings.worker_pod_port = 7781;
    })
    .await;
    for (name, part) in [("cadre-agents-internet", "198.51.100.0/24"), ("cadre-agents", "7781")] {
        eventually(part, async || serde_json::to_string(&rules(name).await).unwrap().contains(part)).await;
    }
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_made_by_hand_follows_its_template() {
    let namespace = "follows";
    let client = cluster(namespace).await;
    let api = FakeApi::start().await;
    let operator = Operator::start(namespace, &api).await;
    let allow = json!({"template": {"network": {"mode": "Allowlist", "allow": [{"cidr": "203.0.113.0/24"}]}}});
    let _: Sandbox = create(&client, namespace, "Sandbox", "scratch", allow).await;
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let uid = async || sandboxes.get("scratch").await.unwrap().status.unwrap_or_default().pod_uid;
    eventually("the pod", async || uid().await.is_some()).await;
    let first = uid().await;
    assert_eq!(pods.get("scratch-0").await.unwrap().labels()["cadre.dev/network"], "allowlist");
    let closed = json!({"spec": {"template": {"network": {"mode": "Gateway", "allow": null}}}});
    sandboxes.patch("scratch", &PatchParams::default(), &Patch::Merge(closed)).await.unwrap();
    // Nothing here carries out a graceful deletion: the pod is told to go, and never ready for what it was not made from.
    eventually("the end of the pod", async || {
        let pod = pods.get_opt("scratch-0").await.unwrap();
        if pod.as_ref().is_some_and(|pod| pod.uid() == first && pod.metadata.deletion_timestamp.is_some()) {
            remove(&pods, "scratch-0").await;
        }
        let sandbox = sandboxes.get("scratch").await.unwrap();
        let status = sandbox.status.unwrap_or_default();
        let seen = status.observed_generation == sandbox.metadata.generation;
        assert!(!(seen && status.pod_uid == first && is(&status.conditions, "Ready", "True", "PodRunning")));
        status.pod_uid.is_some() && status.pod_uid != first
    })
    .await;
    let next = pods.get("scratch-0").await.unwrap();
    assert_eq!(next.labels()["cadre.dev/network"], "gateway");
    // The policy of the mode before it is still there, and opens nothing for this pod.
    let policy = Api::<NetworkPolicy>::namespaced(client.clone(), namespace).get("scratch").await.unwrap();
    let selects = policy.spec.unwrap().pod_selector.unwrap().match_labels.unwrap();
    assert!(selects.iter().any(|(label, value)| next.labels().get(label) != Some(value)), "{selects:?}");
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_end_the_feed_does_not_tell_is_asked_for() {
    let namespace = "heals-runs";
    let client = cluster(namespace).await;
    let api = FakeApi::start().await;
    let operator = Operator::start(namespace, &api).await;
    let agents: Api<Agent> = Api::namespaced(client.clone(), namespace);
    let runs: Api<Run> = Api::namespaced(client.clone(), namespace);
    let _: Agent = create(&client, namespace, "Agent", "helper", json!({"modelRef": {"name": "echo"}})).await;
    let input = json!({"target": {"name": "helper"}, "input": {"type": "Text", "text": "hi"}});
    for name in ["ended", "lost"] {
        let _: Run = create(&client, namespace, "Run", name, input.clone()).await;
        eventually("the submission", async || {
            runs.get(name).await.unwrap().status.unwrap_or_default().run_id.is_some()
        })
        .await;
    }
    operator.stop().await;
    // Meanwhile one ends, and the record loses the other, which may have done its work.
    let submitted = api.submitted();
    let of = |name: &str| submitted.iter().find(|run| run.name == name).unwrap();
    api.archive(report(of("ended"), RunStatus::Completed));
    api.forget(&of("lost").uid);
    agents.delete("helper", &DeleteParams::default()).await.unwrap();
    let operator = Operator::start(namespace, &api).await;
    for (name, kind, reason) in [("ended", "Complete", "Completed"), ("lost", "Failed", "Failed")] {
        eventually(name, async || {
            let status = runs.get(name).await.unwrap().status.unwrap_or_default();
            is(&status.conditions, kind, "True", reason)
        })
        .await;
    }
    assert_eq!(api.submitted().len(), 2, "neither runs again");
    let lost = runs.get("lost").await.unwrap().status.unwrap();
    assert_eq!(lost.error.unwrap().kind, "forgotten");
    // The object of a run that has ended may go: nothing is left to be cancelled.
    runs.delete("ended", &DeleteParams::default()).await.unwrap();
    let third: Run = create(
        &client,
        namespace,
        "Run",
        "third",
        json!({"target": {"name": "x"}, "input": {"type": "Text", "text": "hi"}}),
    )
    .await;
    eventually("the third", async || {
        let status = runs.get("third").await.unwrap().status.unwrap_or_default();
        is(&status.conditions, "Ready", "Unknown", "AgentNotFound")
    })
    .await;
    runs.delete("third", &DeleteParams::default()).await.unwrap();
    eventually("the cancel", async || api.cancelled().contains(&third.uid().unwrap())).await;
    assert!(!api.cancelled().contains(&of("ended").uid));
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_pod_is_told_and_replaced_by_the_next_incarnation() {
    let namespace = "loses";
    let client = cluster(namespace).await;
    let api = FakeApi::start().await;
    let operator = Operator::start(namespace, &api).await;
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
    remove(&pods, "box-0").await;
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
async fn a_second_eviction_for_the_same_cause_is_told_as_the_last() {
    let namespace = "evicts";
    let client = cluster(namespace).await;
    let api = FakeApi::start().await;
    let operator = Operator::start(namespace, &api).await;
    let session = json!({"sessionId": "s", "agentRef": {"name": "helper"}});
    let _: Sandbox = create(&client, namespace, "Sandbox", "box", session).await;
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams::default();
    let full = "Usage of EmptyDir volume \"workspace\" exceeds the limit \"1Gi\". ";
    let evicted = json!({"status": {"phase": "Failed", "reason": "Evicted", "message": full}});
    for (incarnation, expected) in [(0, "PodEnded"), (1, "EvictedAgain")] {
        let raised = Patch::Merge(json!({"spec": {"incarnation": incarnation}}));
        sandboxes.patch("box", &params, &raised).await.unwrap();
        let pod = format!("box-{incarnation}");
        eventually(&pod, async || pods.get_opt(&pod).await.unwrap().is_some()).await;
        pods.patch_status(&pod, &params, &Patch::Merge(&evicted)).await.unwrap();
        eventually(expected, async || {
            let status = sandboxes.get("box").await.unwrap().status.unwrap_or_default();
            is(&status.conditions, "Ready", "False", expected)
        })
        .await;
    }
    remove(&pods, "box-1").await;
    eventually("the pod to be gone", async || pods.get_opt("box-1").await.unwrap().is_none()).await;
    let status = sandboxes.get("box").await.unwrap().status.unwrap();
    assert!(is(&status.conditions, "Stalled", "True", "EvictedAgain"), "{:?}", status.conditions);
    assert!(status.eviction.is_some_and(|eviction| eviction.again && eviction.cause.contains("\"1Gi\"")));
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_submitted_once_mirrored_and_cancelled_when_they_are_gone() {
    let namespace = "runs";
    let client = cluster(namespace).await;
    let api = FakeApi::start().await;
    let operator = Operator::start(namespace, &api).await;
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
