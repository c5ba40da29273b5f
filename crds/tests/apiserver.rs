//! The CRDs on a real kube-apiserver: what it accepts, what it refuses and in which words, and how it applies changes.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use anyhow::{Result, bail, ensure};
use cadre_e2e::ControlPlane;

mod refused;

/// The control plane with the CRDs, established.
fn plane() -> Result<&'static ControlPlane> {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    let plane = ControlPlane::shared()?;
    let ready = READY.get_or_init(|| install(plane).map_err(|error| format!("{error:#}")));
    ready.clone().map_err(anyhow::Error::msg)?;
    Ok(plane)
}

fn install(plane: &ControlPlane) -> Result<()> {
    let crds = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../charts/cadre-crds/templates");
    succeed(plane.kubectl()?.arg("apply").arg("-f").arg(crds))?;
    let wait = ["wait", "--for=condition=Established", "--timeout=300s", "crd"];
    let names = ["agents.cadre.dev", "models.cadre.dev", "runs.cadre.dev", "sandboxes.cadre.dev"];
    succeed(plane.kubectl()?.args(wait).args(names))?;
    Ok(())
}

fn succeed(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs kubectl with a manifest on standard input.
fn feed(arguments: &[&str], manifest: &str) -> Result<Output> {
    let mut child = plane()?
        .kubectl()?
        .args(arguments)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(manifest.as_bytes())?;
    }
    Ok(child.wait_with_output()?)
}

fn apply(manifest: &str) -> Result<()> {
    let output = feed(&["apply"], manifest)?;
    ensure!(output.status.success(), "{}\n{manifest}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn manifest(kind: &str, name: &str, spec: &str) -> String {
    let spec: String = spec.lines().map(|line| format!("  {line}\n")).collect();
    format!("apiVersion: cadre.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: \"{name}\"}}\nspec:\n{spec}")
}

#[test]
fn every_example_is_accepted() -> Result<()> {
    let examples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut files = 0;
    for story in std::fs::read_dir(examples)? {
        for file in std::fs::read_dir(story?.path())? {
            let path = file?.path();
            if path.extension().is_some_and(|extension| extension == "yaml") {
                succeed(plane()?.kubectl()?.args(["create", "--dry-run=server", "-f"]).arg(&path))?;
                files += 1;
            }
        }
    }
    ensure!(files > 0, "no example was found");
    Ok(())
}

#[test]
fn wrong_objects_are_refused_with_words_that_help() -> Result<()> {
    for case in refused::cases() {
        let output = feed(&["create", "--dry-run=server"], &manifest(case.kind, case.name, &case.spec))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            bail!("{}: was accepted", case.why);
        }
        ensure!(said.contains(case.message), "{}: expected {:?} in:\n{said}", case.why, case.message);
    }
    Ok(())
}

#[test]
fn unions_switch_there_and_back() -> Result<()> {
    let shell = "modelRef: {name: m}\ntools:\n- {type: Builtin, builtin: {name: Shell}}";
    let http = "modelRef: {name: m}\ntools:\n- {type: Builtin, builtin: {name: Http, http: {hosts: [example.com]}}}";
    let closed = "template: {network: {mode: Gateway}}";
    let open = "template: {network: {mode: Allowlist, allow: [{cidr: 203.0.113.0/24, ports: [443]}]}}";
    let scripted = "provider: Scripted\nmodel: demo\nscript: '- text: hi'";
    let real = "provider: OpenAI\nmodel: gpt\nauth: {secretRef: {name: s, key: k}}";
    for (kind, name, one, other) in
        [("Agent", "union", shell, http), ("Sandbox", "union", closed, open), ("Model", "union", scripted, real)]
    {
        for arguments in [&["apply"][..], &["apply", "--server-side", "--force-conflicts"][..]] {
            for spec in [one, other, one] {
                let output = feed(arguments, &manifest(kind, name, spec))?;
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                ensure!(output.status.success(), "{kind} by {arguments:?} to {spec}: {said}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_run_changes_only_where_it_may() -> Result<()> {
    let spec = "target: {name: a}\ninput: {type: Text, text: hello}\nmetadata: {ticket: 7}";
    apply(&manifest("Run", "fixed", spec))?;
    for (change, message) in [
        (r#"{"spec":{"input":{"text":"bye"}}}"#, "target and input can't change"),
        (r#"{"spec":{"metadata":{"ticket":8}}}"#, "metadata can't change"),
        (r#"{"spec":{"metadata":null}}"#, "metadata can't change"),
        (r#"{"spec":{"timeoutSeconds":5}}"#, "timeoutSeconds can't change"),
        (r#"{"spec":{"session":{"id":"s"}}}"#, "session can't change"),
    ] {
        let output = plane()?.kubectl()?.args(["patch", "run", "fixed", "--type=merge", "-p", change]).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && said.contains(message), "{change}: {said}");
    }
    let patch = |change: &str| -> Result<Output> {
        Ok(plane()?.kubectl()?.args(["patch", "run", "fixed", "--type=merge", "-p", change]).output()?)
    };
    ensure!(patch(r#"{"spec":{"cancel":true,"ttlSecondsAfterFinished":60}}"#)?.status.success(), "cancel was refused");
    let back = patch(r#"{"spec":{"cancel":false}}"#)?;
    ensure!(!back.status.success(), "a cancel was taken back");
    Ok(())
}

#[test]
fn a_new_object_waits_and_a_tightened_rule_does_not_stop_its_status() -> Result<()> {
    apply(&manifest("Agent", "ratchet", "modelRef: {name: m}\ninstructions: long enough"))?;
    let seen =
        succeed(plane()?.kubectl()?.args(["get", "agent", "ratchet", "-o", "jsonpath={.status.observedGeneration}"]))?;
    ensure!(seen == "-1", "observedGeneration of a new object: {seen:?}");

    // The same CRD under another group, so that tests in parallel keep their rules.
    let tightened = tightened_crd()?;
    apply(&tightened.replace("RULE", "1 == 1"))?;
    let wait = ["wait", "--for=condition=Established", "--timeout=300s", "crd/agents.ratchet.cadre.dev"];
    succeed(plane()?.kubectl()?.args(wait))?;
    let old =
        "apiVersion: ratchet.cadre.dev/v1alpha1\nkind: Agent\nmetadata: {name: old}\nspec: {modelRef: {name: m}}\n";
    cadre_e2e::wait::until("the group to be served", std::time::Duration::from_secs(300), "", || {
        Ok(feed(&["apply"], old)?.status.success())
    })?;
    apply(&tightened.replace("RULE", "has(self.description)"))?;
    cadre_e2e::wait::until("the tightened rule to hold", std::time::Duration::from_secs(300), "", || {
        Ok(!feed(&["create", "--dry-run=server"], &old.replace("name: old", "name: new"))?.status.success())
    })?;
    let status = r#"{"status":{"observedGeneration":1}}"#;
    let patch = ["patch", "agents.ratchet.cadre.dev", "old", "--subresource=status", "--type=merge", "-p", status];
    succeed(plane()?.kubectl()?.args(patch))?;
    Ok(())
}

/// The Agent CRD with a rule to fill in, at `spec` where ours are.
fn tightened_crd() -> Result<String> {
    let agents = cadre_crds::manifest::all()?.into_iter().find(|manifest| manifest.plural == "agents");
    let Some(mut crd) = agents.map(|manifest| manifest.object) else { bail!("there is no Agent CRD") };
    crd["metadata"]["name"] = "agents.ratchet.cadre.dev".into();
    crd["spec"]["group"] = "ratchet.cadre.dev".into();
    crd["spec"]["names"]["categories"] = serde_json::json!(["ratchet"]);
    crd["spec"]["names"]["shortNames"] = serde_json::json!(["rag"]);
    let spec = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["x-kubernetes-validations"] = serde_json::json!([{ "rule": "RULE", "message": "tightened" }]);
    Ok(serde_yaml::to_string(&crd)?)
}
