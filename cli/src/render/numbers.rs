//! Counts, money, times and ages for people.

/// `12_345` as `12,345`.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// US dollars, with more digits for less money.
#[must_use]
pub fn dollars(amount: f64) -> String {
    let digits = if amount == 0.0 || amount >= 1.0 { 2 } else { 4 };
    if amount > 0.0 && amount < 0.0001 { "<$0.0001".to_owned() } else { format!("${amount:.digits$}") }
}

/// Seconds: `0.34 s`, `12.3 s`, `2 min 5 s`.
#[must_use]
pub fn seconds(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    if seconds < 9.995 {
        return format!("{seconds:.2} s");
    }
    if seconds < 59.95 {
        return format!("{seconds:.1} s");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is positive, and a cast saturates")]
    let whole = seconds.round() as u64;
    format!("{} min {} s", whole / 60, whole % 60)
}

/// How long ago something was, as kubectl shows it: `5s`, `3m`, `2h`, `4d`.
#[must_use]
pub fn age(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..120 => format!("{s}s"),
        s @ 120..7_200 => format!("{}m", s / 60),
        s @ 7_200..172_800 => format!("{}h", s / 3_600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.00001, 0.0123, 12.5].map(dollars), ["$0.00", "<$0.0001", "$0.0123", "$12.50"]);
        assert_eq!(
            [-1.0, 0.344, 9.996, 59.97, 125.2].map(seconds),
            ["0.00 s", "0.34 s", "10.0 s", "1 min 0 s", "2 min 5 s"]
        );
        assert_eq!([-5, 119, 120, 7_199, 7_200, 172_800].map(age), ["0s", "119s", "2m", "119m", "2h", "2d"]);
    }
}
