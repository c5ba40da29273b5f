//! A record whose schema is not this program's.

use http::{Method, StatusCode};
use serde_json::json;

use crate::support::{ADA_KEY, FORM, request, world_on};

#[tokio::test]
async fn an_old_schema_is_told_and_can_be_mended() {
    let world = world_on(cadre_store::sqlite::SqliteStore::in_memory().unwrap()).await;
    for path in ["/sessions", "/sessions/s", "/runs", "/queue/stats", "/metrics", "/agents/helper/runs?session_id=s"] {
        let answer = world.get(path).await;
        assert_eq!(
            (answer.status, &answer.json()["error_id"]),
            (StatusCode::SERVICE_UNAVAILABLE, &json!("migration_required_error")),
            "{path}"
        );
        assert!(answer.headers.contains_key("retry-after"), "{path}");
    }
    let run = world.post("/agents/helper/runs", "message=m&stream=false").await;
    assert_eq!((run.status.as_u16(), &run.json()["error_type"]), (503, &json!("migration_required_error")));
    for path in ["/health", "/info", "/agents", "/agents/helper", "/config", "/openapi.json"] {
        assert_eq!(world.get(path).await.status, 200, "{path}");
    }
    let foreign = world.send(request(Method::POST, "/databases/all/migrate", ADA_KEY, FORM, "")).await;
    assert_eq!(foreign.status, 403);
    assert_eq!(world.send(request(Method::POST, "/databases/all/migrate", "", FORM, "")).await.status, 401);
    assert_eq!(world.post("/databases/other/migrate", "").await.status, 404);
    assert_eq!(world.post("/databases/cadre/migrate?target_version=2.5.0", "").await.status, 400);
    assert_eq!(world.get("/sessions").await.status, 503, "nothing was done");
    let migrated = world.post("/databases/all/migrate", "").await;
    assert_eq!(migrated.status, 200, "{}", migrated.text);
    let run = world.post("/agents/helper/runs", "message=m&stream=false").await;
    assert_eq!(run.json()["status"], "COMPLETED");
    for path in ["/databases/cadre/migrate", "/databases/cadre/migrate?target_version=1"] {
        assert_eq!(world.post(path, "").await.status, 200, "{path}");
    }
}
