//! Sessions, their runs, and the lists.

use http::Method;
use serde_json::json;

use crate::support::world;

const RUNS: &str = "/agents/helper/runs";

#[tokio::test]
async fn a_session_shows_its_conversation() {
    let world = world().await;
    for text in ["first", "second"] {
        world.post(RUNS, &format!("message={text}&stream=false&session_id=a/b&user_id=u")).await;
    }
    let session = world.get("/sessions/a%2Fb").await;
    assert_eq!(session.status, 200, "{}", session.text);
    let session = session.json();
    for (field, expected) in [
        ("session_id", json!("a/b")),
        ("agent_session_id", json!("a/b")),
        ("session_name", json!("first")),
        ("session_type", json!("agent")),
        ("agent_id", json!("helper")),
        ("user_id", json!("u")),
        ("total_tokens", json!(0)),
    ] {
        assert_eq!(session[field], expected, "{field}");
    }
    assert_eq!(session["chat_history"].as_array().unwrap().len(), 4);
    assert_eq!(session["agent_data"]["model"]["id"], "scripted");
    let runs = world.get("/sessions/a%2Fb/runs").await.json();
    let inputs: Vec<_> = runs.as_array().unwrap().iter().map(|run| run["run_input"].clone()).collect();
    assert_eq!(inputs, ["first", "second"]);
    assert_eq!(runs[0]["content"], "You said: first");
    assert_eq!((&runs[0]["parent_run_id"], &runs[0]["run_response_format"]), (&json!(""), &json!("text")));
    let one = format!("/sessions/a%2Fb/runs/{}", runs[0]["run_id"].as_str().unwrap());
    assert_eq!(world.get(&one).await.json(), runs[0]);
    let previews = world.get("/sessions/a%2Fb/run-previews?status=completed&status=error").await.json();
    assert_eq!(previews[1]["content_preview"], "You said: second");
    assert_eq!(world.get("/sessions/a%2Fb/runs?status=paused").await.json(), json!([]));
    assert_eq!(world.get("/sessions/a%2Fb/runs?created_after=99999999999").await.json(), json!([]));
    assert_eq!(world.get(&format!("{RUNS}?session_id=a/b")).await.json(), runs);
    assert_eq!(world.get(&format!("{RUNS}?session_id=a/b&status=bogus")).await.json(), json!([]));
    assert_eq!(world.get("/agents/team-a.other/runs?session_id=a/b").await.json(), json!([]));
    let unknown = world.get("/agents/nobody/runs?session_id=a/b").await;
    assert_eq!((unknown.status.as_u16(), unknown.detail().as_str()), (404, "Agent not found"));
    assert_eq!(world.get("/sessions/a%2Fb/run-previews?created_before=-1").await.json(), json!([]));
    assert_eq!(world.get("/sessions/a%2Fb/run-previews?status=bogus").await.json(), json!([]));
}

#[tokio::test]
async fn lists_have_pages() {
    let world = world().await;
    for n in 0..5 {
        let agent = if n == 4 { "team-a.other" } else { "helper" };
        world
            .post(&format!("/agents/{agent}/runs"), &format!("message=m{n}&stream=false&session_id=s{n}&user_id=u{n}"))
            .await;
    }
    let page = world.get("/sessions?limit=2&page=3").await.json();
    assert_eq!(page["data"].as_array().unwrap().len(), 1);
    let meta = &page["meta"];
    assert_eq!(
        (&meta["page"], &meta["limit"], &meta["total_pages"], &meta["total_count"]),
        (&json!(3), &json!(2), &json!(3), &json!(5))
    );
    assert_eq!(world.get("/sessions").await.json()["meta"]["limit"], 20);
    let ids = |query: &str| {
        let path = format!("/sessions?{query}");
        let world = &world;
        async move {
            let page = world.get(&path).await.json();
            let rows = page["data"].as_array().unwrap().clone();
            rows.into_iter().map(|row| row["session_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        }
    };
    assert_eq!(ids("component_id=team-a.other").await, ["s4"]);
    assert_eq!(ids("user_id=u2").await, ["s2"]);
    assert_eq!(ids("session_name=M3&type=agent").await, ["s3"]);
    assert_eq!(ids("type=team").await, Vec::<String>::new());
    assert_eq!(ids("sort_by=session_name&sort_order=asc&limit=2").await, ["s0", "s1"]);
    for query in ["page=0", "limit=0", "limit=-1", "page=x", "type=bogus", "sort_order=up"] {
        assert_eq!(world.get(&format!("/sessions?{query}")).await.status, 422, "{query}");
    }
}

#[tokio::test]
async fn sessions_are_renamed_and_deleted() {
    let world = world().await;
    for n in 0..3 {
        world.post(RUNS, &format!("message=m&stream=false&session_id=s{n}")).await;
    }
    let renamed = world.json(Method::POST, "/sessions/s0/rename", r#"{"session_name":"New"}"#).await;
    assert_eq!((renamed.status.as_u16(), &renamed.json()["session_name"]), (200, &json!("New")));
    assert_eq!(world.json(Method::DELETE, "/sessions/s0", "").await.status, 204);
    assert_eq!(world.get("/sessions/s0").await.status, 404);
    assert_eq!(world.json(Method::DELETE, "/sessions/s0", "").await.status, 404);
    let body = r#"{"session_ids":["s1","s2","gone"],"session_types":["agent","team","agent"]}"#;
    assert_eq!(world.json(Method::DELETE, "/sessions", body).await.status, 204);
    assert_eq!(world.get("/sessions/s1").await.status, 404);
    assert_eq!(world.get("/sessions/s2").await.status, 200, "it is no team's session");
}

#[tokio::test]
async fn a_session_with_a_run_under_way_stays() {
    let world = world().await;
    world.post(RUNS, "message=wait&stream=false&background=true&session_id=busy").await;
    let refused = world.json(Method::DELETE, "/sessions/busy", "").await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error_id"]), (409, &json!("session_busy")));
    let many = r#"{"session_ids":["busy"],"session_types":["agent"]}"#;
    assert_eq!(world.json(Method::DELETE, "/sessions", many).await.status, 409);
    world.release.send_replace(true);
}

#[tokio::test]
async fn the_server_describes_itself() {
    let world = world().await;
    assert_eq!(world.get("/health").await.json()["status"], "ok");
    let info = world.get("/info").await.json();
    assert_eq!((&info["auth_mode"], &info["agent_count"]), (&json!("security_key"), &json!(3)));
    let config = world.get("/config").await.json();
    assert_eq!(config["available_models"], json!([{"id": "scripted", "provider": "Scripted"}]));
    assert_eq!(config["queue"], json!({"durable": true, "queue_per_session": true}));
    let agent = world.get("/agents/helper").await.json();
    assert_eq!(agent["model"], json!({"name": "echo", "model": "scripted", "provider": "Scripted"}));
    assert_eq!(agent["tools"], json!({"tools": [{"name": "shell", "builtin": "shell"}]}));
    assert_eq!(agent["sessions"], json!({"add_history_to_context": true, "num_history_runs": 3}));
    let agents = world.get("/agents").await.json();
    assert_eq!((&agents[0]["ready"], &agents[0]["reason"]), (&json!(false), &json!("Model gpt is missing")));
    assert_eq!(world.get("/").await.json()["openapi"], "/openapi.json");
    assert_eq!(world.get("/openapi.json").await.json()["info"]["title"], "Cadre");
    assert!(world.get("/docs").await.text.contains("/agents/{agent_id}/runs"));
    world.post(RUNS, "message=m&stream=false").await;
    assert_eq!(world.get("/queue/stats").await.json()["counts"]["completed"], 1);
}

#[tokio::test]
async fn a_session_can_be_made_before_its_first_run() {
    let world = world().await;
    let body = r#"{"session_id":"made/1","session_state":{"a":1},"metadata":{"team":"x"},"user_id":"u"}"#;
    let made = world.json(Method::POST, "/sessions?type=agent&db_id=cadre", body).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let made = made.json();
    for (field, expected) in [
        ("session_id", json!("made/1")),
        ("agent_session_id", json!("made/1")),
        ("session_name", json!("")),
        ("session_state", json!({"a": 1})),
        ("metadata", json!({"team": "x"})),
        ("agent_id", json!(null)),
        ("user_id", json!("u")),
        ("chat_history", json!([])),
    ] {
        assert_eq!(made[field], expected, "{field}");
    }
    assert_eq!(world.json(Method::POST, "/sessions", body).await.status, 409);
    assert_eq!(world.get("/sessions/made%2F1/runs").await.json(), json!([]));
    // Its first run is there at once, not only when it has ended.
    let run = world.post(RUNS, "message=wait&stream=false&background=true&session_id=made/1").await;
    assert_eq!(run.status, 202, "{}", run.text);
    let runs = world.get("/sessions/made%2F1/runs").await.json();
    assert_eq!((&runs[0]["run_id"], &runs[1]), (&run.json()["run_id"], &json!(null)));
    world.until("/sessions/made%2F1/runs", |runs| runs[0]["status"] == "RUNNING").await;
    let session = world.get("/sessions/made%2F1").await.json();
    assert_eq!((&session["session_name"], &session["agent_id"]), (&json!("wait"), &json!("helper")));
    assert_eq!(session["session_state"], json!({"a": 1}));
    world.release.send_replace(true);
}

#[tokio::test]
async fn a_session_without_a_body_gets_an_id() {
    let world = world().await;
    let made = world.json(Method::POST, "/sessions", "").await;
    assert_eq!(made.status, 201, "{}", made.text);
    let id = made.json()["session_id"].as_str().unwrap().to_owned();
    assert_eq!(world.get(&format!("/sessions/{id}")).await.json()["session_id"], *id);
    assert_eq!(world.json(Method::DELETE, &format!("/sessions/{id}"), "").await.status, 204);
}

#[tokio::test]
async fn sessions_that_no_path_could_name_are_refused() {
    let world = world().await;
    let long = "x".repeat(257);
    for id in [".", "..", "", "a\\u0000", "a\\n", &long] {
        let body = format!(r#"{{"session_id":"{id}"}}"#);
        assert_eq!(world.json(Method::POST, "/sessions", &body).await.status, 422, "{id:?}");
    }
    for id in [".", ".."] {
        let run = world.post(RUNS, &format!("message=m&stream=false&session_id={id}")).await;
        assert_eq!(run.status, 422, "{id:?}");
        let run = world.post(RUNS, &format!("message=m&stream=false&run_id={id}")).await;
        assert_eq!(run.status, 422, "{id:?}");
    }
    for path in ["/sessions/%2E", "/sessions/%2e%2e", "/sessions/a%00", "/sessions/%2E%2E/runs", "/runs/%2E"] {
        assert_eq!(world.get(path).await.status, 404, "{path}");
    }
    assert_eq!(world.get("/sessions?session_name=%00").await.status, 400);
}

#[tokio::test]
async fn wrong_values_of_a_session_are_refused() {
    let world = world().await;
    let deep = format!("{}{}", r#"{"a":"#.repeat(70), "1".to_owned() + &"}".repeat(70));
    for body in [
        r#"{"session_name":" "}"#.to_owned(),
        r#"{"session_name":"a\u0000b"}"#.to_owned(),
        r#"{"session_state":[]}"#.to_owned(),
        r#"{"metadata":"x"}"#.to_owned(),
        r#"{"user_id":""}"#.to_owned(),
        r#"{"agent_id":"a\u0000"}"#.to_owned(),
        format!(r#"{{"session_state":{deep}}}"#),
        "[]".to_owned(),
        "{".to_owned(),
    ] {
        assert_eq!(world.json(Method::POST, "/sessions", &body).await.status, 422, "{body}");
    }
    assert_eq!(world.json(Method::POST, "/sessions?type=team", "{}").await.status, 422);
    assert_eq!(world.json(Method::POST, "/sessions?db_id=other", "{}").await.status, 404);
}

#[tokio::test]
async fn a_session_is_changed_in_parts() {
    let world = world().await;
    world.post(RUNS, "message=first&stream=false&session_id=s&user_id=u").await;
    let body = r#"{"session_state":{"b":2},"summary":{"summary":"short","topics":["x"]},"metadata":null}"#;
    let changed = world.json(Method::PATCH, "/sessions/s?type=agent&user_id=u", body).await;
    assert_eq!(changed.status, 200, "{}", changed.text);
    let changed = changed.json();
    assert_eq!((&changed["session_name"], &changed["session_state"]), (&json!("first"), &json!({"b": 2})));
    assert_eq!(changed["session_summary"], json!({"summary": "short", "topics": ["x"]}));
    let renamed = world.json(Method::PATCH, "/sessions/s", r#"{"session_name":"New","metadata":{"k":1}}"#).await.json();
    assert_eq!((&renamed["session_name"], &renamed["metadata"]), (&json!("New"), &json!({"k": 1})));
    assert_eq!(renamed["session_summary"], changed["session_summary"]);
    assert_eq!(world.json(Method::PATCH, "/sessions/s", "{}").await.json()["session_name"], "New");
    for body in ["", "[]", r#"{"session_name":""}"#, r#"{"session_state":1}"#] {
        assert_eq!(world.json(Method::PATCH, "/sessions/s", body).await.status, 422, "{body}");
    }
    for path in ["/sessions/none", "/sessions/s?type=team", "/sessions/s?user_id=other", "/sessions/s?db_id=x"] {
        assert_eq!(world.json(Method::PATCH, path, "{}").await.status, 404, "{path}");
        assert_eq!(world.get(path).await.status, 404, "{path}");
    }
    // The state is what the next run begins with.
    let run = world.post(RUNS, "message=second&stream=false&session_id=s&session_state={\"c\":3}").await.json();
    assert_eq!(run["session_state"], json!({"b": 2, "c": 3}));
}

#[tokio::test]
async fn a_session_is_one_agents() {
    let world = world().await;
    let form = |session: &str| format!("message=hi&stream=false&session_id={session}");
    let (mine, others) = (RUNS, "/agents/team-a.other/runs");
    assert_eq!(world.post(mine, &form("s")).await.status, 200);
    let copy = world.post("/agents/helper/sessions/s/fork", "").await.json();
    let copy = copy["session_id"].as_str().unwrap();
    let made = r#"{"session_id":"made","agent_id":"helper"}"#;
    assert_eq!(world.json(Method::POST, "/sessions", made).await.status, 201);
    let bare = r#"{"session_id":"bare"}"#;
    assert_eq!(world.json(Method::POST, "/sessions", bare).await.status, 201);
    assert_eq!(world.post(mine, &form("bare")).await.status, 200, "the first run's agent takes it");
    for session in ["s", copy, "made", "bare"] {
        for background in ["", "&background=true"] {
            let refused = world.post(others, &format!("{}{background}", form(session))).await;
            assert_eq!((refused.status.as_u16(), &refused.json()["error_id"]), (404, &json!("not_found")), "{session}");
            assert!(refused.detail().starts_with("The session belongs to agent helper"), "{}", refused.text);
        }
        assert_eq!(world.post(mine, &form(session)).await.status, 200, "{session}");
        assert_eq!(world.get(&format!("/sessions/{session}")).await.json()["agent_id"], "helper");
    }
    assert_eq!(world.get("/runs?agent_id=team-a.other").await.json()["meta"]["total_count"], 0);
}
