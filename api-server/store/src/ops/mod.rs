//! What the record means: every operation, once for both databases.
//!
//! Each function runs inside a transaction that the caller commits, and writes nothing when it refuses. Must not know
//! how a connection is made, nor who waits for it.

pub mod accept;
pub mod allowances;
pub mod append;
pub mod blobs;
pub mod budgets;
pub mod cancel;
pub mod columns;
pub mod depth;
pub mod entries;
pub mod finish;
pub mod fork;
pub mod fork_session;
pub mod intents;
pub mod jobs;
pub mod keys;
pub mod leases;
pub mod merge;
pub mod models;
pub mod pause;
pub mod queries;
pub mod resume;
pub mod retention;
pub mod schema;
pub mod session_edit;
pub mod session_list;
pub mod session_runs;
pub mod sessions;
pub mod slot_lines;
pub mod slots;
pub mod snapshots;
pub mod start;
pub mod uploads;
pub mod usage;
pub mod usage_read;
pub mod workers;
