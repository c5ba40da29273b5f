//! Colours: only where a person looks on, and not against their wish.

/// Whether colours are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Style {
    colour: bool,
}

impl Style {
    /// Colours on a terminal, unless `NO_COLOR` is set to something (see no-color.org) or the terminal is `dumb`.
    #[must_use]
    pub fn choose(is_terminal: bool, no_color: Option<&str>, term: Option<&str>) -> Self {
        let unwanted = no_color.is_some_and(|value| !value.is_empty()) || term == Some("dumb");
        Self { colour: is_terminal && !unwanted }
    }

    /// In the background.
    #[must_use]
    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// A tool's name.
    #[must_use]
    pub fn name(self, text: &str) -> String {
        self.paint("36", text)
    }

    /// Good news.
    #[must_use]
    pub fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// Something to know.
    #[must_use]
    pub fn warning(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// Bad news.
    #[must_use]
    pub fn bad(self, text: &str) -> String {
        self.paint("31", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_need_a_terminal_and_no_objection() {
        for (terminal, no_color, term, coloured) in [
            (true, None, Some("xterm"), true),
            (true, Some(""), None, true),
            (true, Some("1"), None, false),
            (true, None, Some("dumb"), false),
            (false, None, Some("xterm"), false),
        ] {
            let painted = Style::choose(terminal, no_color, term).bad("x");
            assert_eq!(painted != "x", coloured, "{terminal} {no_color:?} {term:?}");
        }
    }
}
