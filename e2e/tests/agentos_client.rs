//! AgentOS's own Python client speaks to the installed product through a forwarded port.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

use cadre_e2e::python;
use cadre_e2e::story::Story;
use cadre_e2e::story::objects::{careful, scripted, shell, talker};
use serde_json::json;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../api-server/tests/agentos_client");

/// A Python that has the client.
fn interpreter() -> PathBuf {
    match std::env::var_os("CADRE_AGENTOS_PYTHON") {
        Some(python) => python.into(),
        None => python::environment(&Path::new(FOLDER).join("requirements.txt")).unwrap(),
    }
}

#[test]
fn agentos_own_client_is_content() {
    let story = Story::begin().unwrap();
    let [agent, model, slow, slow_model] = ["agent", "model", "slow", "slow-m"].map(|base| story.name(base));
    let turns = json!([{"text": "One word after another, slowly.", "chunk": 2, "chunkDelayMs": 300}]);
    story.apply_all(&[scripted(&model, &json!(["You said {{input}}."])), talker(&agent, &model)]).unwrap();
    story.apply_all(&[scripted(&slow_model, &turns), talker(&slow, &slow_model)]).unwrap();
    let (asks, asks_model) = (story.name("asks"), story.name("asks-m"));
    let turns = json!([shell("echo approved"), "It said {{last_result}}"]);
    story.apply_all(&[scripted(&asks_model, &turns), careful(&asks, &asks_model)]).unwrap();
    for agent in [&agent, &slow, &asks] {
        story.ready(agent).unwrap();
    }
    let forward = story.api.forward().unwrap();
    let mut check = Command::new(interpreter());
    check.arg(Path::new(FOLDER).join("check.py")).arg(format!("http://{}", forward.address()));
    check.args(["--agent", &agent, "--slow-agent", &slow, "--key", story.api.key()]);
    check.args(["--pausing-agent", &asks, "--pausing-message", "go"]);
    for proxy in ["http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"] {
        check.env_remove(proxy);
    }
    let said = python::run(&mut check).unwrap();
    assert!(said.contains("passed") && !said.contains("FAILED"), "{said}");
}
