//! Values on their way to PostgreSQL and back.

use std::error::Error;

use bytes::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::db::{Cell, DbError, Row, Val};

/// A value that is kept until its statement is sent.
#[derive(Debug)]
pub enum Owned {
    /// NULL.
    Null,
    /// A bigint.
    Int(i64),
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl From<&Val<'_>> for Owned {
    fn from(value: &Val<'_>) -> Self {
        match value {
            Val::Null => Self::Null,
            Val::Int(n) => Self::Int(*n),
            // PostgreSQL has no NUL in texts; JSON never has one, ids neither.
            Val::Text(text) if text.contains('\0') => Self::Text(text.replace('\0', "\u{fffd}")),
            Val::Text(text) => Self::Text((*text).to_owned()),
            Val::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
        }
    }
}

impl ToSql for Owned {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match (self, ty) {
            (Self::Null, _) => return Ok(IsNull::Yes),
            (Self::Int(n), &Type::INT8) => out.extend_from_slice(&n.to_be_bytes()),
            (Self::Int(n), &Type::INT4) => out.extend_from_slice(&i32::try_from(*n)?.to_be_bytes()),
            (Self::Text(text), &Type::TEXT | &Type::VARCHAR) => out.extend_from_slice(text.as_bytes()),
            (Self::Bytes(bytes), &Type::BYTEA) => out.extend_from_slice(bytes),
            (value, ty) => return Err(format!("{value:?} does not go into {ty}").into()),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// Reads a row.
pub fn row(row: &tokio_postgres::Row) -> Result<Row, DbError> {
    let wrong = |error: tokio_postgres::Error| DbError::Corrupt(error.to_string());
    let mut cells = Vec::with_capacity(row.len());
    for (index, column) in row.columns().iter().enumerate() {
        let cell = match *column.type_() {
            Type::INT8 => row.try_get::<_, Option<i64>>(index).map_err(wrong)?.map(Cell::Int),
            Type::INT4 => row.try_get::<_, Option<i32>>(index).map_err(wrong)?.map(|n| Cell::Int(n.into())),
            Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(index).map_err(wrong)?.map(Cell::Bytes),
            Type::TEXT | Type::VARCHAR => row.try_get::<_, Option<String>>(index).map_err(wrong)?.map(Cell::Text),
            ref other => return Err(DbError::Corrupt(format!("a column has the unknown type {other}"))),
        };
        cells.push(cell.unwrap_or(Cell::Null));
    }
    Ok(Row::new(cells))
}
