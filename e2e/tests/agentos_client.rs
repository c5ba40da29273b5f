//! AgentOS's own Python client speaks to the installed product through a forwarded port.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

use cadre_e2e::cache;
use cadre_e2e::story::Story;
use cadre_e2e::story::objects::{scripted, talker};
use serde_json::json;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../api-server/tests/agentos_client");

/// A Python that has the client: made once for each version, in the cache.
fn python() -> PathBuf {
    if let Some(python) = std::env::var_os("CADRE_AGENTOS_PYTHON") {
        return python.into();
    }
    let requirements = Path::new(FOLDER).join("requirements.txt");
    let text = std::fs::read_to_string(&requirements).unwrap();
    let version = text.lines().find_map(|line| line.strip_prefix("agno==")).unwrap().trim();
    let folder = cache::root().unwrap().join(format!("agno-{version}"));
    let (python, done) = (folder.join("bin/python"), folder.join("complete"));
    if !done.exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder));
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&requirements));
        std::fs::write(done, "").unwrap();
    }
    python
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{said}{error}");
    said
}

#[test]
fn agentos_own_client_is_content() {
    let story = Story::begin().unwrap();
    let [agent, model, slow, slow_model] = ["agent", "model", "slow", "slow-m"].map(|base| story.name(base));
    let turns = json!([{"text": "One word after another, slowly.", "chunk": 2, "chunkDelayMs": 300}]);
    story.apply_all(&[scripted(&model, &json!(["You said {{input}}."])), talker(&agent, &model)]).unwrap();
    story.apply_all(&[scripted(&slow_model, &turns), talker(&slow, &slow_model)]).unwrap();
    for agent in [&agent, &slow] {
        story.condition("agents", agent, "Ready", "True").unwrap();
    }
    let python = python();
    let forward = story.api.forward().unwrap();
    let mut check = Command::new(python);
    check.arg(Path::new(FOLDER).join("check.py")).arg(format!("http://{}", forward.address()));
    check.args(["--agent", &agent, "--slow-agent", &slow, "--key", story.api.key()]);
    for proxy in ["http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"] {
        check.env_remove(proxy);
    }
    let said = run(&mut check);
    assert!(said.contains("passed") && !said.contains("FAILED"), "{said}");
}
