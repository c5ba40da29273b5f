//! Requests that schemathesis makes from the OpenAPI document: none may be a fault of the server, and none may be answered
//! in a way that the document does not name. Runs where `CADRE_SCHEMATHESIS_PYTHON` names a Python that has what
//! `tests/schemathesis/requirements.txt` lists.

use std::path::PathBuf;

use tokio::net::TcpListener;
use tokio::process::Command;

use crate::support::{ADMIN_KEY, world};

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schemathesis/schemathesis.toml");
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_answered_otherwise_than_the_document_says() {
    let world = world().await;
    world.release.send_replace(true);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, world.router.clone()).into_future());
    let Some(python) = std::env::var_os("CADRE_SCHEMATHESIS_PYTHON") else { return };
    let program = PathBuf::from(python).with_file_name("st");
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(program)
        .current_dir(&folder)
        .args(["--config-file", CONFIG, "run", &format!("{url}/openapi.json"), "--checks", CHECKS, "--no-color"])
        .args(["--header", &format!("Authorization: Bearer {ADMIN_KEY}"), "--phases", "examples,coverage,fuzzing"])
        .args(["--request-timeout", "30"])
        .env_remove("http_proxy")
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
