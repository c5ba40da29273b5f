//! The server on a real PostgreSQL: opening, news of other servers, and a database that is away for a while.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, helpers included"
)]

mod budgets;
#[path = "../../store/tests/server/process.rs"]
mod process;
mod replicas;
mod shares;
#[path = "../worker_port/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the worker port")]
mod support;
mod troubles;
#[path = "../worker_port/upstream.rs"]
#[expect(dead_code, reason = "shared with the tests of the worker port")]
mod upstream;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use cadre_api::auth::actor::Actor;
use cadre_api::auth::key::{Authentication, SecurityKey};
use cadre_api::cluster;
use cadre_api::config::{Cli, Config};
use cadre_api::domain::append::Appended;
use cadre_api::domain::{DomainError, Limits, Submit, Writer};
use cadre_api::listen::admin::{self, AdminState};
use cadre_api::listen::user;
use cadre_api::routes::state::UserSettings;
use cadre_protocol::event::RunEvent;
use cadre_protocol::journal::Batch;
use cadre_protocol::run::RunStatus;
use cadre_protocol::worker::{ServerFrame, WorkerFrame};
use cadre_store::Store;
use cadre_store::rows::RunFilter;
use clap::Parser as _;
use futures::StreamExt as _;
use http::{Request, StatusCode, header};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use process::Process;
use support::*;
use upstream::{Gate, Upstream};

const KEY: &str = "admin-0123456789abcdef0123456789abcdef";

fn config(database: &Process) -> Config {
    let url = format!("postgres://cadre:very-secret@{}/postgres", database.folder().replace('/', "%2F"));
    Cli::parse_from(["cadre-api", "--database", &url]).config
}

async fn open(database: &Process) -> Arc<dyn Store> {
    let config = config(database);
    cluster::open(config.database().unwrap(), config.durability.into()).await.unwrap()
}

/// Runs a statement past every server of ours.
fn sql(database: &Process, statement: &str) {
    assert!(psql(database.folder(), "postgres", statement), "{statement}");
}

/// The same on a database of this name. Whether it succeeded.
fn psql(host: &str, name: &str, statement: &str) -> bool {
    const SCRIPT: &str = r#"
        for bin in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin; do
          if [ -x "$bin/psql" ]; then PATH="$bin:$PATH"; fi
        done
        exec psql -h "$0" -U cadre -d "$2" -q -v ON_ERROR_STOP=1 -c "$1"
    "#;
    let status = std::process::Command::new("sh").args(["-c", SCRIPT, host, statement, name]).status();
    status.unwrap().success()
}

/// The user port and the admin port of a server.
struct Ports {
    user: Router,
    admin: Router,
}

impl Ports {
    fn of(rig: &Rig) -> Self {
        let holder = Actor { principal: principal(), admin: true };
        let key = SecurityKey::new(&SecretString::from(KEY), holder).unwrap();
        let settings = UserSettings::new(Authentication::Keys(vec![key]), CancellationToken::new());
        Self {
            user: user::router(rig.service.clone(), settings),
            admin: admin::router(AdminState::new(rig.service.clone())),
        }
    }

    /// Status of an answer of the user port, and when to ask again.
    async fn ask(&self, method: &str, path: &str) -> (StatusCode, Option<String>) {
        let answer = self.send(method, path).await;
        let again = answer.headers().get(header::RETRY_AFTER);
        (answer.status(), again.map(|seconds| seconds.to_str().unwrap().to_owned()))
    }

    /// Status and stable code of an error of the user port.
    async fn error_id(&self, method: &str, path: &str) -> (u16, String) {
        let answer = self.send(method, path).await;
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        (status, body["error_id"].as_str().unwrap().to_owned())
    }

    async fn send(&self, method: &str, path: &str) -> axum::response::Response {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost:7777")
            .header(header::AUTHORIZATION, format!("Bearer {KEY}"))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        let body = if method == "POST" { "message=hello&stream=false" } else { "" };
        self.user.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap()
    }

    /// A value that the admin port shows.
    async fn metric(&self, name: &str) -> String {
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let answer = self.admin.clone().oneshot(request).await.unwrap();
        let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{name} is missing: {text}")).to_owned()
    }

    async fn ready(&self) -> StatusCode {
        let request = Request::get("/readyz").body(Body::empty()).unwrap();
        self.admin.clone().oneshot(request).await.unwrap().status()
    }

    async fn until_ready(&self) {
        let ready = async { while self.ready().await != StatusCode::OK {} };
        tokio::time::timeout(PATIENCE, ready).await.expect("ready again");
    }
}

#[tokio::test]
async fn a_server_waits_for_a_database_that_is_away_when_it_starts() {
    let mut database = Process::start();
    let config = config(&database);
    database.crash();
    let stop = CancellationToken::new();
    let opened = cluster::open_when_there(config.database().unwrap(), config.durability.into(), &stop);
    let back = tokio::task::spawn_blocking(move || {
        database.start_again();
        database
    });
    let (store, back) = tokio::join!(opened, back);
    store.unwrap().check().await.unwrap();
    drop(back);
    stop.cancel();
    let refused = cluster::open_when_there(config.database().unwrap(), config.durability.into(), &stop).await;
    assert!(refused.is_err(), "a server that is told to stop does not wait");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrate_and_serve_open_a_database_by_its_url() {
    let database = Process::start();
    let config = config(&database);
    assert!(!format!("{config:?}").contains("very-secret"));
    cluster::migrate(&config).await.unwrap();
    cluster::migrate(&config).await.unwrap();
    let store = open(&database).await;
    store.check().await.unwrap();
    store.close().await;
    drop(database);
    let nowhere = Cli::parse_from(["cadre-api", "--database", "postgres://cadre:very-secret@%2Fnonexistent/postgres"]);
    let error = cluster::migrate(&nowhere.config).await.unwrap_err();
    assert!(!format!("{error:?}").contains("very-secret"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_goes_on_after_the_database_was_away() {
    let mut database = Process::start();
    let limits = Limits { reconnect_grace: PATIENCE * 100, ..limits() };
    let rig = rig_with(open(&database).await, limits).await;
    let ports = Ports::of(&rig);
    ports.until_ready().await;
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", Some("s")).await.run.run_id;
    let next = rig.submit("helper", Some("s")).await.run.run_id;
    let assignment = worker.assignment().await;
    let epoch = assignment.epoch;
    worker.append(&run_id, epoch, 0, vec![started()]).await;
    worker.acked(&run_id, 1).await;
    let reader = tokio::spawn(rig.service.stream(&run_id, None).collect::<Vec<_>>());
    assert_eq!(ports.metric("cadre_runs_waiting").await, "1.0");

    database.crash();
    assert_eq!(ports.metric("cadre_runs_waiting").await, "NaN", "nobody knows");
    worker.append(&run_id, epoch, 1, vec![event(RunEvent::text("a"))]).await;
    let unavailable = (StatusCode::SERVICE_UNAVAILABLE, Some("1".to_owned()));
    for (method, path) in [
        ("GET", "/sessions"),
        ("GET", "/agents/helper/runs?session_id=s"),
        ("GET", "/agents/helper/runs/none?session_id=s"),
        ("POST", "/agents/helper/runs"),
    ] {
        assert_eq!(ports.ask(method, path).await, unavailable, "{method} {path}");
    }
    for path in ["/health", "/info", "/agents"] {
        assert_eq!(ports.ask("GET", path).await, (StatusCode::OK, None), "{path}");
    }
    assert_eq!(ports.ready().await, StatusCode::SERVICE_UNAVAILABLE);
    // The connection stays; and a worker that dials again keeps what it has and sends it again.
    worker.heard().await;
    worker.vanish().await;
    let mut worker = Worker::connect(&rig, "pool", "first", vec![held(&assignment)]).await.unwrap();
    worker.append(&run_id, epoch, 1, vec![event(RunEvent::text("a")), event(RunEvent::text("b"))]).await;
    worker.heard().await;

    database.start_again();
    worker.acked(&run_id, 3).await;
    ports.until_ready().await;
    worker.append(&run_id, epoch, 3, vec![completed("ab")]).await;
    worker.acked(&run_id, 4).await;
    let assignment = worker.assignment().await;
    assert_eq!((&assignment.run_id, assignment.attempt), (&next, 1));
    worker.finish(&assignment).await;
    rig.status(&next, RunStatus::Completed).await;

    let run = rig.service.run(&run_id, None).await.unwrap();
    assert_eq!((run.status, run.attempt), (RunStatus::Completed, 1));
    let live = tokio::time::timeout(PATIENCE, reader).await.expect("the stream ends").unwrap();
    let live: Vec<_> = live.iter().flat_map(|chunk| parse(&chunk.frames)).collect();
    assert_eq!(live.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(live, rig.events(&run_id, None).await);
    let (_, count) = rig.service.list(RunFilter { limit: 10, ..RunFilter::default() }).await.unwrap();
    assert_eq!(count, 2, "what was refused was not accepted");
}

/// Limits of servers of which neither takes the other for dead, or its worker for lost, however slow the machine is.
fn living() -> Limits {
    Limits { return_time: PATIENCE * 100, ..patient() }
}

/// Waits for something while a worker only lives.
async fn alive<T>(worker: &mut Worker, what: impl Future<Output = T>) -> T {
    let mut what = std::pin::pin!(what);
    let mut beat = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            done = &mut what => return done,
            _ = beat.tick() => worker.send(WorkerFrame::Heartbeat {}).await,
        }
    }
}

/// Starts the database again after a crash.
async fn back(worker: &mut Worker, mut database: Process) -> Process {
    let started = tokio::task::spawn_blocking(move || {
        database.start_again();
        database
    });
    alive(worker, started).await.unwrap()
}

/// The run that an answer names, its status and its body's.
async fn told(answer: axum::response::Response) -> (String, u16, serde_json::Value) {
    let run_id = answer.headers()["x-run-id"].to_str().unwrap().to_owned();
    let status = answer.status().as_u16();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["run_id"], run_id);
    (run_id, status, body["status"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_an_accepted_run_gets_it_or_its_name() {
    let mut database = Process::start();
    let rig = rig_with(open(&database).await, patient()).await;
    let ports = Arc::new(Ports::of(&rig));
    let ask = || {
        let ports = Arc::clone(&ports);
        tokio::spawn(async move { told(ports.send("POST", "/agents/helper/runs").await).await })
    };
    let mut worker = rig.worker("pool").await;
    let waiting = ask();
    let assignment = worker.assignment().await;
    database.crash();
    // Long enough for looks into the record that find nobody.
    let looked = alive(&mut worker, rig.service.wait_end(&assignment.run_id, Duration::from_secs(5))).await;
    assert!(matches!(looked, Err(DomainError::NotEnded(_, None))), "{looked:?}");
    let _database = back(&mut worker, database).await;
    worker.finish(&assignment).await;
    assert_eq!(waiting.await.unwrap(), (assignment.run_id.to_string(), 200, "COMPLETED".into()));

    let waiting = ask();
    let assignment = worker.assignment().await;
    rig.service.stopping().cancel();
    assert_eq!(waiting.await.unwrap(), (assignment.run_id.to_string(), 202, "RUNNING".into()), "it goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_limit_that_passes_while_the_database_is_away_holds_after_it() {
    let mut database = Process::start();
    let rig = rig_with(open(&database).await, patient()).await;
    let mut worker = rig.worker("pool").await;
    let limited = Submit { timeout_seconds: Some(1), ..submit("helper", None) };
    let run_id = rig.service.submit(limited).await.unwrap().run.run_id;
    worker.assignment().await;
    database.crash();
    // The limit and its grace are over by then.
    let looked = alive(&mut worker, rig.service.wait_end(&run_id, Duration::from_secs(6))).await;
    assert!(matches!(looked, Err(DomainError::NotEnded(..))), "{looked:?}");
    let _database = back(&mut worker, database).await;
    alive(&mut worker, Ports::of(&rig).until_ready()).await;
    alive(&mut worker, rig.status(&run_id, RunStatus::Error)).await;
    let failure = rig.service.run(&run_id, None).await.unwrap().failure.unwrap();
    assert_eq!(failure.error_type, "timeout");
    worker.fenced(&run_id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_lost_while_the_database_is_away_is_replaced_after_it() {
    let mut database = Process::start();
    let rig = rig_with(open(&database).await, limits()).await;
    let mut first = rig.worker("one").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let assignment = first.assignment().await;
    first.append(&run_id, assignment.epoch, 0, vec![started()]).await;
    first.acked(&run_id, 1).await;

    database.crash();
    first.vanish().await;
    until("the worker is away", || rig.service.worker_counts().0 == 0).await;
    let mut second = rig.worker("two").await;
    until("another one is there", || rig.service.worker_counts().0 == 1).await;
    // The database may be slow to come: the worker lives meanwhile.
    let mut restart = tokio::task::spawn_blocking(move || {
        database.start_again();
        database
    });
    let mut beat = tokio::time::interval(Duration::from_secs(1));
    let _database = loop {
        tokio::select! {
            database = &mut restart => break database.unwrap(),
            _ = beat.tick() => second.send(WorkerFrame::Heartbeat {}).await,
        }
    };
    let again = second.assignment().await;
    assert_eq!((&again.run_id, again.attempt, again.progress.next_index), (&run_id, 2, 1));
    assert!(again.epoch > assignment.epoch);
    assert_eq!(rig.notes.lost.lock().unwrap().len(), 1);
    second.append(&run_id, again.epoch, 1, vec![completed("x")]).await;
    second.acked(&run_id, 2).await;
    assert_eq!(rig.events(&run_id, None).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_moves_while_the_database_is_away_keeps_its_run_and_gets_its_models_answer() {
    let database = Process::start();
    let here = replica(open(&database).await, living()).await;
    let there = replica(open(&database).await, living()).await;
    let mut worker = Worker::connect(&here, "of-s", "first", Vec::new()).await.unwrap();
    let run_id = here.submit("helper", Some("s")).await.run.run_id;
    let assignment = worker.assignment().await;
    let mut database = database;
    database.crash();
    worker.vanish().await;
    let mut moved = Worker::connect(&there, "of-s", "first", vec![held(&assignment)]).await.unwrap();
    moved.send(upstream::ask(&assignment, 1, "echo")).await;
    moved.heard().await;
    let _database = back(&mut moved, database).await;
    let answer = moved.expect("an answer", |frame| match frame {
        ServerFrame::ModelReply { call: 1, .. } => Some(Ok(())),
        ServerFrame::Fenced { .. } | ServerFrame::ModelFailed { .. } => Some(Err(frame.clone())),
        _ => None,
    });
    answer.await.expect("the worker keeps its run");
    moved.finish(&assignment).await;
    there.status(&run_id, RunStatus::Completed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_models_answer_comes_to_a_worker_that_has_moved_also_while_the_database_is_away() {
    let mut database = Process::start();
    let upstream = Upstream::start().await;
    let manifests = upstream::manifests(&upstream, "1");
    let here = replica_of(&manifests, open(&database).await, living()).await;
    let there = replica_of(&manifests, open(&database).await, living()).await;
    let mut worker = here.worker("pool").await;
    let run_id = here.submit("free", None).await.run.run_id;
    let assignment = worker.assignment().await;
    worker.vanish().await;
    let mut moved = Worker::connect(&there, "pool", "first", vec![held(&assignment)]).await.unwrap();
    moved.send(upstream::ask(&assignment, 1, "unpriced")).await;
    until("the model is asked", || upstream.seen() == 1).await;
    database.crash();
    upstream.set(Gate::Open(1, 1));
    upstream::outcome(&mut moved, 1).await.expect("an answer that has been paid for");
    let _database = back(&mut moved, database).await;
    moved.finish(&assignment).await;
    there.status(&run_id, RunStatus::Completed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_must_be_reserved_waits_for_a_database_that_is_away() {
    let mut database = Process::start();
    let upstream = Upstream::start().await;
    upstream.set(Gate::Open(10, 5));
    let rig = replica_of(&upstream::manifests(&upstream, "1"), open(&database).await, patient()).await;
    let mut worker = rig.worker("pool").await;
    for (agent, model) in [("thrifty", "priced"), ("shares", "shared")] {
        rig.submit(agent, None).await;
        let assignment = worker.assignment().await;
        database.crash();
        worker.send(upstream::ask(&assignment, 1, model)).await;
        worker.heard().await;
        database = back(&mut worker, database).await;
        upstream::outcome(&mut worker, 1).await.expect("the call waits and is made");
        worker.finish(&assignment).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_while_the_database_is_away_takes_no_run_from_its_worker() {
    let mut database = Process::start();
    let rig = rig_with(open(&database).await, limits()).await;
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let epoch = worker.assignment().await.epoch;
    database.crash();
    let writer = Writer { worker_id: worker.worker_id.clone(), registration: "first".to_owned() };
    let batch = Batch { run_id: run_id.clone(), epoch, first_index: 0, entries: vec![started()] };
    let (appended, ()) = tokio::join!(rig.service.append(&writer, batch), rig.service.stop());
    assert_eq!(appended, Appended::Unanswered);
    database.start_again();
    let store = open(&database).await;
    assert_eq!(store.run(&run_id).await.unwrap().unwrap().status, RunStatus::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_hears_what_another_server_writes() {
    let database = Process::start();
    let (reading, writing) =
        (replica(open(&database).await, living()).await, replica(open(&database).await, living()).await);
    let mut worker = writing.worker("pool").await;
    let run_id = writing.submit("helper", None).await.run.run_id;
    let assignment = worker.assignment().await;
    let mut stream = reading.service.stream(&run_id, None);
    // Without news each of them would take a look of five seconds, and all of them twice as long as they may.
    let count = 2 * PATIENCE.as_secs() / 5;
    let rounds = async {
        for index in 0..count {
            worker.append(&run_id, assignment.epoch, index, vec![event(RunEvent::text("x"))]).await;
            assert_eq!(stream.next().await.unwrap().first_index, index);
        }
    };
    tokio::time::timeout(PATIENCE, rounds).await.expect("news come");
    worker.append(&run_id, assignment.epoch, count, vec![completed("x")]).await;
    assert_eq!(stream.next().await.unwrap().first_index, count);
    assert!(stream.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_of_another_version_is_told_apart() {
    let database = Process::start();
    cluster::migrate(&config(&database)).await.unwrap();
    sql(&database, "insert into schema_versions (version, applied_at_ms) values (99, 0)");
    assert!(cluster::migrate(&config(&database)).await.is_err(), "there is no way back");
    // The server starts all the same and says what is wrong.
    let rig = rig_with(open(&database).await, limits()).await;
    let ports = Ports::of(&rig);
    let why = async |path: &str| ports.error_id("GET", path).await;
    assert_eq!(why("/sessions").await, (503, "schema_mismatch_error".to_owned()));
    assert_eq!(ports.error_id("POST", "/databases/all/migrate").await, (503, "schema_mismatch_error".to_owned()));
    for path in ["/health", "/info", "/agents"] {
        assert_eq!(ports.ask("GET", path).await.0, StatusCode::OK, "{path}");
    }
    assert_eq!(ports.ready().await, StatusCode::SERVICE_UNAVAILABLE);
    assert!(Worker::connect(&rig, "pool", "first", vec![]).await.is_err(), "workers would write");

    sql(&database, "delete from schema_versions where version = 99");
    assert_eq!(ports.ask("GET", "/sessions").await.0, StatusCode::OK);
    ports.until_ready().await;
    // Another server's next program has added to the schema: this one goes on.
    sql(&database, "insert into schema_versions (version, applied_at_ms) values (2, 0)");
    assert_eq!(ports.ask("GET", "/sessions").await.0, StatusCode::OK);
    // Somebody puts an empty database in place of this one.
    sql(&database, "drop schema public cascade; create schema public");
    assert_eq!(why("/sessions").await, (503, "migration_required_error".to_owned()));
    assert_eq!(why("/queue/stats").await, (503, "migration_required_error".to_owned()));
    assert_eq!(ports.ask("POST", "/databases/cadre/migrate").await.0, StatusCode::OK);
    assert_eq!(ports.ask("GET", "/sessions").await.0, StatusCode::OK);
}
