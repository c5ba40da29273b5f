//! Commands: starting them, collecting what they print, and ending them with everything they started.

mod capture;
mod command;
pub mod orphans;
mod procfs;
mod tree;

pub(crate) use command::{Command, Shell, Site};
pub(crate) use tree::{Processes, supervise};
