//! How the program fails: one line that says what and, where that is known, what helps.

use std::io;
use std::process::ExitCode;

use crate::api::CallError;
use crate::connect::ConnectError;
use crate::render::clean::clean;

/// Exit code of a program whose reader has gone: 128 + SIGPIPE.
const PIPE_CLOSED: u8 = 141;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The API.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The cluster.
    #[error("{0}")]
    Kube(#[from] Box<kube::Error>),
    /// Standard output.
    #[error("the output can't be written: {0}")]
    Output(#[from] io::Error),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// What helps, for an agent's run that was refused.
    #[must_use]
    pub fn about_agent(error: CallError, agent_id: &str) -> Self {
        let CallError::Refused { code, detail, .. } = &error else { return error.into() };
        let (namespace, name) = agent_id.split_once('.').unwrap_or(("", agent_id));
        let place = if namespace.is_empty() { String::new() } else { format!(" -n {namespace}") };
        match code.as_str() {
            "not_found" if detail.starts_with("Agent") => {
                Self::Other(format!("agent {name} not found ({code}). What there is: kubectl get agents{place}"))
            }
            "agent_not_ready" => Self::Other(format!("{detail} ({code}). More: kubectl describe agent {name}{place}")),
            "unauthorized" => Self::Other(format!("{detail} ({code}). Is --token or CADRE_TOKEN the API's key?")),
            _ => error.into(),
        }
    }

    /// Says it and gives the exit code.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        if let Self::Output(error) = self
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            return ExitCode::from(PIPE_CLOSED);
        }
        crate::render::terminal::note(&format!("error: {}\n", clean(&self.to_string())));
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn about(status: u16, code: &str, detail: &str, agent: &str) -> String {
        let status = StatusCode::from_u16(status).unwrap();
        let error = CallError::Refused { status, code: code.into(), detail: detail.into() };
        Failure::about_agent(error, agent).to_string()
    }

    #[test]
    fn errors_say_what_helps() {
        assert_eq!(
            about(404, "not_found", "Agent not found", "team-a.x"),
            "agent x not found (not_found). What there is: kubectl get agents -n team-a"
        );
        assert_eq!(
            about(503, "agent_not_ready", "Agent x is not ready: Model m is missing", "x"),
            "Agent x is not ready: Model m is missing (agent_not_ready). More: kubectl describe agent x"
        );
        assert!(about(401, "unauthorized", "Authorization header required", "x").contains("CADRE_TOKEN"));
        assert_eq!(about(413, "too_large", "Too large", "x"), "Too large (too_large)");
    }
}
