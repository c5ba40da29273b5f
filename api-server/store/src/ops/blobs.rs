//! Blobs, in rows of a mebibyte.

use cadre_protocol::ids::BlobDigest;

use crate::db::{Db, DbError, vals};
use crate::ops::allowances::Allowances;
use crate::rows::{BlobKey, BlobRange};
use crate::shares::BlobPlace;

const INSERT: &str = "insert into blobs (session_id, namespace, digest, size, created_at_ms) values (?1, ?2, ?3, ?4, ?5) \
     on conflict (session_id, digest) do nothing";
const OF_NAMESPACE: &str = "select cast(coalesce(sum(size), 0) as bigint) from blobs where namespace = ?1";
const INSERT_CHUNK: &str = "insert into blob_chunks (session_id, digest, chunk, bytes) values (?1, ?2, ?3, ?4)";
const REFRESH: &str = "update blobs set created_at_ms = ?3 where session_id = ?1 and digest = ?2";
const IS_NAMED: &str = "select 1 from runs where session_id = ?1 and input like '%' || ?2 || '%' limit 1";
const FORGET: &str = "delete from blobs where session_id = ?1 and digest = ?2 and created_at_ms < ?3";
const FORGET_CHUNKS: &str = "delete from blob_chunks where session_id = ?1 and digest = ?2";
const ORPHANS: &str = "select b.session_id, b.digest from blobs b where b.created_at_ms < ?1 and b.created_at_ms >= ?2 \
     and not exists (select 1 from sessions s where s.session_id = b.session_id) limit ?3";
const SIZE: &str = "select size from blobs where session_id = ?1 and digest = ?2";
const CHUNKS: &str = "select chunk, bytes from blob_chunks where session_id = ?1 and digest = ?2 and chunk >= ?3 \
     and chunk <= ?4 order by chunk";

const DAY_MS: u64 = 24 * 3_600_000;

/// Bytes of a row.
const CHUNK_BYTES: usize = 1 << 20;

/// Stores bytes under their digest. False when the namespace has no room for them.
pub fn put(
    db: &mut dyn Db,
    allowed: &Allowances,
    place: &BlobPlace,
    digest: &BlobDigest,
    bytes: &[u8],
    at_ms: u64,
) -> Result<bool, DbError> {
    let BlobPlace { session_id, namespace, max_bytes } = place;
    let (session_id, digest) = (session_id.as_str(), digest.as_str());
    // Whoever names it next must find it: what was stored lately is not forgotten.
    if db.execute(REFRESH, vals![session_id, digest, at_ms])? > 0 {
        return Ok(true);
    }
    if !has_room(db, allowed, namespace, bytes.len() as u64, *max_bytes, at_ms)? {
        return Ok(false);
    }
    if db.execute(INSERT, vals![session_id, namespace, digest, bytes.len(), at_ms])? == 0 {
        return Ok(true);
    }
    for (number, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
        db.write(INSERT_CHUNK, vals![session_id, digest, number, chunk])?;
    }
    Ok(true)
}

/// Whether a namespace may store so many more bytes, given its most; 0 means no limit.
pub fn has_room(
    db: &mut dyn Db,
    allowed: &Allowances,
    namespace: &str,
    bytes: u64,
    most: u64,
    at_ms: u64,
) -> Result<bool, DbError> {
    let used = || db.first(OF_NAMESPACE, vals![namespace])?.map_or(Ok(0), |mut row| row.u64());
    if most == 0 { Ok(true) } else { allowed.admit(namespace, bytes, most, at_ms, used) }
}

/// Removes a file that no run of its session names, unless it was stored since `before_ms`.
pub fn forget(db: &mut dyn Db, session_id: &str, digest: &str, before_ms: u64) -> Result<(), DbError> {
    let is_named = db.first(IS_NAMED, vals![session_id, digest])?.is_some();
    if !is_named && db.execute(FORGET, vals![session_id, digest, before_ms])? > 0 {
        db.write(FORGET_CHUNKS, vals![session_id, digest])?;
    }
    Ok(())
}

/// Removes files of sessions that never came to be, because their run was refused; answers how many.
pub fn forget_orphans(db: &mut dyn Db, now_ms: u64, limit: u32) -> Result<u64, DbError> {
    let (until, since) = (now_ms.saturating_sub(DAY_MS), now_ms.saturating_sub(8 * DAY_MS));
    let rows = db.query(ORPHANS, vals![until, since, limit])?;
    let count = rows.len() as u64;
    for mut row in rows {
        let (session_id, digest) = (row.text()?, row.text()?);
        forget(db, &session_id, &digest, until)?;
    }
    Ok(count)
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
