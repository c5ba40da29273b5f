//! The `Scripted` provider: a model that says what a script tells it to. No network, no key, the same every time.
//!
//! A script is YAML (or JSON, which is YAML): a list of turns. Each turn is one answer of the model.
//!
//! ```yaml
//! - tools:                                  # first answer: call a tool
//!     - name: shell
//!       arguments: { command: "date +%Y" }
//! - text: "It is the year {{last_result}}." # second answer, once the tool has run
//! ```
//!
//! | field of a turn | meaning |
//! |---|---|
//! | `text` | What the model says, delivered in pieces. A turn that is a plain string is its text. |
//! | `reasoning` | Visible reasoning, delivered before the text. |
//! | `tools` | Calls: `name`, and `arguments` as an object, or as a string that is passed on as it is (so that a script can be malformed on purpose). |
//! | `delayMs` | Wait before the answer begins. |
//! | `chunk` | Characters of a piece; 16 by default. |
//! | `chunkDelayMs` | Wait before each piece but the first. |
//! | `fail` | `{category, message, times, retryAfterMs}`: the answer breaks off with this error, after its text if it has one. `category` as in error codes (`provider`, `rate_limit`, `context_window`…). With `times: n` only the first *n* calls fail; they are counted by this process, per user message and turn. |
//! | `finish` | `stop`, `toolCalls`, `length` or `contentFilter`; by default `toolCalls` if there are calls, else `stop`. |
//!
//! Texts and the strings in arguments may contain:
//!
//! | placeholder | is replaced by |
//! |---|---|
//! | `{{input}}` | the user's last message, without a script in it |
//! | `{{last_result}}` | the result of the last tool call since then |
//! | `{{result.NAME}}` | the last result of the tool NAME since then |
//! | `{{previous}}` | what the model said last before the user's last message |
//! | `{{system}}` | the instructions |
//!
//! What has no value becomes empty text. Whatever is inserted is not searched for placeholders again.
//!
//! **Which script**: one in the user's last message (a fenced block that begins with ` ```script `), else the Model's
//! `spec.script`, else a built-in one that says `You said: {{input}}`.
//!
//! **Which turn**: the number of answers since the user's last message. Nothing is remembered, so that a restart of
//! the API server, another replica or a continued run goes on at the right place, and each user message starts the
//! script anew. After the last turn the model says `(end of script)`.
//!
//! **Usage** is a token for every four characters, rounded up.

mod conversation;
mod play;
mod script;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cadre_protocol::model::{ModelError, ModelRequest};

use crate::config::ModelConfig;
use crate::models::{Answer, Sink};
use conversation::Conversation;
use script::Script;

/// Counted failures that are remembered; beyond this all are forgotten.
const MAX_COUNTED: usize = 4_096;

/// Whether a script can be read; for validation when a Model is admitted.
///
/// # Errors
/// What is wrong and in which turn.
pub fn check(script: &str) -> Result<(), String> {
    Script::parse(script).map(|_| ())
}

/// Models' scripts that are kept as they were read; beyond this all are read again.
const MAX_READ: usize = 64;

/// The provider. Remembers how often a turn with `fail.times` has failed, and what it has read.
#[derive(Debug, Default)]
pub(crate) struct Scripts {
    failed: Mutex<HashMap<String, u32>>,
    read: Mutex<HashMap<String, Arc<Script>>>,
}

impl Scripts {
    pub(crate) async fn answer(
        &self,
        model: &ModelConfig,
        request: &ModelRequest,
        sink: &mut Sink<'_>,
    ) -> Result<Answer, ModelError> {
        let conversation = Conversation::read(&request.messages);
        let script = self.choose(conversation.script, model.script.as_deref())?;
        let turn = script.turn(conversation.turn);
        let place = format!("{}/{}/{}/{}", model.namespace, model.name, conversation.id, conversation.turn);
        let error = turn.fail.as_ref().filter(|fail| self.fails(&place, fail.times)).map(script::Fail::error);
        play::play(&turn, &conversation, request, error, sink).await
    }

    /// The script that applies.
    fn choose(&self, prompt: Option<&str>, spec: Option<&str>) -> Result<Arc<Script>, ModelError> {
        let (None, Some(text)) = (prompt, spec) else { return Script::choose(prompt, spec).map(Arc::new) };
        let known = self.read.lock().unwrap_or_else(PoisonError::into_inner).get(text).cloned();
        if let Some(script) = known {
            return Ok(script);
        }
        let script = Arc::new(Script::choose(None, spec)?);
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.len() >= MAX_READ {
            read.clear();
        }
        read.insert(text.to_owned(), Arc::clone(&script));
        Ok(script)
    }

    /// Counts a failure if it is among the first `times` at this place.
    fn fails(&self, place: &str, times: Option<u32>) -> bool {
        let Some(times) = times else { return true };
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.len() >= MAX_COUNTED && !failed.contains_key(place) {
            failed.clear();
        }
        let count = failed.entry(place.to_owned()).or_default();
        *count = count.saturating_add(1);
        *count <= times
    }
}
