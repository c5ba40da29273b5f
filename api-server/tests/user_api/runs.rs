//! Runs: the four ways to answer, what a run output holds, idempotency, cancel.

use axum::body::Body;
use http::{Method, Request, header};
use serde_json::json;

use crate::support::{ADA_KEY, ADMIN_KEY, FORM, frames, names, request, world};

const RUNS: &str = "/agents/helper/runs";

#[tokio::test]
async fn without_a_stream_the_answer_is_the_run() {
    let world = world().await;
    let form = "message=hello&stream=false&session_id=s1&user_id=u1&session_state=%7B%22a%22%3A1%7D&metadata=%7B%22t%22%3A7%7D";
    let answer = world.post(RUNS, form).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let run = answer.json();
    for (field, expected) in [
        ("agent_id", json!("helper")),
        ("agent_name", json!("Helper")),
        ("session_id", json!("s1")),
        ("user_id", json!("u1")),
        ("content", json!("You said: hello")),
        ("content_type", json!("str")),
        ("model", json!("scripted")),
        ("model_provider", json!("Scripted")),
        ("session_state", json!({"a": 1})),
        ("metadata", json!({"t": 7})),
        ("status", json!("COMPLETED")),
        ("queue_attempt", json!(1)),
        ("tools", json!([])),
        ("input", json!({"input_content": "hello"})),
    ] {
        assert_eq!(run[field], expected, "{field}");
    }
    for absent in ["parent_run_id", "cancellation_stage", "waiting_on", "error_type"] {
        assert!(run.get(absent).is_none(), "{absent} is null and left out");
    }
    let roles: Vec<_> = run["messages"].as_array().unwrap().iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant"]);
    assert_eq!(answer.headers["x-run-id"], run["run_id"].as_str().unwrap());
    let path = format!("{RUNS}/{}?session_id=s1", run["run_id"].as_str().unwrap());
    assert_eq!(world.get(&path).await.json(), run);
}

#[tokio::test]
async fn by_default_the_answer_is_a_stream() {
    let world = world().await;
    let answer = world.post(RUNS, "message=hello").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers[header::CONTENT_TYPE], "text/event-stream; charset=utf-8");
    assert_eq!(answer.headers[header::CACHE_CONTROL], "no-cache");
    assert_eq!(answer.headers["x-accel-buffering"], "no");
    assert_eq!(names(&answer.text), ["RunStarted", "RunContent", "RunCompleted"]);
    for (id, event, data) in frames(&answer.text) {
        assert_eq!((data["event"].as_str(), data["event_index"].as_u64()), (Some(event.as_str()), id));
    }
    let content = world.post(RUNS, "message=hello&stream_events=false").await;
    assert_eq!(names(&content.text), ["RunContent"]);
    let background = world.post(RUNS, "message=hello&background=true").await;
    assert_eq!((background.status.as_u16(), names(&background.text).len()), (200, 3));
}

#[tokio::test]
async fn in_the_background_the_answer_comes_at_once_and_the_line_is_kept() {
    let world = world().await;
    let first = world.post(RUNS, "message=wait&stream=false&background=true&session_id=s").await;
    assert_eq!(first.status, 202, "{}", first.text);
    let second = world.post(RUNS, "message=after&stream=false&background=true&session_id=s").await;
    let (first, second) = (first.json(), second.json());
    assert_eq!(second["status"], "PENDING");
    assert_eq!(second["waiting_on"], first["run_id"]);
    let path = format!("{RUNS}/{}?session_id=s", second["run_id"].as_str().unwrap());
    let polled = world.get(&path).await.json();
    assert_eq!((&polled["status"], &polled["waiting_on"]), (&json!("PENDING"), &first["run_id"]));
    world.release.send_replace(true);
    let ended = world.until(&path, |run| run["status"] == "COMPLETED").await;
    assert_eq!(ended["content"], "You said: after");
}

#[tokio::test]
async fn a_failed_run_is_no_failed_request() {
    let world = world().await;
    let answer = world.post(RUNS, "message=fail&stream=false").await;
    let run = answer.json();
    assert_eq!(
        (answer.status.as_u16(), &run["status"], &run["content"]),
        (200, &json!("ERROR"), &json!("the model is down"))
    );
    assert_eq!(run["error_type"], "model_provider_error");
    assert_eq!(names(&world.post(RUNS, "message=fail").await.text), ["RunStarted", "RunError"]);
}

#[tokio::test]
async fn tool_objects_keep_their_nulls() {
    let world = world().await;
    let run = world.post(RUNS, "message=tool&stream=false").await.json();
    let tool = &run["tools"][0];
    assert_eq!((&tool["tool_name"], &tool["result"]), (&json!("shell"), &json!("a.csv")));
    assert!(tool["confirmed"].is_null() && tool.as_object().unwrap().contains_key("confirmed"));
    let message = &run["messages"][2];
    assert_eq!(message["tool_args"], json!({"command": "ls"}));
    assert_eq!(message["tool_call_error"], false);
}

#[tokio::test]
async fn files_come_by_multipart() {
    let world = world().await;
    let body = "--X\r\ncontent-disposition: form-data; name=\"message\"\r\n\r\nread\r\n\
                --X\r\ncontent-disposition: form-data; name=\"stream\"\r\n\r\nno\r\n\
                --X\r\ncontent-disposition: form-data; name=\"files\"; filename=\"a.csv\"\r\n\
                content-type: text/csv\r\n\r\n1,2\r\n--X--\r\n";
    let multipart = "multipart/form-data; boundary=X";
    let answer = world.send(request(Method::POST, RUNS, ADMIN_KEY, multipart, body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let file = answer.json()["input"]["attachments"][0].clone();
    assert_eq!((&file["name"], &file["media_type"], &file["size"]), (&json!("a.csv"), &json!("text/csv"), &json!(3)));
    let refused = body.replace("a.csv", "a.exe").replace("text/csv", "application/x-msdownload");
    let answer = world.send(request(Method::POST, RUNS, ADMIN_KEY, multipart, &refused)).await;
    assert_eq!((answer.status.as_u16(), answer.detail().as_str()), (400, "Unsupported file type"));
}

fn keyed(key: &str, path: &str, form: &str, idempotency: &str) -> Request<Body> {
    let mut request = request(Method::POST, path, key, FORM, form);
    request.headers_mut().insert("idempotency-key", idempotency.parse().unwrap());
    request
}

#[tokio::test]
async fn an_idempotency_key_makes_a_request_safe_to_repeat() {
    let world = world().await;
    let form = "message=hello&stream=false&background=true";
    let first = world.send(keyed(ADMIN_KEY, RUNS, form, "k1")).await.json();
    let path =
        format!("{RUNS}/{}?session_id={}", first["run_id"].as_str().unwrap(), first["session_id"].as_str().unwrap());
    world.until(&path, |run| run["status"] == "COMPLETED").await;
    let again = world.send(keyed(ADMIN_KEY, RUNS, form, "k1")).await;
    assert_eq!(again.status, 202);
    assert_eq!((&again.json()["run_id"], &again.json()["status"]), (&first["run_id"], &json!("COMPLETED")));
    // The same key waits for the same run, or streams it.
    let inline = world.send(keyed(ADMIN_KEY, RUNS, "message=hello&stream=false", "k1")).await;
    assert_eq!((inline.status.as_u16(), &inline.json()["run_id"]), (200, &first["run_id"]));
    let stream = world.send(keyed(ADMIN_KEY, RUNS, "message=hello", "k1")).await;
    assert_eq!(frames(&stream.text)[0].2["run_id"], first["run_id"]);
    for (path, form) in [(RUNS, "message=other&stream=false"), ("/agents/team-a.other/runs", form)] {
        let conflict = world.send(keyed(ADMIN_KEY, path, form, "k1")).await;
        assert_eq!((conflict.status.as_u16(), &conflict.json()["error_id"]), (409, &json!("idempotency_conflict")));
    }
    let other = world.send(keyed(ADA_KEY, RUNS, form, "k1")).await.json();
    assert_ne!(other["run_id"], first["run_id"], "keys of another principal are other keys");
}

#[tokio::test]
async fn a_run_id_is_never_used_twice() {
    let world = world().await;
    let form = "message=hello&stream=false&run_id=mine";
    assert_eq!(world.post(RUNS, form).await.json()["run_id"], "mine");
    let again = world.post(RUNS, form).await;
    assert_eq!((again.status.as_u16(), &again.json()["error_id"]), (409, &json!("run_exists")));
}

#[tokio::test]
async fn a_full_queue_refuses_before_anything_is_written() {
    let world = world().await;
    let form = "message=wait&stream=false&background=true&session_id=s";
    let answers: Vec<_> = [world.post(RUNS, form).await, world.post(RUNS, form).await, world.post(RUNS, form).await]
        .into_iter()
        .map(|answer| answer.status.as_u16())
        .collect();
    assert_eq!(answers, [202, 202, 202]);
    let mut last = world.post(RUNS, form).await;
    if last.status == 202 {
        // The first one had already left the queue.
        last = world.post(RUNS, form).await;
    }
    assert_eq!((last.status.as_u16(), &last.json()["error_id"]), (429, &json!("queue_full")));
    assert!(last.headers.contains_key(header::RETRY_AFTER));
    world.release.send_replace(true);
}

#[tokio::test]
async fn cancels_reach_runs_in_every_state() {
    let world = world().await;
    let form = "message=wait&stream=false&background=true&session_id=s";
    let running = world.post(RUNS, form).await.json()["run_id"].as_str().unwrap().to_owned();
    let pending = world.post(RUNS, form).await.json()["run_id"].as_str().unwrap().to_owned();
    let path = |run: &str| format!("{RUNS}/{run}?session_id=s");
    world.until(&path(&running), |run| run["status"] == "RUNNING").await;
    let cancelled = world.post(&format!("{RUNS}/{pending}/cancel"), "").await;
    assert_eq!(cancelled.status, 200);
    assert_eq!(
        (&cancelled.json()["status"], &cancelled.json()["cancellation_stage"]),
        (&json!("CANCELLED"), &json!("PENDING"))
    );
    assert_eq!(world.post(&format!("{RUNS}/{running}/cancel?session_id=s"), "").await.status, 200);
    let run = world.until(&path(&running), |run| run["status"] == "CANCELLED").await;
    assert_eq!((&run["cancellation_stage"], &run["content"]), (&json!("EXECUTING"), &json!("partial ")));
    // As AgentOS: ended and unknown runs are no errors, unless the caller wants to know.
    assert_eq!(world.post(&format!("{RUNS}/{running}/cancel"), "").await.status, 200);
    let unknown = world.post(&format!("{RUNS}/nobody/cancel"), "").await;
    assert_eq!((unknown.status.as_u16(), unknown.text.as_str()), (200, "{}"));
    assert_eq!(world.post(&format!("{RUNS}/nobody/cancel?strict=true"), "").await.status, 404);
    assert_eq!(world.post(&format!("{RUNS}/{running}/cancel?strict=1&session_id=other"), "").await.status, 404);
}
