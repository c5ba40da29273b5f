//! Usage by day, and the record's upkeep.

use std::time::Duration;

use cadre_store::traits::Runs as _;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{ADA_KEY, ADMIN_KEY, BOB_KEY, FORM, request, world};

const RUNS: &str = "/agents/helper/runs";

fn today() -> String {
    jiff::Timestamp::now().to_string()[..10].to_owned()
}

#[tokio::test]
async fn a_day_shows_what_has_just_happened() {
    let world = world().await;
    assert_eq!(world.get("/metrics").await.json(), json!({"metrics": [], "updated_at": null}));
    assert_eq!(world.get("/metrics/refresh/status").await.json()["status"], "idle");
    let before = today();
    for (key, form) in [
        (ADA_KEY, "message=m&stream=false&session_id=a&user_id=u"),
        (ADA_KEY, "message=m&stream=false&session_id=a&user_id=u"),
        (BOB_KEY, "message=fail&stream=false&session_id=b&user_id=v"),
    ] {
        assert_eq!(world.send(request(Method::POST, RUNS, key, FORM, form)).await.status, 200);
    }
    if before != today() {
        return; // The day has just changed; what is below is about one day.
    }
    let day = |key: &'static str, query: &str| {
        let request = request(Method::GET, &format!("/metrics{query}"), key, "", "");
        let world = &world;
        async move {
            let answer = world.send(request).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            answer.json()["metrics"].as_array().unwrap().clone()
        }
    };
    let counts = |day: &Value| {
        let count = |name: &str| day[name].as_u64().unwrap();
        (count("agent_runs_count"), count("agent_sessions_count"), count("users_count"))
    };
    let check = async || {
        let all = day(ADMIN_KEY, "").await;
        assert_eq!((all.len(), counts(&all[0])), (1, (3, 2, 2)));
        assert_eq!(all[0]["id"], format!("{before}_daily"));
        assert_eq!(all[0]["date"], format!("{before}T00:00:00.000Z"));
        assert_eq!((&all[0]["team_runs_count"], &all[0]["token_metrics"]["total_tokens"]), (&json!(0), &json!(0)));
        assert_eq!(counts(&day(ADA_KEY, "").await[0]), (2, 1, 1), "her own");
        let one = day(ADMIN_KEY, "?user_id=v").await;
        assert_eq!((counts(&one[0]), &one[0]["id"]), ((1, 1, 1), &json!(format!("{before}_daily_v"))));
        let only = day(ADMIN_KEY, &format!("?starting_date={before}&ending_date={before}")).await;
        assert_eq!((only.len(), counts(&only[0])), (1, (3, 2, 2)));
        assert!(day(ADMIN_KEY, "?ending_date=2020-01-01").await.is_empty());
    };
    check().await;
    world.service.count_usage(world.service.now_ms() + 1_000_000).await.unwrap();
    let refreshed = world.post("/metrics/refresh", "").await;
    assert_eq!(refreshed.status, 200, "{}", refreshed.text);
    assert_eq!(counts(&refreshed.json()[0]), (3, 2, 2));
    assert_eq!(world.get("/metrics/refresh/status").await.json()["status"], "completed");
    check().await;
}

#[tokio::test]
async fn a_refresh_in_the_background_is_told_apart_from_one_under_way() {
    let world = world().await;
    let begun = world.post("/metrics/refresh?background=true", "").await;
    assert_eq!((begun.status, &begun.json()["status"]), (StatusCode::ACCEPTED, &json!("started")));
    let status = world.until("/metrics/refresh/status", |status| status["status"] == "completed").await;
    assert!(status["started_at"].is_string() && status["finished_at"].is_string(), "{status}");
    assert!(world.service.begin_refresh().await.unwrap());
    let second = world.post("/metrics/refresh?background=true", "").await;
    assert_eq!((second.status, &second.json()["status"]), (StatusCode::ACCEPTED, &json!("already_running")));
    assert_eq!(world.get("/metrics/refresh/status").await.json()["status"], "running");
    assert_eq!(world.post("/metrics/refresh", "").await.status, 200, "it shows what there is");
}

#[tokio::test]
async fn wrong_queries_are_refused() {
    let world = world().await;
    for (query, status) in
        [("starting_date=x", 422), ("ending_date=2024-02-30", 422), ("db_id=other", 404), ("user_id=%00", 400)]
    {
        assert_eq!(world.get(&format!("/metrics?{query}")).await.status, status, "{query}");
    }
    assert_eq!(world.post("/metrics/refresh?background=maybe", "").await.status, 422);
}

#[tokio::test]
async fn what_is_old_is_forgotten_and_what_is_open_stays() {
    let world = world().await;
    for (session, form) in [("old", "message=m&stream=false"), ("open", "message=wait&stream=false&background=true")] {
        let form = format!("{form}&session_id={session}&run_id={session}");
        let mut request = request(Method::POST, RUNS, ADMIN_KEY, FORM, &form);
        request.headers_mut().insert("idempotency-key", session.parse().unwrap());
        assert!(world.send(request).await.status.is_success());
    }
    world.json(Method::POST, "/sessions", r#"{"session_id":"empty"}"#).await;
    let at =
        |days: u64| world.service.now_ms() + u64::try_from(Duration::from_secs(days * 86_400).as_millis()).unwrap();
    // The world's servers keep runs for 30 days and keys for one.
    world.service.forget(at(29)).await.unwrap();
    assert_eq!(world.get("/queue/jobs").await.json()["meta"]["total_count"], 2);
    assert_eq!(world.get("/queue/jobs/old").await.json()["idempotency_key"], json!(null));
    assert_eq!(world.get("/queue/jobs/open").await.json()["idempotency_key"], "open");
    world.service.forget(at(31)).await.unwrap();
    assert_eq!(world.get("/queue/jobs/old").await.status, 404);
    for (session, status) in [("old", 404), ("empty", 404), ("open", 200)] {
        assert_eq!(world.get(&format!("/sessions/{session}")).await.status, status, "{session}");
    }
    assert!(world.store.run(&"open".parse().unwrap()).await.unwrap().is_some());
    world.release.send_replace(true);
}
