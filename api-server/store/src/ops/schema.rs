//! The schema's version.

use crate::db::{Db, DbError, vals};
use crate::error::StoreError;

const TABLE: &str = "create table if not exists schema_versions (version bigint not null primary key, \
     applied_at_ms bigint not null)";
const INSERT: &str = "insert into schema_versions (version, applied_at_ms) values (?1, ?2)";

fn wanted(db: &dyn Db) -> i64 {
    i64::try_from(db.migrations().len()).unwrap_or(i64::MAX)
}

/// Compares the database's version with this program's.
pub fn check(db: &mut dyn Db) -> Result<Result<(), StoreError>, DbError> {
    let (found, wanted) = (db.schema_version()?, wanted(db));
    Ok(match found.cmp(&wanted) {
        std::cmp::Ordering::Less => Err(StoreError::MigrationRequired { found, wanted }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(StoreError::SchemaTooNew { found, wanted }),
    })
}

/// Applies the next migration; false when there is none. One transaction each.
pub fn migrate_one(db: &mut dyn Db, at_ms: u64) -> Result<bool, DbError> {
    db.lock_schema()?;
    let (found, wanted) = (db.schema_version()?, wanted(db));
    if found > wanted {
        return Err(DbError::TooNew { found, wanted });
    }
    let next = usize::try_from(found).ok().and_then(|number| db.migrations().get(number).copied());
    let Some(script) = next else { return Ok(false) };
    db.script(TABLE)?;
    db.script(script)?;
    db.write(INSERT, vals![found + 1, at_ms])?;
    Ok(true)
}
