//! The operator's door.
