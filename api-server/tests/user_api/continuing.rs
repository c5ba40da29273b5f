//! Going on from runs: the same run after an error, a new one after an answer; checkpoints; copies of sessions.

use cadre_protocol::run::{RunEnd, RunFailure};
use cadre_store::rows::ServerEnd;
use cadre_store::traits::Runs as _;
use http::Method;
use serde_json::{Value, json};

use crate::support::{ADA_KEY, ADMIN_KEY, Answer, BOB_KEY, FORM, World, frames, id, names, request, world};

const RUNS: &str = "/agents/helper/runs";

/// Makes a run in session `s` and waits for its end.
async fn made(world: &World, message: &str) -> Value {
    let answer = world.post(RUNS, &format!("message={message}&stream=false&session_id=s")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

fn path(run: &Value, rest: &str) -> String {
    format!("{RUNS}/{}{rest}", id(run))
}

async fn get(world: &World, run: &Value) -> Value {
    world.get(&path(run, "?session_id=s")).await.json()
}

/// Continues a run and waits for the end of what comes of it.
async fn continued(world: &World, run: &Value, form: &str) -> Value {
    let answer = world.post(&path(run, "/continue"), &format!("session_id=s&stream=false&{form}")).await;
    assert_eq!(answer.status, 200, "{form}: {}", answer.text);
    assert_eq!(answer.headers["x-run-id"], id(&answer.json()));
    answer.json()
}

fn said(run: &Value) -> Vec<&str> {
    run["messages"].as_array().unwrap().iter().map(|message| message["content"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_run_that_has_completed_is_continued_by_a_new_one() {
    let world = world().await;
    let first = made(&world, "hello").await;
    let second = continued(&world, &first, "input=more&user_id=u2&tools=%5B%5D").await;
    assert_ne!(second["run_id"], first["run_id"]);
    assert_eq!((&second["forked_from_run_id"], &second["forked_from_message_index"]), (&first["run_id"], &json!(2)));
    assert!(second.get("regenerated_from").is_none() && second.get("forked_from_session_id").is_none());
    assert_eq!(said(&second), ["hello", "You said: hello", "more", "You said: more"]);
    assert_eq!((&second["input"]["input_content"], &second["user_id"]), (&json!("more"), &json!("u2")));
    assert_eq!(get(&world, &first).await, first, "the old one is as it was");
    let list = world.get(&format!("{RUNS}?session_id=s")).await.json();
    assert_eq!(list[1]["forked_from_run_id"], first["run_id"]);

    let stream = world.post(&path(&first, "/continue"), "session_id=s&input=again").await;
    assert_eq!(names(&stream.text), ["RunContinued", "RunContent", "RunCompleted"]);
    assert_eq!(frames(&stream.text)[0].0, Some(0), "a new run's events begin anew");
    let cut = continued(&world, &first, "continue_from=last_user").await;
    assert_eq!((&cut["forked_from_message_index"], said(&cut).len()), (&json!(1), 2));
    assert_eq!(continued(&world, &first, "continue_from=0").await["forked_from_message_index"], 0);
}

#[tokio::test]
async fn a_run_that_has_failed_goes_on_under_its_id() {
    let world = world().await;
    let failed = made(&world, "fail").await;
    assert_eq!(
        (&failed["status"], &failed["metadata"]),
        (&json!("ERROR"), &json!({"error_type": "model_provider_error", "retryable": false}))
    );
    let stream = world.post(&path(&failed, "/continue"), "session_id=s").await;
    assert_eq!(stream.headers["x-run-id"], id(&failed));
    let events = frames(&stream.text);
    let seen: Vec<_> = events.iter().map(|(id, name, _)| (id.unwrap(), name.as_str())).collect();
    assert_eq!(seen, [(2, "RunContinued"), (3, "RunContent"), (5, "RunCompleted")], "from now on only");
    let run = get(&world, &failed).await;
    assert_eq!(
        (&run["status"], &run["queue_attempt"], &run["metadata"]),
        (&json!("COMPLETED"), &json!(2), &json!({"attempts": 2}))
    );
    assert_eq!(said(&run), ["fail", "You said: fail"]);
    assert!(run.get("error_type").is_none() && run.get("forked_from_run_id").is_none());
    let all = world.post(&path(&failed, "/resume"), "").await;
    let names = names(&all.text);
    assert_eq!(names, ["replay", "RunStarted", "RunError", "RunContinued", "RunContent", "RunCompleted"]);

    let failed = made(&world, "fail").await;
    let run = continued(&world, &failed, "input=with+care").await;
    assert_eq!(
        (run["run_id"].clone(), said(&run)),
        (failed["run_id"].clone(), vec!["fail", "with care", "You said: with care"])
    );
    let failed = made(&world, "fail").await;
    let fork = continued(&world, &failed, "fork=true&input=other").await;
    assert_eq!(fork["forked_from_run_id"], failed["run_id"]);
    assert_eq!(get(&world, &failed).await["status"], "ERROR");
}

#[tokio::test]
async fn in_the_background_the_answer_comes_at_once() {
    let world = world().await;
    let first = made(&world, "hello").await;
    let accepted = world.post(&path(&first, "/continue"), "session_id=s&stream=false&background=true&input=wait").await;
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    let waits = accepted.json();
    let queued =
        world.post(&path(&first, "/continue"), "session_id=s&stream=false&background=true&input=x").await.json();
    assert_eq!((&queued["status"], &queued["waiting_on"]), (&json!("PENDING"), &waits["run_id"]));
    let busy = world.post(&path(&waits, "/continue"), "session_id=s").await;
    assert_eq!((busy.status.as_u16(), &busy.json()["error_id"]), (409, &json!("conflict")));
    assert!(busy.detail().contains("it has not ended ("), "{}", busy.text);
    world.release.send_replace(true);
    world.until(&path(&queued, "?session_id=s"), |run| run["status"] == "COMPLETED").await;
    let stream = world.post(&path(&first, "/continue"), "session_id=s&background=true&input=y").await;
    assert_eq!((stream.status.as_u16(), names(&stream.text).len()), (200, 3));
}

#[tokio::test]
async fn an_answer_that_is_given_anew_replaces_the_old_one() {
    let world = world().await;
    let first = made(&world, "hello").await;
    let beside = continued(&world, &first, "regenerate=true&replace_original=false").await;
    assert_eq!((&beside["regenerated_from"], said(&beside)), (&first["run_id"], vec!["hello", "You said: hello"]));
    assert_eq!(get(&world, &first).await["status"], "COMPLETED");
    let instead = continued(&world, &first, "regenerate=true&additional_instructions=shorter").await;
    assert_eq!(said(&instead), ["hello", "shorter", "You said: shorter"]);
    assert_eq!(instead["input"]["input_content"], "hello", "the question is the same");
    assert_eq!(get(&world, &first).await["status"], "REGENERATED");
    let replaced = world.get("/runs?status=regenerated").await.json();
    assert_eq!((&replaced["meta"]["total_count"], &replaced["data"][0]["run_id"]), (&json!(1), &first["run_id"]));
    assert_eq!(world.get("/queue/stats").await.json()["counts"]["completed"], 3);
    let again = continued(&world, &first, "input=more").await;
    assert_eq!(again["forked_from_run_id"], first["run_id"], "it can still be gone on from");
}

#[tokio::test]
async fn what_can_not_be_continued_says_why() {
    let world = world().await;
    let first = made(&world, "hello").await;
    let form = "message=wait&stream=false&background=true&session_id=s";
    let running = world.post(RUNS, form).await.json();
    world.until(&path(&running, "?session_id=s"), |run| run["status"] == "RUNNING").await;
    let cancelled = world.post(RUNS, form).await.json();
    world.post(&path(&cancelled, "/cancel"), "").await;
    let nobody = json!({"run_id": "nobody"});
    let tools = "session_id=s&tools=%5B%7B%22tool_call_id%22%3A%22c%22%7D%5D";
    let rows = [
        (&cancelled, "session_id=s", 409, format!("Cannot continue run {}: run is cancelled", id(&cancelled))),
        (&running, "session_id=s", 409, format!("Cannot continue run {}: it has not ended (RUNNING)", id(&running))),
        (&nobody, "session_id=s", 404, "No runs found for run ID nobody".to_owned()),
        (&first, "session_id=other", 404, format!("No runs found for run ID {}", id(&first))),
        (&first, "", 400, "session_id is required for this action".to_owned()),
        (
            &first,
            tools,
            409,
            format!("Cannot continue run {}: it is not paused, so it waits for no results of tools", id(&first)),
        ),
        (&first, "session_id=s&tools=%7B", 400, "Invalid JSON in tools field".to_owned()),
        (&first, "session_id=s&continue_from=3", 400, "message_index must be between 0 and 2".to_owned()),
        (
            &first,
            "session_id=s&replace_original=false",
            400,
            "`replace_original` only makes sense with `regenerate=true`".to_owned(),
        ),
        (
            &first,
            "session_id=s&additional_instructions=x",
            400,
            "`additional_instructions` only makes sense with `regenerate=true`".to_owned(),
        ),
    ];
    for (run, form, status, detail) in rows {
        let answer = world.post(&path(run, "/continue"), form).await;
        assert_eq!((answer.status.as_u16(), answer.detail()), (status, detail), "{form}");
    }
    let elsewhere = format!("/agents/team-a.other/runs/{}/continue", id(&first));
    assert_eq!(world.post(&elsewhere, "session_id=s").await.status, 404);
    assert_eq!(world.post("/agents/nobody/runs/r/continue", "session_id=s").await.detail(), "Agent not found");
    world.release.send_replace(true);
    assert_eq!(world.get("/sessions/s/runs").await.json().as_array().unwrap().len(), 3, "nothing was made");
}

#[tokio::test]
async fn a_runs_checkpoints_part_no_call_from_its_result() {
    let world = world().await;
    let run = made(&world, "tool").await;
    let list = world.get(&path(&run, "/checkpoints?session_id=s")).await.json();
    assert_eq!((&list["run_id"], &list["session_id"]), (&run["run_id"], &json!("s")));
    let seen: Vec<_> = list["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| {
            (it["checkpoint_id"].clone(), it["message_index"].clone(), it["reason"].clone(), it["status"].clone())
        })
        .collect();
    let expected = [("1", 1, "checkpoint", "RUNNING"), ("2", 3, "checkpoint", "RUNNING"), ("3", 4, "end", "COMPLETED")];
    assert_eq!(seen, expected.map(|(id, at, reason, status)| (json!(id), json!(at), json!(reason), json!(status))));
    let last = &list["checkpoints"][2];
    assert_eq!(
        (&last["is_latest"], &last["message_role"], &last["message_preview"]),
        (&json!(true), &json!("assistant"), &json!("You said: tool"))
    );
    assert_eq!(last["message_id"], run["messages"][3]["id"]);

    let at = async |index: &str| world.get(&path(&run, &format!("/checkpoints/{index}?session_id=s"))).await;
    let whole = at("3").await.json();
    assert_eq!(
        (&whole["checkpoint"]["checkpoint_id"], &whole["checkpoint"]["reason"]),
        (&json!("2"), &json!("snapshot"))
    );
    assert_eq!(whole["snapshot"]["messages"].as_array().unwrap()[..], run["messages"].as_array().unwrap()[..3]);
    assert_eq!(whole["snapshot"]["tools"], run["tools"]);
    assert_eq!(whole["snapshot"]["last_checkpoint_at_message_index"], 3);
    let snapped = at("2").await.json();
    assert_eq!(
        (&snapped["checkpoint"]["message_index"], &snapped["checkpoint"]["checkpoint_id"]),
        (&json!(2), &Value::Null)
    );
    assert_eq!((said(&snapped["snapshot"]), &snapped["snapshot"]["tools"]), (vec!["tool"], &json!([])));
    assert_eq!(said(&at("0").await.json()["snapshot"]).len(), 0);
    for (index, status) in [("5", 400), ("-1", 400), ("x", 422)] {
        assert_eq!(at(index).await.status, status, "{index}");
    }
    assert_eq!(at("5").await.detail(), "message_index must be between 0 and 4");
    for (rest, status) in [("", 422), ("?session_id=other", 404)] {
        for route in ["/checkpoints", "/checkpoints/1"] {
            assert_eq!(world.get(&path(&run, &format!("{route}{rest}"))).await.status, status, "{route}{rest}");
        }
    }
    let fork = continued(&world, &run, "continue_from=2&input=so").await;
    assert_eq!(fork["forked_from_message_index"], 1, "it snaps in the same way");
    assert_eq!((said(&fork), &fork["tools"]), (vec!["tool", "so", "You said: so"], &json!([])));
    let fork = continued(&world, &run, "continue_from=3&input=so").await;
    assert_eq!((said(&fork).len(), &fork["tools"]), (5, &run["tools"]));
}

#[tokio::test]
async fn a_session_can_be_copied() {
    let world = world().await;
    let first = made(&world, "hello").await;
    let answer = world.post("/agents/helper/sessions/s/fork?user_id=bob", "").await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let copy = answer.json();
    assert_eq!(copy["forked_from_session_id"], "s");
    let session = copy["session_id"].as_str().unwrap();
    let runs = world.get(&format!("{RUNS}?session_id={session}")).await.json();
    assert_eq!((&runs[0]["forked_from_session_id"], said(&runs[0])), (&json!("s"), said(&first)));
    assert_ne!(runs[0]["run_id"], first["run_id"]);
    assert_eq!(runs[0]["user_id"], "bob");
    let next = world.post(RUNS, &format!("message=next&stream=false&session_id={session}")).await.json();
    assert_eq!(next["status"], "COMPLETED");
    assert_eq!(world.get("/sessions/s/runs").await.json().as_array().unwrap().len(), 1);
    let replay = world.post(&format!("{RUNS}/{}/resume", id(&runs[0])), "").await;
    assert_eq!((frames(&replay.text)[0].2["total_events"].clone(), frames(&replay.text).len()), (json!(0), 1));

    let form = "message=wait&stream=false&background=true&session_id=open";
    assert_eq!(world.post(RUNS, form).await.status, 202);
    for (path, status, detail) in [
        ("/agents/helper/sessions/open/fork", 400, "Source session has no runs to fork"),
        ("/agents/helper/sessions/none/fork", 404, "Session with id 'none' not found"),
        ("/agents/team-a.other/sessions/s/fork", 404, "Session with id 's' not found"),
        ("/agents/nobody/sessions/s/fork", 404, "Agent not found"),
    ] {
        let answer = world.post(path, "").await;
        assert_eq!((answer.status.as_u16(), answer.detail().as_str()), (status, detail), "{path}");
    }
    world.release.send_replace(true);
}

#[tokio::test]
async fn nobody_goes_on_from_what_is_somebody_elses() {
    let world = world().await;
    let form = "message=fail&stream=false&run_id=r&session_id=s";
    assert_eq!(world.send(request(Method::POST, RUNS, ADA_KEY, FORM, form)).await.status, 200);
    let send = async |method: Method, path: &str, key: &str| {
        world.send(request(method, path, key, FORM, "session_id=s&stream=false")).await.status.as_u16()
    };
    for (method, path) in [
        (Method::GET, "/agents/helper/runs/r/checkpoints?session_id=s"),
        (Method::GET, "/agents/helper/runs/r/checkpoints/1?session_id=s"),
        (Method::POST, "/agents/helper/runs/r/continue"),
        (Method::POST, "/agents/helper/sessions/s/fork"),
    ] {
        assert_eq!(send(method.clone(), path, BOB_KEY).await, 404, "bob: {path}");
        assert_eq!(send(method, path, ADA_KEY).await, 200, "ada: {path}");
    }
}

/// Sends a form with an idempotency key.
async fn keyed(world: &World, path: &str, key: &str, form: &str) -> Answer {
    let mut request = request(Method::POST, path, ADMIN_KEY, FORM, form);
    request.headers_mut().insert("idempotency-key", key.parse().unwrap());
    world.send(request).await
}

#[tokio::test]
async fn a_key_goes_on_from_a_run_once() {
    let world = world().await;
    let first = made(&world, "hello").await;
    let form = "session_id=s&stream=false&input=more";
    let forked = keyed(&world, &path(&first, "/continue"), "k1", form).await;
    let again =
        keyed(&world, &path(&first, "/continue"), "k1", "session_id=s&background=true&stream=false&input=more").await;
    assert_eq!((again.status.as_u16(), &again.json()["status"]), (202, &json!("COMPLETED")), "{}", again.text);
    assert_eq!(again.json()["run_id"], forked.json()["run_id"], "the same, however it is answered");
    let other = keyed(&world, &path(&first, "/continue"), "k1", "session_id=s&input=else").await;
    assert_eq!((other.status.as_u16(), &other.json()["error_id"]), (409, &json!("idempotency_conflict")));
    let of_another = keyed(&world, &path(&forked.json(), "/continue"), "k1", form).await;
    assert_eq!(of_another.status, 409, "the run is a part of the request");
    let new = keyed(&world, RUNS, "k1", form).await;
    assert_eq!(new.status, 422, "{}", new.text);
    let new = keyed(&world, RUNS, "k1", "message=more&session_id=s").await;
    assert_eq!(new.status, 409, "one key, one request");
    let list = world.get(&format!("{RUNS}?session_id=s")).await.json();
    assert_eq!(list.as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_key_resumes_a_run_that_failed_once() {
    let world = world().await;
    let failed = made(&world, "fail").await;
    let form = "session_id=s&stream=false";
    for _ in 0..2 {
        let resumed = keyed(&world, &path(&failed, "/continue"), "k1", form).await.json();
        assert_eq!((&resumed["run_id"], &resumed["status"]), (&failed["run_id"], &json!("COMPLETED")));
        assert_eq!(resumed["queue_attempt"], 2, "once");
    }
    let stream = keyed(&world, &path(&failed, "/continue"), "k1", "session_id=s").await;
    assert_eq!(names(&stream.text)[..2], ["RunStarted", "RunError"], "a replay has all events");
    let regenerated = "session_id=s&stream=false&regenerate=true";
    let new = keyed(&world, &path(&failed, "/continue"), "k2", regenerated).await.json();
    let again = keyed(&world, &path(&failed, "/continue"), "k2", regenerated).await.json();
    assert_eq!(new["run_id"], again["run_id"], "although the old one has left the history");
}

#[tokio::test]
async fn a_conversation_has_what_was_kept_once() {
    let world = world().await;
    let first = made(&world, "hello").await;
    let second = continued(&world, &first, "input=more").await;
    continued(&world, &second, "continue_from=last_user").await;
    let session = world.get("/sessions/s").await.json();
    let said: Vec<_> =
        session["chat_history"].as_array().unwrap().iter().map(|it| it["content"].as_str().unwrap()).collect();
    assert_eq!(said, ["hello", "You said: hello", "more", "You said: more", "You said: more"]);
}

#[tokio::test]
async fn what_is_added_to_a_run_that_never_began_is_asked_with_it() {
    let world = world().await;
    let form = "stream=false&background=true&session_id=s";
    world.post(RUNS, &format!("message=wait&{form}")).await;
    let unborn = world.post(RUNS, &format!("message=first&{form}")).await.json();
    let failure = RunFailure {
        error_type: "placement_failed".into(),
        error_id: None,
        message: "no place".into(),
        retryable: false,
    };
    let run_id = cadre_protocol::ids::RunId::new(id(&unborn)).unwrap();
    let end = ServerEnd { run_id, end: RunEnd::Error(failure), epoch: None, at_ms: world.service.now_ms() };
    world.store.end(end).await.unwrap().unwrap();
    world.release.send_replace(true);
    let run = continued(&world, &unborn, "input=second").await;
    assert_eq!((&run["run_id"], &run["status"]), (&unborn["run_id"], &json!("COMPLETED")));
    assert_eq!(said(&run), ["first\n\nsecond", "You said: first\n\nsecond"]);
    assert_eq!(run["input"]["input_content"], "first\n\nsecond");
}
