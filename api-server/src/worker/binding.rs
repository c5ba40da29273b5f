//! From who a caller is to which sessions its worker serves.

use async_trait::async_trait;
use cadre_protocol::ids::{ComponentRef, WorkerId};
use cadre_protocol::worker::SandboxIdentity;

use crate::auth::pod::Caller;
use crate::placement::Serves;

/// A worker that may work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Its id.
    pub worker_id: WorkerId,
    /// Sessions that it takes.
    pub serves: Serves,
    /// Component of its session, for workers that serve one.
    pub component: Option<ComponentRef>,
}

/// Why a caller has no binding.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unbound {
    /// It will never have one: the worker exits.
    #[error("{0}")]
    Never(&'static str),
    /// What would prove it is not known here yet: the worker dials in again.
    #[error("the pod is not known yet")]
    NotYet,
}

/// Binds callers to sessions.
#[async_trait]
pub trait Bindings: Send + Sync {
    /// The binding of a caller that says it belongs to `sandbox`.
    ///
    /// # Errors
    /// Why it has none: security rule 3.
    async fn bind(&self, caller: &Caller, sandbox: Option<&SandboxIdentity>) -> Result<Binding, Unbound>;
}

/// Bindings of `cadre dev`: each child process has a number, serves any session, has no Sandbox.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalBindings;

#[async_trait]
impl Bindings for LocalBindings {
    async fn bind(&self, caller: &Caller, sandbox: Option<&SandboxIdentity>) -> Result<Binding, Unbound> {
        match (caller, sandbox) {
            (Caller::Local(number), None) => {
                let worker_id = WorkerId::new(format!("local/{number}"));
                let worker_id = worker_id.map_err(|_| Unbound::Never("the worker's number makes no id"))?;
                Ok(Binding { worker_id, serves: Serves::Any, component: None })
            }
            _ => Err(Unbound::Never("this server only has local workers")),
        }
    }
}
