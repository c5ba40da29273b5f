//! Resumption: no gap and no duplicate, at any cut, live or long after.

use axum::body::Body;
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::json;
use tower::ServiceExt as _;

use crate::support::{ADMIN_KEY, FORM, World, frames, names, request, world};

const RUNS: &str = "/agents/helper/runs";

/// Ids and data of a run's own events.
fn events(text: &str) -> Vec<(u64, String)> {
    frames(text).into_iter().filter_map(|(id, _, data)| Some((id?, data.to_string()))).collect()
}

async fn next_frame(body: &mut Body) -> String {
    let frame = body.frame().await.expect("the stream goes on").unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn a_finished_run_can_be_resumed_at_any_cut() {
    let world = world().await;
    let whole = world.post(RUNS, "message=long 20&run_id=r&session_id=s").await.text;
    let all = events(&whole);
    assert!(all.len() > 10);
    let last = all.last().unwrap().0;
    for cut in 0..=last + 2 {
        let resumed = world.post(&format!("{RUNS}/r/resume"), &format!("last_event_index={cut}&session_id=s")).await;
        let expected: Vec<_> = all.iter().filter(|(index, _)| *index > cut).cloned().collect();
        assert_eq!(events(&resumed.text), expected, "cut after {cut}");
        let (id, name, data) = frames(&resumed.text).remove(0);
        assert_eq!((id, name.as_str(), &data["status"]), (None, "replay", &json!("COMPLETED")));
        assert_eq!(data["last_event_index_requested"], json!(cut));
    }
    let from_start = world.post(&format!("{RUNS}/r/resume"), "").await;
    assert_eq!(events(&from_start.text), all);
}

#[tokio::test]
async fn the_header_of_server_sent_events_works_too() {
    let world = world().await;
    let all = events(&world.post(RUNS, "message=long 5&run_id=r").await.text);
    let mut resume = request(Method::POST, &format!("{RUNS}/r/resume"), ADMIN_KEY, "", "");
    resume.headers_mut().insert("last-event-id", "1".parse().unwrap());
    let resumed = world.send(resume).await;
    assert_eq!(events(&resumed.text), all[2..]);
}

#[tokio::test]
async fn a_live_run_catches_up_then_goes_on() {
    let world = world().await;
    let path = start_waiting(&world).await;
    let resume = request(Method::POST, &path, ADMIN_KEY, FORM, "last_event_index=0");
    let mut body = world.router.clone().oneshot(resume).await.unwrap().into_body();
    let caught_up = next_frame(&mut body).await;
    assert_eq!(names(&caught_up), ["catch_up"]);
    assert_eq!(frames(&caught_up)[0].2["missed_events"], json!(1));
    assert_eq!(names(&next_frame(&mut body).await), ["RunContent"]);
    assert_eq!(names(&next_frame(&mut body).await), ["subscribed"]);
    world.release.send_replace(true);
    let rest = body.collect().await.unwrap().to_bytes();
    let rest = String::from_utf8(rest.to_vec()).unwrap();
    assert_eq!(names(&rest), ["RunContent", "RunCompleted"]);
    let whole = events(&world.post(&path, "").await.text);
    let ids: Vec<u64> = whole.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [0, 1, 2, 4], "what was streamed live is what is replayed");
}

#[tokio::test]
async fn a_client_that_goes_away_does_not_end_the_run() {
    let world = world().await;
    let post = request(Method::POST, RUNS, ADMIN_KEY, FORM, "message=wait&run_id=r&session_id=s");
    let mut body = world.router.clone().oneshot(post).await.unwrap().into_body();
    assert_eq!(names(&next_frame(&mut body).await)[0], "RunStarted");
    drop(body);
    world.release.send_replace(true);
    let run = world.until(&format!("{RUNS}/r?session_id=s"), |run| run["status"] != "RUNNING").await;
    assert_eq!(run["status"], "COMPLETED");
}

#[tokio::test]
async fn what_does_not_exist_is_one_error_frame() {
    let world = world().await;
    world.post(RUNS, "message=hello&run_id=r&session_id=s").await;
    for (path, form) in [
        ("/agents/helper/runs/nobody/resume", ""),
        ("/agents/helper/runs/r/resume", "session_id=other"),
        ("/agents/team-a.other/runs/r/resume", "session_id=s"),
    ] {
        let answer = world.post(path, form).await;
        let frames = frames(&answer.text);
        assert_eq!((answer.status.as_u16(), frames.len(), frames[0].1.as_str()), (200, 1, "error"));
        assert_eq!(frames[0].2, json!({"event": "error", "error": "Run not found"}));
    }
    assert_eq!(world.post("/agents/helper/runs/r/resume", "last_event_index=x").await.status, 422);
}

/// A run that has written two events and waits; answers the path that resumes it.
async fn start_waiting(world: &World) -> String {
    world.post(RUNS, "message=wait&stream=false&background=true&run_id=r&session_id=s").await;
    let run_id = cadre_protocol::ids::RunId::new("r").unwrap();
    loop {
        if world.service.run(&run_id, None).await.unwrap().next_index >= 2 {
            return format!("{RUNS}/r/resume");
        }
        tokio::task::yield_now().await;
    }
}
