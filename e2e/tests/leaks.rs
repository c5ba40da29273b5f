//! Security rule 22: what users say and what providers are paid with is in no log, Event, metric or object that has no
//! business with it.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use cadre_e2e::cache;
use cadre_e2e::story::objects::{model, run, scripted, secret, shell, talker, worker};
use cadre_e2e::story::{NAMESPACE, SYSTEM, Story, condition, search};
use serde_json::json;

/// Said by a user, given to a tool, printed by it, and said by the model.
const TEXT: &str = "canary-text-8d1f64c2";
/// Said by a provider about a failure.
const SAID: &str = "canary-said-30c7e9a1";
/// A provider's key.
const KEY: &str = "sk-canary-key-5b92e0d7";

fn talk(story: &Story) -> String {
    let (agent, model) = (story.name("talker"), story.name("talker-m"));
    let turns =
        json!([shell("echo '{{input}}' | tee note; echo '{{input}}' >&2"), "You said {{input}}: {{last_result}}"]);
    story.apply_all(&[scripted(&model, &turns), worker(&agent, &model, &json!({}))]).unwrap();
    story.ready(&agent).unwrap();
    let run = story.api.start(&agent, TEXT, None).unwrap();
    let ended = story.api.ended(&run).unwrap();
    assert!(ended["content"].as_str().unwrap().contains(TEXT), "{ended:#}");
    agent
}

/// A model that has a key and can't be reached: failures are where keys leak.
fn pay(story: &Story) -> String {
    let [agent, name, key] = ["payer", "payer-m", "payer-key"].map(|base| story.name(base));
    let auth = json!({"secretRef": {"name": key, "key": "api-key"}});
    let spec =
        json!({"provider": "OpenAICompatible", "model": "m", "baseUrl": "https://models.invalid/v1", "auth": auth});
    let mut credential = secret(&key, "api-key", KEY);
    credential["metadata"]["labels"] = json!({"cadre.dev/credential": "true"});
    credential["metadata"]["annotations"] = json!({"cadre.dev/hosts": "models.invalid"});
    story.apply_all(&[credential, model(&name, &spec), talker(&agent, &name)]).unwrap();
    story.ready(&agent).unwrap();
    let run = story.api.start(&agent, "hello", None).unwrap();
    let ended = story.api.ended(&run).unwrap();
    assert_eq!(ended["status"], "ERROR", "{ended:#}");
    assert!(!ended.to_string().contains(KEY));
    agent
}

/// A run of an object whose model fails with words of its own: they are for whoever may read the run.
fn fail(story: &Story) -> String {
    let [agent, name, job] = ["failer", "failer-m", "failer-r"].map(|base| story.name(base));
    let turns = json!([{"fail": {"category": "bad_request", "message": SAID}}]);
    story.apply_all(&[scripted(&name, &turns), talker(&agent, &name)]).unwrap();
    story.ready(&agent).unwrap();
    story.apply(&run(&job, &agent, "hello", &json!({}))).unwrap();
    let ended = story.finished(&job).unwrap();
    let message = ended["status"]["error"]["message"].as_str().unwrap();
    assert!(message.contains(SAID), "{ended:#}");
    let told = condition(&ended, "Failed")["message"].as_str().unwrap().to_owned();
    assert!(told.contains("model_provider_error"), "{told}");
    story.events(&ended, "RunFailed").unwrap();
    agent
}

fn logs(story: &Story, namespace: &str, pod: &str) -> String {
    story.cluster.run(&["logs", "-n", namespace, pod, "--all-containers", "--tail=-1"]).unwrap()
}

#[test]
fn canaries_sing_nowhere() {
    let story = Story::begin().unwrap();
    let agents = [talk(&story), pay(&story), fail(&story)];
    let mut places: Vec<(String, String)> = Vec::new();
    for agent in &agents {
        let pod = story.pod(agent).unwrap();
        places.push((format!("log of {pod}"), logs(&story, NAMESPACE, &pod)));
    }
    for component in ["api-server", "operator"] {
        let pod = story.system_pod(component).unwrap();
        places.push((format!("log of {pod}"), logs(&story, SYSTEM, &pod)));
        let path = format!("/api/v1/namespaces/{SYSTEM}/pods/{pod}:8080/proxy/metrics");
        let metrics = story.kubernetes.text(&path).unwrap();
        assert!(metrics.contains("cadre_"), "{metrics}");
        places.push((format!("metrics of {pod}"), metrics));
    }
    for kind in kinds(&story) {
        let objects = story.cluster.run(&["get", &kind, "--all-namespaces", "-o", "json"]).unwrap_or_default();
        places.push((kind.clone(), objects));
    }
    assert!(places.len() > 30, "{}", places.len());
    for (place, content) in &places {
        // A Run tells what became of it; who reads the script of a Model reads what that will say.
        let is_told = ["runs.cadre.dev", "models.cadre.dev"].contains(&place.as_str());
        for canary in [TEXT, KEY, SAID] {
            if canary == SAID && is_told {
                continue;
            }
            assert!(!content.contains(canary), "{canary} is in {place}");
        }
    }
    let Some(etcd) = story.has_own_nodes().then(|| cache::root().unwrap().join("cluster/etcd")) else { return };
    let mut found = Vec::new();
    search::files(&etcd, TEXT.as_bytes(), &mut found);
    assert_eq!(found, Vec::<String>::new(), "the record of what is said is not Kubernetes' to keep");
}

/// All kinds that can be listed, but for Secrets: the key is there on purpose.
fn kinds(story: &Story) -> Vec<String> {
    let names = story.cluster.run(&["api-resources", "--verbs=list", "-o", "name"]).unwrap();
    names.lines().filter(|name| *name != "secrets").map(str::to_owned).collect()
}
