//! A run in full: AgentOS's RunOutput.

use cadre_protocol::journal::ToolCallState;
use cadre_protocol::requirement::RunRequirement;
use cadre_protocol::run::{Attachment, RunFailure, RunInput, RunStatus};
use cadre_protocol::tool::ToolExecution;
use cadre_store::approvals::ApprovalRow;
use cadre_store::rows::{RunDetail, RunRow};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::message::{self, MessageOutput};
use super::metrics::{self, Metrics};
use super::time::seconds;

/// A run in full.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunOutput {
    /// Run.
    pub run_id: String,
    /// Id of the agent.
    pub agent_id: String,
    /// Its name.
    pub agent_name: String,
    /// Session.
    pub session_id: String,
    /// The user that the caller named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// The answer: text, or what the output schema asks for. The provider's message where the run failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    pub content: Option<Value>,
    /// `str`, or the schema's title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Model id.
    pub model: String,
    /// Provider.
    pub model_provider: String,
    /// State of the session.
    #[schema(value_type = Object)]
    pub session_state: Map<String, Value>,
    /// Metadata; `attempts` when there was more than one; `error_type` and `retryable` when it failed.
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// Unix seconds.
    pub created_at: u64,
    /// `PENDING`, `RUNNING`, `PAUSED`, `COMPLETED`, `CANCELLED`, `ERROR` or `REGENERATED`.
    pub status: String,
    /// When a cancel reached it: `PENDING`, `EXECUTING` or `PAUSED`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancellation_stage: Option<String>,
    /// While PENDING: the run of the same session that it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_on: Option<String>,
    /// While PENDING, where only this run is asked for: what else it waits for, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// Kind of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// Code below that kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_id: Option<String>,
    /// Attempts begun.
    pub queue_attempt: u32,
    /// Run whose messages it begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from_run_id: Option<String>,
    /// How many of that run's messages were kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from_message_index: Option<u64>,
    /// Session that the run was copied from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from_session_id: Option<String>,
    /// Run whose last answer it gives anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regenerated_from: Option<String>,
    /// In a snapshot: how many messages it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_checkpoint_at_message_index: Option<u64>,
    /// Tokens, cost and times.
    pub metrics: Metrics,
    /// Messages, oldest first.
    pub messages: Vec<MessageOutput>,
    /// Tool calls, in order.
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<ToolExecution>,
    /// While PAUSED: what it waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub requirements: Vec<RunRequirement>,
    /// What was asked.
    pub input: InputOutput,
}

/// What was asked.
#[derive(Debug, Serialize, ToSchema)]
pub struct InputOutput {
    /// Text.
    pub input_content: String,
    /// Files that came with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<AttachmentOutput>,
}

/// A file that came with a run.
#[derive(Debug, Serialize, ToSchema)]
pub struct AttachmentOutput {
    /// File name.
    pub name: String,
    /// Media type.
    pub media_type: String,
    /// Bytes.
    pub size: u64,
    /// Hex SHA-256 of the content.
    pub digest: String,
}

/// A run that was accepted and has not ended.
#[derive(Debug, Serialize, ToSchema)]
pub struct Accepted {
    /// Run.
    pub run_id: String,
    /// Session.
    pub session_id: String,
    /// Where it stands.
    pub status: String,
    /// The run of the same session that it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_on: Option<String>,
}

impl Accepted {
    /// Where a run stands.
    #[must_use]
    pub fn new(run: &RunRow, waiting_on: Option<String>) -> Self {
        Self {
            run_id: run.run_id.to_string(),
            session_id: run.session_id.to_string(),
            status: run.status.as_str().to_owned(),
            waiting_on,
        }
    }
}

/// A run in full.
#[must_use]
pub fn output(detail: RunDetail) -> RunOutput {
    let RunDetail { run, messages, tools, session_state, agent, waiting_on, approvals } = detail;
    let metrics = metrics::of_run(&run.metrics, &agent.model);
    let (content, requirements) = (content(&run), open(&run, &approvals));
    let metadata = annotated(run.metadata, run.attempt, run.failure.as_ref());
    let (failure, lineage) = (run.failure, run.lineage);
    RunOutput {
        run_id: run.run_id.into(),
        agent_id: agent.api_id.clone(),
        agent_name: agent.display_name.clone(),
        session_id: run.session_id.into(),
        user_id: run.user_id,
        content_type: run.content_type.or_else(|| content.is_some().then(|| "str".to_owned())),
        content,
        model: agent.model.model_id.clone(),
        model_provider: agent.model.provider.clone(),
        session_state,
        metadata,
        created_at: seconds(run.created_at_ms),
        status: run.status.as_str().to_owned(),
        cancellation_stage: run.cancellation_stage,
        waiting_on: waiting_on.map(Into::into),
        waiting_for: None,
        error_id: failure.as_ref().and_then(|failure| failure.error_id.clone()),
        error_type: failure.map(|failure| failure.error_type),
        queue_attempt: run.attempt,
        forked_from_run_id: lineage.run_id.map(Into::into),
        forked_from_message_index: lineage.message_index,
        forked_from_session_id: lineage.session_id.map(Into::into),
        regenerated_from: lineage.regenerated_from.map(Into::into),
        last_checkpoint_at_message_index: None,
        metrics,
        messages: message::messages(messages),
        requirements,
        tools: all_tools(tools, approvals),
        input: input(run.input),
    }
}

/// The calls that a paused run waits for. What was decided is not offered again.
fn open(run: &RunRow, approvals: &[ApprovalRow]) -> Vec<RunRequirement> {
    let is_paused = run.status == RunStatus::Paused;
    approvals.iter().filter(|row| is_paused && row.is_open).map(|row| row.requirement.clone()).collect()
}

/// Calls that have begun, then those that wait.
fn all_tools(began: Vec<ToolCallState>, approvals: Vec<ApprovalRow>) -> Vec<ToolExecution> {
    let mut tools: Vec<ToolExecution> = began.into_iter().map(|state| state.tool).collect();
    for ApprovalRow { requirement, .. } in approvals {
        if tools.iter().all(|tool| !requirement.is_of(&tool.tool_call_id)) {
            tools.push(requirement.tool_execution);
        }
    }
    tools
}

/// The answer, or what went wrong: where AgentOS's clients look for either.
#[must_use]
pub fn content(run: &RunRow) -> Option<Value> {
    let message = || run.failure.as_ref().map(|failure| Value::from(failure.message.as_str()));
    run.content.clone().or_else(message)
}

fn annotated(mut metadata: Map<String, Value>, attempts: u32, failure: Option<&RunFailure>) -> Map<String, Value> {
    if attempts > 1 {
        metadata.insert("attempts".to_owned(), attempts.into());
    }
    if let Some(failure) = failure {
        metadata.insert("error_type".to_owned(), failure.error_type.as_str().into());
        metadata.insert("retryable".to_owned(), failure.retryable.into());
    }
    metadata
}

fn input(input: RunInput) -> InputOutput {
    let RunInput { text, files, dependencies: _, output_schema: _ } = input;
    InputOutput { input_content: text, attachments: files.into_iter().map(attachment).collect() }
}

fn attachment(file: Attachment) -> AttachmentOutput {
    let Attachment { name, media_type, size, digest } = file;
    AttachmentOutput { name, media_type, size, digest: digest.into() }
}
