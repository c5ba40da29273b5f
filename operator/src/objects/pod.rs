//! The pod of a Sandbox.

use std::net::SocketAddr;

use cadre_crds::sandbox::{NetworkMode, Sandbox, ToolsContainer};
use cadre_protocol::ids::hex_sha256;
use k8s_openapi::api::core::v1::{
    LocalObjectReference, Pod, PodDNSConfig, PodSecurityContext, PodSpec, SeccompProfile, Toleration,
};
use kube::ResourceExt;

use super::volumes::{self, Shape};
use super::{containers, labels, network_policy, service_account};
use crate::config::Settings;

/// Seconds that the engine has for its last tool and checkpoint.
const GRACE_SECONDS: i64 = 90;
/// Seconds that a pod stays on a node that is lost.
const TOLERATION_SECONDS: i64 = 30;

/// What all pods have in common.
#[derive(Debug, Clone)]
pub struct PodSettings {
    /// The API server's worker port as `ws://address:port`.
    pub api: String,
    /// What the pod's network must refuse.
    pub probe: Option<SocketAddr>,
    /// Image with the engine.
    pub agent_image: String,
    /// Image for tools when the template names none.
    pub sandbox_image: String,
    /// Pull policy of these two.
    pub image_pull_policy: String,
}

impl PodSettings {
    /// From the operator's settings and the API server's address.
    #[must_use]
    pub fn new(settings: &Settings, api: String) -> Self {
        Self {
            api,
            probe: settings.probe(),
            agent_image: settings.agent_image.clone(),
            sandbox_image: settings.sandbox_image.clone(),
            image_pull_policy: settings.image_pull_policy.clone(),
        }
    }
}

/// Name of the pod of an incarnation. Sandbox names have at most 52 characters, so it fits into 63.
#[must_use]
pub fn name(sandbox: &str, incarnation: u32) -> String {
    format!("{sandbox}-{incarnation}")
}

/// Annotation of the pods of Sandboxes that were made by hand: digest of the template that they were made from.
pub const TEMPLATE: &str = "cadre.dev/template";

/// Whether a pod was made from another template than the present one. A pod that does not say counts as of the present one.
#[must_use]
pub fn is_of_another_template(sandbox: &Sandbox, pod: &Pod) -> bool {
    pod.annotations().get(TEMPLATE).is_some_and(|made_from| *made_from != digest(sandbox))
}

/// Of what shapes a pod and may change. Absent fields are left out, so that those of a later version change nothing.
fn digest(sandbox: &Sandbox) -> String {
    let shape = serde_json::to_vec(&(&sandbox.spec.template, sandbox.spec.tools_container));
    hex_sha256(&shape.unwrap_or_default())
}

/// Builds the pod of the present incarnation.
#[must_use]
pub fn build(sandbox: &Sandbox, settings: &PodSettings) -> Pod {
    let template = &sandbox.spec.template;
    let tools = sandbox.spec.tools_container == ToolsContainer::Enabled;
    let own_image = template.image.as_ref().is_some_and(|image| *image != settings.sandbox_image);
    let shape = Shape { tools, install: tools && own_image };
    let mut containers = vec![containers::engine(sandbox, settings, shape)];
    if tools {
        containers.push(containers::tools(sandbox, settings, shape));
    }
    Pod { metadata: metadata(sandbox), spec: Some(spec(sandbox, containers, shape)), status: None }
}

fn metadata(sandbox: &Sandbox) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
    let spec = &sandbox.spec;
    let mut metadata = labels::owned(sandbox, name(&sandbox.name_any(), spec.incarnation));
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(labels::INCARNATION.into(), spec.incarnation.to_string());
    labels.insert(labels::NETWORK.into(), network_policy::mode_label(spec.template.network.mode).into());
    if let Some(agent) = &spec.agent_ref {
        labels.insert(labels::AGENT.into(), agent.name.clone());
    }
    if let Some(template) = &spec.template.pod_template {
        for label in &template.labels {
            labels.entry(label.name.clone()).or_insert_with(|| label.value.clone());
        }
        let annotations = template.annotations.iter().map(|pair| (pair.name.clone(), pair.value.clone()));
        metadata.annotations = (!template.annotations.is_empty()).then(|| annotations.collect());
    }
    // The template of a session's Sandbox can't change.
    if spec.session_id.is_none() {
        metadata.annotations.get_or_insert_default().insert(TEMPLATE.into(), digest(sandbox));
    }
    metadata
}

fn spec(sandbox: &Sandbox, containers: Vec<k8s_openapi::api::core::v1::Container>, shape: Shape) -> PodSpec {
    let template = &sandbox.spec.template;
    let placement = template.pod_template.as_deref().cloned().unwrap_or_default();
    let selector: std::collections::BTreeMap<_, _> =
        placement.node_selector.into_iter().map(|pair| (pair.name, pair.value)).collect();
    let secrets: Vec<_> =
        placement.image_pull_secrets.into_iter().map(|secret| LocalObjectReference { name: secret.name }).collect();
    let (dns_policy, dns_config) = dns(template.network.mode);
    PodSpec {
        containers,
        volumes: Some(volumes::all(sandbox, shape)),
        service_account_name: Some(service_account::NAME.into()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        share_process_namespace: Some(false),
        restart_policy: Some("Always".into()),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            fs_group: Some(template.fs_group),
            fs_group_change_policy: Some("OnRootMismatch".into()),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
            ..PodSecurityContext::default()
        }),
        tolerations: Some(["not-ready", "unreachable"].map(toleration).into()),
        node_selector: (!selector.is_empty()).then_some(selector),
        image_pull_secrets: (!secrets.is_empty()).then_some(secrets),
        runtime_class_name: template.runtime_class_name.clone(),
        host_users: template.host_users,
        dns_policy: Some(dns_policy.into()),
        dns_config,
        ..PodSpec::default()
    }
}

/// Only mode Internet looks up names. For the others a name server that nobody is makes look-ups fail at once
/// instead of after a time-out.
fn dns(mode: NetworkMode) -> (&'static str, Option<PodDNSConfig>) {
    match mode {
        NetworkMode::Internet => ("ClusterFirst", None),
        NetworkMode::Gateway | NetworkMode::Allowlist => {
            ("None", Some(PodDNSConfig { nameservers: Some(vec!["127.0.0.1".into()]), ..PodDNSConfig::default() }))
        }
    }
}

fn toleration(taint: &str) -> Toleration {
    Toleration {
        key: Some(format!("node.kubernetes.io/{taint}")),
        operator: Some("Exists".into()),
        effect: Some("NoExecute".into()),
        toleration_seconds: Some(TOLERATION_SECONDS),
        value: None,
    }
}
