//! What the runs do: five calls each, every one of which leaves a line in the ledger of its workspace. Pure.

use serde_json::{Value, json};

use crate::story::objects::{scripted, shell, worker};

/// Calls of a run.
pub const CALLS: usize = 5;
/// Seconds that a call takes before its effect, so that there is time to be killed.
const SECONDS: f64 = 1.5;
/// Name of the agent, and of its model.
pub const AGENT: &str = "keeper";

/// The line that a call writes.
#[must_use]
pub fn line(round: usize, run: usize, call: usize) -> String {
    format!("r{round}-{run}-{call}")
}

/// Name of the ledger that a round's runs write.
#[must_use]
pub fn ledger(round: usize) -> String {
    format!("ledger-{round}")
}

fn command(round: usize, run: usize, call: usize) -> String {
    format!("sleep {SECONDS}; echo {} >> {}", line(round, run, call), ledger(round))
}

/// Whether a tool's arguments are those of this call.
#[must_use]
pub fn is_call(arguments: &Value, round: usize, run: usize, call: usize) -> bool {
    arguments["command"] == command(round, run, call)
}

/// What the user says to a run: its script is in it.
#[must_use]
pub fn message(round: usize, run: usize) -> String {
    let mut turns: Vec<_> = (1..=CALLS).map(|call| shell(&command(round, run, call))).collect();
    turns.push(json!("All five are in the ledger."));
    format!("Keep the ledger.\n```script\n{}\n```\n", Value::Array(turns))
}

/// The session of a run.
#[must_use]
pub fn session(run: usize, sessions: usize) -> String {
    format!("s{}", run % sessions)
}

/// Model and agent. Its pods ask for little, so that many fit on two cores; their workspaces outlive a node.
#[must_use]
pub fn objects() -> [Value; 2] {
    let resources = json!({"requests": {"cpu": "5m", "memory": "16Mi"}});
    let workspace = json!({"persistence": "Volume", "size": "16Mi", "storageClassName": "cadre-shared"});
    let sandbox = json!({"warmSeconds": 3600, "template": {"resources": resources, "workspace": workspace}});
    [scripted(AGENT, &json!(["Nothing was asked."])), worker(AGENT, AGENT, &json!({"sandbox": sandbox}))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_holds_the_script_of_its_run() {
        let message = message(2, 17);
        let (_, script) = message.split_once("```script\n").unwrap();
        let turns: Value = serde_json::from_str(script.trim_end_matches("\n```\n")).unwrap();
        let turns = turns.as_array().unwrap();
        assert_eq!(turns.len(), CALLS + 1);
        let arguments = &turns[4]["tools"][0]["arguments"];
        assert_eq!(arguments["command"], "sleep 1.5; echo r2-17-5 >> ledger-2");
        assert!(is_call(arguments, 2, 17, 5) && !is_call(arguments, 2, 1, 5));
    }

    #[test]
    fn runs_are_dealt_to_sessions() {
        assert_eq!([0, 3, 4, 7].map(|run| session(run, 4)), ["s0", "s3", "s0", "s3"]);
    }
}
