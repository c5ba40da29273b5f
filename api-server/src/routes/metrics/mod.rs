//! Usage by day. Counters for Prometheus are on the admin port.

pub mod days;
pub mod refresh;

use crate::routes::fields::Fields;

/// Milliseconds of a day.
const DAY_MS: i64 = 86_400_000;

/// A date of the query (`YYYY-MM-DD`), in days since 1970. One before that is 1970's first.
pub fn date(query: &mut Fields, name: &str) -> Option<u64> {
    let text = query.text(name)?.to_owned();
    let parsed = text.parse::<jiff::civil::Date>().ok();
    let at = parsed.and_then(|date| date.to_zoned(jiff::tz::TimeZone::UTC).ok());
    let Some(at) = at else {
        let message = "Input should be a valid date in the format YYYY-MM-DD";
        query.fail("date_from_datetime_parsing", name, message, text.into(), None);
        return None;
    };
    Some(u64::try_from(at.timestamp().as_millisecond().div_euclid(DAY_MS)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_days_since_1970() {
        let read = |text: &str| {
            let mut query = Fields::of_query(vec![("d".into(), text.into())]);
            let day = date(&mut query, "d");
            (day, query.finish().is_ok())
        };
        assert_eq!(read("2024-10-04"), (Some(20_000), true));
        assert_eq!(read("1969-12-31"), (Some(0), true));
        assert_eq!(read(""), (None, true));
        for bad in ["2024-13-01", "yesterday", "20000", "2024-10-04T00:00:00 x"] {
            assert_eq!(read(bad), (None, false), "{bad}");
        }
    }
}
