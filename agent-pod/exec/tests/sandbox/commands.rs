//! Commands: what they see, how they end, what they leave behind.

use std::time::{Duration, Instant};

use cadre_protocol::exec::{ExecBody, ExecErrorCode, ExecOp};

use super::support::{CANARY, SOON, Sandbox, command, eventually, exists, output};

/// Starts children of all sorts, each of which writes its number: in the group, in a session of its own, orphaned in a
/// session of its own, and orphaned there and deaf to SIGTERM.
const FAMILY: &str = "
    sleep 1000 & echo $! >> pids
    setsid sh -c 'echo $$ >> pids; exec sleep 1000' &
    (setsid sh -c 'echo $$ >> pids; exec sleep 1000' > /dev/null 2>&1 &)
    (setsid sh -c 'trap \"\" TERM; echo $$ >> pids; while :; do sleep 1; done' > /dev/null 2>&1 &)
    echo $$ >> pids
    sleep 1000";

#[tokio::test]
async fn a_time_out_ends_the_whole_family() {
    let (sandbox, client) = Sandbox::start().await;
    let answer = client.request(command(FAMILY, Duration::from_secs(10))).await.unwrap();
    let ExecBody::Exited { code: None, signal: Some(15), timed_out: true, killed: false, .. } = answer else {
        panic!("{answer:?}");
    };
    for pid in sandbox.pids("pids", 5).await {
        eventually("the family is gone", || !exists(pid)).await;
    }
    assert_eq!(output(&client, "echo on").await, "on\n");
}

#[tokio::test]
async fn a_kill_ends_the_family_of_its_target_only() {
    let (sandbox, client) = Sandbox::start().await;
    let other =
        client.begin(command("echo $$ > other; until [ -e go ]; do sleep 0.02; done; echo done", SOON)).unwrap();
    sandbox.pids("other", 1).await;
    let doomed = client.begin(command(FAMILY, SOON)).unwrap();
    let family = sandbox.pids("pids", 5).await;
    assert!(matches!(client.request(ExecOp::Kill { target: doomed.id() }).await.unwrap(), ExecBody::Done { .. }));
    let answer = doomed.answer().await.unwrap();
    assert!(
        matches!(answer, ExecBody::Exited { code: None, signal: Some(15), timed_out: false, killed: true, .. }),
        "{answer:?}"
    );
    for pid in family {
        eventually("the family is gone", || !exists(pid)).await;
    }
    output(&client, "touch go").await;
    assert!(
        matches!(other.answer().await.unwrap(), ExecBody::Exited { code: Some(0), stdout, .. } if stdout == "done\n")
    );
}

#[tokio::test]
async fn a_child_in_the_background_holds_nothing_up_and_lives_on() {
    let (sandbox, client) = Sandbox::start().await;
    let started = Instant::now();
    let text = "(while :; do echo tick; sleep 0.01; done) & echo $! > pids; echo started";
    assert!(output(&client, text).await.contains("started"));
    assert!(started.elapsed() < SOON / 2);
    let child = sandbox.pids("pids", 1).await[0];
    // More than a pipe holds: it would die or hang if nobody read on.
    output(&client, "true").await;
    assert!(exists(child));
}

#[tokio::test]
async fn a_flood_of_output_costs_no_memory() {
    let (sandbox, client) = Sandbox::start().await;
    let text = "echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo last; echo problem >&2; exit 3";
    let answer = client.request(command(text, SOON)).await.unwrap();
    let ExecBody::Exited { code: Some(3), stdout, stderr, truncated: true, .. } = answer else { panic!("{answer:?}") };
    assert!(stdout.starts_with("first\nxxx") && stdout.ends_with("xxx\nlast\n") && stdout.len() < 17 << 10);
    assert_eq!(stderr, "problem\n");
    let status = std::fs::read_to_string(format!("/proc/{}/status", sandbox.server.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")).unwrap();
    assert!(peak.trim().parse::<u64>().unwrap() < 64 << 10, "peak of {peak} KiB");
}

#[tokio::test]
async fn the_environment_is_ours_alone() {
    let (sandbox, client) = Sandbox::start().await;
    let environment = output(&client, "cat /proc/self/environ | tr '\\0' '\\n'").await;
    assert!(!environment.contains(CANARY));
    let mut names: Vec<&str> = environment.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    // The shell adds these itself.
    names.retain(|name| !["_", "SHLVL", "OLDPWD"].contains(name));
    names.sort_unstable();
    assert!(environment.contains("CADRE_TEST_GIVEN=given"));
    assert_eq!(names, ["CADRE_TEST_GIVEN", "HOME", "LANG", "PATH", "PWD", "TERM", "TMPDIR", "USER"]);
    assert_eq!(
        output(&client, "cat; readlink /proc/self/fd/0; pwd").await,
        format!("/dev/null\n{}\n", sandbox.workspace("").display()).replace("workspace/", "workspace")
    );
}

#[tokio::test]
async fn commands_start_where_they_are_told_inside_the_workspace() {
    let (_sandbox, client) = Sandbox::start().await;
    output(&client, "mkdir -p a/b && ln -s / out").await;
    let run = |cwd: &str| ExecOp::Run {
        command: "pwd".into(),
        cwd: Some(cwd.into()),
        timeout_ms: 60_000,
        max_output_bytes: 1000,
    };
    let answer = client.request(run("a/b")).await.unwrap();
    assert!(matches!(&answer, ExecBody::Exited { stdout, .. } if stdout.ends_with("/workspace/a/b\n")), "{answer:?}");
    for (cwd, expected) in
        [("out", ExecErrorCode::InvalidPath), ("/", ExecErrorCode::InvalidPath), ("none", ExecErrorCode::NotFound)]
    {
        let answer = client.request(run(cwd)).await.unwrap();
        assert!(matches!(&answer, ExecBody::Failed { code, .. } if *code == expected), "{cwd}: {answer:?}");
    }
}

#[tokio::test]
async fn effects_name_what_changed() {
    let (_sandbox, client) = Sandbox::start().await;
    let effect = async |text: &str| match client.request(command(text, SOON)).await.unwrap() {
        ExecBody::Exited { effect, .. } => effect,
        other => panic!("{other:?}"),
    };
    assert_eq!(effect("mkdir sub; echo 1 > sub/a; echo 1 > b; echo 1 > c").await.files, ["b", "c", "sub/a"]);
    assert_eq!(effect("cat b sub/a").await.files, [""; 0]);
    let third = effect("echo 22 > b; rm c; mv sub/a sub/d").await;
    assert_eq!(
        (third.files, third.removed),
        (["b", "sub/d"].map(str::to_owned).to_vec(), ["c", "sub/a"].map(str::to_owned).to_vec())
    );
    assert!(!third.truncated);
    assert_eq!(third.workspace_id, client.ready().await);
    let many = effect("for i in $(seq 300); do : > f$i; done").await;
    assert_eq!((many.files.len(), many.truncated), (200, true));
}

/// Needs root to become somebody else; for others the user is already the one that commands run as.
#[tokio::test]
async fn commands_run_as_the_user_they_are_given() {
    if !nix::unistd::Uid::effective().is_root() {
        return;
    }
    let (sandbox, client) = Sandbox::start_as(54321).await;
    assert_eq!(
        output(&client, "id -u; id -g; id -G; grep CapEff /proc/self/status").await,
        "54321\n54321\n54321\nCapEff:\t0000000000000000\n"
    );
    let write = ExecOp::Write { path: "a/b".into(), content: "x".into() };
    assert!(matches!(client.request(write).await.unwrap(), ExecBody::Done { .. }));
    assert_eq!(
        output(&client, "echo y >> a/b; touch a/c; cat a/b; echo $PWD $USER").await,
        format!("xy\n{} agent\n", sandbox.folder.path().join("workspace").display())
    );
    let answer = client
        .request(command(&format!("kill -9 {}; cat /proc/{}/environ", sandbox.server.id(), sandbox.server.id()), SOON))
        .await
        .unwrap();
    assert!(matches!(answer, ExecBody::Exited { code: Some(1), .. }), "{answer:?}");
    let doomed = client.request(command(FAMILY, Duration::from_secs(10))).await.unwrap();
    assert!(matches!(doomed, ExecBody::Exited { timed_out: true, .. }));
    for pid in sandbox.pids("pids", 5).await {
        eventually("the family is gone", || !exists(pid)).await;
    }
}

/// Same user or not: what exec-server holds in memory and in descriptors is closed to commands without privileges.
#[tokio::test]
async fn the_server_cannot_be_looked_into() {
    let (sandbox, client) = Sandbox::start().await;
    let owner =
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{}/mem", sandbox.server.id())).unwrap());
    assert_eq!(owner, 0, "the kernel gives the files of a non-dumpable process to root");
    if !nix::unistd::Uid::effective().is_root() {
        let answer =
            client.request(command(&format!("cat /proc/{}/environ", sandbox.server.id()), SOON)).await.unwrap();
        assert!(matches!(&answer, ExecBody::Exited { code: Some(1), stdout, .. } if stdout.is_empty()), "{answer:?}");
    }
}

#[tokio::test]
async fn orphans_are_reaped() {
    let (sandbox, client) = Sandbox::start().await;
    output(&client, "for i in 1 2 3 4 5; do (sh -c 'echo $$ >> pids; sleep 0.05' > /dev/null 2>&1 &); done").await;
    for pid in sandbox.pids("pids", 5).await {
        eventually("the orphan is reaped", || !exists(pid)).await;
    }
}

#[tokio::test]
async fn what_cannot_start_says_so() {
    let (_sandbox, client) = Sandbox::start().await;
    let long = format!("true {}", "x".repeat(300 << 10));
    let answer = client.request(command(&long, SOON)).await.unwrap();
    assert!(matches!(answer, ExecBody::Failed { code: ExecErrorCode::Spawn, .. }), "{answer:?}");
    let answer = client.request(command("a\0b", SOON)).await.unwrap();
    assert!(matches!(answer, ExecBody::Failed { code: ExecErrorCode::Spawn, .. }), "{answer:?}");
}

/// Grows by 2 MiB now and then, for ever.
const GROWS: &str = "while :; do head -c 2097152 /dev/zero >> big; sleep 0.1; done";

#[tokio::test]
async fn a_command_that_fills_the_workspace_is_ended_and_the_next_can_clean_up() {
    let (sandbox, client) = Sandbox::start().await;
    output(&client, "sleep 1000 > /dev/null 2>&1 & echo $! > pids").await;
    let bystander = sandbox.pids("pids", 1).await;
    let answer = client.request(command(GROWS, SOON)).await.unwrap();
    let ExecBody::Exited { full: Some(words), timed_out: false, killed: false, .. } = answer else {
        panic!("{answer:?}");
    };
    assert!(words.contains("/workspace holds"), "{words}");
    let write = || ExecOp::Write { path: "new".into(), content: "x".into() };
    let refused = client.request(write()).await.unwrap();
    assert!(matches!(refused, ExecBody::Failed { code: ExecErrorCode::TooLarge, .. }), "{refused:?}");
    // Slower than several looks: nobody takes the growth before for its own.
    assert_eq!(output(&client, "sleep 3; rm big && echo clean").await, "clean\n");
    assert!(matches!(client.request(write()).await.unwrap(), ExecBody::Done { .. }));
    assert!(bystander.into_iter().all(exists), "what was there before stays");
}

#[tokio::test]
async fn what_fills_the_workspace_in_the_background_is_ended() {
    let (sandbox, client) = Sandbox::start().await;
    output(&client, &format!("({GROWS}) > /dev/null 2>&1 & echo $! > pids")).await;
    for pid in sandbox.pids("pids", 1).await {
        eventually("it is gone", || !exists(pid)).await;
    }
}
