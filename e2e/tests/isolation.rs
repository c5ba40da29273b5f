//! Security rules 4, 6, 11, 12 and 13 on a real cluster: what agent code can see, reach, exhaust and pretend.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::collections::BTreeMap;

use cadre_e2e::story::node::Container;
use cadre_e2e::story::objects::{model, object, run, scripted, secret, shell, worker};
use cadre_e2e::story::search;
use cadre_e2e::story::{LIMIT, NAMESPACE, SYSTEM, Story};
use cadre_e2e::wait;
use serde_json::{Value, json};

/// A run of some commands that has ended; the agent's name and what the model said last.
fn ran(story: &Story, base: &str, turns: Value) -> (String, String) {
    let (agent, model, job) = (story.name(base), story.name(&format!("{base}-m")), story.name(&format!("{base}-r")));
    story.apply_all(&[scripted(&model, &turns), worker(&agent, &model, &json!({}))]).unwrap();
    story.apply(&run(&job, &agent, "go", &json!({}))).unwrap();
    let ended = story.finished(&job).unwrap();
    assert_eq!(ended["status"]["phase"], "Completed", "{:#}", ended["status"]);
    (agent, ended["status"]["output"].as_str().unwrap_or_default().to_owned())
}

fn containers(story: &Story, agent: &str) -> [Container; 2] {
    let pod = story.pod(agent).unwrap();
    ["engine", "sandbox"].map(|name| story.container(NAMESPACE, &pod, name).unwrap())
}

#[test]
fn no_key_is_in_the_pod_of_an_agent_that_uses_it() {
    const CANARY: &str = "sk-canary-f3a1c07be9d24c";
    let story = Story::begin().unwrap();
    if !story.has_own_nodes() {
        return;
    }
    let [agent, name, key, job] = ["agent", "model", "key", "run"].map(|base| story.name(base));
    let auth = json!({"secretRef": {"name": key, "key": "api-key"}});
    let spec = json!({
        "provider": "OpenAICompatible", "model": "m", "baseUrl": "https://models.invalid/v1", "auth": auth, "retries": 0
    });
    let mut credential = secret(&key, "api-key", CANARY);
    credential["metadata"]["labels"] = json!({"cadre.dev/credential": "true"});
    credential["metadata"]["annotations"] = json!({"cadre.dev/hosts": "models.invalid"});
    story.apply_all(&[credential, model(&name, &spec), worker(&agent, &name, &json!({}))]).unwrap();
    story.condition("models", &name, "CredentialResolved", "True").unwrap();
    story.apply(&run(&job, &agent, "hello", &json!({}))).unwrap();
    // The gateway has used the key by now: the model just can't be reached.
    let failed = story.finished(&job).unwrap();
    assert_eq!(failed["status"]["phase"], "Failed", "{:#}", failed["status"]);

    for container in containers(&story, &agent) {
        let token = std::fs::read_to_string(container.root().join("var/run/secrets/cadre/token")).ok();
        let found = search::container(&container, CANARY).unwrap();
        assert_eq!(found, Vec::<String>::new(), "the key is there");
        // The search would find what is there: the engine's token is in a file of its container.
        if let Some(token) = token {
            let found = search::container(&container, token.trim()).unwrap();
            assert!(found.iter().any(|place| place.ends_with("/token")), "{found:?}");
        }
    }
}

#[test]
fn the_engine_has_no_workspace_and_the_sandbox_no_token() {
    let story = Story::begin().unwrap();
    if !story.has_own_nodes() {
        return;
    }
    let (agent, said) = ran(&story, "mounts", json!([shell("env; cat /proc/1/environ"), "{{last_result}}"]));
    let [engine, sandbox] = containers(&story, &agent);
    let mounts = |container: &Container| String::from_utf8(container.proc("mountinfo").unwrap()).unwrap();
    assert!(!mounts(&engine).contains("workspace"), "{}", mounts(&engine));
    assert!(mounts(&sandbox).contains(" /workspace "), "{}", mounts(&sandbox));
    assert!(!mounts(&sandbox).contains("/var/run/secrets"), "{}", mounts(&sandbox));
    for folder in ["var/run/secrets", "run/secrets"] {
        assert!(!sandbox.root().join(folder).exists(), "{folder} is in the sandbox");
    }
    let token = std::fs::read_to_string(engine.root().join("var/run/secrets/cadre/token")).unwrap();
    assert_eq!(search::container(&sandbox, token.trim()).unwrap(), Vec::<String>::new());

    // Kubelet tells every container where the kube-apiserver is; tools are not told.
    assert!(!said.contains("KUBERNETES_"), "{said}");
    assert!(said.contains("Permission denied"), "a tool can't read the environment of process 1: {said}");
    let user = |container: &Container| {
        let status = String::from_utf8(container.proc("status").unwrap()).unwrap();
        status.lines().find(|line| line.starts_with("Uid:")).unwrap().to_owned()
    };
    assert_ne!(user(&engine), user(&sandbox));
}

/// The one destination that a sandbox must reach.
const OPEN: &str = "worker-port";

/// Addresses that a sandbox must not reach, and the one that it must.
fn destinations(story: &Story) -> BTreeMap<&'static str, String> {
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let service = |namespace, name| {
        word(&story.kubernetes.object(namespace, "services", name).unwrap().unwrap()["spec"]["clusterIP"])
    };
    let pod = |component| {
        let name = story.system_pod(component).unwrap();
        story.kubernetes.object(SYSTEM, "pods", &name).unwrap().unwrap()["status"].clone()
    };
    let (api, operator) = (pod("api-server"), pod("operator"));
    let endpoints = story.kubernetes.object("default", "endpoints", "kubernetes").unwrap().unwrap();
    BTreeMap::from([
        (OPEN, format!("{} 7780", word(&api["podIP"]))),
        ("user-port", format!("{} 7777", word(&api["podIP"]))),
        ("user-service", format!("{} 7777", service(SYSTEM, "cadre-api"))),
        ("admin-port", format!("{} 8080", word(&api["podIP"]))),
        ("kube-apiserver", format!("{} 443", service("default", "kubernetes"))),
        ("its-endpoint", format!("{} 6443", word(&endpoints["subsets"][0]["addresses"][0]["ip"]))),
        ("other-pod", format!("{} 8080", word(&operator["podIP"]))),
        ("kubelet", format!("{} 10250", word(&api["hostIP"]))),
        ("metadata", "169.254.169.254 80".to_owned()),
        ("dns-tcp", format!("{} 53", service("kube-system", "kube-dns"))),
    ])
}

#[test]
fn a_sandbox_reaches_the_worker_port_and_nothing_else() {
    let story = Story::begin().unwrap();
    let destinations = destinations(&story);
    // What is closed may take all of its time; what is open is known at once, on a busy machine later.
    let limit = |name: &str| if name == OPEN { 60 } else { 3 };
    let rows: Vec<_> = destinations.iter().map(|(name, address)| format!("{name} {} {address}", limit(name))).collect();
    let tcp = format!(
        "while read name limit host port; do (timeout $limit bash -c \"</dev/tcp/$host/$port\" 2>/dev/null && echo $name open \
         || echo $name closed) & done <<'END'\n{}\nEND\nwait",
        rows.join("\n")
    );
    let dns = destinations["dns-tcp"].trim_end_matches(" 53");
    // A question for the address of `a`.
    let question = r"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01";
    let udp = format!(
        "python3 -c \"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(3); \
         s.sendto(b'{question}', ('{dns}', 53)); s.recv(512)\" 2>/dev/null && echo dns-udp open || echo dns-udp closed; \
         timeout 3 getent hosts kubernetes.default.svc && echo name open || echo name closed"
    );
    let turns = json!([shell(&tcp), "{{last_result}}"]);
    let (_, said) = ran(&story, "network", turns);
    for name in destinations.keys() {
        let expected = if *name == OPEN { "open" } else { "closed" };
        assert!(said.contains(&format!("{name} {expected}")), "{name} should be {expected}:\n{said}");
    }
    let (_, said) = ran(&story, "names", json!([shell(&udp), "{{last_result}}"]));
    assert!(said.contains("dns-udp closed") && said.contains("name closed"), "{said}");
}

/// The most processes of a container's pod, as its node's kernel has it; none where that says nothing.
fn most_processes(container: &Container) -> Option<u64> {
    let groups = String::from_utf8(container.proc("cgroup").unwrap()).unwrap();
    let of = |line: &str| -> Option<(String, String)> {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let mount = if controllers.is_empty() { String::new() } else { "/pids".to_owned() };
        (controllers.is_empty() || controllers == "pids").then(|| (mount, path.to_owned()))
    };
    let (mount, path) = groups.lines().rev().filter_map(of).max()?;
    let pod = std::path::Path::new(&path).parent()?;
    let file = format!("/sys/fs/cgroup{mount}{}/pids.max", pod.display());
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[test]
fn a_fork_bomb_leaves_the_engine_alive() {
    let story = Story::begin().unwrap();
    let bomb = json!({"tools": [{"name": "shell", "arguments": {
        "command": "bomb() { bomb | bomb & }; bomb; sleep 60", "timeout_seconds": 3
    }}]});
    let (agent, said) = ran(&story, "bomb", json!([bomb, shell("echo alive"), "{{last_result}}"]));
    assert!(said.contains("alive"), "tools work again: {said}");
    if story.has_own_nodes() {
        let [engine, sandbox] = containers(&story, &agent);
        assert_eq!(most_processes(&engine), most_processes(&sandbox), "the bound is the pod's");
        assert!(most_processes(&sandbox).is_some_and(|most| most <= 1024), "a pod's processes are bounded");
    }
    let pod = story.kubernetes.object(NAMESPACE, "pods", &story.pod(&agent).unwrap()).unwrap().unwrap();
    for status in pod["status"]["containerStatuses"].as_array().unwrap() {
        assert_eq!(status["restartCount"], 0, "{status:#}");
    }
}

#[test]
fn agent_pods_keep_the_restricted_pod_security_standard() {
    let story = Story::begin().unwrap();
    let (agent, _) = ran(&story, "pss", json!(["hello"]));
    let mut pod = story.kubernetes.object(NAMESPACE, "pods", &story.pod(&agent).unwrap()).unwrap().unwrap();
    let namespace = story.cluster.namespace("restricted").unwrap();
    namespace.run(&["create", "serviceaccount", "cadre-agent"]).unwrap();
    let label = "pod-security.kubernetes.io/enforce=restricted";
    story.cluster.run(&["label", "namespace", namespace.name(), label]).unwrap();
    pod["metadata"] = json!({"name": "copy"});
    pod.as_object_mut().unwrap().remove("status");
    pod["spec"].as_object_mut().unwrap().remove("nodeName");
    // What is refused is refused at once, and what is accepted is of no use here.
    let create = |pod: &Value| {
        let file = std::env::temp_dir().join(format!("{}.json", namespace.name()));
        std::fs::write(&file, pod.to_string()).unwrap();
        let created = namespace.run(&["create", "--dry-run=server", "-f", &file.display().to_string()]);
        std::fs::remove_file(file).unwrap();
        created
    };
    let mut lax = pod.clone();
    lax["spec"]["containers"][0]["securityContext"]["capabilities"] = json!({"drop": []});
    // Admission learns of the label by a watch.
    wait::until("the standard to be enforced", LIMIT, "see kube-apiserver", || {
        Ok(create(&lax).is_err_and(|refused| refused.to_string().contains("restricted")))
    })
    .unwrap();
    create(&pod).unwrap();
}

#[test]
fn only_cadre_binds_a_sandbox_and_writes_status() {
    let story = Story::begin().unwrap();
    let forged = story.name("forged");
    let session = json!({"template": {}, "sessionId": "s", "agentRef": {"name": "a"}});
    for (spec, expected) in [
        (session, "only Cadre's API server gives a Sandbox to a session"),
        (json!({"template": {}, "incarnation": 7}), "only Cadre's API server raises incarnation"),
    ] {
        let refused = story.apply(&object("Sandbox", &forged, &spec)).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    let (agent, _) = ran(&story, "bound", json!(["hello"]));
    let sandbox = story.sandbox(&agent).unwrap();
    let name = sandbox["metadata"]["name"].as_str().unwrap();
    let next = json!({"spec": {"incarnation": sandbox["spec"]["incarnation"].as_u64().unwrap() + 1}});
    let refused = story.kubernetes.merge(NAMESPACE, "sandboxes", name, &next).unwrap_err().to_string();
    assert!(refused.contains("only Cadre's API server raises incarnation"), "{refused}");
    for (plural, name) in [("sandboxes", name), ("agents", &agent)] {
        let path = format!("{name}/status");
        let patch = json!({"status": {"observedGeneration": 99}});
        let refused = story.kubernetes.merge(NAMESPACE, plural, &path, &patch).unwrap_err().to_string();
        assert!(refused.contains("only Cadre's operator writes status"), "{refused}");
    }
}
