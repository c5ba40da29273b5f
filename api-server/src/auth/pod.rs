//! Who calls at the worker port (security rule 3): a pod with a projected token, the operator, or a child process.
//!
//! Signature, expiry and audience are checked here before the one TokenReview, so that garbage costs the kube-apiserver
//! nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cadre_protocol::worker::TOKEN_AUDIENCE;
use jsonwebtoken::{Validation, decode, decode_header};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;

use super::jwks::{KeyCache, KeySource};

/// ServiceAccount of agent pods.
pub const AGENT_ACCOUNT: &str = "cadre-agent";
/// Longest token that is looked at, in bytes.
const MAX_TOKEN_BYTES: usize = 8 << 10;
/// How long a reviewed token is not reviewed again.
const REVIEW_LASTS: Duration = Duration::from_secs(60);
/// Reviewed tokens that are remembered.
const MAX_REMEMBERED: usize = 10_000;

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// The operator.
    Operator,
    /// An agent pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its UID.
        uid: String,
    },
    /// A child process of this server, by number.
    Local(u32),
}

/// Why a token is refused. Callers only ever see 401.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Not a token.
    #[error("the token is malformed")]
    Malformed,
    /// Signed with a key that the cluster does not have.
    #[error("the token's key is not known")]
    UnknownKey,
    /// Signature, expiry or audience is wrong.
    #[error("the token is not valid")]
    Invalid,
    /// A ServiceAccount that has no business here.
    #[error("the token's service account is not allowed here")]
    Account,
    /// The cluster says no: the pod has gone.
    #[error("the cluster does not accept the token")]
    Review,
    /// The cluster does not answer.
    #[error("the token can't be reviewed now")]
    Unavailable,
}

impl Refused {
    /// Static name for logs and metrics.
    #[must_use]
    pub fn category(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::Invalid => "invalid",
            Self::Account => "account",
            Self::Review => "review",
            Self::Unavailable => "unavailable",
        }
    }
}

/// Authenticates a bearer token.
#[async_trait]
pub trait Authenticate: Send + Sync {
    /// Whose token it is.
    ///
    /// # Errors
    /// When it is nobody's.
    async fn authenticate(&self, token: &str) -> Result<Caller, Refused>;
}

/// Asks the cluster whether a token is still good.
#[async_trait]
pub trait Reviewer: Send + Sync {
    /// The user name and the pod's UID, as the cluster sees the token; none if it refuses.
    ///
    /// # Errors
    /// When the cluster does not answer.
    async fn review(&self, token: &str) -> Result<Option<Reviewed>, Refused>;
}

/// A token as the cluster sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reviewed {
    /// `system:serviceaccount:{namespace}:{name}`.
    pub user: String,
    /// UID of the pod that it is bound to.
    pub pod_uid: Option<String>,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: u64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: KubernetesClaims,
}

#[derive(Deserialize)]
struct KubernetesClaims {
    namespace: String,
    pod: Option<NamedClaim>,
    serviceaccount: NamedClaim,
}

#[derive(Deserialize)]
struct NamedClaim {
    name: String,
    uid: String,
}

/// Tokens of a cluster.
pub struct PodAuth {
    keys: KeyCache,
    reviewer: Arc<dyn Reviewer>,
    operator: String,
    remembered: Mutex<HashMap<[u8; 32], (Caller, Instant)>>,
}

impl PodAuth {
    /// `operator` is the user name of the operator: `system:serviceaccount:{namespace}:{name}`.
    #[must_use]
    pub fn new(keys: Arc<dyn KeySource>, reviewer: Arc<dyn Reviewer>, operator: String) -> Self {
        Self { keys: KeyCache::new(keys), reviewer, operator, remembered: Mutex::default() }
    }

    async fn verify(&self, token: &str) -> Result<Claims, Refused> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Refused::Malformed);
        }
        let header = decode_header(token).map_err(|_| Refused::Malformed)?;
        let kid = header.kid.filter(|kid| !kid.is_empty()).ok_or(Refused::Malformed)?;
        let key = self.keys.find(&kid).await.ok_or(Refused::UnknownKey)?;
        let mut validation = Validation::new(key.algorithm);
        validation.leeway = 0;
        validation.validate_nbf = true;
        validation.set_audience(&[TOKEN_AUDIENCE]);
        validation.set_required_spec_claims(&["exp", "aud", "sub"]);
        let claims: Claims = decode(token, &key.key, &validation).map_err(|_| Refused::Invalid)?.claims;
        Ok(claims)
    }

    fn caller(&self, claims: &Claims) -> Result<Caller, Refused> {
        let KubernetesClaims { namespace, pod, serviceaccount } = &claims.kubernetes;
        if claims.sub != format!("system:serviceaccount:{namespace}:{}", serviceaccount.name) {
            return Err(Refused::Invalid);
        }
        if claims.sub == self.operator {
            return Ok(Caller::Operator);
        }
        match pod {
            Some(pod) if serviceaccount.name == AGENT_ACCOUNT && !pod.uid.is_empty() => {
                Ok(Caller::Pod { namespace: namespace.clone(), uid: pod.uid.clone() })
            }
            _ => Err(Refused::Account),
        }
    }

    async fn review(&self, token: &str, claims: &Claims, caller: &Caller) -> Result<(), Refused> {
        let reviewed = self.reviewer.review(token).await?.ok_or(Refused::Review)?;
        let same_pod = match caller {
            Caller::Pod { uid, .. } => reviewed.pod_uid.as_deref() == Some(uid),
            Caller::Operator | Caller::Local(_) => true,
        };
        if reviewed.user == claims.sub && same_pod { Ok(()) } else { Err(Refused::Review) }
    }

    fn remembered(&self, digest: &[u8; 32]) -> Option<Caller> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.get(digest).filter(|(_, until)| Instant::now() < *until).map(|(caller, _)| caller.clone())
    }

    fn remember(&self, digest: [u8; 32], caller: &Caller, exp: u64) {
        let left = exp.saturating_sub(jsonwebtoken::get_current_timestamp());
        let now = Instant::now();
        let until = now + REVIEW_LASTS.min(Duration::from_secs(left));
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= MAX_REMEMBERED {
            remembered.retain(|_, (_, until)| now < *until);
        }
        if remembered.len() < MAX_REMEMBERED {
            remembered.insert(digest, (caller.clone(), until));
        }
    }
}

#[async_trait]
impl Authenticate for PodAuth {
    async fn authenticate(&self, token: &str) -> Result<Caller, Refused> {
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(caller) = self.remembered(&digest) {
            return Ok(caller);
        }
        let claims = self.verify(token).await?;
        let caller = self.caller(&claims)?;
        self.review(token, &claims, &caller).await?;
        self.remember(digest, &caller, claims.exp);
        Ok(caller)
    }
}

/// Tokens of `cadre dev`: a random secret and the number of the child process that got it.
#[derive(Clone)]
pub struct LocalAuth {
    secret: String,
}

impl LocalAuth {
    /// With a new random secret.
    #[must_use]
    pub fn generate() -> Self {
        Self { secret: cadre_protocol::ids::hex_sha256(&rand::random::<[u8; 32]>()) }
    }

    /// The token of a child process.
    #[must_use]
    pub fn token(&self, number: u32) -> String {
        format!("{number}.{}", self.secret)
    }
}

#[async_trait]
impl Authenticate for LocalAuth {
    async fn authenticate(&self, token: &str) -> Result<Caller, Refused> {
        let (number, secret) = token.split_once('.').ok_or(Refused::Malformed)?;
        let number = number.parse().map_err(|_| Refused::Malformed)?;
        let presented: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
        let own: [u8; 32] = Sha256::digest(self.secret.as_bytes()).into();
        if presented.ct_eq(&own).into() { Ok(Caller::Local(number)) } else { Err(Refused::Invalid) }
    }
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
