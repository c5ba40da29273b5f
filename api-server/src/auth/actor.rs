//! The authenticated caller.

use cadre_store::rows::Principal;
use http::header;
use http::request::Parts;

use super::browser::{self, Foreign};
use super::key::{Authentication, holder_of};

/// Who acts. Every call of the domain takes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Owner of what the actor creates.
    pub principal: Principal,
    /// Whether the actor may see and do everything, other principals' things too.
    pub admin: bool,
}

impl Actor {
    /// The holder of the security key.
    #[must_use]
    pub fn key_holder() -> Self {
        Self { principal: Principal("key:default".to_owned()), admin: true }
    }

    /// The developer in local mode.
    #[must_use]
    pub fn local_developer() -> Self {
        Self { principal: Principal("local:dev".to_owned()), admin: true }
    }

    /// What reads and intents are limited to; none for those who may see everything.
    #[must_use]
    pub fn scope(&self) -> Option<&Principal> {
        if self.admin { None } else { Some(&self.principal) }
    }
}

/// Why there is no actor. The texts are AgentOS's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No `Authorization: Bearer …`.
    #[error("Authorization header required")]
    Missing,
    /// Not the key.
    #[error("Invalid authentication token")]
    Invalid,
    /// A browser acts for a foreign page.
    #[error(transparent)]
    Foreign(#[from] Foreign),
}

/// Checks that hold for public routes too.
///
/// # Errors
/// When a browser acts for a foreign page.
pub fn admit(authentication: &Authentication, parts: &Parts) -> Result<(), Denied> {
    match authentication {
        Authentication::Keys(_) => Ok(()),
        Authentication::LocalOnly { listen_host } => Ok(browser::check(parts, listen_host)?),
    }
}

/// Authenticates a request by its headers alone. A token in the URL is never looked at (security rule 2).
///
/// # Errors
/// Without a valid credential.
pub fn authenticate(authentication: &Authentication, parts: &Parts) -> Result<Actor, Denied> {
    admit(authentication, parts)?;
    match authentication {
        Authentication::LocalOnly { .. } => Ok(Actor::local_developer()),
        Authentication::Keys(keys) => {
            let token = bearer(parts).ok_or(Denied::Missing)?;
            holder_of(keys, token).cloned().ok_or(Denied::Invalid)
        }
    }
}

fn bearer(parts: &Parts) -> Option<&str> {
    let value = parts.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    fn outcome(uri: &str, authorization: Option<&str>) -> Result<Actor, Denied> {
        let key = SecretString::from(KEY.to_owned());
        let mode = Authentication::new(Some(&key), "0.0.0.0:7777".parse().unwrap(), false).unwrap();
        let mut request = http::Request::get(uri);
        if let Some(value) = authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        authenticate(&mode, &parts)
    }

    #[test]
    fn the_key_comes_in_the_header_and_nowhere_else() {
        assert_eq!(outcome("/agents", Some(&format!("Bearer {KEY}"))), Ok(Actor::key_holder()));
        assert_eq!(outcome("/agents", Some(&format!("bearer {KEY}"))), Ok(Actor::key_holder()));
        assert_eq!(outcome("/agents", None), Err(Denied::Missing));
        assert_eq!(outcome(&format!("/agents?token={KEY}&access_token={KEY}"), None), Err(Denied::Missing));
        assert_eq!(outcome("/agents", Some(KEY)), Err(Denied::Missing));
        assert_eq!(outcome("/agents", Some(&format!("Basic {KEY}"))), Err(Denied::Missing));
        assert_eq!(outcome("/agents", Some("Bearer wrong")), Err(Denied::Invalid));
    }

    #[test]
    fn only_admins_are_unscoped() {
        assert_eq!(Actor::key_holder().scope(), None);
        let user = Actor { principal: Principal("jwt:a:b".into()), admin: false };
        assert_eq!(user.scope(), Some(&Principal("jwt:a:b".into())));
    }
}
