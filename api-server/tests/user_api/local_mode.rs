//! Local mode without a key: open to local programs, closed to web pages.

use cadre_api::auth::key::Authentication;
use http::{Method, header};

use crate::support::{FORM, request, world_with};

#[tokio::test]
async fn pages_of_other_origins_are_kept_out() {
    let local = Authentication::new(None, "127.0.0.1:7777".parse().unwrap(), true).unwrap();
    let world = world_with(local).await;
    let run = || request(Method::POST, "/agents/helper/runs", "", FORM, "message=m&stream=false");
    assert_eq!(world.send(run()).await.status, 200);
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("host", "evil.example:7777"),
    ] {
        let mut foreign = run();
        foreign.headers_mut().insert(header::HeaderName::from_static(name), value.parse().unwrap());
        let answer = world.send(foreign).await;
        assert_eq!(
            (answer.status.as_u16(), answer.json()["error_id"].as_str()),
            (403, Some("forbidden")),
            "{name}: {value}"
        );
        let mut health = request(Method::GET, "/health", "", "", "");
        health.headers_mut().insert(header::HeaderName::from_static(name), value.parse().unwrap());
        assert_eq!(world.send(health).await.status, 403, "public routes too: {name}: {value}");
    }
    let mut own = run();
    own.headers_mut().insert(header::ORIGIN, "http://localhost:7777".parse().unwrap());
    assert_eq!(world.send(own).await.status, 200);
    assert_eq!(world.get("/info").await.json()["auth_mode"], "none");
}
