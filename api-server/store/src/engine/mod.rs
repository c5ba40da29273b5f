//! How operations get to a database: writers that share commits, readers beside them, and the traits on top.
//!
//! Generic over the driver, so that both databases behave alike. Must not know any statement.

pub mod driver;
pub mod job;
mod merger;
pub mod readers;
pub mod store;
mod store_approvals;
mod store_branches;
mod store_budgets;
mod store_jobs;
mod store_journal;
mod store_runs;
mod store_sessions;
mod store_upkeep;
mod store_workers;
pub mod writer;
