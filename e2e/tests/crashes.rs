//! Whatever dies beneath a run, it completes: finished tool calls are not repeated, unknown ones are reported, and a
//! client that follows misses and repeats nothing.
//!
//! Each run makes five calls that append to a ledger. The third one waits for a gate, so that it is under way when something
//! is killed, however long that takes.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};

use cadre_e2e::story::api::Started;
use cadre_e2e::story::follow::{Follower, Frame, replay};
use cadre_e2e::story::node::Container;
use cadre_e2e::story::objects::{run, scripted, shell, worker};
use cadre_e2e::story::{LIMIT, NAMESPACE, SYSTEM, Story};
use serde_json::{Value, json};

const CALLS: usize = 5;
/// The call during which something happens.
const FATAL: usize = 3;

/// A run under way.
struct Crash<'a> {
    story: &'a Story,
    agent: String,
    job: String,
    run: Started,
    follower: Follower,
}

/// What came of it.
struct Aftermath {
    frames: Vec<Frame>,
    /// Lines of the ledger at the end.
    ledger: Vec<String>,
    /// Numbers of the calls whose outcome nobody knows.
    unknown: Vec<usize>,
}

/// Starts a run.
fn begin<'a>(story: &'a Story, base: &str, workspace: &Value) -> Crash<'a> {
    let (agent, model, job) = (story.name(base), story.name(&format!("{base}-m")), story.name(&format!("{base}-r")));
    let pause = |number| if number == FATAL { "until [ -e gate ]; do sleep 0.1; done" } else { "sleep 0.3" };
    let call = |number| shell(&format!("{}; echo call-{number} >> ledger", pause(number)));
    let mut turns: Vec<Value> = (1..=CALLS).map(call).collect();
    turns.extend([shell("cat ledger"), json!("{{last_result}}")]);
    let sandbox = json!({"sandbox": {"template": {"workspace": workspace}}});
    story.apply_all(&[scripted(&model, &json!(turns)), worker(&agent, &model, &sandbox)]).unwrap();
    story.apply(&run(&job, &agent, "keep the ledger", &json!({}))).unwrap();
    let run = story.started(&job).unwrap();
    let follower = Follower::start(&story.api, &run);
    Crash { story, agent, job, run, follower }
}

fn volume() -> Value {
    json!({"persistence": "Volume", "size": "64Mi"})
}

impl Crash<'_> {
    fn wait_for_the_fatal_call(&mut self) {
        let started = |frame: &Frame| frame.is_call("ToolCallStarted", FATAL);
        self.follower.until("the start of the fatal call", started).unwrap();
    }

    fn container(&self, name: &str) -> Container {
        let pod = self.story.pod(&self.agent).unwrap();
        self.story.container(NAMESPACE, &pod, name).unwrap()
    }

    /// Waits for the end and checks what holds after every crash.
    fn end(self) -> Aftermath {
        let Self { story, agent: _, job, run, follower } = self;
        let (frames, connections) = follower.finish().unwrap();
        assert!(connections > 1, "the client was meant to lose its connection");
        assert!(frames.windows(2).all(|pair| pair[0].id < pair[1].id), "event ids go up");
        assert_eq!(frames, replay(&story.api, &run).unwrap(), "the client missed and repeated nothing");

        let object = story.finished(&job).unwrap();
        assert_eq!(object["status"]["phase"], "Completed", "{:#}", object["status"]);
        let output = object["status"]["output"].as_str().unwrap_or_default();
        let ledger: Vec<_> = output.lines().filter(|line| line.starts_with("call-")).map(str::to_owned).collect();
        let unknown = unknown(&frames);
        for number in 1..=CALLS {
            let completed = frames.iter().filter(|frame| frame.is_call("ToolCallCompleted", number)).count();
            assert_eq!(completed, 1, "call {number} has one result");
        }
        Aftermath { frames, ledger, unknown }
    }
}

/// Calls that were reported as unknown.
fn unknown(frames: &[Frame]) -> Vec<usize> {
    let ids = frames.iter().filter(|frame| frame.is_custom("tool_outcome_unknown"));
    let ids: Vec<_> = ids.map(|frame| frame.data["tool_call_id"].clone()).collect();
    let is_unknown = |number: &usize| {
        let mut ends = frames.iter().filter(|frame| frame.is_call("ToolCallCompleted", *number));
        ends.any(|frame| ids.contains(&frame.data["tool"]["tool_call_id"]))
    };
    (1..=CALLS).filter(is_unknown).collect()
}

impl Aftermath {
    /// Each call whose end is known is in the ledger once, and the others at most once.
    fn assert_ledger(&self) {
        for number in 1..=CALLS {
            let count = self.ledger.iter().filter(|line| **line == format!("call-{number}")).count();
            let right = if self.unknown.contains(&number) { count <= 1 } else { count == 1 };
            assert!(right, "call {number} is in the ledger {count} times: {:?}", self.ledger);
        }
    }
}

/// A container of the run's pod is killed.
fn killed_container(base: &str, container: &str) {
    let story = Story::begin().unwrap();
    if !story.has_own_nodes() {
        return;
    }
    let mut crash = begin(&story, base, &volume());
    crash.wait_for_the_fatal_call();
    crash.container(container).kill().unwrap();
    let after = crash.end();
    after.assert_ledger();
    assert_eq!(after.unknown, [FATAL], "the call under way is reported");
}

#[test]
fn a_killed_engine_goes_on_at_the_exact_step() {
    killed_container("engine", "engine");
}

#[test]
fn a_killed_exec_server_is_an_unknown_outcome_and_no_more() {
    killed_container("exec", "sandbox");
}

#[test]
fn a_pod_that_is_deleted_by_force_is_replaced() {
    let story = Story::begin().unwrap();
    let mut crash = begin(&story, "pod", &volume());
    crash.wait_for_the_fatal_call();
    let pod = story.pod(&crash.agent).unwrap();
    story.cluster.run(&["delete", "pod", &pod, "-n", NAMESPACE, "--force", "--grace-period=0"]).unwrap();
    let after = crash.end();
    after.assert_ledger();
    assert!(after.unknown.is_empty() || after.unknown == [FATAL], "{:?}", after.unknown);
}

/// A container of Cadre's own is killed: no call's outcome is lost with it.
fn killed_part(base: &str, component: &str, container: &str) {
    let story = Story::begin().unwrap();
    if !story.has_own_nodes() {
        return;
    }
    let mut crash = begin(&story, base, &volume());
    crash.wait_for_the_fatal_call();
    let tools = crash.container("sandbox");
    let pod = story.system_pod(component).unwrap();
    story.container(SYSTEM, &pod, container).unwrap().kill().unwrap();
    // The call ends while that part is away.
    std::fs::write(tools.root().join("workspace/gate"), "").unwrap();
    let after = crash.end();
    after.assert_ledger();
    assert_eq!(after.unknown, [0; 0], "no outcome was lost");
    assert_eq!(after.ledger.len(), CALLS);
}

#[test]
fn a_killed_api_server_is_ridden_out() {
    killed_part("api", "api-server", "api-server");
}

#[test]
fn a_killed_operator_is_not_even_noticed() {
    killed_part("operator", "operator", "operator");
}

/// A node without power, and without new pods while it is cordoned; all is undone when dropped.
struct Victim<'a> {
    story: &'a Story,
    node: String,
    other: String,
}

impl Drop for Victim<'_> {
    fn drop(&mut self) {
        for node in [&self.node, &self.other] {
            let _ = self.story.cluster.run(&["uncordon", node]);
        }
        if let Err(error) = self.story.power("restart", &self.node) {
            eprintln!("{error:#}");
        }
    }
}

/// Chooses the node without the API server, and sees to it that the operator is not on it either.
fn choose_victim(story: &Story) -> Victim<'_> {
    let node_of = |component| {
        let pod = story.system_pod(component).unwrap();
        let pod = story.kubernetes.object(SYSTEM, "pods", &pod).unwrap().unwrap();
        (pod["metadata"]["name"].as_str().unwrap().to_owned(), pod["spec"]["nodeName"].as_str().unwrap().to_owned())
    };
    let (_, other) = node_of("api-server");
    let node = if other == "node-1" { "node-2" } else { "node-1" }.to_owned();
    let (operator, its_node) = node_of("operator");
    if its_node == node {
        story.cluster.run(&["cordon", &node]).unwrap();
        story.cluster.run(&["delete", "pod", &operator, "-n", SYSTEM]).unwrap();
        node_of("operator");
        story.cluster.run(&["uncordon", &node]).unwrap();
    }
    Victim { story, node, other }
}

/// Where a pod could be reached, if it listened.
fn address(story: &Story, pod: &str) -> SocketAddr {
    let pod = story.kubernetes.object(NAMESPACE, "pods", pod).unwrap().unwrap();
    SocketAddr::new(pod["status"]["podIP"].as_str().unwrap().parse().unwrap(), 8080)
}

#[test]
fn a_lost_node_costs_the_files_that_were_on_it_and_no_run() {
    let story = Story::begin().unwrap();
    if !story.has_own_nodes() {
        return;
    }
    story.prepare_power().unwrap();
    let victim = choose_victim(&story);
    story.cluster.run(&["cordon", &victim.other]).unwrap();
    let shared = json!({"persistence": "Volume", "size": "64Mi", "storageClassName": "cadre-shared"});
    let mut kept = begin(&story, "kept", &shared);
    let mut lost = begin(&story, "lost", &json!({}));
    for crash in [&mut kept, &mut lost] {
        crash.wait_for_the_fatal_call();
        let sandbox = story.sandbox(&crash.agent).unwrap();
        assert_eq!(sandbox["status"]["nodeName"], victim.node.as_str());
    }
    story.cluster.run(&["uncordon", &victim.other]).unwrap();
    let address = address(&story, &story.pod(&lost.agent).unwrap());
    story.power("kill", &victim.node).unwrap();
    // Nobody else's network is asked for what was there.
    let refused = TcpStream::connect_timeout(&address, LIMIT).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::HostUnreachable, "{refused}");

    let after = kept.end();
    after.assert_ledger();
    assert_eq!(after.unknown, [FATAL]);
    assert!(!after.frames.iter().any(|frame| frame.is_custom("workspace_rolled_back")), "the volume moved along");

    let after = lost.end();
    assert_eq!(after.unknown, [FATAL]);
    assert_eq!(after.ledger, ["call-4", "call-5"], "the new workspace began empty");
    let told = after.frames.iter().find(|frame| frame.is_custom("workspace_rolled_back")).unwrap();
    assert_eq!(told.data["files"], json!(["ledger"]), "the lost file is named");
    assert_eq!(told.data["calls"].as_array().unwrap().len(), 1, "so is the call that wrote it last: {told:?}");
}
