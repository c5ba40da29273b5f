//! Joining the chunks of a run that has ended: a run of many small appends is read again with few rows.
//!
//! Bytes and numbers stay what they are, so a reader can't tell. Each join is a transaction of its own: a process that
//! is killed half-way leaves some chunks small.

use cadre_protocol::ids::{RunId, SessionId};

use crate::db::{Db, DbError, vals};

const ENDED: &str = "select session_id from runs where run_id = ?1 and finished_at_ms is not null";
const SIZES: &str =
    "select first_index, next_index, octet_length(frames) from events where run_id = ?1 order by first_index";
const CHUNKS: &str = "select first_index, next_index, frames from events where run_id = ?1 and first_index >= ?2 \
     and first_index < ?3 order by first_index";
const WIDEN: &str = "update events set next_index = ?3, frames = ?4, run_bytes = (select max(run_bytes) from events \
     where run_id = ?1 and first_index >= ?2 and first_index < ?3) where run_id = ?1 and first_index = ?2";
const DROP: &str = "delete from events where run_id = ?1 and first_index > ?2 and first_index < ?3";

/// Largest chunk that is made: what is read at a time.
const MAX_BYTES: u64 = 256 << 10;
/// A journal of fewer chunks is read fast enough.
const MIN_CHUNKS: usize = 16;

/// Entries from a number up to another, in several chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    first_index: u64,
    next_index: u64,
}

/// What there is to join, and the run's session. None: the run goes on, or its chunks are few.
pub fn plan(db: &mut dyn Db, run_id: &RunId) -> Result<Option<(SessionId, Vec<Span>)>, DbError> {
    let Some(mut row) = db.first(ENDED, vals![run_id.as_str()])? else { return Ok(None) };
    let session_id = row.id()?;
    let mut chunks = Vec::new();
    for mut row in db.query(SIZES, vals![run_id.as_str()])? {
        chunks.push((Span { first_index: row.u64()?, next_index: row.u64()? }, row.u64()?));
    }
    let spans = if chunks.len() < MIN_CHUNKS { Vec::new() } else { spans(&chunks) };
    Ok((!spans.is_empty()).then_some((session_id, spans)))
}

/// Neighbours that fit into one chunk, as many as possible at a time.
fn spans(chunks: &[(Span, u64)]) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut open: Option<(Span, u64, usize)> = None;
    for &(chunk, bytes) in chunks {
        match &mut open {
            Some((span, sum, count)) if *sum + bytes <= MAX_BYTES && span.next_index == chunk.first_index => {
                (span.next_index, *sum, *count) = (chunk.next_index, *sum + bytes, *count + 1);
            }
            _ => spans.extend(open.replace((chunk, bytes, 1))),
        }
    }
    spans.extend(open);
    spans.into_iter().filter(|(.., count)| *count > 1).map(|(span, ..)| span).collect()
}

/// Makes one chunk of a span, if the run has still ended and nobody else has joined any of it.
pub fn join(db: &mut dyn Db, run_id: &RunId, span: Span) -> Result<(), DbError> {
    let Span { first_index, next_index } = span;
    db.lock_run(run_id.as_str())?;
    if db.first(ENDED, vals![run_id.as_str()])?.is_none() {
        return Ok(());
    }
    let (mut frames, mut begin, mut end) = (String::new(), None, first_index);
    db.spans(CHUNKS, vals![run_id.as_str(), first_index, next_index], &mut |first, next, text| {
        begin = begin.or(Some(first));
        end = next;
        frames.push_str(text);
        true
    })?;
    if begin != Some(first_index) || end != next_index {
        return Ok(());
    }
    db.write(WIDEN, vals![run_id.as_str(), first_index, next_index, &frames])?;
    db.write(DROP, vals![run_id.as_str(), first_index, next_index])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first_index: u64, next_index: u64) -> Span {
        Span { first_index, next_index }
    }

    #[test]
    fn neighbours_go_together_as_far_as_they_fit() {
        let half = MAX_BYTES / 2;
        let chunks = [
            (span(0, 2), half),
            (span(2, 3), half),
            (span(3, 4), 1),
            (span(4, 9), MAX_BYTES),
            (span(9, 10), half),
            (span(10, 11), 0),
            (span(11, 12), half),
        ];
        assert_eq!(spans(&chunks), [span(0, 3), span(9, 12)]);
        assert_eq!(spans(&[]), []);
    }
}
