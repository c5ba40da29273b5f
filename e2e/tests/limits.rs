//! What tools take too much of is refused in time: the sandbox stays.

use cadre_e2e::story::Story;
use cadre_e2e::story::objects::{scripted, shell, worker};
use serde_json::json;

#[test]
fn a_command_that_fills_the_workspace_costs_neither_the_pod_nor_the_run() {
    let story = Story::begin().unwrap();
    let (agent, model) = (story.name("fills"), story.name("fills-m"));
    let fill = shell("while :; do head -c 1048576 /dev/zero >> big; sleep 0.25; done");
    let turns = json!([fill, shell("ls; rm big; echo clean"), "{{last_result}}"]);
    let small = json!({"sandbox": {"template": {"workspace": {"size": "64Mi"}}}});
    story.apply_all(&[scripted(&model, &turns), worker(&agent, &model, &small)]).unwrap();
    story.ready(&agent).unwrap();
    let started = story.api.start(&agent, "go", None).unwrap();
    let detail = story.api.ended(&started).unwrap();
    assert_eq!((&detail["status"], &detail["content"]), (&json!("COMPLETED"), &json!("big\nclean")), "{detail:#}");
    let results: Vec<_> = detail["tools"].as_array().into_iter().flatten().map(|tool| &tool["result"]).collect();
    let first = results[0].as_str().unwrap_or_default();
    assert!(first.contains("/workspace holds") && first.contains("above 64 MiB"), "{first}");
    let sandbox = story.sandbox(&agent).unwrap();
    assert_eq!(sandbox["metadata"]["generation"], 1, "nobody asked for another pod: {sandbox:#}");
    assert_eq!(sandbox["status"]["eviction"], json!(null));
}
