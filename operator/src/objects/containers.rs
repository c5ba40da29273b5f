//! The two containers of an agent pod: the trusted engine, and the untrusted one in which tools run.

use std::collections::BTreeMap;

use cadre_crds::sandbox::{
    ImagePullPolicy, NetworkEnforcement, Persistence, ResourceAmounts, RootFilesystem, Sandbox, SandboxTemplateSpec,
};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, EnvVar, ExecAction, Lifecycle, LifecycleHandler, Probe, ResourceRequirements,
    SecurityContext,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use super::pod::PodSettings;
use super::quantity::{bytes, thousandths};
use super::volumes::{self, Shape};

/// User of the engine; tools run as another one.
pub const ENGINE_USER: i64 = 65532;
/// The program in Cadre's images.
const PROGRAM: &str = "/usr/local/bin/cadre-agent";
/// The program in a user's image.
const INSTALLED: &str = "/opt/cadre/cadre-agent";
/// Room for logs and for the writable layer.
const LAYER: u128 = 256 << 20;

/// The engine's container.
#[must_use]
pub fn engine(sandbox: &Sandbox, settings: &PodSettings, shape: Shape) -> Container {
    Container {
        name: "engine".into(),
        image: Some(settings.agent_image.clone()),
        image_pull_policy: Some(settings.image_pull_policy.clone()),
        command: Some(vec![PROGRAM.into(), "engine".into()]),
        args: Some(engine_args(sandbox, settings, shape)),
        lifecycle: shape.install.then(install),
        liveness_probe: Some(liveness()),
        resources: Some(requirements(
            [("cpu", "10m"), ("memory", "32Mi"), ("ephemeral-storage", "16Mi")],
            [("cpu", "1"), ("memory", "256Mi"), ("ephemeral-storage", "512Mi")],
        )),
        security_context: Some(restricted(ENGINE_USER, ENGINE_USER, true)),
        volume_mounts: Some(volumes::of_engine(shape)),
        ..Container::default()
    }
}

fn engine_args(sandbox: &Sandbox, settings: &PodSettings, shape: Shape) -> Vec<String> {
    let enforcement = match sandbox.spec.template.network.enforcement {
        NetworkEnforcement::Required => "Required",
        NetworkEnforcement::BestEffort => "BestEffort",
    };
    let mut args = vec![
        format!("--api={}", settings.api),
        format!("--token-file={}", volumes::TOKEN_FILE),
        format!("--sandbox-namespace={}", sandbox.namespace().unwrap_or_default()),
        format!("--sandbox-name={}", sandbox.name_any()),
        format!("--enforcement={enforcement}"),
    ];
    args.extend(settings.probe.map(|probe| format!("--probe={probe}")));
    if shape.tools {
        args.push(format!("--socket={}", volumes::SOCKET));
    }
    args
}

/// Puts the program where a user's image finds it. Kubelet runs it before it starts the next container.
fn install() -> Lifecycle {
    let command = vec![PROGRAM.into(), "install".into(), INSTALLED.into()];
    let hook = LifecycleHandler { exec: Some(ExecAction { command: Some(command) }), ..LifecycleHandler::default() };
    Lifecycle { post_start: Some(hook), ..Lifecycle::default() }
}

/// By exec, because the engine listens on no TCP port.
fn liveness() -> Probe {
    Probe {
        exec: Some(ExecAction { command: Some(vec![PROGRAM.into(), "check".into()]) }),
        initial_delay_seconds: Some(30),
        period_seconds: Some(30),
        timeout_seconds: Some(10),
        failure_threshold: Some(3),
        ..Probe::default()
    }
}

/// The container in which tools run.
#[must_use]
pub fn tools(sandbox: &Sandbox, settings: &PodSettings, shape: Shape) -> Container {
    let template = &sandbox.spec.template;
    let program = if shape.install { INSTALLED } else { PROGRAM };
    let read_only = template.root_filesystem == RootFilesystem::ReadOnly;
    let args = [("socket", volumes::SOCKET), ("workspace", volumes::WORKSPACE), ("home", volumes::HOME)];
    let more = bounded(template).chain(passed(template));
    Container {
        name: "sandbox".into(),
        image: Some(template.image.clone().unwrap_or_else(|| settings.sandbox_image.clone())),
        image_pull_policy: pull_policy(template, settings),
        command: Some(vec![program.into(), "exec-server".into()]),
        args: Some(args.map(|(name, value)| format!("--{name}={value}")).into_iter().chain(more).collect()),
        env: Some(environment(template)),
        working_dir: Some(volumes::WORKSPACE.into()),
        resources: Some(tools_resources(template)),
        security_context: Some(restricted(template.run_as_user, template.fs_group, read_only)),
        volume_mounts: Some(volumes::of_tools(shape)),
        ..Container::default()
    }
}

fn pull_policy(template: &SandboxTemplateSpec, settings: &PodSettings) -> Option<String> {
    match (template.image_pull_policy, &template.image) {
        (Some(ImagePullPolicy::Always), _) => Some("Always".into()),
        (Some(ImagePullPolicy::IfNotPresent), _) => Some("IfNotPresent".into()),
        (Some(ImagePullPolicy::Never), _) => Some("Never".into()),
        (None, None) => Some(settings.image_pull_policy.clone()),
        // Kubernetes' own rule: Always for the tag latest.
        (None, Some(_)) => None,
    }
}

fn environment(template: &SandboxTemplateSpec) -> Vec<EnvVar> {
    let home = EnvVar { name: "HOME".into(), value: Some(volumes::HOME.into()), value_from: None };
    let own = template.env.iter().filter(|variable| variable.name != "HOME");
    let own = own.map(|variable| EnvVar {
        name: variable.name.clone(),
        value: Some(literal(&variable.value)),
        value_from: None,
    });
    std::iter::once(home).chain(own).collect()
}

/// Folders whose limits kubelet enforces by evicting the pod: a volume has its own end.
fn bounded(template: &SandboxTemplateSpec) -> impl Iterator<Item = String> {
    let workspace = match template.workspace.persistence {
        Persistence::Ephemeral => Some((volumes::WORKSPACE, template.workspace.size.as_str())),
        Persistence::Volume => None,
    };
    let scratch = [(volumes::HOME, volumes::SCRATCH), ("/tmp", volumes::SCRATCH)];
    let folders = workspace.into_iter().chain(scratch);
    // No size is no limit to kubelet.
    let limit = |text: &str| bytes(text).and_then(|limit| u64::try_from(limit).ok()).filter(|limit| *limit > 0);
    folders.filter_map(move |(path, size)| Some(format!("--bounded={path}={}", limit(size)?)))
}

/// Commands see the template's variables and no other one of the container's.
fn passed(template: &SandboxTemplateSpec) -> impl Iterator<Item = String> {
    template.env.iter().map(|variable| format!("--env={}", variable.name))
}

/// Keeps kubelet from expanding `$(NAME)`.
fn literal(value: &str) -> String {
    value.replace("$(", "$$(")
}

/// The Pod Security Standard "restricted", for one container.
fn restricted(user: i64, group: i64, read_only: bool) -> SecurityContext {
    SecurityContext {
        run_as_user: Some(user),
        run_as_group: Some(group),
        run_as_non_root: Some(true),
        read_only_root_filesystem: Some(read_only),
        allow_privilege_escalation: Some(false),
        privileged: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
        ..SecurityContext::default()
    }
}

fn tools_resources(template: &SandboxTemplateSpec) -> ResourceRequirements {
    let given = template.resources.as_deref().cloned().unwrap_or_default();
    let storage = storage_limit(template);
    let pick =
        |amounts: &ResourceAmounts| [amounts.cpu.clone(), amounts.memory.clone(), amounts.ephemeral_storage.clone()];
    let names = ["cpu", "memory", "ephemeral-storage"];
    let defaults = [("50m", "2".to_owned()), ("64Mi", "1Gi".to_owned()), ("64Mi", storage)];
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    let rows = names.into_iter().zip(defaults).zip(pick(&given.requests).into_iter().zip(pick(&given.limits)));
    for ((name, (request, limit)), given) in rows {
        let (request, limit) = both(given, request, limit);
        requests.insert(name.to_owned(), Quantity(request));
        limits.insert(name.to_owned(), Quantity(limit));
    }
    ResourceRequirements { requests: Some(requests), limits: Some(limits), claims: None }
}

/// Request and limit: what is given, else the default, moved so that the request never exceeds the limit.
fn both(given: (Option<String>, Option<String>), request: &str, limit: String) -> (String, String) {
    match given {
        (Some(request), Some(limit)) => (request, limit),
        (Some(request), None) => (request.clone(), larger(request, limit)),
        (None, Some(limit)) => (smaller(request.to_owned(), limit.clone()), limit),
        (None, None) => (request.to_owned(), limit),
    }
}

fn larger(a: String, b: String) -> String {
    if thousandths(&a) > thousandths(&b) { a } else { b }
}

fn smaller(a: String, b: String) -> String {
    if thousandths(&a) < thousandths(&b) { a } else { b }
}

/// Workspace, HOME, /tmp and logs: kubelet evicts the pod above the sum of its containers' limits.
fn storage_limit(template: &SandboxTemplateSpec) -> String {
    let workspace = match template.workspace.persistence {
        Persistence::Ephemeral => bytes(&template.workspace.size).unwrap_or(0),
        Persistence::Volume => 0,
    };
    let scratch = bytes(volumes::SCRATCH).unwrap_or(0);
    let sum = workspace + 2 * scratch + LAYER;
    format!("{}Mi", sum.div_ceil(1 << 20))
}

fn requirements<const N: usize>(requests: [(&str, &str); N], limits: [(&str, &str); N]) -> ResourceRequirements {
    let map =
        |amounts: [(&str, &str); N]| amounts.map(|(name, value)| (name.to_owned(), Quantity(value.into()))).into();
    ResourceRequirements { requests: Some(map(requests)), limits: Some(map(limits)), claims: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_never_exceeds_its_limit() {
        let text = |text: &str| Some(text.to_owned());
        for (given, expected) in [
            ((None, None), ("50m", "2")),
            ((text("4"), None), ("4", "4")),
            ((text("1"), None), ("1", "2")),
            ((None, text("10m")), ("10m", "10m")),
            ((None, text("3")), ("50m", "3")),
            ((text("1"), text("3")), ("1", "3")),
        ] {
            let (request, limit) = both(given.clone(), "50m", "2".into());
            assert_eq!((request.as_str(), limit.as_str()), expected, "{given:?}");
        }
    }

    #[test]
    fn values_of_variables_stay_as_they_are() {
        assert_eq!(literal("a$(B)$C"), "a$$(B)$C");
    }
}
