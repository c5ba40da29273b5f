//! The operator's door on the worker port: Run objects in, what status is made from out. Only for the operator.
//!
//! Must not know Kubernetes objects: the operator says what a Run object asks for.

pub mod cancel;
pub mod feed;
pub mod look;
pub mod report;
pub mod submit;

use axum::response::Response;
use cadre_protocol::problem::ErrorCode;
use cadre_store::rows::Principal;

use crate::auth::pod::Caller;
use crate::domain::DomainError;
use crate::listen::worker::problem;

/// Owner of runs that are made through Kubernetes.
#[must_use]
pub fn principal(namespace: &str) -> Principal {
    Principal(format!("k8s:{namespace}"))
}

/// The refusal of everybody else.
fn only_operator(caller: &Caller) -> Option<Response> {
    match caller {
        Caller::Operator => None,
        Caller::Pod { .. } | Caller::Local(_) => Some(problem(ErrorCode::Forbidden, "only for the operator")),
    }
}

fn refusal(error: &DomainError) -> Response {
    if error.code() == ErrorCode::Internal {
        tracing::error!(error = %error, "the operator's request failed");
        return problem(ErrorCode::Internal, "internal error");
    }
    problem(error.code(), &error.to_string())
}
