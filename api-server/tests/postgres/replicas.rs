//! Two servers on one database: any client, any worker, any replica.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use cadre_api::domain::jobs::Requeue;
use cadre_api::domain::{Change, DomainError, Limits, Submit};
use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::{RunId, SessionId};
use cadre_protocol::run::RunStatus;
use cadre_protocol::worker::{ServerFrame, WorkerFrame};
use cadre_store::Store;
use cadre_store::postgres::{PostgresOptions, PostgresStore};
use cadre_store::rows::{Origin, RunFilter};
use cadre_store::traits::Schema as _;
use futures::StreamExt as _;

use crate::process::Process;
use crate::support::*;

static SERVER: OnceLock<Mutex<Process>> = OnceLock::new();
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// Where an empty database of one PostgreSQL for all of these tests is.
fn database() -> String {
    let mut server = SERVER.get_or_init(|| Mutex::new(Process::start())).lock().unwrap();
    let name = format!("replicas{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    server.create(&name);
    format!("host={} user=cadre dbname={name}", server.folder())
}

async fn open(url: &str) -> Arc<dyn Store> {
    let options = PostgresOptions { connect_timeout: PATIENCE, ..PostgresOptions::new(url) };
    let store = tokio::task::spawn_blocking(move || PostgresStore::open(&options)).await.unwrap().unwrap();
    store.migrate().await.unwrap();
    Arc::new(store)
}

/// Limits without sweeps: what happens, happens because replicas tell each other.
pub fn told() -> Limits {
    Limits { sweep_every: PATIENCE * 100, unused_wait: PATIENCE * 100, ..living() }
}

/// Limits of replicas that are taken for dead by nobody, however slow the machine is.
fn living() -> Limits {
    Limits { return_time: PATIENCE * 100, ..brisk() }
}

/// Limits of replicas that are soon taken for dead.
fn brisk() -> Limits {
    Limits {
        return_time: Duration::from_secs(3),
        beat_every: Duration::from_millis(100),
        retire_again: Duration::from_millis(200),
        ..limits()
    }
}

async fn two(limits: Limits) -> (Rig, Rig) {
    two_of(MANIFESTS, limits).await
}

/// Two servers with these resources.
pub async fn two_of(manifests: &str, limits: Limits) -> (Rig, Rig) {
    let url = tokio::task::spawn_blocking(database).await.unwrap();
    let one = replica_of(manifests, open(&url).await, limits.clone()).await;
    let two = replica_of(manifests, open(&url).await, limits).await;
    // Until the replicas hear each other, news are lost.
    for (from, to) in [(&one, &two), (&two, &one)] {
        let mut news = to.service.store().changes().unwrap();
        let run_id = RunId::new("probe").unwrap();
        let heard = async {
            loop {
                from.service.store().tell(cadre_store::rows::Change::Run(run_id.clone()));
                let next = tokio::time::timeout(Duration::from_millis(50), news.recv()).await;
                if matches!(next, Ok(Ok(cadre_store::rows::Change::Run(id))) if id == run_id) {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, heard).await.expect("news come");
    }
    (one, two)
}

async fn attempt(rig: &Rig, run_id: &RunId) -> (RunStatus, u32) {
    let run = rig.service.run(run_id, None).await.unwrap();
    (run.status, run.attempt)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_accepted_here_starts_with_the_worker_there() {
    let (here, there) = two(told()).await;
    let mut worker = there.worker("of-s").await;
    for _ in 0..3 {
        let run_id = here.submit("helper", Some("s")).await.run.run_id;
        let assignment = worker.assignment().await;
        assert_eq!((&assignment.run_id, assignment.attempt), (&run_id, 1));
        worker.finish(&assignment).await;
        assert_eq!(attempt(&here, &run_id).await, (RunStatus::Completed, 1));
        let ended = here.service.wait_end(&run_id, PATIENCE).await.unwrap();
        assert_eq!(ended.run.content, Some("hi".into()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_gets_its_run_from_whichever_replica_it_dials() {
    let (here, there) = two(told()).await;
    let run_id = here.submit("helper", Some("s")).await.run.run_id;
    let next = here.submit("helper", Some("s")).await.run.run_id;
    // Perhaps twice: asking again changes nothing.
    until("a worker is asked for", || !here.notes.wanted.lock().unwrap().is_empty()).await;
    let mut worker = there.worker("of-s").await;
    for run_id in [run_id, next] {
        let assignment = worker.assignment().await;
        assert_eq!(assignment.run_id, run_id);
        worker.finish(&assignment).await;
    }
    assert!(there.notes.wanted.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_here_reaches_the_worker_there() {
    let limits = Limits { obey_grace: PATIENCE * 100, ..told() };
    let (here, there) = two(limits).await;
    let mut worker = there.worker("of-s").await;
    let run_id = here.submit("helper", Some("s")).await.run.run_id;
    let assignment = worker.assignment().await;
    let run = here.service.cancel(&run_id, None).await.unwrap();
    assert_eq!((run.status, run.cancel_requested), (RunStatus::Running, true));
    worker
        .expect("a cancel", |frame| match frame {
            ServerFrame::Cancel { run_id: of, epoch, .. } if *of == run_id && *epoch == assignment.epoch => Some(()),
            _ => None,
        })
        .await;
    worker.append(&run_id, assignment.epoch, 0, vec![cancelled()]).await;
    worker.acked(&run_id, 1).await;
    let run = here.service.run(&run_id, None).await.unwrap();
    assert_eq!((run.status, run.cancellation_stage.as_deref()), (RunStatus::Cancelled, Some("EXECUTING")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_there_that_does_not_obey_is_fenced() {
    let (here, there) = two(told()).await;
    let mut worker = there.worker("of-s").await;
    let run_id = here.submit("helper", Some("s")).await.run.run_id;
    let first = worker.assignment().await;
    let next = here.submit("helper", Some("s")).await.run.run_id;
    here.service.cancel(&run_id, None).await.unwrap();
    worker.fenced(&run_id).await;
    here.status(&run_id, RunStatus::Cancelled).await;
    let assignment = worker.assignment().await;
    assert_eq!(assignment.run_id, next);
    assert!(assignment.epoch > first.epoch);
    worker.finish(&assignment).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_cancel_ends_no_run_that_was_begun_again() {
    let limits = Limits { obey_grace: Duration::from_secs(3), ..told() };
    let (here, there) = two(limits).await;
    let mut worker = there.worker("of-s").await;
    let run_id = here.submit("helper", Some("s")).await.run.run_id;
    let first = worker.assignment().await;
    here.service.cancel(&run_id, None).await.unwrap();
    worker.append(&run_id, first.epoch, 0, vec![cancelled()]).await;
    worker.acked(&run_id, 1).await;
    let wish = Requeue { clear_cancellation: true, force: true };
    there.service.requeue(&run_id, wish).await.unwrap();
    let again = worker.assignment().await;
    assert!(again.epoch > first.epoch);
    // For longer than the first attempt had to obey.
    let waited = there.service.wait_end(&run_id, Duration::from_secs(4)).await;
    assert!(matches!(waited, Err(DomainError::NotEnded(..))), "{waited:?}");
    worker.finish(&again).await;
    assert_eq!(attempt(&here, &run_id).await, (RunStatus::Completed, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_here_has_every_event_of_a_run_there_once() {
    let (here, there) = two(told()).await;
    let mut worker = there.worker("pool").await;
    let run_id = there.submit("helper", None).await.run.run_id;
    let assignment = worker.assignment().await;
    let mut readers = Vec::new();
    for index in 0..40 {
        worker.append(&run_id, assignment.epoch, index, vec![event(RunEvent::text("x"))]).await;
        if index % 4 == 0 {
            let after = (index % 8 == 0).then_some(index / 2);
            let stream = here.service.stream(&run_id, after).collect::<Vec<_>>();
            readers.push((after, tokio::spawn(stream)));
        }
    }
    worker.append(&run_id, assignment.epoch, 40, vec![completed("x")]).await;
    worker.acked(&run_id, 41).await;
    for (after, reader) in readers {
        let chunks = tokio::time::timeout(PATIENCE, reader).await.expect("the stream ends").unwrap();
        let ids: Vec<u64> = chunks.iter().flat_map(|chunk| parse(&chunk.frames)).map(|(id, _)| id).collect();
        let first = after.map_or(0, |after| after + 1);
        assert_eq!(ids, (first..41).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_a_dead_replica_go_on_at_another() {
    let (dead, live) = two(living()).await;
    let mut workers = Vec::new();
    for number in 0..5 {
        let mut worker = dead.worker(&format!("of-s{number}")).await;
        let run_id = live.submit("helper", Some(&format!("s{number}"))).await.run.run_id;
        let assignment = worker.assignment().await;
        worker.append(&run_id, assignment.epoch, 0, vec![started()]).await;
        worker.acked(&run_id, 1).await;
        workers.push((worker, assignment));
    }
    drop(dead);
    for (number, (worker, assignment)) in workers.into_iter().enumerate() {
        worker.vanish().await;
        let name = format!("of-s{number}");
        let mut worker = Worker::connect(&live, &name, "first", vec![held(&assignment)]).await.unwrap();
        worker.append(&assignment.run_id, assignment.epoch, 1, vec![completed("ok")]).await;
        worker.acked(&assignment.run_id, 2).await;
        assert_eq!(attempt(&live, &assignment.run_id).await, (RunStatus::Completed, 1));
    }
    assert!(live.notes.lost.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assignment_lost_with_its_replica_is_sent_by_another() {
    let (dead, live) = two(told()).await;
    let mut worker = dead.worker("of-s").await;
    live.submit("helper", Some("s")).await;
    let assignment = worker.assignment().await;
    drop(dead);
    worker.vanish().await;
    // As if the worker had never got it.
    let mut worker = Worker::connect(&live, "of-s", "first", Vec::new()).await.unwrap();
    let again = worker.assignment().await;
    assert_eq!((&again.run_id, again.epoch, again.attempt), (&assignment.run_id, assignment.epoch, 1));
    worker.finish(&again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_died_with_its_replica_is_placed_again_once() {
    let url = tokio::task::spawn_blocking(database).await.unwrap();
    let dead = replica(open(&url).await, brisk()).await;
    let (one, two) = (replica(open(&url).await, brisk()).await, replica(open(&url).await, brisk()).await);
    let mut runs = Vec::new();
    for number in 0..10 {
        let mut worker = dead.worker(&format!("of-s{number}")).await;
        let run_id = dead.submit("helper", Some(&format!("s{number}"))).await.run.run_id;
        let assignment = worker.assignment().await;
        worker.append(&run_id, assignment.epoch, 0, vec![started()]).await;
        worker.acked(&run_id, 1).await;
        runs.push((assignment, worker));
    }
    drop(dead);
    let lost = || one.notes.lost.lock().unwrap().len() + two.notes.lost.lock().unwrap().len();
    until("all workers are lost", || lost() == 10).await;
    let mut workers = Vec::new();
    for (number, (assignment, _)) in runs.iter().enumerate() {
        let rig = if number % 2 == 0 { &one } else { &two };
        let name = format!("of-s{number}");
        let mut worker = Worker::connect(rig, &name, "second", Vec::new()).await.unwrap();
        let again = worker.assignment().await;
        assert_eq!((&again.run_id, again.attempt, again.progress.next_index), (&assignment.run_id, 2, 1));
        assert!(again.epoch > assignment.epoch);
        worker.append(&again.run_id, again.epoch, 1, vec![completed("ok")]).await;
        worker.acked(&again.run_id, 2).await;
        workers.push(worker);
    }
    assert_eq!(lost(), 10, "each by one replica");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_holds_after_the_death_of_its_replica() {
    let (dead, live) = two(brisk()).await;
    let mut worker = dead.worker("of-s").await;
    let submit = Submit { timeout_seconds: Some(5), ..submit("helper", Some("s")) };
    let run_id = dead.service.submit(submit).await.unwrap().run.run_id;
    worker.assignment().await;
    drop(dead);
    live.status(&run_id, RunStatus::Error).await;
    let run = live.service.run(&run_id, None).await.unwrap();
    assert_eq!(run.failure.unwrap().error_type, "timeout");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_moves_takes_its_run_along() {
    let (here, there) = two(told()).await;
    let mut worker = here.worker("of-s").await;
    let run_id = there.submit("helper", Some("s")).await.run.run_id;
    let assignment = worker.assignment().await;
    // The old connection seems to be open, to this replica.
    let mut moved = Worker::connect(&there, "of-s", "first", vec![held(&assignment)]).await.unwrap();
    assert!(worker.next().await.is_none(), "the old connection is closed");
    moved.append(&run_id, assignment.epoch, 0, vec![started()]).await;
    moved.acked(&run_id, 1).await;
    let next = here.submit("helper", Some("s")).await.run.run_id;
    moved.append(&run_id, assignment.epoch, 1, vec![completed("ok")]).await;
    // It may be told once more of the run that it has: under the same epoch that changes nothing.
    let of_next = |frame: &ServerFrame| match frame {
        ServerFrame::Assign(told) if told.run_id == run_id => {
            assert_eq!(told.epoch, assignment.epoch);
            None
        }
        ServerFrame::Assign(told) => Some(told.run_id.clone()),
        _ => None,
    };
    assert_eq!(moved.expect("the next run", of_next).await, next);
    assert_eq!(attempt(&here, &run_id).await, (RunStatus::Completed, 1));
    assert!(here.notes.lost.lock().unwrap().is_empty());
}

/// Does what it is given; answers how often each run was assigned.
async fn work(mut worker: Worker, seen: Arc<Mutex<HashMap<RunId, u32>>>, done: Arc<AtomicU32>, all: u32) {
    while done.load(Ordering::Acquire) < all {
        let assigned = tokio::time::timeout(Duration::from_millis(100), worker.assignment()).await;
        let Ok(assignment) = assigned else { continue };
        *seen.lock().unwrap().entry(assignment.run_id.clone()).or_default() += 1;
        worker.finish(&assignment).await;
        done.fetch_add(1, Ordering::AcqRel);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_runs_over_two_replicas_start_once_each() {
    const RUNS: u32 = 100;
    let (one, two) = two(Limits { sweep_every: Duration::from_millis(20), ..living() }).await;
    let (seen, done) = (Arc::default(), Arc::new(AtomicU32::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..4 {
        let rig = if number % 2 == 0 { &one } else { &two };
        let worker = rig.worker(&format!("pool{number}")).await;
        tasks.spawn(work(worker, Arc::clone(&seen), Arc::clone(&done), RUNS));
    }
    let submits = (0..RUNS).map(|number| {
        let rig = if number % 2 == 0 { &one } else { &two };
        // Some alone, some in lines.
        let session = (number % 3 > 0).then(|| format!("s{}", number % 10));
        async move { rig.submit("helper", session.as_deref()).await.run.run_id }
    });
    let runs = futures::future::join_all(submits).await;
    while let Some(ended) = tokio::time::timeout(PATIENCE, tasks.join_next()).await.expect("all is done") {
        ended.unwrap();
    }
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), runs.len());
    assert!(seen.values().all(|count| *count == 1), "{seen:?}");
    for run_id in &runs {
        assert_eq!(attempt(&one, run_id).await, (RunStatus::Completed, 1));
    }
}

async fn running(rig: &Rig) -> u64 {
    let filter = RunFilter { status: Some(RunStatus::Running), limit: 1, ..RunFilter::default() };
    rig.service.list(filter).await.unwrap().1
}

/// Runs of an agent over two replicas, at most `most` at once, all in the end.
async fn keeps_to(limits: Limits, agent: &str, most: u64) {
    let (one, two) = two(limits).await;
    let (mut first, mut second) = (one.worker("pool1").await, two.worker("pool2").await);
    let mut runs = Vec::new();
    for number in 0..8 {
        let rig = if number % 2 == 0 { &one } else { &two };
        runs.push(rig.submit(agent, None).await.run.run_id);
    }
    for done in 0..8 {
        let left = 8 - done;
        let all = async { while running(&one).await < most.min(left) {} };
        tokio::time::timeout(PATIENCE, all).await.expect("slots are used");
        assert!(running(&one).await <= most);
        let assignment = tokio::select! {
            assignment = first.assignment() => (assignment, true),
            assignment = second.assignment() => (assignment, false),
        };
        let worker = if assignment.1 { &mut first } else { &mut second };
        worker.finish(&assignment.0).await;
    }
    for run_id in &runs {
        assert_eq!(attempt(&two, run_id).await, (RunStatus::Completed, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agents_limit_holds_over_all_replicas() {
    keeps_to(told(), "narrow", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_limit_holds_over_all_replicas() {
    keeps_to(Limits { max_running: 3, ..told() }, "helper", 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_there_is_not_ended_under_a_run_accepted_here() {
    let (here, there) = two(Limits { unused_wait: Duration::from_millis(30), ..living() }).await;
    for round in 0..12 {
        let name = format!("s{round}");
        let session = SessionId::new(name.as_str()).unwrap();
        let mut worker = there.worker(&format!("of-{name}")).await;
        let mut pause = tokio::time::interval(Duration::from_millis(5 * round + 1));
        if round > 0 {
            pause.tick().await;
            pause.tick().await;
        }
        let run_id = here.submit("helper", Some(&name)).await.run.run_id;
        let is_retired = || there.notes.retired.lock().unwrap().contains(&session);
        until("it runs, or its worker is ended", || is_retired() || there.service.worker_counts().1 > 0).await;
        if is_retired() {
            // Then its run is not with it, and the next pod gets it.
            assert!(worker.has_none(|frame| matches!(frame, ServerFrame::Assign(_))).await);
            worker.vanish().await;
            worker = Worker::connect(&here, &format!("of-{name}"), "second", Vec::new()).await.unwrap();
        }
        let assignment = worker.assignment().await;
        assert_eq!((&assignment.run_id, assignment.attempt), (&run_id, 1));
        worker.finish(&assignment).await;
        worker.vanish().await;
        until("it is idle", || there.service.worker_counts().1 == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_hears_at_one_replica_what_happens_at_another() {
    let (here, there) = two(told()).await;
    let mut changes = here.service.changes();
    let mut worker = there.worker("of-s").await;
    worker.send(WorkerFrame::Isolation { isolated: false, detail: "it answered".to_owned() }).await;
    let reported = async {
        loop {
            let reports = here.service.isolation().await.unwrap();
            if reports.iter().any(|report| report.sandbox == "of-s" && !report.isolated) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, reported).await.expect("the report is known here");
    let origin = Origin::RunObject { uid: "u1".to_owned(), name: "nightly".to_owned() };
    let submitted = there.service.submit(Submit { origin, ..submit("helper", Some("s")) }).await.unwrap();
    let assignment = worker.assignment().await;
    worker.finish(&assignment).await;
    let ended = async {
        loop {
            if let Change::Run(run_id) = changes.recv().await.unwrap()
                && run_id == submitted.run.run_id
                && here.service.run(&run_id, None).await.unwrap().status == RunStatus::Completed
            {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("the end is told here");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_here_does_not_end_its_worker_there() {
    let (here, there) = two(Limits { unused_wait: Duration::from_millis(50), ..living() }).await;
    // It waits here first, so that this replica thinks of its worker as its own.
    let run_id = here.submit("helper", Some("s")).await.run.run_id;
    until("a worker is asked for", || !here.notes.wanted.lock().unwrap().is_empty()).await;
    let mut worker = there.worker("of-s").await;
    let assignment = worker.assignment().await;
    assert_eq!(assignment.run_id, run_id);
    until("this replica forgets it", || here.service.worker_counts().1 == 0).await;
    let mut pause = tokio::time::interval(Duration::from_millis(400));
    pause.tick().await;
    pause.tick().await;
    assert!(here.notes.retired.lock().unwrap().is_empty());
    worker.finish(&assignment).await;
}
