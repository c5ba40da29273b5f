//! Runs as server-sent events.
//!
//! Chunks come out of the record as the bytes that go out; what is done here is cutting, control frames and keep-alive.
//! Must not know routes or the store.

pub mod body;
pub mod frames;
pub mod resume;
pub mod shares;
