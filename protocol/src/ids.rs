//! Identifiers, parsed once at the door so that nothing behind it checks them again.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a text is no valid identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {problem}")]
pub struct InvalidId {
    /// Which identifier was read, for example `run id`.
    pub kind: &'static str,
    /// What is wrong with it.
    pub problem: &'static str,
}

fn check(kind: &'static str, text: &str, max: usize) -> Result<(), InvalidId> {
    let problem = match text {
        "" => "is empty",
        // As a part of a path, clients and proxies would take it for a step up.
        "." | ".." => "is one or two dots",
        t if t.len() > max => "is too long",
        t if t.chars().any(char::is_control) => "contains a control character",
        _ => return Ok(()),
    };
    Err(InvalidId { kind, problem })
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Longest accepted text, in bytes.
            pub const MAX_BYTES: usize = $max;

            /// Parses a text.
            ///
            /// # Errors
            /// When it is empty, one or two dots, longer than [`Self::MAX_BYTES`] or has control characters.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidId> {
                let text = text.into();
                check($kind, &text, $max)?;
                Ok(Self(text))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// A run. Generated as UUIDv7; callers of the AgentOS API may choose their own text.
    RunId, "run id", 128
);
text_id!(
    /// A session: the conversation that runs belong to. Any text, slashes too, as AgentOS allows.
    SessionId, "session id", 256
);
text_id!(
    /// The worker connection's identity: `{namespace}/{sandbox}` in a cluster, `local/{n}` for `cadre dev`.
    WorkerId, "worker id", 256
);
text_id!(
    /// Content address of a resolved component: lower-case hex SHA-256.
    Revision, "revision", 64
);
text_id!(
    /// Content address of a blob: lower-case hex SHA-256 of its bytes.
    BlobDigest, "blob digest", 64
);

impl RunId {
    /// A new time-ordered id.
    #[must_use]
    pub fn generate() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }
}

impl SessionId {
    /// Name of its folder where workspaces are folders of one machine (`cadre dev`).
    #[must_use]
    pub fn folder_name(&self) -> String {
        hex_sha256(self.as_str().as_bytes()).chars().take(24).collect()
    }

    /// A new random id, as AgentOS gives to a run without one.
    #[must_use]
    pub fn generate() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }
}

impl BlobDigest {
    /// The address of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(hex_sha256(bytes))
    }
}

impl Revision {
    /// The revision of a canonical serialization.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(hex_sha256(bytes))
    }
}

/// Lower-case hex SHA-256.
#[must_use]
pub fn hex_sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    use std::fmt::Write as _;
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Generation of the right to write a session's runs. Every engine registration gets a higher one;
/// a writer with an older one is refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What kind of component a run is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComponentKind {
    /// An Agent.
    Agent,
}

impl ComponentKind {
    /// Lower-case name, as in URLs and session types.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
        }
    }
}

/// A component by kind, namespace and `metadata.name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ComponentRef {
    /// Its kind.
    pub kind: ComponentKind,
    /// Its namespace.
    pub namespace: String,
    /// Its `metadata.name`: a DNS label.
    pub name: String,
}

impl ComponentRef {
    /// An agent.
    #[must_use]
    pub fn agent(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind: ComponentKind::Agent, namespace: namespace.into(), name: name.into() }
    }

    /// Reads an API id: `name` in the default namespace, or `namespace.name`.
    /// Names and namespaces are DNS labels, so the first dot separates them.
    #[must_use]
    pub fn parse_agent(id: &str, default_namespace: &str) -> Self {
        match id.split_once('.') {
            Some((namespace, name)) => Self::agent(namespace, name),
            None => Self::agent(default_namespace, id),
        }
    }

    /// The id that the API shows: the inverse of [`Self::parse_agent`].
    #[must_use]
    pub fn api_id(&self, default_namespace: &str) -> String {
        if self.namespace == default_namespace {
            self.name.clone()
        } else {
            format!("{}.{}", self.namespace, self.name)
        }
    }
}

impl fmt::Display for ComponentRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind.as_str(), self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_refuse_what_could_not_be_stored_or_logged() {
        assert!(RunId::new("").is_err());
        assert!(RunId::new("a\nb").is_err());
        assert!(SessionId::new("x".repeat(257)).is_err());
        assert_eq!(SessionId::new("a/b c").unwrap().as_str(), "a/b c");
        assert!(SessionId::new(".").is_err() && SessionId::new("..").is_err() && RunId::new("..").is_err());
        assert!(SessionId::new("...").is_ok());
        assert!(serde_json::from_str::<RunId>("\"\"").is_err());
    }

    #[test]
    fn api_ids_round_trip() {
        let other = ComponentRef::parse_agent("team-a.helper", "default");
        assert_eq!((other.namespace.as_str(), other.name.as_str()), ("team-a", "helper"));
        assert_eq!(other.api_id("default"), "team-a.helper");
        assert_eq!(ComponentRef::parse_agent("helper", "default").api_id("default"), "helper");
    }
}
