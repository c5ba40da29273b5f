//! Frames between the engine and exec-server in the sandbox container.
//!
//! A Unix socket that the engine listens on; length-prefixed (u32, big endian) JSON of at most
//! [`MAX_FRAME_BYTES`]. All that exec-server says is untrusted input to the engine: bounded, and never a source of
//! status, usage, cost or approvals (security rule 11).

use serde::{Deserialize, Serialize};

use crate::tool::WorkspaceEffect;

/// Version of these frames.
pub const VERSION: u32 = 1;
/// Largest frame, in bytes.
pub const MAX_FRAME_BYTES: usize = 1 << 20;
/// Largest piece of a file in one frame, in bytes before encoding.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Most output bytes that a command's result carries, for each of stdout and stderr.
pub const MAX_OUTPUT_BYTES: usize = 256 << 10;

/// From the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// Number of the request; its responses carry it.
    pub id: u64,
    /// What to do.
    pub op: ExecOp,
}

/// What exec-server can do. Paths are relative to the workspace and may not leave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "camelCase")]
pub enum ExecOp {
    /// First request: kills process groups of older epochs. Answered by `Ready`.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The engine's epoch.
        epoch: u64,
    },
    /// Runs a command with `bash -c` (or `sh`) in a process group of its own. Answered by `Exited`.
    Run {
        /// The command.
        command: String,
        /// Working directory.
        #[serde(default)]
        cwd: Option<String>,
        /// Milliseconds until the process group is killed.
        timeout_ms: u64,
        /// Most bytes kept of each stream (head and tail).
        max_output_bytes: usize,
    },
    /// Kills the process group of a running request. That request is answered as killed.
    Kill {
        /// The request.
        target: u64,
    },
    /// Lists a folder. Answered by `Listing`.
    List {
        /// Folder.
        path: String,
        /// Whether to descend.
        recursive: bool,
        /// Most entries.
        limit: usize,
    },
    /// Reads a text file by lines. Answered by `Text`.
    Read {
        /// File.
        path: String,
        /// First line, from 1.
        first_line: usize,
        /// Most lines.
        max_lines: usize,
    },
    /// Writes a whole file, creating folders. Answered by `Done`.
    Write {
        /// File.
        path: String,
        /// Content.
        content: String,
    },
    /// Replaces text in a file. Answered by `Done`.
    Edit {
        /// File.
        path: String,
        /// Text to replace; must occur exactly once unless `all`.
        old: String,
        /// Replacement.
        new: String,
        /// Replace every occurrence.
        all: bool,
    },
    /// Searches file contents. Answered by `Matches`.
    Search {
        /// Regular expression (linear time).
        pattern: String,
        /// Folder.
        path: String,
        /// File name pattern, for example `*.rs`.
        #[serde(default)]
        glob: Option<String>,
        /// Most matches.
        limit: usize,
    },
    /// Writes a piece of an attachment below `uploads/`. Answered by `Done`.
    Stage {
        /// File.
        path: String,
        /// Where the piece goes; 0 truncates.
        offset: u64,
        /// Bytes, base64.
        data: String,
    },
    /// Which of these files are missing. Answered by `Missing`.
    Missing {
        /// Files.
        paths: Vec<String>,
    },
}

/// To the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecResponse {
    /// The request's number.
    pub id: u64,
    /// The answer.
    pub body: ExecBody,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "body", rename_all = "camelCase")]
pub enum ExecBody {
    /// To `Hello`.
    Ready {
        /// Identity of the workspace, kept in a file outside the agent's reach where possible.
        workspace_id: String,
    },
    /// To `Run`.
    Exited {
        /// Exit code, when it ended by itself.
        code: Option<i32>,
        /// Signal, when one ended it.
        signal: Option<i32>,
        /// Whether the time-out ended it.
        timed_out: bool,
        /// Whether a `Kill` ended it.
        killed: bool,
        /// What it filled, in words, when it was ended for that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        full: Option<String>,
        /// Standard output, lossy UTF-8.
        stdout: String,
        /// Standard error, lossy UTF-8.
        stderr: String,
        /// Whether output was cut.
        truncated: bool,
        /// Changes to the workspace.
        effect: WorkspaceEffect,
    },
    /// To `List`.
    Listing {
        /// Entries, sorted by path.
        entries: Vec<FileEntry>,
        /// Whether there are more.
        truncated: bool,
    },
    /// To `Read`.
    Text {
        /// The lines.
        text: String,
        /// Lines of the file.
        total_lines: usize,
        /// Whether lines were left off or cut.
        truncated: bool,
    },
    /// To `Search`.
    Matches {
        /// `path:line: text`.
        lines: Vec<String>,
        /// Whether there are more.
        truncated: bool,
    },
    /// To `Missing`.
    Missing {
        /// Those that are not there.
        paths: Vec<String>,
    },
    /// To what has no other answer.
    Done {
        /// Changes to the workspace.
        effect: WorkspaceEffect,
    },
    /// The request could not be carried out.
    Failed {
        /// Stable code.
        code: ExecErrorCode,
        /// For the model.
        message: String,
    },
}

/// A file or folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path relative to the workspace.
    pub path: String,
    /// Whether it is a folder.
    pub directory: bool,
    /// Bytes.
    pub size: u64,
}

/// Why a request could not be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecErrorCode {
    /// The path leaves the workspace, or is no valid path.
    InvalidPath,
    /// No such file.
    NotFound,
    /// Not a text file, not a folder, or the like.
    WrongKind,
    /// The edit does not match exactly once.
    NoMatch,
    /// A limit of the workspace or of a request.
    TooLarge,
    /// A bad pattern.
    InvalidPattern,
    /// The command could not be started.
    Spawn,
    /// Anything else of the operating system.
    Io,
}
