//! Runs that wait for a person: what they show, what may be answered, and how they go on.

use http::Method;
use serde_json::{Value, json};

use crate::support::{ADMIN_KEY, Answer, BOB_KEY, FORM, World, frames, id, names, request, world};

const RUNS: &str = "/agents/helper/runs";

fn escape(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// A run that waits for these calls.
async fn paused(world: &World, calls: &str) -> Value {
    let answer = world.post(RUNS, &format!("message=pause+{calls}&stream=false&session_id=s")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json()["status"], "PAUSED");
    answer.json()
}

fn path(run: &Value, rest: &str) -> String {
    format!("{RUNS}/{}{rest}", id(run))
}

async fn get(world: &World, run: &Value) -> Value {
    world.get(&path(run, "?session_id=s")).await.json()
}

/// A call of the run as a client sends it back, with an answer.
fn tool(run: &Value, call: &str, answer: Value) -> Value {
    let tools = run["tools"].as_array().unwrap();
    let mut tool = tools.iter().find(|tool| tool["tool_call_id"] == call).unwrap().clone();
    tool.as_object_mut().unwrap().extend(answer.as_object().unwrap().clone());
    tool
}

async fn send(world: &World, run: &Value, form: &str, tools: &[Value]) -> Answer {
    let tools = escape(&Value::from(tools).to_string());
    world.post(&path(run, "/continue"), &format!("session_id=s&{form}&tools={tools}")).await
}

async fn answered(world: &World, run: &Value, tools: &[Value]) -> Value {
    let answer = send(world, run, "stream=false", tools).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.headers["x-run-id"], id(run));
    answer.json()
}

fn ids(list: &Value) -> Vec<&str> {
    let id = |it: &'_ Value| it.pointer("/tool_execution/tool_call_id").or_else(|| it.get("tool_call_id")).is_some();
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    assert!(list.iter().all(id), "{list:?}");
    list.iter()
        .map(|it| it.pointer("/tool_execution/tool_call_id").unwrap_or(&it["tool_call_id"]).as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_paused_run_shows_what_it_waits_for_and_holds_its_line() {
    let world = world().await;
    let stream = world.post(RUNS, "message=pause+yes-1&session_id=s").await;
    assert_eq!(names(&stream.text), ["RunStarted", "RunContentCompleted", "RunPaused"], "the stream ends");
    let (_, _, event) = frames(&stream.text).pop().unwrap();
    assert_eq!((&event["content"], &event["tools"][0]["requires_confirmation"]), (&json!("May I?"), &json!(true)));
    assert_eq!(ids(&event["requirements"]), ["yes-1"]);
    let run = get(&world, &event).await;
    assert_eq!((&run["status"], &run["content"]), (&json!("PAUSED"), &json!("May I?")));
    assert_eq!((ids(&run["tools"]), ids(&run["requirements"])), (vec!["yes-1"], vec!["yes-1"]));
    assert_eq!(run["tools"][0]["confirmed"], Value::Null);
    assert_eq!(run["requirements"][0]["id"], event["requirements"][0]["id"]);

    let job = world.get(&format!("/queue/jobs/{}", id(&run))).await.json();
    assert_eq!((&job["status"], &job["completed_at"]), (&json!("paused"), &Value::Null));
    assert_eq!(world.get("/queue/stats").await.json()["counts"]["paused"], 1);
    let listed = world.get("/sessions/s/runs?status=paused").await.json();
    assert_eq!(listed[0]["run_id"], run["run_id"]);
    let resumed = world.post(&path(&run, "/resume"), "").await;
    assert_eq!(names(&resumed.text)[0], "replay");
    assert_eq!(names(&resumed.text).last().unwrap(), "RunPaused");

    let next = world.post(RUNS, "message=hello&stream=false&background=true&session_id=s").await.json();
    assert_eq!((&next["status"], &next["waiting_on"]), (&json!("PENDING"), &run["run_id"]));
    answered(&world, &run, &[tool(&run, "yes-1", json!({"confirmed": true}))]).await;
    world.until(&path(&next, "?session_id=s"), |run| run["status"] == "COMPLETED").await;
}

#[tokio::test]
async fn an_answered_run_goes_on_under_its_id_however_it_is_asked() {
    let world = world().await;
    let run = paused(&world, "yes-1").await;
    let yes = [tool(&run, "yes-1", json!({"confirmed": true}))];
    let stream = send(&world, &run, "stream=true", &yes).await;
    assert_eq!(stream.headers["x-run-id"], id(&run));
    let seen: Vec<_> = frames(&stream.text).into_iter().map(|(id, name, _)| (id.unwrap(), name)).collect();
    let (numbers, names): (Vec<u64>, Vec<String>) = seen.into_iter().unzip();
    assert_eq!(names, ["RunContinued", "ToolCallStarted", "ToolCallCompleted", "RunContent", "RunCompleted"]);
    assert!(numbers[0] > 2 && numbers.is_sorted_by(|a, b| a < b), "numbers go on: {numbers:?}");
    let done = get(&world, &run).await;
    assert_eq!((&done["status"], &done["queue_attempt"]), (&json!("COMPLETED"), &json!(2)));
    assert_eq!((ids(&done["tools"]), &done["requirements"]), (vec!["yes-1"], &Value::Null));
    assert_eq!(done["tools"][0]["confirmed"], true);
    let late = send(&world, &run, "stream=false", &yes).await;
    assert_eq!(late.status, 409, "it has ended: {}", late.text);

    let run = paused(&world, "yes-1").await;
    let yes = [tool(&run, "yes-1", json!({"confirmed": true}))];
    let accepted = send(&world, &run, "stream=false&background=true", &yes).await;
    assert_eq!((accepted.status.as_u16(), &accepted.json()["run_id"]), (202, &run["run_id"]));
    world.until(&path(&run, "?session_id=s"), |run| run["status"] == "COMPLETED").await;

    let run = paused(&world, "yes-1").await;
    let no = [tool(&run, "yes-1", json!({"confirmed": false, "confirmation_note": "why?"}))];
    let no = answered(&world, &run, &no).await;
    assert_eq!((&no["status"], &no["tools"][0]["confirmation_note"]), (&json!("COMPLETED"), &json!("why?")));
}

#[tokio::test]
async fn answers_are_merged_until_nothing_is_open() {
    let world = world().await;
    let run = paused(&world, "yes-1 input-1 ext-1".replace(' ', "+").as_str()).await;
    assert_eq!(ids(&run["requirements"]), ["yes-1", "input-1", "ext-1"]);
    let schema = &run["tools"][1]["user_input_schema"];
    assert_eq!(schema[0], json!({"name": "cwd", "field_type": "str", "description": null, "value": null}));
    // A client sends all calls back, with an answer to one.
    let all = [
        tool(&run, "yes-1", json!({"confirmed": true})),
        tool(&run, "input-1", json!({})),
        tool(&run, "ext-1", json!({})),
    ];
    let partly = answered(&world, &run, &all).await;
    assert_eq!((&partly["status"], ids(&partly["requirements"])), (&json!("PAUSED"), vec!["input-1", "ext-1"]));
    assert_eq!(ids(&partly["tools"]), ["yes-1", "input-1", "ext-1"]);
    assert_eq!(partly["tools"][0]["confirmed"], true);
    let values = json!([{"name": "cwd", "field_type": "str", "description": null, "value": "src"}]);
    let stream =
        send(&world, &run, "stream=true", &[tool(&run, "input-1", json!({"user_input_schema": values}))]).await;
    let (_, name, event) = frames(&stream.text).remove(0);
    assert_eq!((name.as_str(), ids(&event["requirements"])), ("RunPaused", vec!["ext-1"]), "what is still open");
    assert_eq!(names(&stream.text).len(), 1);
    let back = send(&world, &run, "stream=false", &[tool(&run, "yes-1", json!({"confirmed": false}))]).await;
    assert_eq!(back.status, 409, "a decision stands: {}", back.text);
    let done = answered(&world, &run, &[tool(&run, "ext-1", json!({"result": "carried out"}))]).await;
    assert_eq!(done["status"], "COMPLETED");
    let tools = done["tools"].as_array().unwrap();
    assert_eq!((&tools[1]["tool_args"]["cwd"], &tools[2]["result"]), (&json!("src"), &json!("carried out")));
}

#[tokio::test]
async fn requirements_are_taken_as_well() {
    let world = world().await;
    let run = paused(&world, "yes-1").await;
    let mut requirement = run["requirements"][0].clone();
    requirement["confirmation"] = json!(true);
    let form = format!("session_id=s&stream=false&requirements={}", escape(&json!([requirement]).to_string()));
    let done = world.post(&path(&run, "/continue"), &form).await;
    assert_eq!((done.status.as_u16(), &done.json()["status"]), (200, &json!("COMPLETED")), "{}", done.text);
}

#[tokio::test]
async fn the_same_answer_twice_is_one_and_another_one_is_refused() {
    let world = world().await;
    let run = paused(&world, "yes-1+then-wait").await;
    let yes = [tool(&run, "yes-1", json!({"confirmed": true}))];
    assert_eq!(send(&world, &run, "stream=false&background=true", &yes).await.status, 202);
    world.until(&path(&run, "?session_id=s"), |run| run["status"] == "RUNNING").await;
    let again = send(&world, &run, "stream=false&background=true", &yes).await;
    assert_eq!((again.status.as_u16(), &again.json()["run_id"]), (202, &run["run_id"]), "{}", again.text);
    let other = send(&world, &run, "stream=false", &[tool(&run, "yes-1", json!({"confirmed": false}))]).await;
    assert_eq!(other.status, 409);
    let empty = send(&world, &run, "stream=false", &[]).await;
    assert!(empty.status == 409 && empty.detail().contains("it has not ended (RUNNING)"), "{}", empty.text);
    let attached = send(&world, &run, "stream=true", &yes);
    let release = async {
        world.release.send_replace(true);
    };
    let (attached, ()) = tokio::join!(attached, release);
    assert_eq!(names(&attached.text)[0], "RunContinued", "all since the pause");
    assert_eq!(names(&attached.text).last().unwrap(), "RunCompleted");
    let done = get(&world, &run).await;
    assert_eq!((ids(&done["tools"]), &done["queue_attempt"]), (vec!["yes-1"], &json!(2)));
}

#[tokio::test]
async fn what_is_no_answer_is_refused_and_changes_nothing() {
    let world = world().await;
    let run = paused(&world, "yes-1+input-1").await;
    let yes = |more: Value| {
        let mut answer = json!({"confirmed": true});
        answer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        tool(&run, "yes-1", answer)
    };
    let number = json!([{"name": "cwd", "field_type": "str", "description": null, "value": 7}]);
    let rows = [
        ("", vec![], 400, "unresolved requirements"),
        ("", vec![tool(&run, "yes-1", json!({}))], 400, "unresolved requirements"),
        ("", vec![yes(json!({"tool_call_id": "unknown"}))], 400, "no tool call"),
        ("", vec![yes(json!({"tool_args": {"command": "rm -rf /"}}))], 400, "are not those that wait"),
        ("", vec![yes(json!({"tool_args": {"command": "yes-1", "cwd": "/"}}))], 400, "are not those that wait"),
        ("", vec![yes(json!({"tool_name": "http"}))], 400, "are not those that wait"),
        ("", vec![tool(&run, "input-1", json!({"user_input_schema": number}))], 400, "must be of type str"),
        ("&input=more", vec![yes(json!({}))], 400, "The run is paused"),
        ("&fork=true", vec![yes(json!({}))], 409, "it has not ended (PAUSED)"),
        ("&regenerate=true", vec![], 409, "it has not ended (PAUSED)"),
    ];
    for (more, tools, status, detail) in rows {
        let answer = send(&world, &run, &format!("stream=false{more}"), &tools).await;
        assert!(answer.status == status && answer.detail().contains(detail), "{more} {tools:?}: {}", answer.text);
    }
    let foreign = format!("session_id=s&tools={}", escape(&json!([yes(json!({}))]).to_string()));
    let foreign = request(Method::POST, &path(&run, "/continue"), BOB_KEY, FORM, &foreign);
    assert_eq!(world.send(foreign).await.status, 404);
    assert_eq!(get(&world, &run).await, run, "nothing was changed");
}

#[tokio::test]
async fn a_paused_run_can_be_cancelled_and_not_continued() {
    let world = world().await;
    let run = paused(&world, "yes-1").await;
    let next = world.post(RUNS, "message=hello&stream=false&background=true&session_id=s").await.json();
    assert_eq!(world.post(&path(&run, "/cancel"), "").await.status, 200);
    let cancelled = get(&world, &run).await;
    assert_eq!((&cancelled["status"], &cancelled["cancellation_stage"]), (&json!("CANCELLED"), &json!("PAUSED")));
    assert_eq!(cancelled["requirements"], Value::Null);
    let late = send(&world, &run, "stream=false", &[tool(&run, "yes-1", json!({"confirmed": true}))]).await;
    let detail = format!("Cannot continue run {}: run is cancelled", id(&run));
    assert_eq!((late.status.as_u16(), late.detail()), (409, detail));
    world.until(&path(&next, "?session_id=s"), |run| run["status"] == "COMPLETED").await;
    let all = world.post(&path(&run, "/resume"), "").await;
    assert_eq!(names(&all.text).last().unwrap(), "RunCancelled");
}

#[tokio::test]
async fn a_key_answers_a_run_once_and_names_it_when_it_has_ended() {
    let world = world().await;
    let run = paused(&world, "yes-1").await;
    let keyed = async |confirmed: bool| {
        let tools = escape(&Value::from([tool(&run, "yes-1", json!({"confirmed": confirmed}))].as_slice()).to_string());
        let form = format!("session_id=s&stream=false&tools={tools}");
        let mut request = request(Method::POST, &path(&run, "/continue"), ADMIN_KEY, FORM, &form);
        request.headers_mut().insert("idempotency-key", "k1".parse().unwrap());
        world.send(request).await
    };
    for _ in 0..2 {
        let answer = keyed(true).await;
        assert_eq!((answer.status.as_u16(), id(&answer.json())), (200, id(&run)), "{}", answer.text);
        assert_eq!((&answer.json()["status"], &answer.json()["queue_attempt"]), (&json!("COMPLETED"), &json!(2)));
    }
    let other = keyed(false).await;
    assert_eq!((other.status.as_u16(), &other.json()["error_id"]), (409, &json!("idempotency_conflict")));
}
