//! What can go wrong while an object is reconciled.

use crate::feed::client::FeedError;

/// An error that is tried again with a growing delay.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Kubernetes API refused or did not answer.
    #[error("could not {action}")]
    Kubernetes {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server refused or did not answer.
    #[error("could not reach the API server")]
    ApiServer(#[source] Box<FeedError>),
}

impl Error {
    /// Static name for metrics.
    #[must_use]
    pub fn category(&self) -> &'static str {
        match self {
            Self::Kubernetes { .. } => "kubernetes",
            Self::ApiServer(_) => "api_server",
        }
    }
}

/// Adds what was tried to an error of the Kubernetes client.
pub fn kubernetes(action: &'static str) -> impl Fn(kube::Error) -> Error {
    move |source| Error::Kubernetes { action, source: Box::new(source) }
}

/// The HTTP status of an answer that the Kubernetes API gave, 0 when it gave none.
#[must_use]
pub fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}
