//! Blobs, in rows of a mebibyte.

use cadre_protocol::ids::{BlobDigest, SessionId};

use crate::db::{Db, DbError, vals};
use crate::rows::{BlobKey, BlobRange};

const INSERT: &str = "insert into blobs (session_id, digest, size, created_at_ms) values (?1, ?2, ?3, ?4) \
     on conflict (session_id, digest) do nothing";
const INSERT_CHUNK: &str = "insert into blob_chunks (session_id, digest, chunk, bytes) values (?1, ?2, ?3, ?4)";
const SIZE: &str = "select size from blobs where session_id = ?1 and digest = ?2";
const CHUNKS: &str = "select chunk, bytes from blob_chunks where session_id = ?1 and digest = ?2 and chunk >= ?3 \
     and chunk <= ?4 order by chunk";

/// Bytes of a row.
const CHUNK_BYTES: usize = 1 << 20;

/// Stores bytes under their digest.
pub fn put(
    db: &mut dyn Db,
    session_id: &SessionId,
    digest: &BlobDigest,
    bytes: &[u8],
    at_ms: u64,
) -> Result<(), DbError> {
    let (session_id, digest) = (session_id.as_str(), digest.as_str());
    if db.execute(INSERT, vals![session_id, digest, bytes.len(), at_ms])? == 0 {
        return Ok(());
    }
    for (number, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
        db.write(INSERT_CHUNK, vals![session_id, digest, number, chunk])?;
    }
    Ok(())
}

/// A part of a blob.
pub fn get(db: &mut dyn Db, key: &BlobKey, offset: u64, max_bytes: usize) -> Result<Option<BlobRange>, DbError> {
    let (session_id, digest) = (key.session_id.as_str(), key.digest.as_str());
    let Some(mut row) = db.first(SIZE, vals![session_id, digest])? else { return Ok(None) };
    let total = row.u64()?;
    let end = offset.saturating_add(max_bytes as u64).min(total);
    if offset >= end {
        return Ok(Some(BlobRange { bytes: Vec::new(), total }));
    }
    let size = CHUNK_BYTES as u64;
    let mut bytes = Vec::with_capacity(max_bytes.min(usize::try_from(end - offset).unwrap_or(max_bytes)));
    for mut row in db.query(CHUNKS, vals![session_id, digest, offset / size, (end - 1) / size])? {
        let (start, chunk) = (row.u64()? * size, row.bytes()?);
        let from = usize::try_from(offset.saturating_sub(start)).unwrap_or(usize::MAX);
        let to = usize::try_from(end - start).unwrap_or(usize::MAX).min(chunk.len());
        bytes.extend_from_slice(chunk.get(from..to).unwrap_or_default());
    }
    Ok(Some(BlobRange { bytes, total }))
}
