//! A paused run is answered: what is said is recorded, and the run goes on once nothing is open.

use cadre_protocol::ids::RunId;
use cadre_protocol::requirement::arguments_sha256;
use cadre_store::approvals::{Consumption, DecideOutcome, Decisions};
use cadre_store::branches::KeyOf;
use cadre_store::rows::{Principal, RunDetail};
use serde_json::{Map, Value};

use super::continuing::{Continued, not_continuable};
use super::decisions::{self, Answer, Refusal};
use super::{DomainError, Service, Submitted};

/// What AgentOS says as well.
const UNRESOLVED: &str = "Run has unresolved requirements: answer its paused tool calls in `tools` or `requirements`";

impl Service {
    /// Records answers about a paused run. None when it is not as it was.
    ///
    /// # Errors
    /// When they make no sense for it.
    pub(super) async fn answer(
        &self,
        detail: &RunDetail,
        answers: &[Answer],
        decided_by: Principal,
        key: Option<KeyOf>,
    ) -> Result<Option<Continued>, DomainError> {
        let run_id = &detail.run.run_id;
        let changes =
            decisions::merge(&detail.approvals, &detail.messages, answers).map_err(|refusal| match refusal {
                Refusal::Wrong(problem) => DomainError::BadRequest(problem),
                Refusal::Decided(reason) => not_continuable(run_id, &reason),
            })?;
        if changes.is_empty() {
            return Err(DomainError::BadRequest(UNRESOLVED.to_owned()));
        }
        let wanted = Decisions { run_id: run_id.clone(), changes, decided_by, key, at_ms: self.now_ms() };
        let (run, after) = match self.0.store.decide(wanted).await? {
            DecideOutcome::Changed => return Ok(None),
            DecideOutcome::GoesOn { run } => {
                self.tell_change(&run);
                self.place_new(&run, self.is_limited(&detail.agent)).await;
                let after = run.next_index.checked_sub(1);
                (run, after)
            }
            DecideOutcome::StillPaused { run, chunk } => {
                self.tell_change(&run);
                let after = chunk.first_index.checked_sub(1);
                self.0.hub.publish(run_id, chunk);
                (run, after)
            }
        };
        Ok(Some(Continued { submitted: Submitted { run: *run, replayed: false, waiting_on: None }, after }))
    }

    /// The same answers once more, to a run that goes on with them already: the caller sees what comes of it.
    pub(super) fn attach(&self, detail: &RunDetail, answers: &[Answer]) -> Option<Continued> {
        let after = decisions::repeated(&detail.approvals, &detail.messages, answers)?;
        let submitted = Submitted { run: detail.run.clone(), replayed: true, waiting_on: detail.waiting_on.clone() };
        Some(Continued { submitted, after: Some(after) })
    }

    /// Spends the approval of a call that is about to be made with these arguments. False: it must not be made.
    pub async fn spend_approval(
        &self,
        run_id: &RunId,
        call_id: &str,
        tool: &str,
        arguments: &Map<String, Value>,
    ) -> bool {
        let wanted = Consumption {
            run_id: run_id.clone(),
            call_id: call_id.to_owned(),
            tool_name: tool.to_owned(),
            arguments_sha256: arguments_sha256(arguments),
            at_ms: self.now_ms(),
        };
        // Spent with its answer lost, it is not spent again: the call is refused, and was not made.
        match self.patiently(|| self.0.store.consume(wanted.clone())).await {
            Ok(spent) => spent,
            Err(error) => {
                tracing::warn!(run_id = %run_id, category = error.category(), "an approval can't be spent now");
                false
            }
        }
    }
}
