//! Error answers: a row a case.

use cadre_store::traits::Schema as _;
use http::{Method, header};
use serde_json::json;

use crate::support::{ADMIN_KEY, FORM, request, world};

#[tokio::test]
async fn each_wrong_request_has_its_code_and_text() {
    let world = world().await;
    world.post("/agents/helper/runs", "message=m&stream=false&run_id=r&session_id=s").await;
    let cases: &[(&str, &str, &str, u16, &str)] = &[
        ("POST", "/agents/nobody/runs", "message=m", 404, "Agent not found"),
        ("POST", "/agents/broken/runs", "message=m", 503, "Agent broken is not ready: Model gpt is missing"),
        ("POST", "/agents/helper/runs", "message=m&metadata=[1]", 400, "metadata must be a JSON object"),
        ("GET", "/agents/nobody", "", 404, "Agent not found"),
        ("GET", "/agents/helper/runs?session_id=none", "", 404, "Session with id 'none' not found"),
        ("GET", "/agents/helper/runs/r?session_id=other", "", 404, "Run not found"),
        ("GET", "/agents/team-a.other/runs/r?session_id=s", "", 404, "Run not found"),
        ("GET", "/agents/helper/runs/none?session_id=s", "", 404, "Run not found"),
        ("GET", "/agents/helper/runs/%0A?session_id=s", "", 404, "Run not found"),
        ("GET", "/agents/helper/runs/%FF?session_id=s", "", 404, "Not Found"),
        ("GET", "/runs/none", "", 404, "Run not found"),
        ("GET", "/sessions/none", "", 404, "Session with id 'none' not found"),
        ("GET", "/sessions/none/runs", "", 404, "Session with id 'none' not found"),
        ("GET", "/sessions/none/run-previews", "", 404, "Session with id 'none' not found"),
        ("GET", "/sessions/s/runs/none", "", 404, "Run not found"),
        ("GET", "/sessions/other/runs/r", "", 404, "Run not found"),
        ("DELETE", "/sessions/none", "", 404, "Session with id 'none' not found"),
        ("GET", "/nowhere", "", 404, "Not Found"),
        ("POST", "/nowhere", "", 404, "Not Found"),
        ("PUT", "/agents", "", 405, "Method Not Allowed"),
        ("DELETE", "/health", "", 405, "Method Not Allowed"),
    ];
    for (method, path, form, status, detail) in cases {
        let answer = world.send(request(method.parse().unwrap(), path, ADMIN_KEY, FORM, form)).await;
        assert_eq!((answer.status.as_u16(), answer.detail().as_str()), (*status, *detail), "{method} {path}");
        assert!(answer.json()["error_id"].is_string(), "{method} {path}");
    }
}

#[tokio::test]
async fn wrong_fields_are_answered_as_pydantic_does() {
    let world = world().await;
    let cases: &[(&str, &str, &str, &str, &[&str])] = &[
        ("POST", "/agents/helper/runs", "", "missing", &["body", "message"]),
        ("POST", "/agents/helper/runs", "message=", "missing", &["body", "message"]),
        ("POST", "/agents/helper/runs", "message=m&stream=maybe", "bool_parsing", &["body", "stream"]),
        ("POST", "/agents/helper/runs", "message=m&background=2", "bool_parsing", &["body", "background"]),
        ("POST", "/agents/helper/runs", "message=m&version=new", "int_parsing", &["body", "version"]),
        ("POST", "/agents/helper/runs", "message=m&images=%7B%7D", "list_type", &["body", "images"]),
        ("POST", "/agents/helper/runs", "message=m&run_id=%07", "value_error", &["body", "run_id"]),
        ("POST", "/agents/helper/runs/r/resume", "last_event_index=x", "int_parsing", &["body", "last_event_index"]),
        ("GET", "/agents/helper/runs", "", "missing", &["query", "session_id"]),
        ("GET", "/agents/helper/runs/r", "", "missing", &["query", "session_id"]),
        ("GET", "/sessions?page=0", "", "greater_than_equal", &["query", "page"]),
        ("GET", "/sessions?limit=0", "", "greater_than_equal", &["query", "limit"]),
        ("GET", "/sessions?type=bogus", "", "enum", &["query", "type"]),
    ];
    for (method, path, form, kind, loc) in cases {
        let answer = world.send(request(method.parse().unwrap(), path, ADMIN_KEY, FORM, form)).await;
        assert_eq!(answer.status, 422, "{method} {path} {form}");
        let error = &answer.json()["detail"][0];
        assert_eq!((&error["type"], &error["loc"]), (&json!(kind), &json!(loc)), "{method} {path} {form}");
        assert!(error["msg"].is_string() && error.get("input").is_some());
    }
    for (path, body) in [
        ("/sessions/s/rename", "{}"),
        ("/sessions/s/rename", "nope"),
        ("/sessions/s/rename", ""),
        ("/sessions/s/rename", r#"{"session_name":" "}"#),
    ] {
        assert_eq!(world.json(Method::POST, path, body).await.status, 422, "{body}");
    }
    let mut long_key = request(Method::POST, "/agents/helper/runs", ADMIN_KEY, FORM, "message=m");
    long_key.headers_mut().insert("idempotency-key", "k".repeat(513).parse().unwrap());
    assert_eq!(world.send(long_key).await.status, 422);
}

#[tokio::test]
async fn bodies_are_bounded() {
    let world = world().await;
    let long = format!("message={}", "x".repeat(1 << 20 | 1));
    let answer = world.post("/agents/helper/runs", &long).await;
    assert_eq!((answer.status.as_u16(), answer.detail().as_str()), (400, "Field exceeded maximum size of 1024KB."));
    let huge = format!("message=m&images={}", "x".repeat(32 << 20));
    let answer = world.post("/agents/helper/runs", &huge).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error_id"]), (413, &json!("too_large")));
    let rename = format!(r#"{{"session_name":"{}"}}"#, "x".repeat(1 << 20));
    assert_eq!(world.json(Method::POST, "/sessions/s/rename", &rename).await.status, 413);
}

#[tokio::test]
async fn what_is_nested_deep_is_refused_before_it_spoils_a_list() {
    let world = world().await;
    for field in ["session_state", "dependencies", "metadata", "output_schema"] {
        for (levels, status) in [(64, 200), (65, 422), (126, 422), (127, 422)] {
            let form = format!("message=m&stream=false&{field}={}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
            let answer = world.post("/agents/helper/runs", &form).await;
            assert_eq!(answer.status, status, "{field} of {levels} levels: {}", answer.text);
        }
    }
    assert_eq!(world.get("/runs").await.json()["meta"]["total_count"], 4);
}

#[tokio::test]
async fn nothing_but_public_routes_answers_without_the_key() {
    let world = world().await;
    for path in ["/", "/health", "/info", "/docs", "/openapi.json"] {
        assert_eq!(world.send(request(Method::GET, path, "", "", "")).await.status, 200, "{path}");
    }
    let api: serde_json::Value = serde_json::from_str(&cadre_api::openapi::document()).unwrap();
    let mut protected = 0;
    for (path, item) in api["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().filter(|key| ["get", "post", "delete"].contains(&key.as_str())) {
            if ["/health", "/info"].contains(&path.as_str()) {
                continue;
            }
            protected += 1;
            let method: Method = method.to_uppercase().parse().unwrap();
            for (key, detail) in [("", "Authorization header required"), ("wrong", "Invalid authentication token")] {
                let answer = world.send(request(method.clone(), path, key, FORM, "")).await;
                assert_eq!((answer.status.as_u16(), answer.detail().as_str()), (401, detail), "{method} {path}");
            }
        }
    }
    assert!(protected >= 15, "{protected}");
}

#[tokio::test]
async fn a_record_that_is_away_is_503_and_never_404() {
    let world = world().await;
    world.post("/agents/helper/runs", "message=m&stream=false&run_id=r&session_id=s").await;
    world.store.close().await;
    for (method, path, form) in [
        ("POST", "/agents/helper/runs", "message=m&stream=false"),
        ("GET", "/agents/helper/runs/r?session_id=s", ""),
        ("GET", "/agents/helper/runs?session_id=s", ""),
        ("POST", "/agents/helper/runs/r/cancel", ""),
        ("POST", "/agents/helper/runs/r/resume", ""),
        ("GET", "/sessions", ""),
        ("GET", "/sessions/s", ""),
        ("GET", "/sessions/s/runs", ""),
        ("DELETE", "/sessions/s", ""),
        ("GET", "/queue/stats", ""),
    ] {
        let answer = world.send(request(method.parse().unwrap(), path, ADMIN_KEY, FORM, form)).await;
        assert_eq!(answer.status, 503, "{method} {path}: {}", answer.text);
        assert!(answer.headers.contains_key(header::RETRY_AFTER));
    }
    for path in ["/health", "/info", "/agents", "/config"] {
        assert_eq!(world.get(path).await.status, 200, "{path}");
    }
}
