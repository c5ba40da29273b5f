//! Requests that schemathesis makes from the OpenAPI document: none may be a fault of the server, and none may be answered
//! in a way that the document does not name. Runs where `CADRE_SCHEMATHESIS_PYTHON` names a Python that has what
//! `tests/schemathesis/requirements.txt` lists.

use std::path::PathBuf;

use tokio::net::TcpListener;
use tokio::process::Command;

use crate::support::{ADMIN_KEY, world};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schemathesis");
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// `known.toml` asks about the session `s` and its run `r`, `schemathesis.toml` about anything.
async fn no_fault_is_found(config: &str) {
    let Some(python) = std::env::var_os("CADRE_SCHEMATHESIS_PYTHON") else { return };
    let world = world().await;
    world.release.send_replace(true);
    let made = world.post("/agents/helper/runs", "message=tool&stream=false&session_id=s&run_id=r").await;
    assert_eq!(made.status, 200, "{}", made.text);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, world.router.clone()).into_future());
    let program = PathBuf::from(python).with_file_name("st");
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(program)
        .current_dir(&folder)
        .args(["--config-file", &format!("{FOLDER}/{config}"), "run", &format!("{url}/openapi.json"), "--no-color"])
        .args(["--checks", CHECKS, "--header", &format!("Authorization: Bearer {ADMIN_KEY}")])
        .args(["--phases", "examples,coverage,fuzzing", "--request-timeout", "30"])
        .env_remove("http_proxy")
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_about_anything_are_answered_as_the_document_says() {
    no_fault_is_found("schemathesis.toml").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_about_what_is_there_are_answered_as_the_document_says() {
    no_fault_is_found("known.toml").await;
}
