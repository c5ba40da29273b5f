//! OpenAI Chat Completions, and the servers that speak it more or less.

mod assembly;
mod body;

pub(super) use assembly::Assembly;
pub(super) use body::body;
