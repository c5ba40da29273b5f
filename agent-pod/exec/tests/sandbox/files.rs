//! Operations on files, as the engine asks for them.

use std::os::unix::fs::{PermissionsExt, symlink};

use base64::Engine as _;
use cadre_exec::client::ExecClient;
use cadre_protocol::exec::{ExecBody, ExecErrorCode, ExecOp};

use super::support::{Sandbox, output};

async fn code(client: &ExecClient, op: ExecOp) -> Result<ExecBody, ExecErrorCode> {
    match client.request(op).await.unwrap() {
        ExecBody::Failed { code, .. } => Err(code),
        body => Ok(body),
    }
}

fn read(path: &str) -> ExecOp {
    ExecOp::Read { path: path.into(), first_line: 1, max_lines: 100 }
}

fn write(path: &str, content: &str) -> ExecOp {
    ExecOp::Write { path: path.into(), content: content.into() }
}

fn edit(path: &str, old: &str, new: &str, all: bool) -> ExecOp {
    ExecOp::Edit { path: path.into(), old: old.into(), new: new.into(), all }
}

fn list(path: &str, recursive: bool, limit: usize) -> ExecOp {
    ExecOp::List { path: path.into(), recursive, limit }
}

fn search(pattern: &str, path: &str, glob: Option<&str>, limit: usize) -> ExecOp {
    ExecOp::Search { pattern: pattern.into(), path: path.into(), glob: glob.map(str::to_owned), limit }
}

fn stage(path: &str, offset: u64, data: &[u8]) -> ExecOp {
    ExecOp::Stage { path: path.into(), offset, data: base64::engine::general_purpose::STANDARD.encode(data) }
}

#[tokio::test]
async fn nothing_reaches_outside() {
    let (sandbox, client) = Sandbox::start().await;
    let outside = sandbox.folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "secret").unwrap();
    symlink(&outside, sandbox.workspace("folder")).unwrap();
    symlink("../outside/secret", sandbox.workspace("file")).unwrap();
    symlink("/proc/self", sandbox.workspace("proc")).unwrap();
    std::fs::create_dir(sandbox.workspace("uploads")).unwrap();
    symlink(outside.join("new"), sandbox.workspace("uploads/new")).unwrap();
    let twin = sandbox.folder.path().join("twin");
    std::fs::write(&twin, "kept").unwrap();
    std::fs::hard_link(&twin, sandbox.workspace("uploads/twin")).unwrap();
    let long = "x/".repeat(3000);
    let paths =
        ["/etc/passwd", "../outside/secret", "folder/secret", "file", "proc/environ", "a/../../outside/secret", &long];
    for path in paths {
        for op in [
            read(path),
            edit(path, "secret", "x", true),
            write(path, "x"),
            search("secret", path, None, 10),
            list(path, true, 10),
            stage(&format!("uploads/{path}"), 0, b"x"),
        ] {
            let shown = format!("{op:?}");
            match code(&client, op).await {
                // Below uploads/ these are names like any other.
                Ok(ExecBody::Done { .. }) => assert!(shown.starts_with("Stage"), "{shown}"),
                Ok(body) => panic!("{shown}: {body:?}"),
                Err(code) => {
                    assert!(matches!(code, ExecErrorCode::InvalidPath | ExecErrorCode::WrongKind), "{shown}: {code:?}")
                }
            }
        }
        assert_eq!(
            client.request(ExecOp::Missing { paths: vec![path.into()] }).await.unwrap(),
            ExecBody::Missing { paths: vec![path.into()] }
        );
    }
    assert!(code(&client, stage("uploads/new", 0, b"x")).await.is_err());
    assert_eq!(code(&client, stage("uploads/twin", 0, b"x")).await, Err(ExecErrorCode::WrongKind));
    assert!(code(&client, stage("elsewhere", 0, b"x")).await.is_err());
    let found = client.request(search("secret", "", None, 10)).await.unwrap();
    assert_eq!(found, ExecBody::Matches { lines: Vec::new(), truncated: false });
    assert_eq!(std::fs::read_to_string(outside.join("secret")).unwrap(), "secret");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(std::fs::read_to_string(&twin).unwrap(), "kept");
}

#[tokio::test]
async fn special_and_private_files_are_closed() {
    let (_sandbox, client) = Sandbox::start().await;
    output(&client, "mkfifo pipe; ln -s pipe link; printf 'a\\0b' > binary; mkdir sub").await;
    let table = [
        (read("pipe"), ExecErrorCode::WrongKind),
        (read("link"), ExecErrorCode::WrongKind),
        (read("sub"), ExecErrorCode::WrongKind),
        (read("binary"), ExecErrorCode::WrongKind),
        (read("none"), ExecErrorCode::NotFound),
        (write("pipe", "x"), ExecErrorCode::WrongKind),
        (write("link", "x"), ExecErrorCode::WrongKind),
        (write("sub", "x"), ExecErrorCode::WrongKind),
        (write("binary/x", "x"), ExecErrorCode::WrongKind),
        (list("none", false, 1), ExecErrorCode::NotFound),
        (list("binary", false, 1), ExecErrorCode::WrongKind),
        (read(".cadre/workspace-id"), ExecErrorCode::InvalidPath),
        (write(".cadre/workspace-id", "x"), ExecErrorCode::InvalidPath),
        (search("(", "", None, 1), ExecErrorCode::InvalidPattern),
        (search("(a{1000}){1000}", "", None, 1), ExecErrorCode::InvalidPattern),
        (search("a", "", Some("["), 1), ExecErrorCode::InvalidPattern),
    ];
    for (op, expected) in table {
        let shown = format!("{op:?}");
        assert_eq!(code(&client, op).await, Err(expected), "{shown}");
    }
}

#[tokio::test]
async fn files_are_written_read_and_edited() {
    let (sandbox, client) = Sandbox::start().await;
    let ExecBody::Done { effect } = client.request(write("a/b/c.txt", "one\ntwo\nthree\n")).await.unwrap() else {
        panic!()
    };
    assert_eq!(
        (effect.files.as_slice(), effect.workspace_id.as_str()),
        (["a/b/c.txt".to_owned()].as_slice(), client.ready().await.as_str())
    );
    let op = ExecOp::Read { path: "a/b/c.txt".into(), first_line: 2, max_lines: 1 };
    assert_eq!(
        client.request(op).await.unwrap(),
        ExecBody::Text { text: "two\n".into(), total_lines: 3, truncated: true }
    );
    std::fs::set_permissions(sandbox.workspace("a/b/c.txt"), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(code(&client, edit("a/b/c.txt", "two", "2", false)).await.is_ok());
    assert_eq!(code(&client, edit("a/b/c.txt", "t", "T", false)).await.map(|_| ()), Ok(()));
    assert_eq!(code(&client, edit("a/b/c.txt", "e", "E", false)).await, Err(ExecErrorCode::NoMatch));
    assert!(code(&client, edit("a/b/c.txt", "e", "E", true)).await.is_ok());
    assert_eq!(std::fs::read_to_string(sandbox.workspace("a/b/c.txt")).unwrap(), "onE\n2\nThrEE\n");
    let mode = std::fs::metadata(sandbox.workspace("a/b/c.txt")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755, "the mode is kept");
    assert_eq!(std::fs::read_dir(sandbox.workspace("a/b")).unwrap().count(), 1, "nothing is left beside it");
}

#[tokio::test]
async fn listings_and_searches_are_bounded_and_hide_what_is_ours() {
    let (_sandbox, client) = Sandbox::start().await;
    let text = "mkdir -p src .git; echo 'fn main() {}' > src/main.rs; echo 'fn other' > src/other.txt
        printf 'fn\\0' > src/binary; echo 'fn' > .git/hidden; head -c 5000000 /dev/zero | tr '\\0' f > huge; ln -s src link";
    output(&client, text).await;
    let ExecBody::Listing { entries, truncated: false } = client.request(list("", true, 100)).await.unwrap() else {
        panic!()
    };
    let paths: Vec<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, [".git", ".git/hidden", "huge", "link", "src", "src/binary", "src/main.rs", "src/other.txt"]);
    assert!(entries.iter().all(|entry| entry.directory == [".git", "src"].contains(&entry.path.as_str())));
    let cut = client.request(list("src", false, 2)).await.unwrap();
    assert!(matches!(cut, ExecBody::Listing { entries, truncated: true } if entries.len() == 2));
    let table = [
        (search("^f", "", None, 10), vec!["src/main.rs:1: fn main() {}", "src/other.txt:1: fn other"], false),
        (search("fn", "", Some("*.rs"), 10), vec!["src/main.rs:1: fn main() {}"], false),
        (search("fn", "", Some("src/*.txt"), 10), vec!["src/other.txt:1: fn other"], false),
        (search("fn", "src/main.rs", None, 10), vec!["src/main.rs:1: fn main() {}"], false),
        (search("fn", "src", None, 1), vec!["src/main.rs:1: fn main() {}"], true),
    ];
    for (op, lines, truncated) in table {
        let expected = ExecBody::Matches { lines: lines.into_iter().map(str::to_owned).collect(), truncated };
        assert_eq!(client.request(op).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn attachments_come_in_pieces() {
    let (sandbox, client) = Sandbox::start().await;
    assert!(code(&client, stage("uploads/r/a.bin", 0, b"old and long")).await.is_ok());
    assert!(code(&client, stage("uploads/r/a.bin", 0, &[0, 1, 2])).await.is_ok());
    assert!(code(&client, stage("uploads/r/a.bin", 3, &[3, 4])).await.is_ok());
    assert_eq!(code(&client, stage("uploads/r/a.bin", 9, b"hole")).await, Err(ExecErrorCode::Io));
    assert_eq!(std::fs::read(sandbox.workspace("uploads/r/a.bin")).unwrap(), [0, 1, 2, 3, 4]);
    let paths = ["uploads/r/a.bin", "uploads/r/b.bin", "../workspace/uploads/r/a.bin"].map(str::to_owned);
    let answer = client.request(ExecOp::Missing { paths: paths.to_vec() }).await.unwrap();
    assert_eq!(answer, ExecBody::Missing { paths: paths[1..].to_vec() });
}

#[tokio::test]
async fn answers_that_would_burst_a_frame_are_cut() {
    let (_sandbox, client) = Sandbox::start().await;
    output(&client, "head -c 900000 /dev/zero | tr '\\0' '\\1' > controls; cp controls other").await;
    let answer = client.request(read("controls")).await.unwrap();
    assert!(matches!(answer, ExecBody::Text { truncated: true, .. }));
    let run =
        ExecOp::Run { command: "cat controls".into(), cwd: None, timeout_ms: 60_000, max_output_bytes: usize::MAX };
    let answer = client.request(run).await.unwrap();
    assert!(matches!(answer, ExecBody::Exited { code: Some(0), truncated: true, .. }));
    assert_eq!(client.losses(), 0);
}
