//! The queue as its operators see it; keys that make requests safe to send again; cancels that come early.

use http::{Method, header};
use serde_json::{Value, json};

use crate::support::{ADA_KEY, ADMIN_KEY, Answer, BOB_KEY, FORM, World, names, request, world};

const RUNS: &str = "/agents/helper/runs";

async fn keyed(world: &World, key: &str, idempotency: &str, path: &str, form: &str) -> Answer {
    let mut request = request(Method::POST, path, key, FORM, form);
    request.headers_mut().insert("idempotency-key", idempotency.parse().unwrap());
    world.send(request).await
}

#[tokio::test]
async fn runs_are_jobs() {
    let world = world().await;
    world.post(RUNS, "message=done&stream=false&session_id=a&run_id=r1&user_id=u&metadata={\"k\":1}").await;
    world.post(RUNS, "message=fail&stream=false&session_id=b&run_id=r2").await;
    keyed(&world, ADMIN_KEY, "key", RUNS, "message=wait&stream=false&background=true&session_id=c&run_id=r3").await;
    world.post(RUNS, "message=next&stream=false&background=true&session_id=c&run_id=r4").await;
    let page = world.get("/queue/jobs").await.json();
    assert_eq!((&page["meta"]["total_count"], &page["meta"]["limit"]), (&json!(4), &json!(20)));
    let shown = |page: &Value| {
        let rows = page["data"].as_array().unwrap().clone();
        rows.into_iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(shown(&page), ["r4", "r3", "r2", "r1"]);
    let done = &page["data"][3];
    for (field, expected) in [
        ("component_type", json!("agent")),
        ("component_id", json!("helper")),
        ("session_id", json!("a")),
        ("job_type", json!("run")),
        ("user_id", json!("u")),
        ("status", json!("completed")),
        ("attempt", json!(1)),
        ("max_attempts", json!(1)),
        ("error", json!(null)),
        ("locked_by", json!(null)),
    ] {
        assert_eq!(done[field], expected, "{field}");
    }
    assert_eq!(
        (&done["payload"]["input"], &done["payload"]["kwargs"]),
        (&json!("done"), &json!({"metadata": {"k": 1}}))
    );
    assert_eq!(done["payload"]["scope"]["user_id"], "u");
    assert_eq!((&done["payload"]["session_seq"], &done["payload"]["serialize_session"]), (&json!(1), &json!(true)));
    assert!(done["completed_at"].is_u64() && done["created_at"].is_u64() && done["available_at"].is_u64());
    let failed = world.get("/queue/jobs/r2").await.json();
    assert_eq!((&failed["status"], &failed["error"]), (&json!("failed"), &json!("the model is down")));
    let running = world.until("/queue/jobs/r3", |job| job["status"] == "running").await;
    assert_eq!((&running["locked_by"], &running["idempotency_key"]), (&json!("local/1"), &json!("key")));
    assert_eq!(world.get("/queue/jobs/r4").await.json()["status"], "queued");
    for (query, expected) in [
        ("status=queued&status=failed", &["r4", "r2"][..]),
        ("session_id=a&session_id=b&sort_order=asc", &["r1", "r2"]),
        ("user_id=u", &["r1"]),
        ("limit=1&page=2", &["r3"]),
        ("sort_by=updated_at&status=queued", &["r4"]),
        ("status=paused", &[]),
    ] {
        assert_eq!(shown(&world.get(&format!("/queue/jobs?{query}")).await.json()), expected, "{query}");
    }
    for (query, status) in [
        ("status=PENDING", 400),
        ("status=", 400),
        ("session_id=", 400),
        ("limit=0", 422),
        ("page=0", 422),
        ("limit=1001", 422),
        ("user_id=", 400),
        ("sort_by=payload", 200),
    ] {
        assert_eq!(world.get(&format!("/queue/jobs?{query}")).await.status, status, "{query}");
    }
    assert_eq!(world.get("/queue/jobs?limit=1000").await.json()["meta"]["limit"], 1000);
    let none = world.get("/queue/jobs/none").await;
    assert_eq!((none.status.as_u16(), none.detail().as_str()), (404, "Job queue job none not found"));
    world.release.send_replace(true);
}

#[tokio::test]
async fn only_admins_see_the_queue() {
    let world = world().await;
    for path in ["/queue/jobs", "/queue/jobs/r", "/queue/stats"] {
        for key in [ADA_KEY, BOB_KEY] {
            let answer = world.send(request(Method::GET, path, key, "", "")).await;
            assert_eq!(answer.status, 403, "{path}");
            assert_eq!(answer.detail(), "Job queue operations require an admin scope");
        }
    }
}

#[tokio::test]
async fn a_key_names_a_run_of_its_caller_and_user() {
    let world = world().await;
    let body = "message=wait&stream=false&background=true&user_id=u";
    let first = keyed(&world, ADA_KEY, "k", RUNS, body).await;
    assert_eq!(first.status, 202, "{}", first.text);
    let first = first.json();
    let job = format!("/queue/jobs/{}", first["run_id"].as_str().unwrap());
    world.until(&job, |job| job["status"] == "running").await;
    let again = keyed(&world, ADA_KEY, "k", RUNS, body).await;
    assert_eq!((again.status.as_u16(), &again.json()["run_id"]), (202, &first["run_id"]));
    assert_eq!(again.json()["status"], "RUNNING", "as it stands now");
    let differs = async |key: &str, form: &str| {
        let other = keyed(&world, key, "k", RUNS, form).await;
        assert_eq!(other.status, 202, "{}", other.text);
        assert_ne!(other.json()["run_id"], first["run_id"]);
    };
    differs(ADA_KEY, "message=m&stream=false&background=true&user_id=v").await;
    differs(ADA_KEY, "message=m&stream=false&background=true").await;
    differs(BOB_KEY, body).await;
    // Another agent is told first, whatever shape the answer should have.
    let elsewhere = format!("{body}&stream=true");
    let elsewhere = keyed(&world, ADA_KEY, "k", "/agents/team-a.other/runs", &elsewhere).await;
    assert_eq!((elsewhere.status.as_u16(), &elsewhere.json()["error_id"]), (409, &json!("idempotency_conflict")));
    let changed = keyed(&world, ADA_KEY, "k", RUNS, "message=other&stream=false&background=true&user_id=u").await;
    assert_eq!((changed.status.as_u16(), &changed.json()["error_id"]), (409, &json!("idempotency_conflict")));
    world.release.send_replace(true);
    let ended = keyed(&world, ADA_KEY, "k", RUNS, "message=wait&stream=false&user_id=u").await;
    assert_eq!((ended.status.as_u16(), &ended.json()["status"]), (200, &json!("COMPLETED")));
    let late = keyed(&world, ADA_KEY, "k", RUNS, body).await;
    assert_eq!((late.status.as_u16(), &late.json()["status"]), (202, &json!("COMPLETED")));
    // Its events are kept, so a stream is no conflict.
    let stream = keyed(&world, ADA_KEY, "k", RUNS, "message=wait&user_id=u").await;
    assert_eq!(names(&stream.text).last().map(String::as_str), Some("RunCompleted"));
}

#[tokio::test]
async fn an_empty_key_is_none_and_a_full_queue_still_answers_a_key() {
    let world = world().await;
    let body = "message=wait&stream=false&background=true&session_id=s";
    let mut ids = std::collections::BTreeSet::new();
    for n in 0..4 {
        let key = if n == 1 { "k" } else { "" };
        let run = keyed(&world, ADMIN_KEY, key, RUNS, body).await;
        assert_eq!(run.status, 202, "{}", run.text);
        let id = run.json()["run_id"].as_str().unwrap().to_owned();
        if n == 0 {
            // The head of the line waits for nothing, so it is not counted.
            world.until(&format!("/queue/jobs/{id}"), |job| job["status"] == "running").await;
        }
        ids.insert(id);
    }
    assert_eq!(ids.len(), 4);
    let full = keyed(&world, ADMIN_KEY, "new", RUNS, body).await;
    assert_eq!((full.status.as_u16(), &full.headers[header::RETRY_AFTER]), (429, &"1".parse().unwrap()));
    let known = keyed(&world, ADMIN_KEY, "k", RUNS, body).await;
    assert_eq!(known.status, 202, "{}", known.text);
    assert!(ids.contains(known.json()["run_id"].as_str().unwrap()));
    assert_eq!(known.json()["status"], "PENDING");
    world.release.send_replace(true);
}

#[tokio::test]
async fn a_run_id_that_exists_is_never_taken_again() {
    let world = world().await;
    world.post(RUNS, "message=first&stream=false&run_id=r&session_id=s").await;
    for session in ["s", "other"] {
        let again = world.post(RUNS, &format!("message=second&stream=false&run_id=r&session_id={session}")).await;
        assert_eq!((again.status.as_u16(), &again.json()["error_id"]), (409, &json!("run_exists")), "{session}");
    }
    assert_eq!(world.get(&format!("{RUNS}/r?session_id=s")).await.json()["content"], "You said: first");
    assert_eq!(world.get("/sessions/other").await.status, 404, "nothing was written");
}

#[tokio::test]
async fn a_cancel_may_come_before_its_run() {
    let world = world().await;
    let cancel = |key: &'static str, id: &str| {
        let request = request(Method::POST, &format!("{RUNS}/{id}/cancel"), key, FORM, "");
        world.send(request)
    };
    for (key, id) in [(ADA_KEY, "early"), (BOB_KEY, "bobs"), (ADMIN_KEY, "any"), (ADA_KEY, "%2E")] {
        let answer = cancel(key, id).await;
        assert_eq!((answer.status.as_u16(), answer.text.as_str()), (200, "{}"), "{id}");
    }
    let strict = request(Method::POST, &format!("{RUNS}/strict/cancel?strict=true"), ADA_KEY, FORM, "");
    assert_eq!(world.send(strict).await.status, 404);
    for (id, expected) in [("early", "CANCELLED"), ("any", "CANCELLED"), ("bobs", "COMPLETED"), ("strict", "COMPLETED")]
    {
        let form = format!("message=m&stream=false&run_id={id}");
        let run = world.send(request(Method::POST, RUNS, ADA_KEY, FORM, &form)).await;
        assert_eq!(run.status, 200, "{}", run.text);
        assert_eq!(run.json()["status"], expected, "{id}");
    }
    let stage = world.get("/queue/jobs/early").await.json();
    assert_eq!((&stage["status"], &stage["attempt"]), (&json!("cancelled"), &json!(0)));
    // Once there is such a run, a cancel under another agent does nothing, now or later.
    let other = request(Method::POST, "/agents/team-a.other/runs/strict/cancel", ADA_KEY, FORM, "");
    assert_eq!(world.send(other).await.text, "{}");
    assert_eq!(world.get("/queue/jobs/strict").await.json()["status"], "completed");
    // A stream of such a run says so and ends.
    cancel(ADA_KEY, "streamed").await;
    let stream = request(Method::POST, RUNS, ADA_KEY, FORM, "message=m&run_id=streamed");
    assert_eq!(names(&world.send(stream).await.text), ["RunCancelled"]);
}

#[tokio::test]
async fn a_failed_job_is_run_once_more() {
    let world = world().await;
    world.post(RUNS, "message=fail&stream=false&session_id=s&run_id=r").await;
    let requeue = |id: &str, query: &str| {
        let path = format!("/queue/jobs/{id}/requeue{query}");
        let world = &world;
        async move { world.post(&path, "").await }
    };
    assert_eq!(world.get("/queue/jobs/r").await.json()["status"], "failed");
    let again = requeue("r", "?force=true").await;
    assert_eq!(again.status, 200, "{}", again.text);
    assert_eq!(again.json()["max_attempts"], json!(again.json()["attempt"].as_u64().unwrap().max(1)));
    let done = world.until("/queue/jobs/r", |job| job["status"] == "completed").await;
    assert_eq!((&done["attempt"], &done["error"]), (&json!(2), &json!(null)));
    let refused = requeue("r", "?force=true&clear_cancellation=true").await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error_id"]), (400, &json!("bad_request")));
    assert_eq!(requeue("none", "").await.status, 404);
    assert_eq!(requeue("r", "?force=perhaps").await.status, 422);
    let foreign = request(Method::POST, "/queue/jobs/r/requeue", ADA_KEY, FORM, "");
    assert_eq!(world.send(foreign).await.status, 403);
}

#[tokio::test]
async fn a_cancelled_job_stays_so_unless_the_cancel_is_cleared() {
    let world = world().await;
    world.post(RUNS, "message=wait&stream=false&background=true&session_id=s&run_id=head").await;
    world.post(RUNS, "message=m&stream=false&background=true&session_id=s&run_id=r").await;
    assert_eq!(world.post("/queue/jobs/r/requeue", "").await.status, 400, "it waits");
    world.post(&format!("{RUNS}/r/cancel"), "").await;
    // A run that has not begun is ended by the server, whose clock tells that this was just now.
    let stays = world.post("/queue/jobs/r/requeue?force=true", "").await;
    assert_eq!((stays.status.as_u16(), &stays.json()["status"]), (200, &json!("cancelled")));
    let again = world.post("/queue/jobs/r/requeue?clear_cancellation=true", "").await;
    assert_eq!((again.status.as_u16(), &again.json()["status"]), (200, &json!("queued")), "{}", again.text);
    world.release.send_replace(true);
    let done = world.until("/queue/jobs/r", |job| job["status"] == "completed").await;
    assert_eq!(done["attempt"], 1);
}
