//! From an Agent and its Model to the snapshot that runs are made with. Pure; the API server runs with it, the operator
//! shows its revision.

use cadre_protocol::agent::{
    AgentSnapshot, Builtin, Gates, HistoryPolicy, ModelBinding, OnUnknownOutcome, OnWorkspaceLoss, RetryPolicy,
    ToolBinding,
};
use cadre_protocol::ids::ComponentRef;
use cadre_protocol::model::ToolChoice;
use cadre_protocol::{money, nesting};
use serde_json::Value;

use crate::agent::{self, AgentLimits, AgentSpec, BuiltinName, EventName, ToolType};
use crate::common::reasons::Reason;
use crate::model::ModelSpec;

/// Most model calls of one run when nothing else is said.
pub const DEFAULT_MAX_TURNS: u32 = 100;
/// Seconds before the first further attempt when nothing else is said.
pub const DEFAULT_RETRY_DELAY_SECONDS: u32 = 1;

/// Why there is no snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unresolved {
    /// `spec.suspend`.
    Suspended,
    /// There is no such Model.
    ModelNotFound(String),
    /// The Agent has a budget, and this Model no prices.
    PriceUnknown(String),
    /// The Agent must be edited.
    Invalid(String),
}

impl Unresolved {
    /// The reason in conditions.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Suspended => Reason::Suspended,
            Self::ModelNotFound(_) => Reason::ModelNotFound,
            Self::PriceUnknown(_) => Reason::PriceUnknown,
            Self::Invalid(_) => Reason::InvalidSpec,
        }
    }

    /// A sentence for people.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Suspended => "spec.suspend is set: new runs are refused".to_owned(),
            Self::ModelNotFound(name) => format!("Model {name:?} does not exist in this namespace"),
            Self::PriceUnknown(name) => {
                format!("spec.limits.maxBudgetUsd needs prices: set spec.pricing of Model {name:?}")
            }
            Self::Invalid(problem) => problem.clone(),
        }
    }
}

/// Resolves an agent. `default_namespace` is the API server's: agents there have API ids without a dot.
///
/// # Errors
/// Why no run can be made.
pub fn resolve(
    component: &ComponentRef,
    default_namespace: &str,
    spec: &AgentSpec,
    model: Option<&ModelSpec>,
) -> Result<AgentSnapshot, Unresolved> {
    if spec.suspend {
        return Err(Unresolved::Suspended);
    }
    let model = model.ok_or_else(|| Unresolved::ModelNotFound(spec.model_ref.name.clone()))?;
    let limits = spec.limits.as_deref().cloned().unwrap_or_default();
    Ok(AgentSnapshot {
        component: component.clone(),
        api_id: component.api_id(default_namespace),
        display_name: spec.display_name.clone().unwrap_or_else(|| component.name.clone()),
        description: spec.description.clone(),
        model: ModelBinding {
            name: spec.model_ref.name.clone(),
            provider: model.provider.as_str().to_owned(),
            model_id: model.model.clone(),
        },
        instructions: spec.instructions.clone(),
        expected_output: spec.expected_output.clone(),
        additional_context: spec.additional_context.clone(),
        markdown: spec.markdown,
        tools: tools(spec)?,
        tool_call_limit: spec.tool_call_limit,
        tool_choice: spec.tool_choice.map(tool_choice),
        max_turns: limits.max_turns.unwrap_or(DEFAULT_MAX_TURNS),
        history: HistoryPolicy { runs: if spec.history.enabled { spec.history.runs } else { 0 } },
        skip_events: skipped(spec),
        output_schema: output_schema(spec)?,
        retry: RetryPolicy {
            retries: spec.retries.unwrap_or_default(),
            delay_seconds: spec.delay_between_retries_seconds.unwrap_or(DEFAULT_RETRY_DELAY_SECONDS),
            exponential: spec.exponential_backoff,
        },
        timeout_seconds: spec.timeout_seconds,
        max_queue_depth: limits.max_queue_depth,
        max_concurrent_sessions: limits.max_concurrent_sessions,
        max_tokens: limits.max_tokens,
        max_cost_nano_usd: max_cost(&limits, &spec.model_ref.name, model)?,
        on_unknown_outcome: match spec.on_unknown_outcome {
            Some(agent::OnUnknownOutcome::Retry) => OnUnknownOutcome::Retry,
            Some(agent::OnUnknownOutcome::Report) | None => OnUnknownOutcome::Report,
        },
        on_workspace_loss: match spec.on_workspace_loss {
            Some(agent::OnWorkspaceLoss::Fail) => OnWorkspaceLoss::Fail,
            Some(agent::OnWorkspaceLoss::Report) | None => OnWorkspaceLoss::Report,
        },
        warm_seconds: spec.sandbox.as_ref().map_or_else(agent::default_warm_seconds, |sandbox| sandbox.warm_seconds),
    })
}

/// Names of the events that are not kept.
fn skipped(spec: &AgentSpec) -> Vec<String> {
    let skipped = match &spec.events {
        None => &[][..],
        Some(events) if events.store => &events.skip,
        Some(_) => &EventName::ALL,
    };
    skipped.iter().map(|event| event.as_str().to_owned()).collect()
}

/// A budget that nobody can keep is none: without prices the agent does not run.
fn max_cost(limits: &AgentLimits, name: &str, model: &ModelSpec) -> Result<Option<u64>, Unresolved> {
    let Some(text) = &limits.max_budget_usd else { return Ok(None) };
    let wrong = || Unresolved::Invalid("spec.limits.maxBudgetUsd is no amount of US dollars, such as \"2.50\"".into());
    let most = money::nano_usd(text).ok_or_else(wrong)?;
    if model.pricing.is_none() {
        return Err(Unresolved::PriceUnknown(name.to_owned()));
    }
    Ok(Some(most))
}

fn output_schema(spec: &AgentSpec) -> Result<Option<Value>, Unresolved> {
    let Some(output) = &spec.output else { return Ok(None) };
    if !nesting::fields_fit(&output.schema) {
        let problem = format!("spec.output.schema is nested deeper than {} levels", nesting::MAX_LEVELS);
        return Err(Unresolved::Invalid(problem));
    }
    Ok(Some(Value::Object(output.schema.clone())))
}

fn tools(spec: &AgentSpec) -> Result<Vec<ToolBinding>, Unresolved> {
    let mut tools: Vec<ToolBinding> = Vec::with_capacity(spec.tools.len());
    for tool in &spec.tools {
        let ToolType::Builtin = tool.kind;
        let Some(builtin) = &tool.builtin else {
            return Err(Unresolved::Invalid("a tool of type Builtin lacks the member builtin".to_owned()));
        };
        let kind = match builtin.name {
            BuiltinName::Shell => Builtin::Shell,
            BuiltinName::Files => Builtin::Files,
            BuiltinName::Http => Builtin::Http,
        };
        if tools.iter().any(|other| other.builtin == kind) {
            return Err(Unresolved::Invalid(format!("spec.tools has {:?} twice", builtin.name)));
        }
        let hosts = builtin.http.as_ref().map(|http| http.hosts.clone()).unwrap_or_default();
        tools.push(ToolBinding {
            builtin: kind,
            timeout_seconds: tool.timeout_seconds,
            idempotent: tool.idempotent,
            hosts,
            gates: Gates {
                approval: tool.require_approval.clone(),
                user_input: tool.require_user_input.clone(),
                external: tool.external_execution.clone(),
            },
        });
    }
    Ok(tools)
}

fn tool_choice(choice: agent::ToolChoice) -> ToolChoice {
    match choice {
        agent::ToolChoice::Auto => ToolChoice::Auto,
        agent::ToolChoice::None => ToolChoice::None,
        agent::ToolChoice::Required => ToolChoice::Required,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn agent(spec: Value) -> AgentSpec {
        serde_json::from_value(spec).unwrap()
    }

    fn model() -> ModelSpec {
        serde_json::from_value(json!({"provider": "Scripted", "model": "echo"})).unwrap()
    }

    #[test]
    fn an_agent_and_its_model_make_a_snapshot() {
        let spec = agent(json!({
            "modelRef": {"name": "m"},
            "tools": [{"type": "Builtin", "builtin": {"name": "Http", "http": {"hosts": ["a.example"]}}}],
            "history": {"enabled": false},
        }));
        let component = ComponentRef::agent("team", "helper");
        let snapshot = resolve(&component, "default", &spec, Some(&model())).unwrap();
        assert_eq!((snapshot.api_id.as_str(), snapshot.display_name.as_str()), ("team.helper", "helper"));
        assert_eq!((snapshot.max_turns, snapshot.history.runs, snapshot.warm_seconds), (100, 0, 300));
        assert_eq!(snapshot.tools[0].hosts, ["a.example"]);
        assert!(!snapshot.needs_sandbox());
    }

    #[test]
    fn events_are_kept_unless_the_agent_says_no() {
        let skipped = |events: Value| {
            let spec = agent(json!({"modelRef": {"name": "m"}, "events": events}));
            resolve(&ComponentRef::agent("team", "helper"), "default", &spec, Some(&model())).unwrap().skip_events
        };
        assert_eq!(skipped(json!({})), [""; 0]);
        assert_eq!(skipped(json!({"skip": ["RunContent"]})), ["RunContent"]);
        let all = skipped(json!({"store": false}));
        assert_eq!(all.len(), EventName::ALL.len());
        assert!(!all.iter().any(|name| name == "RunCompleted"), "how it ended is kept");
    }

    #[test]
    fn what_can_not_run_says_why() {
        let component = ComponentRef::agent("team", "helper");
        let suspended = agent(json!({"modelRef": {"name": "m"}, "suspend": true}));
        assert_eq!(resolve(&component, "default", &suspended, Some(&model())), Err(Unresolved::Suspended));
        let plain = agent(json!({"modelRef": {"name": "m"}}));
        assert_eq!(resolve(&component, "default", &plain, None), Err(Unresolved::ModelNotFound("m".into())));
        let shell = json!({"type": "Builtin", "builtin": {"name": "Shell"}});
        let twice = agent(json!({"modelRef": {"name": "m"}, "tools": [shell.clone(), shell]}));
        let refused = resolve(&component, "default", &twice, Some(&model())).unwrap_err();
        assert_eq!((refused.reason(), refused.message().as_str()), (Reason::InvalidSpec, "spec.tools has Shell twice"));
        let dear = agent(json!({"modelRef": {"name": "m"}, "limits": {"maxBudgetUsd": "0.50", "maxTokens": 9}}));
        let refused = resolve(&component, "default", &dear, Some(&model())).unwrap_err();
        assert_eq!(refused.reason(), Reason::PriceUnknown);
        let pricing = serde_json::from_value(json!({"input": "1", "output": "2"})).unwrap();
        let priced = ModelSpec { pricing: Some(pricing), ..model() };
        let resolved = resolve(&component, "default", &dear, Some(&priced)).unwrap();
        assert_eq!((resolved.max_tokens, resolved.max_cost_nano_usd), (Some(9), Some(500_000_000)));
        let mut schema = json!({"type": "string"});
        for _ in 0..nesting::MAX_LEVELS {
            schema = json!({"items": schema});
        }
        let deep = agent(json!({"modelRef": {"name": "m"}, "output": {"schema": schema}}));
        let refused = resolve(&component, "default", &deep, Some(&model())).unwrap_err();
        assert_eq!(refused.message(), "spec.output.schema is nested deeper than 64 levels");
    }
}
