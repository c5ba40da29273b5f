//! Amounts of money as decimal texts, read into exact integers.

/// Decimals of an amount.
const DECIMALS: usize = 9;

/// Billionths of a US dollar, from a text such as `12.50` with at most 9 decimals. None when it is no such text, or more
/// than fits.
#[must_use]
pub fn nano_usd(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let complete = !whole.is_empty() && (!fraction.is_empty() || !text.contains('.'));
    if !complete || !digits(whole) || !digits(fraction) || fraction.len() > DECIMALS {
        return None;
    }
    format!("{whole}{fraction:0<DECIMALS$}").parse().ok()
}

/// The same as people read it: without needless zeros.
#[must_use]
pub fn usd(nano_usd: u64) -> String {
    let (whole, fraction) = (nano_usd / 1_000_000_000, nano_usd % 1_000_000_000);
    let fraction = format!("{fraction:09}");
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() { format!("${whole}") } else { format!("${whole}.{fraction}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_told_exactly() {
        for (text, expected, told) in [
            ("3", 3_000_000_000, "$3"),
            ("0.15", 150_000_000, "$0.15"),
            ("0.000000001", 1, "$0.000000001"),
            ("0", 0, "$0"),
            ("12.50", 12_500_000_000, "$12.5"),
        ] {
            assert_eq!(nano_usd(text), Some(expected), "{text}");
            assert_eq!(usd(expected), told);
        }
        for text in ["", ".5", "5.", "-1", "1e3", "1,5", "0.0000000001", "99999999999999999999", " 1", "1.2.3"] {
            assert!(nano_usd(text).is_none(), "{text}");
        }
    }
}
