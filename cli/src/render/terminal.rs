//! Where text goes: answers to standard output, everything about them to standard error.

use std::io::{self, IsTerminal as _, Write as _};

use super::events::Piece;
use super::style::Style;

/// The style for standard error, where notes go.
#[must_use]
pub fn style() -> Style {
    let (no_color, term) = (std::env::var("NO_COLOR").ok(), std::env::var("TERM").ok());
    Style::choose(io::stderr().is_terminal(), no_color.as_deref(), term.as_deref())
}

/// Writes pieces in their order.
///
/// # Errors
/// When standard output can't be written, for example because its reader has gone.
pub fn write(pieces: &[Piece]) -> io::Result<()> {
    for piece in pieces {
        match piece {
            Piece::Answer(text) => answer(text)?,
            Piece::Note(text) => note(text),
        }
    }
    Ok(())
}

/// Writes to standard output.
///
/// # Errors
/// As [`write()`].
pub fn answer(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes to standard error. Where nobody reads it, nothing is lost.
pub fn note(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
