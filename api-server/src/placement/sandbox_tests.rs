use cadre_crds::sandbox::{SandboxStatus, SandboxTemplateSpec, ToolsContainer};
use http_body_util::Full;
use secrecy::SecretString;

use super::*;

/// A cluster that answers nothing useful: what is known is put in by the tests.
fn placement() -> Arc<SandboxPlacement> {
    placement_of(0)
}

/// The same with at most so many Sandboxes.
fn placement_of(max_sandboxes: u32) -> Arc<SandboxPlacement> {
    placement_in(max_sandboxes, |_, _| (500, "{}".to_owned()))
}

/// A cluster whose answers (status, body) to requests (method and path, body) the test gives.
fn placement_in(
    max_sandboxes: u32,
    answer: impl Fn(String, serde_json::Value) -> (u16, String) + Clone + Send + Sync + 'static,
) -> Arc<SandboxPlacement> {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let answer = answer.clone();
        async move {
            let what = format!("{} {}", request.method(), request.uri().path());
            let sent = request.into_body().collect_bytes().await.unwrap();
            let (status, body) = answer(what, serde_json::from_slice(&sent).unwrap_or_default());
            let body = Full::new(bytes::Bytes::from(body));
            Ok::<_, std::convert::Infallible>(http::Response::builder().status(status).body(body).unwrap())
        }
    });
    let client = Client::new(service, "default");
    let stop = CancellationToken::new();
    stop.cancel();
    let catalog = KubeCatalog::start(client.clone(), &[], "default", stop.clone());
    let proof = Proof::new(&SecretString::from("a key of all replicas".to_owned())).unwrap();
    let placement = SandboxPlacement::start(client, &[], catalog, proof, max_sandboxes, stop);
    placement.pending.store(0, Ordering::Release);
    placement
}

fn wanted() -> Wanted {
    Wanted { session_id: SessionId::new("s").unwrap(), component: ComponentRef::agent("team", "helper") }
}

fn made(placement: &SandboxPlacement, uid: &str, pod_uid: &str) -> Sandbox {
    let mut sandbox = desired(&wanted(), &placement.proof, SandboxTemplateSpec::default(), ToolsContainer::Enabled, 7);
    sandbox.metadata.uid = Some(uid.to_owned());
    sandbox.status = Some(SandboxStatus {
        incarnation: Some(7),
        pod_uid: Some(pod_uid.to_owned()),
        phase: Some(SandboxPhase::Running),
        ..SandboxStatus::default()
    });
    sandbox
}

async fn bind(placement: &SandboxPlacement, namespace: &str, pod_uid: &str, name: &str) -> Result<Binding, Unbound> {
    let caller = Caller::Pod { namespace: namespace.to_owned(), uid: pod_uid.to_owned() };
    let identity = SandboxIdentity { namespace: "team".to_owned(), name: name.to_owned() };
    placement.bind(&caller, Some(&identity)).await
}

#[tokio::test]
async fn only_the_current_pod_of_a_proven_sandbox_is_bound() {
    let placement = placement();
    let sandbox = made(&placement, "u1", "p1");
    let name = sandbox.name_any();
    placement.seen(DeserializeGuard(Ok(sandbox.clone())));
    let bound = bind(&placement, "team", "p1", &name).await.unwrap();
    assert_eq!(bound.serves, Serves::Session(SessionId::new("s").unwrap()));
    assert_eq!(bound.worker_id.as_str(), format!("team/{name}"));
    for (namespace, pod, of) in [("team", "p2", name.as_str()), ("other", "p1", &name), ("team", "p1", "absent")] {
        assert!(matches!(bind(&placement, namespace, pod, of).await, Err(Unbound::Never(_))), "{namespace} {pod} {of}");
    }
    // The pod that was replaced is not told to go for good before the new one is known.
    let mut raised = sandbox.clone();
    raised.spec.incarnation = 8;
    placement.seen(DeserializeGuard(Ok(raised)));
    assert_eq!(bind(&placement, "team", "p1", &name).await, Err(Unbound::NotYet));
    // A Sandbox that somebody else made for a session.
    let mut forged = sandbox;
    forged.metadata.annotations = None;
    placement.seen(DeserializeGuard(Ok(forged)));
    assert!(matches!(bind(&placement, "team", "p1", &name).await, Err(Unbound::Never(_))));
    let operator = placement.bind(&Caller::Local(1), None).await;
    assert!(matches!(operator, Err(Unbound::Never(_))));
}

#[tokio::test]
async fn the_end_of_a_pod_is_told() {
    let placement = placement();
    let mut events = placement.events();
    let sandbox = made(&placement, "u1", "p1");
    placement.seen(DeserializeGuard(Ok(sandbox.clone())));
    placement.seen(DeserializeGuard(Ok(sandbox.clone())));
    assert!(events.try_recv().is_err());
    let mut failed = sandbox.clone();
    failed.status.as_mut().unwrap().phase = Some(SandboxPhase::Failed);
    placement.seen(DeserializeGuard(Ok(failed.clone())));
    let ended = PlacementEvent::Ended(WorkerId::new(format!("team/{}", sandbox.name_any())).unwrap());
    assert_eq!(events.try_recv(), Ok(ended.clone()));
    placement.gone(&("team".to_owned(), sandbox.name_any()));
    assert_eq!(events.try_recv(), Ok(ended));
}

#[tokio::test]
async fn a_lost_worker_raises_the_incarnation_and_a_present_one_does_not() {
    let placement = placement();
    let sandbox = made(&placement, "u1", "p1");
    let key = ("team".to_owned(), sandbox.name_any());
    placement.seen(DeserializeGuard(Ok(sandbox)));
    assert!(placement.wanted(&wanted(), &key).unwrap().is_none());
    placement.lost(&WorkerId::new(format!("team/{}", key.1)).unwrap());
    let next = placement.wanted(&wanted(), &key).unwrap().unwrap();
    assert!(next.spec.incarnation > 7 && next.spec.session_id.as_deref() == Some("s"));
}

#[tokio::test]
async fn a_replica_that_comes_late_takes_what_the_first_one_made() {
    let first = made(&placement(), "u1", "p1");
    let mut present = first.clone();
    present.spec.incarnation = u32::MAX;
    let (patches, present) = (Arc::new(AtomicUsize::new(0)), serde_json::to_string(&present).unwrap());
    let counted = patches.clone();
    let placement = placement_in(0, move |asked, _| {
        if asked.starts_with("GET ") {
            return (200, present.clone());
        }
        counted.fetch_add(1, Ordering::AcqRel);
        let message = "Sandbox is invalid: spec: incarnation only grows";
        (
            422,
            serde_json::json!({"status": "Failure", "message": message, "reason": "Invalid", "code": 422}).to_string(),
        )
    });
    let key = ("team".to_owned(), first.name_any());
    placement.seen(DeserializeGuard(Ok(first)));
    placement.lost(&WorkerId::new(format!("team/{}", key.1)).unwrap());
    placement.ensure(&wanted()).await.unwrap();
    assert_eq!(patches.load(Ordering::Acquire), 1);
    assert_eq!(placement.state().known[&key].spec.incarnation, u32::MAX);
}

#[tokio::test]
async fn the_pod_that_is_replaced_may_go_without_another_replacement() {
    let placement = placement();
    let mut events = placement.events();
    let sandbox = made(&placement, "u1", "p1");
    let key = ("team".to_owned(), sandbox.name_any());
    placement.seen(DeserializeGuard(Ok(sandbox.clone())));
    let mut raised = sandbox.clone();
    raised.spec.incarnation = 8;
    let mut gone = raised.clone();
    gone.status.as_mut().unwrap().pod_uid = None;
    let mut replaced = raised.clone();
    let status = replaced.status.as_mut().unwrap();
    (status.incarnation, status.pod_uid) = (Some(8), Some("p2".to_owned()));
    for news in [raised, gone, replaced.clone()] {
        placement.seen(DeserializeGuard(Ok(news)));
        assert!(events.try_recv().is_err());
    }
    assert!(placement.wanted(&wanted(), &key).unwrap().is_none(), "the new pod stays");
    replaced.status.as_mut().unwrap().pod_uid = None;
    placement.seen(DeserializeGuard(Ok(replaced)));
    assert!(events.try_recv().is_ok(), "the end of the present pod is told");
}

#[tokio::test]
async fn a_pod_that_cannot_start_is_waited_for_and_not_replaced() {
    let placement = placement();
    let mut sandbox = made(&placement, "u1", "p1");
    let key = ("team".to_owned(), sandbox.name_any());
    let status = sandbox.status.as_mut().unwrap();
    status.phase = Some(SandboxPhase::Failed);
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
    cadre_crds::common::conditions::set(
        &mut status.conditions,
        READY,
        cadre_crds::common::conditions::Truth::False,
        Reason::PodFailed,
        "the image can't be pulled",
        1,
        &now,
    );
    placement.seen(DeserializeGuard(Ok(sandbox)));
    assert!(placement.wanted(&wanted(), &key).unwrap().is_none());
}

/// A session's Sandbox that is there.
fn there(placement: &SandboxPlacement, namespace: &str, session: &str) -> (Wanted, Sandbox) {
    let wanted =
        Wanted { session_id: SessionId::new(session).unwrap(), component: ComponentRef::agent(namespace, "helper") };
    let template = SandboxTemplateSpec::default();
    (wanted.clone(), desired(&wanted, &placement.proof, template, ToolsContainer::Enabled, 1))
}

#[tokio::test]
async fn a_namespace_with_all_its_sandboxes_waits_and_another_does_not() {
    let placement = placement_of(2);
    let (first, first_sandbox) = there(&placement, "busy", "a");
    let (_, second_sandbox) = there(&placement, "busy", "b");
    placement.seen(DeserializeGuard(Ok(first_sandbox.clone())));
    let (third, third_sandbox) = there(&placement, "busy", "c");
    let third_key = ("busy".to_owned(), third_sandbox.name_any());
    assert!(placement.waits_for(&third).is_none());
    {
        // One that is being asked for takes a place.
        let second_key = ("busy".to_owned(), second_sandbox.name_any());
        let _reserved = placement.reserve(&second_key).ok().unwrap();
        assert!(placement.reserve(&third_key).is_err());
    }
    assert!(placement.reserve(&third_key).is_ok(), "it came to nothing");
    placement.seen(DeserializeGuard(Ok(second_sandbox.clone())));
    let refused = placement.reserve(&third_key).err().unwrap().to_string();
    assert_eq!(refused, "waits for a sandbox: namespace busy has 2, as many as it may have at once");
    assert!(placement.waits_for(&third).is_some() && placement.waits_for(&first).is_none(), "it has its own");
    let (other, _) = there(&placement, "calm", "c");
    assert!(placement.waits_for(&other).is_none());
    // A suspended one has no pod.
    let mut suspended = second_sandbox;
    suspended.spec.operating_mode = OperatingMode::Suspended;
    placement.seen(DeserializeGuard(Ok(suspended)));
    assert!(placement.waits_for(&third).is_none());
    // One that was made by hand is nobody's session.
    let mut by_hand = there(&placement, "busy", "d").1;
    by_hand.spec.session_id = None;
    placement.seen(DeserializeGuard(Ok(by_hand)));
    assert!(placement.waits_for(&third).is_none());
}

/// What a cluster was asked: method and path, and body.
type Asked = Arc<Mutex<Vec<(String, serde_json::Value)>>>;

/// A cluster that always answers the same, and what it is asked.
fn asked(status: u16, body: serde_json::Value) -> (Arc<SandboxPlacement>, Asked) {
    let asked = Asked::default();
    let noted = asked.clone();
    let placement = placement_in(0, move |what, sent| {
        // The watches of a placement that has stopped ask nothing; what else is asked is noted.
        noted.lock().unwrap().push((what, sent));
        (status, body.to_string())
    });
    (placement, asked)
}

#[tokio::test]
async fn a_forgotten_session_leaves_no_sandbox_whatever_becomes_of_its_files_else() {
    for mode in [OperatingMode::Running, OperatingMode::Suspended] {
        let (placement, asked) = asked(200, serde_json::json!({"kind": "Status", "status": "Success"}));
        let mut sandbox = made(&placement, "u1", "p1");
        sandbox.spec.template.workspace.persistence = Persistence::Volume;
        sandbox.spec.operating_mode = mode;
        placement.seen(DeserializeGuard(Ok(sandbox.clone())));
        let Wanted { session_id, component } = wanted();
        placement.remove(&session_id, &component).await.unwrap();
        let path = format!("DELETE /apis/cadre.dev/v1alpha1/namespaces/team/sandboxes/{}", sandbox.name_any());
        let asked = asked.lock().unwrap();
        let [(what, sent)] = asked.as_slice() else { panic!("{asked:?}") };
        assert_eq!((what, &sent["preconditions"]), (&path, &serde_json::json!({"uid": "u1"})));
    }
}

#[tokio::test]
async fn only_the_sandbox_of_the_session_is_removed() {
    let (placement, asked) = asked(200, serde_json::json!({"kind": "Status", "status": "Success"}));
    let mut of_another = made(&placement, "u1", "p1");
    of_another.spec.session_id = Some("another".into());
    placement.seen(DeserializeGuard(Ok(of_another)));
    let Wanted { session_id, component } = wanted();
    placement.remove(&session_id, &component).await.unwrap();
    let other = SessionId::new("never seen").unwrap();
    placement.remove(&other, &component).await.unwrap();
    assert!(asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_sandbox_that_is_not_listed_yet_is_looked_for() {
    let fresh = placement();
    let sandbox = made(&fresh, "u1", "p1");
    let (placement, asked) = asked(200, serde_json::to_value(&sandbox).unwrap());
    placement.pending.store(1, Ordering::Release);
    let Wanted { session_id, component } = wanted();
    placement.remove(&session_id, &component).await.unwrap();
    let methods: Vec<_> =
        asked.lock().unwrap().iter().map(|(what, _)| what.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(methods, ["GET", "DELETE"]);
}

#[tokio::test]
async fn a_sandbox_that_can_not_be_removed_is_no_success() {
    let failure = |code: u16| serde_json::json!({"kind": "Status", "status": "Failure", "code": code, "reason": "x", "message": "x"});
    for (code, is_gone) in [(404, true), (409, false), (403, false), (500, false)] {
        let (placement, _) = asked(code, failure(code));
        placement.seen(DeserializeGuard(Ok(made(&placement, "u1", "p1"))));
        let Wanted { session_id, component } = wanted();
        assert_eq!(placement.remove(&session_id, &component).await.is_ok(), is_gone, "{code}");
    }
}

#[tokio::test]
async fn a_session_whose_pods_are_evicted_twice_gets_no_third() {
    use cadre_crds::sandbox::Eviction;
    let placement = placement();
    let mut sandbox = made(&placement, "u1", "p1");
    let key = ("team".to_owned(), sandbox.name_any());
    let status = sandbox.status.as_mut().unwrap();
    status.phase = Some(SandboxPhase::Failed);
    let eviction = Eviction { incarnation: 7, cause: "too many files".into(), again: false };
    status.eviction = Some(eviction.clone());
    placement.seen(DeserializeGuard(Ok(sandbox.clone())));
    let next = placement.wanted(&wanted(), &key).unwrap().unwrap();
    assert!(next.spec.incarnation > 7, "the first time it is replaced");

    sandbox.status.as_mut().unwrap().eviction = Some(Eviction { again: true, ..eviction });
    placement.seen(DeserializeGuard(Ok(sandbox.clone())));
    let refused = placement.wanted(&wanted(), &key).unwrap_err();
    assert!(matches!(&refused, PlacementError::Impossible(_)) && refused.to_string().contains("too many files"));
    sandbox.spec.operating_mode = OperatingMode::Suspended;
    placement.seen(DeserializeGuard(Ok(sandbox)));
    assert!(placement.wanted(&wanted(), &key).unwrap().is_some(), "one that was retired begins anew");
}
