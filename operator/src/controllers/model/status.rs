//! A Model's status.

use cadre_crds::common::conditions::{CREDENTIAL_RESOLVED, Truth};
use cadre_crds::common::reasons::Reason;
use cadre_crds::model::{ModelSpec, ModelStatus, Provider};
use cadre_protocol::feed::{CredentialReport, CredentialState};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::conditions::{Conditions, Verdict};

/// What is known of the credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    truth: Truth,
    reason: Reason,
    message: String,
}

/// From the API server's report, if it speaks of this generation.
#[must_use]
pub fn credential(spec: &ModelSpec, generation: i64, report: Option<&CredentialReport>) -> Credential {
    if spec.provider == Provider::Scripted {
        let message = "the provider Scripted needs no credential".to_owned();
        return Credential { truth: Truth::True, reason: Reason::CredentialNotRequired, message };
    }
    let Some(report) = report.filter(|report| report.generation >= generation) else {
        let message = "the API server has not yet looked for the credential".to_owned();
        return Credential { truth: Truth::Unknown, reason: Reason::CredentialUnknown, message };
    };
    let (truth, reason) = match report.state {
        CredentialState::NotRequired => (Truth::True, Reason::CredentialNotRequired),
        CredentialState::Present => (Truth::True, Reason::CredentialPresent),
        CredentialState::Missing => (Truth::False, Reason::CredentialMissing),
        CredentialState::NotAllowed => (Truth::False, Reason::CredentialNotAllowed),
    };
    Credential { truth, reason, message: report.message.clone() }
}

/// The status that follows.
#[must_use]
pub fn observe(
    old: &ModelStatus,
    problem: Option<&str>,
    credential: &Credential,
    generation: i64,
    now: &Time,
) -> ModelStatus {
    let Credential { truth, reason, message } = credential;
    let conditions =
        Conditions::of(&old.conditions, generation, now).set(CREDENTIAL_RESOLVED, *truth, *reason, message);
    let conditions = match (problem, truth) {
        (Some(problem), _) => conditions.verdict(Verdict::Stalled, Reason::InvalidSpec, problem),
        (None, Truth::True) => conditions.verdict(Verdict::Ready, Reason::Ready, "the model can be used"),
        // A Secret may come or be mended: the Model itself need not be edited.
        (None, truth) => conditions.verdict(Verdict::Waiting(*truth), *reason, message),
    };
    ModelStatus { observed_generation: Some(generation), conditions: conditions.finish() }
}

#[cfg(test)]
mod tests {
    use cadre_crds::common::conditions::{READY, RECONCILING, STALLED};
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::conditions::{reason, truth};

    fn report(generation: i64, state: CredentialState) -> CredentialReport {
        CredentialReport { namespace: "team".into(), model: "m".into(), generation, state, message: "do this".into() }
    }

    #[test]
    fn a_model_waits_for_its_credential_and_heals_without_an_edit() {
        let now = Time(Timestamp::UNIX_EPOCH);
        let openai: ModelSpec = serde_json::from_value(json!({"provider": "OpenAI", "model": "m"})).unwrap();
        let scripted: ModelSpec = serde_json::from_value(json!({"provider": "Scripted", "model": "m"})).unwrap();
        let mut old = ModelStatus::default();
        for (spec, report, problem, ready, why, reconciling, stalled) in [
            (&openai, None, None, "Unknown", "CredentialUnknown", "True", ""),
            (&openai, Some(report(1, CredentialState::Present)), None, "Unknown", "CredentialUnknown", "True", ""),
            (&openai, Some(report(2, CredentialState::Missing)), None, "False", "CredentialMissing", "True", ""),
            (&openai, Some(report(2, CredentialState::NotAllowed)), None, "False", "CredentialNotAllowed", "True", ""),
            (&openai, Some(report(2, CredentialState::Present)), None, "True", "Ready", "", ""),
            (&openai, Some(report(2, CredentialState::NotRequired)), None, "True", "Ready", "", ""),
            (&openai, Some(report(2, CredentialState::Present)), Some("bad"), "False", "InvalidSpec", "", "True"),
            (&scripted, None, None, "True", "Ready", "", ""),
        ] {
            let credential = credential(spec, 2, report.as_ref());
            old = observe(&old, problem, &credential, 2, &now);
            let seen = [READY, RECONCILING, STALLED].map(|kind| truth(&old.conditions, kind));
            assert_eq!(seen, [ready, reconciling, stalled], "{report:?}");
            assert_eq!(reason(&old.conditions, READY), why);
            assert_eq!(old.observed_generation, Some(2));
        }
    }
}
