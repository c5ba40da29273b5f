//! The cluster's keys for service-account tokens, cached; asked for again when a token names an unknown one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey};
use tokio::time::Instant;

/// Least time between two requests for the keys, however many unknown ones are named.
const REFETCH_PAUSE: Duration = Duration::from_secs(10);

/// Where the keys come from.
#[async_trait]
pub trait KeySource: Send + Sync {
    /// All keys that are valid now.
    ///
    /// # Errors
    /// A category, when they can't be had.
    async fn fetch(&self) -> Result<JwkSet, &'static str>;
}

/// A key and the one algorithm that it is used with: what a token's header says never chooses.
#[derive(Clone)]
pub struct VerifyKey {
    /// The key.
    pub key: DecodingKey,
    /// Its algorithm.
    pub algorithm: Algorithm,
}

/// The cache.
pub struct KeyCache {
    source: Arc<dyn KeySource>,
    known: Mutex<Arc<JwkSet>>,
    /// When the keys were last asked for. Held while asking, so that one request serves all who wait.
    asked: tokio::sync::Mutex<Option<Instant>>,
}

impl KeyCache {
    /// An empty cache.
    #[must_use]
    pub fn new(source: Arc<dyn KeySource>) -> Self {
        let known = Mutex::new(Arc::new(JwkSet { keys: Vec::new() }));
        Self { source, known, asked: tokio::sync::Mutex::new(None) }
    }

    /// The key of that id.
    pub async fn find(&self, kid: &str) -> Option<VerifyKey> {
        if let Some(found) = self.known(kid) {
            return Some(found);
        }
        let mut asked = self.asked.lock().await;
        if let Some(found) = self.known(kid) {
            return Some(found);
        }
        let now = Instant::now();
        if asked.is_some_and(|at| now.duration_since(at) < REFETCH_PAUSE) {
            return None;
        }
        *asked = Some(now);
        match self.source.fetch().await {
            Ok(keys) => *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys),
            Err(category) => tracing::warn!(category, "the cluster's token keys can't be read"),
        }
        self.known(kid)
    }

    fn known(&self, kid: &str) -> Option<VerifyKey> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.find(kid).and_then(verify_key)
    }
}

fn verify_key(jwk: &Jwk) -> Option<VerifyKey> {
    let algorithm = match (&jwk.algorithm, jwk.common.key_algorithm) {
        // Only asymmetric keys: a "key" that a reader of the set could sign with is none.
        (AlgorithmParameters::RSA(_) | AlgorithmParameters::EllipticCurve(_), Some(named)) => {
            Algorithm::try_from(named).ok().filter(|algorithm| !is_symmetric(*algorithm))
        }
        (AlgorithmParameters::RSA(_), None) => Some(Algorithm::RS256),
        (AlgorithmParameters::EllipticCurve(curve), None) => match curve.curve {
            EllipticCurve::P256 => Some(Algorithm::ES256),
            EllipticCurve::P384 => Some(Algorithm::ES384),
            _ => None,
        },
        _ => None,
    }?;
    Some(VerifyKey { key: DecodingKey::from_jwk(jwk).ok()?, algorithm })
}

fn is_symmetric(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512)
}
