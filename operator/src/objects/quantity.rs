//! Amounts as numbers, as far as the CRDs' pattern allows them.

/// An amount in thousandths of its unit: of a core, or of a byte. None when it is no amount.
#[must_use]
pub fn thousandths(text: &str) -> Option<u128> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let factor: u128 = match suffix {
        "m" => 1,
        "" => 1000,
        "k" => 1000 * 1000,
        "M" => 1000 * 1000_u128.pow(2),
        "G" => 1000 * 1000_u128.pow(3),
        "T" => 1000 * 1000_u128.pow(4),
        "P" => 1000 * 1000_u128.pow(5),
        "E" => 1000 * 1000_u128.pow(6),
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        "Pi" => 1000 << 50,
        "Ei" => 1000 << 60,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.parse::<u128>().ok()?.checked_mul(factor)?;
    // Nine digits are more than any amount of bytes needs.
    let fraction = fraction.get(..9).unwrap_or(fraction);
    let divisor = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = if fraction.is_empty() { 0 } else { fraction.parse::<u128>().ok()?.checked_mul(factor)? / divisor };
    whole.checked_add(part)
}

/// An amount in whole bytes, rounded up.
#[must_use]
pub fn bytes(text: &str) -> Option<u128> {
    thousandths(text).map(|amount| amount.div_ceil(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("500m", Some(500)),
            ("2", Some(2000)),
            ("0.5", Some(500)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("1k", Some(1_000_000)),
            ("1Ei", Some(1_152_921_504_606_846_976_000)),
            ("1x", None),
            ("", None),
        ] {
            assert_eq!(thousandths(text), expected, "{text}");
        }
        assert_eq!(bytes("1Gi"), Some(1 << 30));
    }
}
