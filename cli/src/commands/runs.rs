//! `runs`.

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde::Deserialize;

use super::find::RunSummary;
use crate::api::segment;
use crate::connect::Server;
use crate::failure::Failure;
use crate::render::{clean, numbers, table, terminal};

/// Rows of one call.
const PAGE: usize = 100;

/// List runs, newest first
#[derive(Debug, Args)]
pub struct RunsArgs {
    /// Only runs of this agent.
    #[arg(value_name = "agent/NAME")]
    agent: Option<String>,
    /// Of all namespaces.
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// Only runs of this session.
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Most rows.
    #[arg(long, default_value_t = 20)]
    limit: usize,
    /// Format.
    #[arg(long, short)]
    output: Option<ListFormat>,
}

/// Formats of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// JSON.
    Json,
    /// More columns.
    Wide,
}

#[derive(Deserialize)]
struct Page {
    data: Vec<RunSummary>,
    meta: Meta,
}

#[derive(Deserialize)]
struct Meta {
    total_pages: u64,
}

/// Lists runs.
///
/// # Errors
/// When the server can't be asked.
pub async fn runs(args: &RunsArgs, server: &Server) -> Result<(), Failure> {
    let runs = fetch(args, server).await?;
    if args.output == Some(ListFormat::Json) {
        let text = serde_json::to_string_pretty(&runs).map_err(|error| Failure::Other(error.to_string()))?;
        return Ok(terminal::answer(&format!("{}\n", clean::json(&text)))?);
    }
    if runs.is_empty() {
        let place = server.namespace.as_deref().filter(|_| !args.all_namespaces);
        let place = place.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
        terminal::note(&format!("No runs found{}.\n", clean::clean(&place)));
        return Ok(());
    }
    let wide = args.output == Some(ListFormat::Wide);
    Ok(terminal::answer(&shown(&runs, wide, args.all_namespaces, Timestamp::now()))?)
}

async fn fetch(args: &RunsArgs, server: &Server) -> Result<Vec<RunSummary>, Failure> {
    let mut filter = String::new();
    if let Some(agent) = &args.agent {
        filter.push_str(&format!("&agent_id={}", segment(&server.agent_id(agent))));
    }
    if let Some(session) = &args.session {
        filter.push_str(&format!("&session_id={}", segment(session)));
    }
    let namespace = server.namespace.as_ref().filter(|_| !args.all_namespaces && args.agent.is_none());
    let mut found = Vec::new();
    for page in 1_u64.. {
        let Page { data, meta } = server.api.get(&format!("/runs?limit={PAGE}&page={page}{filter}")).await?;
        found.extend(data.into_iter().filter(|run| namespace.is_none_or(|namespace| run.namespace == *namespace)));
        if found.len() >= args.limit || page >= meta.total_pages {
            break;
        }
    }
    found.truncate(args.limit);
    Ok(found)
}

fn shown(runs: &[RunSummary], wide: bool, namespaces: bool, now: Timestamp) -> String {
    let mut headings = vec!["RUN", "AGENT", "STATUS", "AGE"];
    if namespaces {
        headings.insert(0, "NAMESPACE");
    }
    if wide {
        headings.extend(["TOKENS", "USER", "SESSION"]);
    }
    headings.push("INPUT");
    let rows: Vec<_> = runs.iter().map(|run| row(run, wide, namespaces, now)).collect();
    table::table(&headings, &rows)
}

fn row(run: &RunSummary, wide: bool, namespaces: bool, now: Timestamp) -> Vec<String> {
    let name = run.agent_id.strip_prefix(&format!("{}.", run.namespace)).unwrap_or(&run.agent_id);
    let age = run.created_at.parse::<Timestamp>().ok().map(|then| numbers::age(now.as_second() - then.as_second()));
    let mut row = vec![run.run_id.clone(), name.to_owned(), run.status.clone(), age.unwrap_or_default()];
    if namespaces {
        row.insert(0, run.namespace.clone());
    }
    if wide {
        let tokens = run.more.get("metrics").and_then(|metrics| metrics.get("total_tokens"));
        row.push(tokens.and_then(serde_json::Value::as_u64).map(numbers::count).unwrap_or_default());
        row.push(run.more.get("user_id").and_then(|user| user.as_str()).unwrap_or_default().to_owned());
        row.push(run.session_id.clone());
    }
    row.push(clean::one_line(&run.run_input, 40));
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_a_table() {
        let run: RunSummary = serde_json::from_value(serde_json::json!({
            "run_id": "r1", "agent_id": "team-a.helper", "namespace": "team-a", "session_id": "s1", "status": "COMPLETED",
            "run_input": "Which\nregion\u{1b}[2J sold most in the whole year of 2026?", "created_at": "2026-11-30T02:55:54.123Z",
            "user_id": "ada", "metrics": {"total_tokens": 1234},
        }))
        .unwrap();
        let now = "2026-11-30T02:58:54Z".parse().unwrap();
        assert_eq!(
            shown(std::slice::from_ref(&run), false, false, now),
            "RUN   AGENT    STATUS      AGE   INPUT\n\
             r1    helper   COMPLETED   3m    Which region[2J sold most in the whole …\n"
        );
        let wide = shown(&[run], true, true, now);
        assert!(
            wide.starts_with("NAMESPACE   RUN   AGENT    STATUS      AGE   TOKENS   USER   SESSION   INPUT\n"),
            "{wide}"
        );
        assert!(
            wide.contains("team-a      r1    helper   COMPLETED   3m    1,234    ada    s1        Which"),
            "{wide}"
        );
    }
}
