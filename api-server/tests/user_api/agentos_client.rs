//! AgentOS's own client over a socket. Runs where `CADRE_AGENTOS_PYTHON` names a Python that has what
//! `tests/agentos_client/requirements.txt` lists; the routes themselves are tested without it.

use tokio::net::TcpListener;
use tokio::process::Command;

use crate::support::{ADMIN_KEY, world};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agentos_client/check.py");

#[tokio::test(flavor = "multi_thread")]
async fn agentos_own_client_is_content() {
    let world = world().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, world.router.clone()).into_future());
    let Some(python) = std::env::var_os("CADRE_AGENTOS_PYTHON") else { return };
    let pausing = ["--pausing-message", "pause yes-1"];
    let arguments = [&[SCRIPT, &url, "--agent", "helper", "--key", ADMIN_KEY][..], &pausing].concat();
    let output = Command::new(python).args(arguments).env_remove("http_proxy").output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
