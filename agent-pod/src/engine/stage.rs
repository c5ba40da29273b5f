//! A run's input files: into the workspace where there is one, else into the user's message.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cadre_protocol::exec::{CHUNK_BYTES, ExecBody, ExecOp};
use cadre_protocol::message::{Message, Role};
use cadre_protocol::run::Attachment;

use super::bounds;
use super::ends::Stop;
use super::ports::Workspace;
use super::turn::Turn;

/// Folder of the workspace where input files are.
const UPLOADS: &str = "uploads";
/// Bytes of one file that are put into the message.
const INLINE_BYTES: usize = 64 << 10;
/// Bytes of all files that are put into the message.
const INLINE_TOTAL_BYTES: usize = 256 << 10;

impl Turn {
    /// What the user said, with word of the files that came with it.
    pub(super) async fn user_message(&self) -> Result<Message, Stop> {
        let input = &self.assignment.input;
        let mut text = input.text.clone();
        let mut left = INLINE_TOTAL_BYTES;
        for file in &input.files {
            let title = format!("{} ({}, {} bytes)", file.name, file.media_type, file.size);
            let note = if self.host.workspace.is_some() {
                format!("[File in the workspace: {}; {title}]", path(file))
            } else if is_text(&file.media_type) && left > 0 {
                let content = self.inlined(file, left.min(INLINE_BYTES)).await?;
                left = left.saturating_sub(content.len());
                format!("[File {title}]\n{content}\n[End of file {}]", file.name)
            } else {
                format!("[File {title}: its content can't be shown, as this agent has no sandbox]")
            };
            text.push_str("\n\n");
            text.push_str(&note);
        }
        Ok(Message::text(Role::User, text.trim_start_matches('\n'), (self.host.clock)()))
    }

    async fn inlined(&self, file: &Attachment, max: usize) -> Result<String, Stop> {
        let bytes = self.bytes(file, 0).await?.0;
        let text = String::from_utf8_lossy(&bytes);
        let shown = bounds::prefix(&text, max);
        let is_cut = shown.len() as u64 != file.size;
        Ok(if is_cut { format!("{shown}\n[cut here]") } else { shown.to_owned() })
    }

    /// Brings the files into the workspace. A later attempt, or a run that goes on from another one, leaves those that
    /// are there as the agent left them.
    pub(super) async fn stage_files(&mut self) -> Result<(), Stop> {
        let assignment = self.assignment.clone();
        let Some(workspace) = self.host.workspace.clone().filter(|_| !assignment.input.files.is_empty()) else {
            return Ok(());
        };
        self.journal.send();
        workspace.ready().await.map_err(|lost| Stop::failed("sandbox_unavailable", &lost.reason, true))?;
        let paths: Vec<String> = assignment.input.files.iter().map(path).collect();
        let missing = if self.is_new {
            paths
        } else {
            match request(&*workspace, ExecOp::Missing { paths }).await? {
                ExecBody::Missing { paths } => paths,
                other => return Err(refused(&other)),
            }
        };
        for file in assignment.input.files.iter().filter(|file| missing.contains(&path(file))) {
            self.stage(&*workspace, file).await?;
        }
        Ok(())
    }

    async fn stage(&self, workspace: &dyn Workspace, file: &Attachment) -> Result<(), Stop> {
        let mut offset = 0;
        loop {
            let (bytes, last) = self.bytes(file, offset).await?;
            let is_empty_file = bytes.is_empty() && offset == 0;
            let pieces = bytes.chunks(CHUNK_BYTES).chain(is_empty_file.then_some(&[][..]));
            for piece in pieces {
                let op = ExecOp::Stage { path: path(file), offset, data: STANDARD.encode(piece) };
                match request(workspace, op).await? {
                    ExecBody::Done { .. } => offset += piece.len() as u64,
                    other => return Err(refused(&other)),
                }
            }
            if last || bytes.is_empty() {
                return Ok(());
            }
        }
    }

    async fn bytes(&self, file: &Attachment, offset: u64) -> Result<(Vec<u8>, bool), Stop> {
        let failed = |why: &str| Stop::failed("attachment_error", format!("{}: {why}", file.name), true);
        let chunk = self.host.blobs.chunk(&file.digest, offset).await.map_err(|why| failed(&why))?;
        let bytes = STANDARD.decode(&chunk.data).map_err(|_| failed("its bytes are not readable"))?;
        Ok((bytes, chunk.last))
    }
}

async fn request(workspace: &dyn Workspace, op: ExecOp) -> Result<ExecBody, Stop> {
    workspace.request(op).await.map_err(|lost| Stop::failed("sandbox_unavailable", &lost.reason, true))
}

fn refused(body: &ExecBody) -> Stop {
    let why = match body {
        ExecBody::Failed { message, .. } => bounds::prefix(message, 500),
        _ => "the sandbox gave an answer that does not fit",
    };
    Stop::failed("attachment_error", format!("A file could not be put into the workspace: {why}"), false)
}

fn path(file: &Attachment) -> String {
    format!("{UPLOADS}/{}", file.name)
}

fn is_text(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let known = ["application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml"];
    essence.starts_with("text/")
        || known.contains(&essence.as_str())
        || essence.ends_with("+json")
        || essence.ends_with("+xml")
}
