//! Domain values in the shapes that clients of AgentOS read. Pure.
//!
//! Absent values are left out, except inside tool objects. Run outputs carry Unix seconds, lists carry ISO 8601 texts, as
//! there. Fields that AgentOS lacks are ours and additional.

pub mod agent;
pub mod checkpoint;
pub mod job;
pub mod message;
pub mod metrics;
pub mod output;
pub mod page;
pub mod run;
pub mod session;
pub mod time;
pub mod usage;
