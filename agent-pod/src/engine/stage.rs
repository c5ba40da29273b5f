//! Files that come with runs: into the workspace where there is one, else into the user's message.

use std::collections::{BTreeSet, HashSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cadre_protocol::agent::OnWorkspaceLoss;
use cadre_protocol::exec::{CHUNK_BYTES, ExecBody, ExecOp};
use cadre_protocol::message::{Message, Role};
use cadre_protocol::run::Attachment;

use super::bounds;
use super::ends::Stop;
use super::ports::Workspace;
use super::turn::Turn;
use super::uploads::{self, Later, Old, Touches};

/// Bytes of one file that are put into the message.
const INLINE_BYTES: usize = 64 << 10;
/// Bytes of all files that are put into the message.
const INLINE_TOTAL_BYTES: usize = 256 << 10;
/// Kind of failure of a file that can't be had or put into place.
const UNSTAGED: &str = "attachment_error";

/// What became of files that a new workspace should have got again.
#[derive(Debug, Default)]
pub(super) struct Uploaded {
    /// Not there.
    pub(super) absent: BTreeSet<String>,
    /// As they were uploaded: later changes are gone.
    pub(super) reset: BTreeSet<String>,
}

impl Turn {
    /// What the user said, with word of the files that came with it.
    pub(super) async fn user_message(&self) -> Result<Message, Stop> {
        let input = &self.assignment.input;
        let mut text = input.text.clone();
        let mut left = INLINE_TOTAL_BYTES;
        for file in &input.files {
            let title = format!("{} ({}, {} bytes)", file.name, file.media_type, file.size);
            let note = if self.host.workspace.is_some() {
                format!("[File in the workspace: {}; {title}]", uploads::path(file))
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

    /// Brings the run's files into the workspace, and into a new one also those of earlier runs. What is there stays as
    /// the agent left it, and what the agent removed stays away.
    pub(super) async fn stage_files(&mut self) -> Result<(), Stop> {
        let assignment = self.assignment.clone();
        let has_files = !assignment.input.files.is_empty() || !assignment.uploads.is_empty();
        let Some(workspace) = self.host.workspace.clone().filter(|_| has_files) else { return Ok(()) };
        self.journal.send();
        let workspace_id =
            workspace.ready().await.map_err(|lost| Stop::failed("sandbox_unavailable", &lost.reason, true))?;
        let brought = workspace.brought();
        let plan = uploads::plan(&assignment, self.is_new, |file| brought.has(&workspace_id, file));
        for file in plan.fresh {
            self.stage(&*workspace, file).await?;
            brought.add(&workspace_id, file);
        }
        if plan.old.is_empty() {
            return Ok(());
        }
        let missing = missing(&*workspace, &plan.old).await?;
        let touches = Touches::of(&assignment);
        let mut left = uploads::MAX_BYTES;
        for old in plan.old {
            let is_there = !missing.contains(&uploads::path(old.file));
            if is_there || self.bring_again(&*workspace, &old, touches.after(&old), &mut left).await? {
                brought.add(&workspace_id, old.file);
            }
        }
        Ok(())
    }

    /// Brings a file that a workspace lacks, if it should. False when that is to be tried again by the next turn.
    async fn bring_again(
        &mut self,
        workspace: &dyn Workspace,
        old: &Old<'_>,
        later: Later,
        left: &mut u64,
    ) -> Result<bool, Stop> {
        let path = uploads::path(old.file);
        // Where a loss ends the run, the first version in the place of the last one would hide it.
        let keeps_away = self.assignment.agent.on_workspace_loss == OnWorkspaceLoss::Fail;
        match later {
            Later::Removed => return Ok(true),
            Later::Written if keeps_away => return Ok(true),
            Later::Written | Later::Nothing => {}
        }
        if old.run_seq.is_some() {
            let Some(rest) = left.checked_sub(old.file.size) else {
                self.uploads.absent.insert(path);
                return Ok(true);
            };
            *left = rest;
        }
        match self.stage(workspace, old.file).await {
            Ok(()) => {}
            // An earlier run's file is not worth this one's end: the model is told.
            Err(Stop::Failed { failure, .. }) if old.run_seq.is_some() && failure.error_type == UNSTAGED => {
                tracing::warn!(run_id = %self.assignment.run_id, error = %failure.message, "an earlier file is not there");
                self.uploads.absent.insert(path);
                return Ok(false);
            }
            Err(stop) => return Err(stop),
        }
        self.uploads.absent.remove(&path);
        if later == Later::Written {
            self.uploads.reset.insert(path);
        }
        Ok(true)
    }

    async fn stage(&self, workspace: &dyn Workspace, file: &Attachment) -> Result<(), Stop> {
        let mut offset = 0;
        loop {
            let (bytes, last) = self.bytes(file, offset).await?;
            let is_empty_file = bytes.is_empty() && offset == 0;
            let pieces = bytes.chunks(CHUNK_BYTES).chain(is_empty_file.then_some(&[][..]));
            for piece in pieces {
                let op = ExecOp::Stage { path: uploads::path(file), offset, data: STANDARD.encode(piece) };
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
        let failed = |why: &str| Stop::failed(UNSTAGED, format!("{}: {why}", file.name), true);
        let chunk = self.host.blobs.chunk(&file.digest, offset).await.map_err(|why| failed(&why))?;
        let bytes = STANDARD.decode(&chunk.data).map_err(|_| failed("its bytes are not readable"))?;
        Ok((bytes, chunk.last))
    }
}

async fn request(workspace: &dyn Workspace, op: ExecOp) -> Result<ExecBody, Stop> {
    workspace.request(op).await.map_err(|lost| Stop::failed("sandbox_unavailable", &lost.reason, true))
}

/// Those of the files that are not there.
async fn missing(workspace: &dyn Workspace, files: &[Old<'_>]) -> Result<HashSet<String>, Stop> {
    let paths = files.iter().map(|old| uploads::path(old.file)).collect();
    match request(workspace, ExecOp::Missing { paths }).await? {
        ExecBody::Missing { paths } => Ok(paths.into_iter().collect()),
        other => Err(refused(&other)),
    }
}

fn refused(body: &ExecBody) -> Stop {
    let why = match body {
        ExecBody::Failed { message, .. } => bounds::prefix(message, 500),
        _ => "the sandbox gave an answer that does not fit",
    };
    Stop::failed(UNSTAGED, format!("A file could not be put into the workspace: {why}"), false)
}

fn is_text(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let known = ["application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml"];
    essence.starts_with("text/")
        || known.contains(&essence.as_str())
        || essence.ends_with("+json")
        || essence.ends_with("+xml")
}
