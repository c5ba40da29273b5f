//! The untrusted side of an agent pod, and the engine's client for it.
//!
//! `server` runs in the sandbox container: it starts commands, reads and writes the workspace. `client` runs in the
//! engine container: it listens on a Unix socket, accepts one connection at a time, and treats everything that comes
//! over it as untrusted input. `orphans` is for a process that starts servers itself. `install` puts the program into a user's image. Knows no HTTP and no Kubernetes.

pub mod client;
pub mod frame;
pub mod install;
mod process;
pub mod room;
pub mod server;
mod workspace;

pub use install::install;
pub use process::orphans;
