//! One file per verb: flags, calls, output. Must not know how servers are found.

pub mod approve;
pub mod cancel;
pub mod completion;
pub mod continuing;
pub mod credential;
pub mod find;
pub mod logs;
pub mod manifest;
pub mod request;
pub mod run;
pub mod runs;
pub mod version;
