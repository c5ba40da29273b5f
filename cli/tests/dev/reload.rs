//! Manifests that change while they are served.

use std::process::Command;

use crate::support::{Dev, Folder, text};

fn agent(name: &str) -> String {
    format!(
        "apiVersion: cadre.dev/v1alpha1\nkind: Model\nmetadata: {{name: {name}}}\nspec: {{provider: Scripted, model: m}}\n---\n\
         apiVersion: cadre.dev/v1alpha1\nkind: Agent\nmetadata: {{name: {name}}}\nspec:\n  modelRef: {{name: {name}}}\n  \
         instructions: Help.\n"
    )
}

#[test]
fn manifests_are_read_again_and_bad_ones_change_nothing() {
    let folder = Folder::new();
    folder.write("first.yaml", &agent("first"));
    let mut dev = Dev::start(&folder);
    let runs = |dev: &Dev, name: &str| dev.cadre(&["run", &format!("agent/{name}"), "hi"]).output().unwrap();

    folder.write("second.yaml", &agent("second"));
    dev.hear("Manifests read again");
    dev.hear("  second  ready");
    assert_eq!(runs(&dev, "second").status.code(), Some(0));

    // The sixth line has a field that does not exist.
    let bad = agent("second").replace("instructions", "instuctions");
    let line = bad.lines().position(|line| line.contains("instuctions")).unwrap() + 1;
    folder.write("second.yaml", &bad);
    dev.hear("the last good ones stay");
    let said = dev.hear("second.yaml:");
    let number: usize = said.split("second.yaml:").nth(1).unwrap().split(':').next().unwrap().parse().unwrap();
    assert!(number.abs_diff(line) <= 4, "{said}, but the mistake is in line {line}");
    assert_eq!(runs(&dev, "second").status.code(), Some(0));

    folder.write("second.yaml", "");
    dev.hear("Manifests read again");
    let gone = runs(&dev, "second");
    assert_eq!((gone.status.code(), text(&gone).1.contains("not found")), (Some(1), true));
}

#[test]
fn what_cannot_be_served_is_refused_at_the_start() {
    let folder = Folder::new();
    folder.write("a.yaml", "apiVersion: cadre.dev/v1alpha1\nkind: Agent\nmetadata: {name: a}\nspec: {model: x}\n");
    let start = |listen: &str, key: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cadre"));
        command.arg("dev").arg(folder.manifests()).args(["--listen", listen]).env("OS_SECURITY_KEY", key);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        text(&output).1
    };
    let wrong = start("127.0.0.1:0", "");
    assert!(wrong.contains("a.yaml:") && wrong.contains("these manifests are wrong"), "{wrong}");
    assert!(start("0.0.0.0:0", "").contains("without OS_SECURITY_KEY would let anybody in"));
    assert!(start("0.0.0.0:0", "short").contains("at least 32 random"));
}
