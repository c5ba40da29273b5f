//! The security key (`OS_SECURITY_KEY`): one bearer token with full access, as AgentOS has it.

use std::net::SocketAddr;

use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::actor::Actor;

/// Why the user port can't start with this authentication.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAuth {
    /// Too short to resist guessing.
    #[error("OS_SECURITY_KEY has {found} bytes; it needs at least {} random ones", SecurityKey::MIN_BYTES)]
    ShortKey {
        /// Bytes found.
        found: usize,
    },
    /// A bearer token is one word of visible ASCII.
    #[error("OS_SECURITY_KEY contains a space, a control or a non-ASCII character; no client could send it")]
    UnsendableKey,
    /// No key, and others can reach the port.
    #[error("{0} is not a loopback address: listening there without OS_SECURITY_KEY would let anybody in")]
    OpenToOthers(SocketAddr),
    /// No key outside of local mode.
    #[error("OS_SECURITY_KEY is not set; only local mode on a loopback address runs without authentication")]
    NoKey,
}

/// A key, kept only as its SHA-256.
#[derive(Clone)]
pub struct SecurityKey {
    sha256: [u8; 32],
    holder: Actor,
}

impl SecurityKey {
    /// Shortest accepted key (security rule 2).
    pub const MIN_BYTES: usize = 32;

    /// Takes the key of an actor.
    ///
    /// # Errors
    /// When it is too short, or not fit for an HTTP header.
    pub fn new(key: &SecretString, holder: Actor) -> Result<Self, InvalidAuth> {
        let key = key.expose_secret();
        if key.len() < Self::MIN_BYTES {
            return Err(InvalidAuth::ShortKey { found: key.len() });
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidAuth::UnsendableKey);
        }
        Ok(Self { sha256: Sha256::digest(key.as_bytes()).into(), holder })
    }
}

/// Whose key a token is. Hashing first makes the time independent of length and of common beginnings; all keys are
/// compared, whichever matches.
#[must_use]
pub fn holder_of<'a>(keys: &'a [SecurityKey], token: &str) -> Option<&'a Actor> {
    let presented: [u8; 32] = Sha256::digest(token.as_bytes()).into();
    keys.iter().fold(None, |found, key| if presented.ct_eq(&key.sha256).into() { Some(&key.holder) } else { found })
}

/// How the user port authenticates.
#[derive(Clone)]
pub enum Authentication {
    /// By a key. `OS_SECURITY_KEY` is the only one that a server is given.
    Keys(Vec<SecurityKey>),
    /// Not at all: local mode on loopback, where browsers are kept out by [`super::browser`].
    LocalOnly {
        /// The host part of the listening address, allowed as `Host` beside the loopback names.
        listen_host: String,
    },
}

impl Authentication {
    /// Chooses the mode; refuses to leave a reachable port open.
    ///
    /// # Errors
    /// For an unfit key, or none where one is needed.
    pub fn new(key: Option<&SecretString>, listen: SocketAddr, local_mode: bool) -> Result<Self, InvalidAuth> {
        match key {
            Some(key) => Ok(Self::Keys(vec![SecurityKey::new(key, Actor::key_holder())?])),
            None if !local_mode => Err(InvalidAuth::NoKey),
            None if !listen.ip().is_loopback() => Err(InvalidAuth::OpenToOthers(listen)),
            None => Ok(Self::LocalOnly { listen_host: listen.ip().to_string() }),
        }
    }

    /// `auth_mode` of `GET /info`, in AgentOS's words.
    #[must_use]
    pub fn mode(&self) -> &'static str {
        match self {
            Self::Keys(_) => "security_key",
            Self::LocalOnly { .. } => "none",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    fn key(text: &str) -> SecretString {
        SecretString::from(text.to_owned())
    }

    #[test]
    fn only_the_key_itself_matches() {
        let keys = [SecurityKey::new(&key(KEY), Actor::key_holder()).unwrap()];
        assert_eq!(holder_of(&keys, KEY), Some(&Actor::key_holder()));
        for wrong in ["", "0123456789abcdef", &format!("{KEY}0"), &KEY.to_uppercase()] {
            assert_eq!(holder_of(&keys, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn unfit_keys_are_refused_at_start() {
        let problem = |text: &str| SecurityKey::new(&key(text), Actor::key_holder()).err();
        assert_eq!(problem("short"), Some(InvalidAuth::ShortKey { found: 5 }));
        let spaced = "0123456789abcdef 0123456789abcdef";
        assert_eq!(problem(spaced), Some(InvalidAuth::UnsendableKey));
    }

    #[test]
    fn a_port_that_others_reach_needs_a_key() {
        let loopback = "127.0.0.1:7777".parse().unwrap();
        let any = "0.0.0.0:7777".parse().unwrap();
        assert_eq!(Authentication::new(None, any, true).err(), Some(InvalidAuth::OpenToOthers(any)));
        assert_eq!(Authentication::new(None, loopback, false).err(), Some(InvalidAuth::NoKey));
        assert_eq!(Authentication::new(None, loopback, true).unwrap().mode(), "none");
        assert_eq!(Authentication::new(Some(&key(KEY)), any, false).unwrap().mode(), "security_key");
    }
}
