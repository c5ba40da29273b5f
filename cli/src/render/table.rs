//! Tables as kubectl prints them: upper-case headings, three spaces between columns, no lines.

use super::clean::one_line;

/// Longest cell, in characters.
const MAX_CELL: usize = 80;

/// A table. Rows may be shorter than the headings.
#[must_use]
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| one_line(cell, MAX_CELL)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut text = line(&widths, headings.iter().copied());
    for row in &rows {
        text.push_str(&line(&widths, row.iter().map(String::as_str)));
    }
    text
}

fn line<'a>(widths: &[usize], cells: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for (width, cell) in widths.iter().zip(cells) {
        text.push_str(&format!("{cell:<width$}   "));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = vec![vec!["a".into(), "x\u{1b}[0m\ny".into()], vec!["longer".into(), String::new()]];
        assert_eq!(table(&["RUN", "INPUT"], &rows), "RUN      INPUT\na        x[0m y\nlonger\n");
        assert_eq!(table(&["RUN"], &[]), "RUN\n");
    }
}
