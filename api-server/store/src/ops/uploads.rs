//! Files that came with the runs of a session, for a workspace that has to get them again.

use std::collections::HashSet;

use cadre_protocol::ids::SessionId;
use cadre_protocol::run::{Attachment, RunInput, Upload, Uploads};

use crate::db::{Db, DbError, vals};

/// A run that was put into its line again, or goes on from another one, has its files from where it began. What never
/// started brought nothing into a workspace.
const EARLIER: &str = "select coalesce(base_seq, seq), files from runs where session_id = ?1 and seq < ?2 \
     and files is not null and started_at_ms is not null order by seq desc limit ?3";

/// What is stored of a run's files beside its input: nothing for most runs, so that the others are found at once.
pub fn column(input: &RunInput) -> Result<Option<String>, DbError> {
    let files = (!input.files.is_empty()).then(|| serde_json::to_string(&input.files));
    Ok(files.transpose()?)
}

/// The newest files of the runs before a place in the line.
pub fn earlier(db: &mut dyn Db, session_id: &SessionId, before: u64) -> Result<Uploads, DbError> {
    // Each of these runs has a file at least.
    let rows = db.query(EARLIER, vals![session_id.as_str(), before, Uploads::MAX_FILES + 1])?;
    let mut truncated = rows.len() > Uploads::MAX_FILES;
    let mut all = Vec::new();
    for mut row in rows {
        let (run_seq, files): (u64, Vec<Attachment>) = (row.u64()?, row.json()?);
        all.extend(files.into_iter().map(|file| Upload { run_seq, file }));
    }
    all.sort_by_key(|upload| std::cmp::Reverse(upload.run_seq));
    let mut names = HashSet::new();
    all.retain(|upload| names.insert(upload.file.name.clone()));
    truncated |= all.len() > Uploads::MAX_FILES;
    all.truncate(Uploads::MAX_FILES);
    Ok(Uploads { files: all, truncated })
}
