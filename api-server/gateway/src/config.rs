//! A Model resource, resolved: what the gateway needs to know of it.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};
use url::Url;

use crate::pricing::Pricing;

/// Who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Provider {
    /// Anthropic.
    Anthropic,
    /// OpenAI.
    OpenAI,
    /// A server that speaks one of OpenAI's APIs; needs a base URL.
    OpenAICompatible,
    /// The built-in deterministic provider: no network, no key.
    Scripted,
}

impl Provider {
    /// The word in the Model resource.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Anthropic => "Anthropic",
            Self::OpenAI => "OpenAI",
            Self::OpenAICompatible => "OpenAICompatible",
            Self::Scripted => "Scripted",
        }
    }

    /// The API that is spoken when the Model names none. For `Scripted` it has no meaning.
    #[must_use]
    pub fn default_api(self) -> Api {
        match self {
            Self::Anthropic => Api::Messages,
            Self::OpenAI => Api::Responses,
            Self::OpenAICompatible | Self::Scripted => Api::ChatCompletions,
        }
    }

    /// The provider's own endpoint; none for servers that only their owner knows.
    pub(crate) fn default_base(self) -> Option<&'static str> {
        match self {
            Self::Anthropic => Some("https://api.anthropic.com/v1"),
            Self::OpenAI => Some("https://api.openai.com/v1"),
            Self::OpenAICompatible | Self::Scripted => None,
        }
    }
}

/// A word that names no provider or API.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not known")]
pub struct UnknownWord(String);

impl FromStr for Provider {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        [Self::Anthropic, Self::OpenAI, Self::OpenAICompatible, Self::Scripted]
            .into_iter()
            .find(|provider| provider.as_str() == word)
            .ok_or_else(|| UnknownWord(word.to_owned()))
    }
}

/// The format of requests and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Api {
    /// Anthropic Messages.
    Messages,
    /// OpenAI Responses.
    Responses,
    /// OpenAI Chat Completions.
    ChatCompletions,
}

impl Api {
    /// The word in the Model resource.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Messages => "Messages",
            Self::Responses => "Responses",
            Self::ChatCompletions => "ChatCompletions",
        }
    }
}

impl FromStr for Api {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        [Self::Messages, Self::Responses, Self::ChatCompletions]
            .into_iter()
            .find(|api| api.as_str() == word)
            .ok_or_else(|| UnknownWord(word.to_owned()))
    }
}

/// Where the key is and how it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthConfig {
    /// Secret, in the Model's namespace.
    pub secret_name: String,
    /// Key in the Secret's data.
    pub secret_key: String,
    /// Header that carries it; the API's own when absent.
    pub header: Option<String>,
    /// Word before the key (`Bearer`). Absent: `Bearer` for `Authorization`, none for other headers.
    pub scheme: Option<String>,
}

/// Parameters of every request. Absent ones are left to the provider.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parameters {
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    pub top_p: Option<f64>,
    /// Most tokens of one answer. Messages needs a number: 8,192 when absent.
    pub max_output_tokens: Option<u64>,
    /// `none`, `minimal`, `low`, `medium`, `high`… as the provider knows them.
    pub reasoning_effort: Option<String>,
    /// Further fields of the request's body. Those that the gateway writes itself are refused.
    pub extra: Map<String, Value>,
}

/// What all calls of a Model may cost in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Billionths of a US dollar.
    pub nano_usd: u64,
    /// The period.
    pub window: Window,
}

/// A period that begins with the hour, the day or the month, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Window {
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// A month of the calendar.
    Month,
}

/// One resolved Model, immutable: a changed resource is a new value.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Namespace of the Model.
    pub namespace: String,
    /// Name of the Model.
    pub name: String,
    /// `metadata.generation` of what was resolved.
    pub generation: i64,
    /// Who answers.
    pub provider: Provider,
    /// In which format.
    pub api: Api,
    /// The provider's model id.
    pub model_id: String,
    /// Other endpoint than the provider's own.
    pub base_url: Option<Url>,
    /// The key. Absent: requests go out without one.
    pub auth: Option<AuthConfig>,
    /// Further headers. Credentials, hop-by-hop and forwarding headers are refused.
    pub headers: BTreeMap<String, String>,
    /// Parameters.
    pub parameters: Parameters,
    /// Prices; without them a call has no cost.
    pub pricing: Option<Pricing>,
    /// What all calls may cost in a period.
    pub budget: Option<Budget>,
    /// Longest time of one attempt, from sending to the last byte.
    pub timeout: Duration,
    /// Attempts after the first, made only while nothing of an answer was delivered.
    pub retries: u32,
    /// Script of the `Scripted` provider.
    pub script: Option<String>,
}

impl ModelConfig {
    /// A Model of the built-in provider; `script` as in [`crate::scripted`].
    #[must_use]
    pub fn scripted(namespace: &str, name: &str, script: Option<String>) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            generation: 1,
            provider: Provider::Scripted,
            api: Provider::Scripted.default_api(),
            model_id: "scripted".to_owned(),
            base_url: None,
            auth: None,
            headers: BTreeMap::new(),
            parameters: Parameters::default(),
            pricing: None,
            budget: None,
            timeout: Duration::from_secs(300),
            retries: 0,
            script,
        }
    }
}
