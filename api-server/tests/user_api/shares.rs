//! What one namespace may take of what all share (security rule 21).

use axum::body::Body;
use cadre_api::domain::Limits;
use cadre_api::domain::shares::NamespaceShares;
use http::{Method, header};
use http_body_util::BodyExt as _;
use serde_json::json;
use tower::ServiceExt as _;

use crate::support::*;

const BUSY: &str = "/agents/helper/runs";
const CALM: &str = "/agents/team-a.other/runs";

fn shared(shares: NamespaceShares) -> Limits {
    Limits { max_queue_depth: 0, shares, ..limits() }
}

/// What a refusal says.
fn refused(answer: &Answer, code: &str, namespace: &str) {
    assert_eq!((answer.status.as_u16(), &answer.json()["error_id"]), (429, &json!(code)), "{}", answer.text);
    let detail = answer.detail().to_lowercase();
    assert!(detail.contains(&format!("namespace {namespace}")), "{}", answer.text);
    assert!(answer.headers.contains_key(header::RETRY_AFTER));
}

#[tokio::test]
async fn a_namespace_with_a_full_queue_is_refused_and_another_is_not() {
    let world = world_limited(shared(NamespaceShares { max_queue_depth: 2, ..NamespaceShares::default() })).await;
    let form = "message=wait&stream=false&background=true&session_id=s";
    let first = world.post(BUSY, form).await.json()["run_id"].as_str().unwrap().to_owned();
    world.until(&format!("{BUSY}/{first}?session_id=s"), |run| run["status"] == "RUNNING").await;
    for _ in 0..2 {
        assert_eq!(world.post(BUSY, form).await.status, 202);
    }
    refused(&world.post(BUSY, form).await, "namespace_queue_full", "default");
    let calm = "message=hi&stream=false&background=true&session_id=t";
    for _ in 0..3 {
        let run_id = world.post(CALM, calm).await.json()["run_id"].as_str().unwrap().to_owned();
        world.until(&format!("{CALM}/{run_id}?session_id=t"), |run| run["status"] == "COMPLETED").await;
    }
    world.release.send_replace(true);
}

#[tokio::test]
async fn a_namespace_with_all_its_streams_open_is_refused_and_another_is_not() {
    let world = world_limited(shared(NamespaceShares { max_streams: 1, ..NamespaceShares::default() })).await;
    let stream = |path: &str, form: &str| request(Method::POST, path, ADMIN_KEY, FORM, form);
    let open = world.router.clone().oneshot(stream(BUSY, "message=wait&session_id=s")).await.unwrap();
    let run_id = open.headers()["x-run-id"].to_str().unwrap().to_owned();
    refused(&world.post(BUSY, "message=hi&session_id=s").await, "namespace_streams_full", "default");
    refused(&world.post(BUSY, "message=hi&stream=false").await, "namespace_streams_full", "default");
    let resume = format!("{BUSY}/{run_id}/resume");
    refused(&world.post(&resume, "session_id=s").await, "namespace_streams_full", "default");
    let continued = format!("{BUSY}/{run_id}/continue");
    refused(&world.post(&continued, "session_id=s").await, "namespace_streams_full", "default");
    let runs = world.get("/sessions/s/runs").await.json();
    assert_eq!(runs.as_array().map_or(0, Vec::len), 1, "nothing was accepted: {runs}");
    assert_eq!(world.post(BUSY, "message=hi&stream=false&background=true").await.status, 202, "it waits for nothing");
    assert_eq!(world.post(CALM, "message=hi").await.status, 200);
    world.release.send_replace(true);
    open.into_body().collect().await.unwrap();
    assert_eq!(world.post(&resume, "session_id=s").await.status, 200, "the place is free");
}

#[tokio::test]
async fn what_was_accepted_is_answered_although_all_streams_are_open() {
    let world = world_limited(shared(NamespaceShares { max_streams: 1, ..NamespaceShares::default() })).await;
    let keyed = async |path: &str, key: &str, form: &str| {
        let mut request = request(Method::POST, path, ADMIN_KEY, FORM, form);
        request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        world.send(request).await
    };
    let first = keyed(BUSY, "one", "message=hi&stream=false&session_id=a").await.json();
    let continued = format!("{BUSY}/{}/continue", id(&first));
    let more = keyed(&continued, "two", "session_id=a&input=more&stream=false").await.json();
    let waits = keyed(BUSY, "three", "message=wait&stream=false&background=true&session_id=s").await.json();
    let resume = request(Method::POST, &format!("{BUSY}/{}/resume", id(&waits)), ADMIN_KEY, FORM, "session_id=s");
    let open = world.router.clone().oneshot(resume).await.unwrap();
    refused(&keyed(BUSY, "four", "message=hi&stream=false").await, "namespace_streams_full", "default");
    let again = keyed(BUSY, "one", "message=hi&stream=false&session_id=a").await;
    assert_eq!((again.status.as_u16(), again.json()), (200, first.clone()));
    let again = keyed(&continued, "two", "session_id=a&input=more&stream=false").await;
    assert_eq!((again.status.as_u16(), again.json()), (200, more));
    let again = keyed(BUSY, "three", "message=wait&stream=false&session_id=s").await;
    assert_eq!((again.status.as_u16(), id(&again.json())), (202, id(&waits)), "it takes no place to wait in");
    let streamed = keyed(BUSY, "one", "message=hi&session_id=a").await;
    refused(&streamed, "namespace_streams_full", "default");
    assert_eq!(streamed.headers["x-run-id"], id(&first), "which run to ask for later");
    world.release.send_replace(true);
    open.into_body().collect().await.unwrap();
}

#[tokio::test]
async fn a_namespace_with_all_its_bytes_is_refused_and_another_is_not() {
    let world = world_limited(shared(NamespaceShares { max_file_bytes: 10, ..NamespaceShares::default() })).await;
    let send_keyed = async |path: &str, file: &str, key: Option<&str>| {
        let part = |name: &str, text: &str| format!("--X\r\nContent-Disposition: form-data; {name}\r\n\r\n{text}\r\n");
        let body = [
            part("name=\"message\"", "look"),
            part("name=\"stream\"", "false"),
            part("name=\"files\"; filename=\"a.csv\"\r\ncontent-type: text/csv", file),
            "--X--\r\n".to_owned(),
        ]
        .concat();
        let mut request = request(Method::POST, path, ADMIN_KEY, "multipart/form-data; boundary=X", "");
        *request.body_mut() = Body::from(body);
        if let Some(key) = key {
            request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        }
        world.send(request).await
    };
    let send = async |path: &str, file: &str| send_keyed(path, file, None).await;
    let first = send_keyed(BUSY, "12345678", Some("k")).await;
    assert_eq!(first.status, 200);
    let again = send_keyed(BUSY, "12345678", Some("k")).await;
    assert_eq!((again.status.as_u16(), again.json()), (200, first.json()), "nothing is stored again");
    refused(&send(BUSY, "123").await, "namespace_files_full", "default");
    assert_eq!(send(CALM, "123").await.status, 200);
    assert_eq!(world.post(BUSY, "message=hi&stream=false").await.status, 200, "a run without files");
}
