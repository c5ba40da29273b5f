//! The durable record: sessions, runs, journal, leases, blobs.
//!
//! The only place in Cadre that reaches a database. One trait an aggregate; callers hold `Arc<dyn Store>` and never see
//! SQL. Every write that a user was told of is committed before its call returns. Writes are grouped: callers that wait
//! at the same time share one commit. Must not know HTTP, Kubernetes or a model provider.
//!
//! From the outside in: [`traits`], [`approvals`], [`branches`], [`workers`] and [`rows`] are what callers see; `engine` brings operations to
//! a database and
//! groups them; `ops` are the operations, written once; [`sqlite`] and [`postgres`] are
//! databases.

pub mod approvals;
pub mod branches;
pub mod budgets;
mod db;
mod engine;
pub mod error;
mod ops;
pub mod postgres;
pub mod rows;
pub mod shares;
pub mod sqlite;
pub mod traits;
pub mod workers;

pub use error::StoreError;
pub use traits::Store;
