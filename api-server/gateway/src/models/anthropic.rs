//! Anthropic Messages.

mod assembly;
mod body;

pub(super) use assembly::Assembly;
pub(super) use body::body;
