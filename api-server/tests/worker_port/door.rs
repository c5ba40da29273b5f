//! Who may come in at the worker port.

use cadre_protocol::worker::{LINK_PATH, WorkerFrame};
use futures::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::support::*;

#[tokio::test]
async fn nobody_unknown_gets_a_body_read() {
    let rig = rig().await;
    for path in [LINK_PATH, "/operator/v1/runs", "/operator/v1/feed", "/anything"] {
        for authorization in ["", "Authorization: Bearer nonsense\r\n", "Authorization: Basic eA==\r\n"] {
            // The body is announced and never sent: an answer proves that nobody waited for it.
            let request = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n{authorization}\r\n");
            let answer = plain(&rig, &request).await;
            assert!(answer.starts_with("HTTP/1.1 401"), "{path}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_worker_is_not_the_operator_and_the_operator_is_no_worker() {
    let rig = rig().await;
    let request = |path: &str, token: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: Upgrade\r\n\
                 Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
    };
    let answer = plain(&rig, &request("/operator/v1/feed", &rig.token)).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    let answer = plain(&rig, &request(LINK_PATH, "operator")).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

#[tokio::test]
async fn a_pod_that_is_not_a_sandboxs_is_rejected() {
    let rig = rig().await;
    assert_eq!(Worker::connect(&rig, "foreign", "first", Vec::new()).await.err().as_deref(), Some("not yours"));
}

#[tokio::test]
async fn the_first_frame_is_hello() {
    let rig = rig().await;
    let mut request = format!("ws://{}{LINK_PATH}", rig.address).into_client_request().unwrap();
    let bearer = format!("Bearer {}", rig.token).parse().unwrap();
    request.headers_mut().insert(http::header::AUTHORIZATION, bearer);
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    let text = serde_json::to_string(&WorkerFrame::Heartbeat {}).unwrap();
    socket.send(Message::Text(text.into())).await.unwrap();
    let answer = socket.next().await.unwrap().unwrap().into_text().unwrap();
    assert!(answer.contains("\"rejected\""), "{answer}");
}

#[tokio::test]
async fn a_heartbeat_is_answered() {
    let rig = rig().await;
    rig.worker("pool").await.heard().await;
}
