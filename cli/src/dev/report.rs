//! What `cadre dev` tells: where it is, what there is, what is wrong, what to try. Pure.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use cadre_api::catalog::CatalogAgent;
use cadre_api::catalog::manifest::{Problem, RunManifest};

use crate::render::clean::{clean, one_line};

/// What the server is.
pub struct Started<'a> {
    /// Address.
    pub listen: SocketAddr,
    /// Folder with workspaces.
    pub workspaces: &'a Path,
    /// Variable with the API's key, where one is needed.
    pub key_variable: Option<&'a str>,
}

/// All that a developer wants to know at the start.
#[must_use]
pub fn started(started: &Started<'_>, agents: &[CatalogAgent], runs: &[RunManifest]) -> String {
    let Started { listen, workspaces, key_variable } = started;
    let url = format!("http://{listen}");
    let mut text = format!("Cadre serves {url}\n{}", state(agents));
    let token = key_variable.map(|name| format!(" --token \"${name}\"")).unwrap_or_default();
    let header = key_variable.map(|name| format!(" -H \"Authorization: Bearer ${name}\"")).unwrap_or_default();
    text.push_str("Try:\n");
    if let Some(run) = runs.first() {
        let _ = writeln!(text, "  cadre run -f {} --server {url}{token}", clean(&run.file.display().to_string()));
    }
    if let Some(agent) = agents.iter().find(|agent| agent.is_ready()) {
        let _ = writeln!(text, "  cadre run agent/{} \"Hello\" --server {url}{token}", agent.api_id);
        let _ = writeln!(text, "  curl -N {url}/agents/{}/runs{header} -F message=Hello", agent.api_id);
    }
    let _ = writeln!(text, "Workspaces of sessions: {}", workspaces.display());
    text.push_str("This is no sandbox: the agents' tools run as you, on this machine. Ctrl-C ends it.\n");
    text
}

/// The agents and whether they can run.
#[must_use]
pub fn state(agents: &[CatalogAgent]) -> String {
    if agents.is_empty() {
        return "No agents: there is no manifest of kind Agent.\n".to_owned();
    }
    let width = agents.iter().map(|agent| agent.api_id.len()).max().unwrap_or_default();
    let mut text = String::from("Agents:\n");
    for agent in agents {
        let state = match (agent.reason(), agent.snapshot()) {
            (Some(reason), _) => format!("not ready: {}", one_line(reason, 300)),
            (None, Some(snapshot)) => format!("ready, model {} ({})", snapshot.model.model_id, snapshot.model.provider),
            (None, None) => "ready".to_owned(),
        };
        let _ = writeln!(text, "  {:<width$}  {}", agent.api_id, clean(&state));
    }
    text
}

/// What is wrong with the folder.
#[must_use]
pub fn problems(problems: &[Problem]) -> String {
    let mut text = String::new();
    for problem in problems {
        let _ = writeln!(text, "{}", one_line(&problem.to_string(), 1000));
    }
    text
}

#[cfg(test)]
mod tests {
    use cadre_protocol::ids::ComponentRef;

    use super::*;

    #[test]
    fn a_developer_learns_what_to_do() {
        let agent = CatalogAgent {
            component: ComponentRef::agent("default", "helper"),
            api_id: "helper".into(),
            display_name: "Helper".into(),
            description: None,
            state: Err("Model gpt is missing\u{1b}[2J".into()),
        };
        let started = started(
            &Started {
                listen: "127.0.0.1:7777".parse().unwrap(),
                workspaces: Path::new("d/.cadre/workspaces"),
                key_variable: None,
            },
            &[agent],
            &[],
        );
        assert!(started.starts_with(
            "Cadre serves http://127.0.0.1:7777\nAgents:\n  helper  not ready: Model gpt is missing[2J\n"
        ));
        assert!(started.contains("no sandbox"));
        let problem = Problem { file: "d/a.yaml".into(), line: 7, message: "spec.model: \n is wrong".into() };
        assert_eq!(problems(&[problem]), "d/a.yaml:7: spec.model: is wrong\n");
    }
}
