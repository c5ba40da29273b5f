//! OpenAI Responses, without anything stored at the provider.

mod assembly;
mod body;

pub(super) use assembly::Assembly;
pub(super) use body::body;
