//! Takes from text what could make a terminal lie: control characters and marks that turn the reading direction.

/// Whether a character may reach a terminal. Line breaks and tabs may.
#[must_use]
pub fn is_harmless(c: char) -> bool {
    match c {
        '\n' | '\t' => true,
        // Direction marks, embeddings, overrides and isolates.
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => false,
        // Separators that some terminals take for line breaks, and tags that nobody sees.
        '\u{2028}' | '\u{2029}' | '\u{e0000}'..='\u{e007f}' => false,
        c => !c.is_control(),
    }
}

/// The text without what is not harmless. Works on any piece of a stream: each character stands for itself.
#[must_use]
pub fn clean(text: &str) -> String {
    text.chars().filter(|c| is_harmless(*c)).collect()
}

/// The text on one line of at most `max` characters, with an ellipsis where something was left out.
#[must_use]
pub fn one_line(text: &str, max: usize) -> String {
    let mut line = String::new();
    let mut left = max;
    for word in text.split_whitespace() {
        for c in (if line.is_empty() { "" } else { " " }).chars().chain(word.chars().filter(|c| is_harmless(*c))) {
            if left == 0 {
                line.pop();
                line.push('…');
                return line;
            }
            line.push(c);
            left -= 1;
        }
    }
    line
}

/// JSON text with escapes in place of what is not harmless; the value stays the same. Such characters can only be
/// inside of strings, because JSON has no other place for them.
#[must_use]
pub fn json(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmless(c) {
            safe.push(c);
        } else {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                safe.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_a_terminal_gets_through() {
        for (bad, good) in [
            ("a\u{1b}[31mred\u{1b}[0m", "a[31mred[0m"),
            ("\u{1b}]0;title\u{7}x", "]0;titlex"),
            ("\u{9b}2Jx\u{7f}\u{0}", "2Jx"),
            ("progress\roverwritten", "progressoverwritten"),
            ("user\u{202e}txt.exe\u{202c}", "usertxt.exe"),
            ("\u{2066}a\u{2069}\u{200f}\u{061c}\u{200e}", "a"),
            ("x\u{e0041}\u{2028}y", "xy"),
            ("lines\nand\ttabs", "lines\nand\ttabs"),
            ("العربية 한국어 👩‍🚀", "العربية 한국어 👩‍🚀"),
        ] {
            assert_eq!(clean(bad), good, "{bad:?}");
        }
    }

    #[test]
    fn pieces_of_a_stream_are_cleaned_like_the_whole() {
        let text = "a\u{1b}[1mb\u{202e}c\n";
        let pieces: String = text.chars().map(|c| clean(&c.to_string())).collect();
        assert_eq!(pieces, clean(text));
    }

    #[test]
    fn one_line_is_one_line() {
        assert_eq!(one_line("  a\n b\t\u{1b}c ", 80), "a b c");
        assert_eq!(one_line("abcdef", 6), "abcdef");
        assert_eq!(one_line("abcdefg", 6), "abcde…");
        assert_eq!(one_line("ab cd", 3), "ab…");
        assert_eq!(one_line("", 3), "");
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({"a": "x\u{202e}\u{9b}\u{7f}\u{e0041}\u{1b}é"});
        let safe = json(&value.to_string());
        assert!(safe.chars().all(is_harmless), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
    }
}
