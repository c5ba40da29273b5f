//! Lists of sessions: filters, orders, pages.

use crate::db::{Db, DbError, Val};
use crate::ops::columns::{self, session_columns};
use crate::rows::SessionRow;
use crate::rows::sessions::{SessionFilter, SessionOrder};

const SESSIONS: &str = concat!("select ", session_columns!(), " from sessions");
const COUNT: &str = "select count(*) from sessions";

/// Most rows of a list.
const MAX_LIST: u64 = 1_000;

/// A page of the sessions that match, with the number of all.
pub fn sessions(db: &mut dyn Db, filter: &SessionFilter) -> Result<(Vec<SessionRow>, u64), DbError> {
    let SessionFilter { principal, component, user_id, name_part, order, ascending, offset, limit } = filter;
    let part = name_part.as_deref().map(like);
    let mut clauses: Vec<String> = Vec::new();
    let mut values: Vec<Val<'_>> = Vec::new();
    let mut wants = |condition: &str, value| {
        values.push(value);
        clauses.push(format!("{condition} ?{}", values.len()));
    };
    if let Some(principal) = principal {
        wants("principal =", Val::from(&principal.0));
    }
    if let Some(component) = component {
        wants("namespace =", Val::from(&component.namespace));
        wants("name =", Val::from(&component.name));
        wants("kind =", Val::from(component.kind.as_str()));
    }
    if let Some(user_id) = user_id {
        wants("user_id =", Val::from(user_id));
    }
    if let Some(part) = &part {
        wants(&format!("{} like", db.ascii_lower("title")), Val::from(part));
    }
    let escape = if part.is_some() { " escape '!'" } else { "" };
    let condition =
        if clauses.is_empty() { String::new() } else { format!(" where {}{escape}", clauses.join(" and ")) };
    let total = db.first(&format!("{COUNT}{condition}"), &values)?;
    let total = total.map_or(Ok(0), |mut row| row.u64())?;
    let (limit_at, offset_at) = (values.len() + 1, values.len() + 2);
    values.extend([Val::from((*limit).min(MAX_LIST)), Val::from(*offset)]);
    let order = order_by(*order, *ascending);
    let rows = db.query(&format!("{SESSIONS}{condition} {order} limit ?{limit_at} offset ?{offset_at}"), &values)?;
    let sessions = rows.into_iter().map(|mut row| columns::session(&mut row)).collect::<Result<_, _>>()?;
    Ok((sessions, total))
}

fn order_by(order: SessionOrder, ascending: bool) -> String {
    let column = match order {
        SessionOrder::Created => "created_at_ms",
        SessionOrder::Updated => "updated_at_ms",
        SessionOrder::Name => "title",
    };
    let direction = if ascending { "asc" } else { "desc" };
    format!("order by {column} {direction}, session_id {direction}")
}

/// A pattern that matches texts which contain `part`.
fn like(part: &str) -> String {
    let mut pattern = String::from("%");
    for c in part.chars() {
        if matches!(c, '%' | '_' | '!') {
            pattern.push('!');
        }
        pattern.push(c.to_ascii_lowercase());
    }
    pattern.push('%');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_name_is_taken_literally() {
        assert_eq!(like("50%_A!"), "%50!%!_a!!%");
    }
}
