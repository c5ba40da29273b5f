//! A standby that takes over, and a disk that is full.

use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use cadre_api::cluster;
use cadre_api::config::Cli;
use cadre_api::domain::{DomainError, Limits};
use cadre_protocol::event::RunEvent;
use cadre_protocol::run::RunStatus;
use cadre_store::{Store, StoreError};
use clap::Parser as _;
use http::StatusCode;

use crate::process::Process;
use crate::support::*;
use crate::{Ports, alive, psql};

async fn open(hosts: &[String], name: &str) -> Arc<dyn Store> {
    let hosts: Vec<_> = hosts.iter().map(|host| host.replace('/', "%2F")).collect();
    let url = format!("postgres://cadre@{}/{name}", hosts.join(","));
    let config = Cli::parse_from(["cadre-api", "--database", &url]).config;
    cluster::open(config.database().unwrap(), config.durability.into()).await.unwrap()
}

/// Nobody is taken for dead meanwhile, however long it takes.
fn unhurried() -> Limits {
    Limits { reconnect_grace: PATIENCE * 100, return_time: PATIENCE * 100, ..limits() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_goes_on_at_the_standby_that_has_taken_over() {
    let mut database = Process::start();
    database.follow();
    let hosts = [database.folder().to_owned(), format!("{}/standby", database.folder())];
    let rig = rig_with(open(&hosts, "postgres").await, unhurried()).await;
    let ports = Ports::of(&rig);
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let epoch = worker.assignment().await.epoch;
    worker.append(&run_id, epoch, 0, vec![started()]).await;
    worker.acked(&run_id, 1).await;

    database.crash();
    worker.append(&run_id, epoch, 1, vec![event(RunEvent::text("a"))]).await;
    worker.heard().await;
    // A server that still follows may be behind: it is not read from, either.
    let answer = alive(&mut worker, ports.error_id("GET", "/sessions")).await;
    assert_eq!(answer.0, 503, "{answer:?}");
    let promoted = tokio::task::spawn_blocking(move || {
        database.promote();
        database
    });
    let _database = alive(&mut worker, promoted).await.unwrap();
    worker.acked(&run_id, 2).await;
    worker.append(&run_id, epoch, 2, vec![completed("a")]).await;
    worker.acked(&run_id, 3).await;
    rig.status(&run_id, RunStatus::Completed).await;
    assert_eq!(rig.events(&run_id, None).await.len(), 3);
    assert_eq!(ports.ask("GET", "/sessions").await.0, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_new_runs_and_holds_those_that_are_there() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        // Only root can make a small disk.
        return;
    }
    let mut database = Process::start();
    database.create_small("small");
    let host = database.folder().to_owned();
    let rig = rig_with(open(std::slice::from_ref(&host), "small").await, unhurried()).await;
    let ports = Ports::of(&rig);
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", Some("s")).await.run.run_id;
    let epoch = worker.assignment().await.epoch;
    worker.append(&run_id, epoch, 0, vec![started()]).await;
    worker.acked(&run_id, 1).await;

    let sql = |statement: &str| psql(&host, "small", statement);
    assert!(sql("create table ballast (bytes text); alter table ballast alter bytes set storage external"));
    for count in [1000, 100, 10, 1] {
        while sql(&format!("insert into ballast select repeat('x', 7000) from generate_series(1, {count})")) {
            worker.heard().await;
        }
    }
    worker.append(&run_id, epoch, 1, vec![event(RunEvent::text("x".repeat(100_000)))]).await;
    // What pages still have room for is written; then nothing.
    let refused = loop {
        match rig.service.submit(submit("helper", None)).await {
            Ok(_) => worker.heard().await,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(&refused, DomainError::Store(StoreError::Unavailable(_))), "{refused:?}");
    assert_eq!(ports.ask("GET", "/sessions").await.0, StatusCode::OK, "what is there can be read");
    assert_eq!(rig.service.run(&run_id, None).await.unwrap().status, RunStatus::Running);

    assert!(sql("drop table ballast") && sql("checkpoint"));
    worker.acked(&run_id, 2).await;
    worker.append(&run_id, epoch, 2, vec![completed("a")]).await;
    worker.acked(&run_id, 3).await;
    rig.status(&run_id, RunStatus::Completed).await;
}
