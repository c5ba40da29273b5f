//! Built objects, as the whole YAML that Kubernetes gets. `CADRE_BLESS=1` writes what is built; the diff is then reviewed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use cadre_crds::sandbox::Sandbox;
use cadre_operator::config::Settings;
use cadre_operator::objects::pod::PodSettings;
use cadre_operator::objects::{network_policy, pod, service_account, volume_claim};
use clap::Parser;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    settings: Settings,
}

fn settings() -> Settings {
    let flags = [
        "operator",
        "--worker-url=http://10.96.0.7:7780",
        "--agent-image=localhost/cadre-agent:dev",
        "--sandbox-image=localhost/cadre-sandbox:dev",
        "--kubernetes-host=10.96.0.1",
        "--cluster-cidrs=10.244.0.0/16,198.51.100.0/24",
    ];
    Flags::try_parse_from(flags).unwrap().settings
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn sandbox(name: &str) -> Sandbox {
    serde_yaml::from_str(&std::fs::read_to_string(fixture(name)).unwrap()).unwrap()
}

fn build(name: &str) -> Pod {
    pod::build(&sandbox(name), &PodSettings::new(&settings(), "ws://10.96.0.7:7780".into()))
}

#[track_caller]
fn assert_built(object: &impl Serialize, expected: &str) {
    let path = fixture(expected);
    let built = serde_yaml::to_string(object).unwrap();
    if std::env::var_os("CADRE_BLESS").is_some() {
        std::fs::write(&path, &built).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(built == expected, "{} differs from what is built:\n{built}", path.display());
}

#[test]
fn a_plain_sandbox_has_an_engine_and_a_container_for_tools() {
    assert_built(&build("plain.sandbox.yaml"), "plain.pod.yaml");
}

#[test]
fn an_own_image_a_volume_and_the_internet() {
    assert_built(&build("own-image.sandbox.yaml"), "own-image.pod.yaml");
    assert_built(&volume_claim::build(&sandbox("own-image.sandbox.yaml")), "own-image.claim.yaml");
}

#[test]
fn an_agent_without_tools_has_an_engine_alone() {
    assert_built(&build("no-tools.sandbox.yaml"), "no-tools.pod.yaml");
}

#[test]
fn policies_and_the_account_of_a_namespace() {
    assert_built(&network_policy::deny("team", &settings()), "deny.policy.yaml");
    assert_built(&network_policy::internet("team", &settings()), "internet.policy.yaml");
    assert_built(&network_policy::allowlist(&sandbox("no-tools.sandbox.yaml")), "allowlist.policy.yaml");
    assert_built(&service_account::build("team"), "account.yaml");
}

#[test]
fn the_engine_never_sees_the_workspace_and_tools_never_see_the_token() {
    for name in ["plain.sandbox.yaml", "own-image.sandbox.yaml", "no-tools.sandbox.yaml"] {
        let spec = build(name).spec.unwrap();
        assert!(spec.init_containers.is_none());
        assert_eq!(spec.containers[0].name, "engine");
        for container in &spec.containers {
            let mounts: Vec<_> = container.volume_mounts.iter().flatten().map(|mount| mount.name.as_str()).collect();
            let forbidden = if container.name == "engine" { "workspace" } else { "token" };
            assert!(!mounts.contains(&forbidden), "{name}: {} sees {forbidden}", container.name);
            let context = container.security_context.as_ref().unwrap();
            assert_eq!(context.allow_privilege_escalation, Some(false));
            assert_eq!(context.capabilities.as_ref().unwrap().drop.as_deref(), Some(&["ALL".to_owned()][..]));
            assert!(container.env.iter().flatten().all(|variable| variable.value_from.is_none()));
        }
        let users: Vec<_> = spec.containers.iter().map(|c| c.security_context.as_ref().unwrap().run_as_user).collect();
        assert!(users.len() < 2 || users[0] != users[1], "{name}: engine and tools share a user");
    }
}
