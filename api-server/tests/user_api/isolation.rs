//! Two principals and an admin over all routes: what is somebody else's does not exist.

use http::Method;

use crate::support::{ADA_KEY, ADMIN_KEY, BOB_KEY, FORM, frames, request, world};

#[tokio::test]
async fn nobody_sees_or_touches_what_is_somebody_elses() {
    let world = world().await;
    let form = "message=hello&stream=false&run_id=r&session_id=s";
    assert_eq!(world.send(request(Method::POST, "/agents/helper/runs", ADA_KEY, FORM, form)).await.status, 200);
    let rows: &[(&str, &str, &str)] = &[
        ("GET", "/agents/helper/runs?session_id=s", ""),
        ("GET", "/agents/helper/runs/r?session_id=s", ""),
        ("POST", "/agents/helper/runs/r/cancel?strict=true", ""),
        ("GET", "/runs/r", ""),
        ("GET", "/sessions/s", ""),
        ("GET", "/sessions/s/runs", ""),
        ("GET", "/sessions/s/run-previews", ""),
        ("GET", "/sessions/s/runs/r", ""),
        ("POST", "/sessions/s/rename", r#"{"session_name":"mine"}"#),
        ("PATCH", "/sessions/s", r#"{"session_name":"mine"}"#),
        ("DELETE", "/sessions/s", ""),
    ];
    for (method, path, body) in rows {
        let media_type = if body.is_empty() { FORM } else { "application/json" };
        let send = |key: &'static str| world.send(request(method.parse().unwrap(), path, key, media_type, body));
        assert_eq!(send(BOB_KEY).await.status, 404, "bob: {method} {path}");
        if *method == "GET" {
            assert_eq!(send(ADA_KEY).await.status, 200, "ada: {method} {path}");
            assert_eq!(send(ADMIN_KEY).await.status, 200, "admin: {method} {path}");
        }
    }
    // A session that is somebody else's can't be joined.
    let join = request(Method::POST, "/agents/helper/runs", BOB_KEY, FORM, "message=m&stream=false&session_id=s");
    assert_eq!(world.send(join).await.status, 404);
    let made = request(Method::POST, "/sessions", BOB_KEY, "application/json", r#"{"session_id":"s"}"#);
    assert_eq!(world.send(made).await.status, 409);
    let resume = |key| request(Method::POST, "/agents/helper/runs/r/resume", key, FORM, "");
    assert_eq!(frames(&world.send(resume(BOB_KEY)).await.text)[0].1, "error");
    assert_eq!(frames(&world.send(resume(ADA_KEY)).await.text)[0].1, "replay");
    let many = r#"{"session_ids":["s"],"session_types":["agent"]}"#;
    assert_eq!(world.send(request(Method::DELETE, "/sessions", BOB_KEY, "application/json", many)).await.status, 204);
    let world = &world;
    let count = |key| async move {
        world.send(request(Method::GET, "/sessions", key, "", "")).await.json()["meta"]["total_count"].clone()
    };
    assert_eq!((count(ADA_KEY).await, count(BOB_KEY).await, count(ADMIN_KEY).await), (1.into(), 0.into(), 1.into()));
    let runs = |key| async move {
        world.send(request(Method::GET, "/runs", key, "", "")).await.json()["meta"]["total_count"].clone()
    };
    assert_eq!((runs(ADA_KEY).await, runs(BOB_KEY).await, runs(ADMIN_KEY).await), (1.into(), 0.into(), 1.into()));
    for key in [ADA_KEY, BOB_KEY] {
        assert_eq!(world.send(request(Method::GET, "/queue/stats", key, "", "")).await.status, 403);
    }
}
