//! exec-server: dials the engine's socket and does what it asks. Filled by the next commits of this folder.
use std::path::PathBuf;
/// Settings of exec-server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The engine's Unix socket.
    pub socket: PathBuf,
    /// The workspace folder.
    pub workspace: PathBuf,
    /// `HOME` of commands.
    pub home: PathBuf,
    /// `TMPDIR` of commands.
    pub tmp: PathBuf,
    /// User and group that commands run as; `None` keeps the server's own.
    pub run_as: Option<(u32, u32)>,
    /// Shell that runs commands with `-c`; `None` takes `bash`, or `sh` where there is none.
    pub shell: Option<PathBuf>,
}
