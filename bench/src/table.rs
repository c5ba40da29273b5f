//! The table: figures by rows, sides and ratios by columns. Pure.

use std::fmt;

/// What a good figure is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// Not more than this.
    AtMost(f64),
    /// Not less than this.
    AtLeast(f64),
}

/// A figure of each side.
#[derive(Debug, Clone, Default)]
pub struct Row {
    name: String,
    unit: &'static str,
    more_is_better: bool,
    no_ratio: bool,
    own: Option<f64>,
    goal: Option<Goal>,
    wire: Option<f64>,
    peer: Option<f64>,
}

impl Row {
    /// A figure of which less is better: a time, a size.
    pub fn less(name: impl Into<String>, unit: &'static str) -> Self {
        Self { name: name.into(), unit, ..Self::default() }
    }

    /// A figure of which more is better: a rate.
    pub fn more(name: impl Into<String>, unit: &'static str) -> Self {
        Self { more_is_better: true, ..Self::less(name, unit) }
    }

    /// A figure of which neither more nor less is better.
    pub fn neither(name: impl Into<String>, unit: &'static str) -> Self {
        Self { no_ratio: true, ..Self::less(name, unit) }
    }

    /// Cadre's figure.
    #[must_use]
    pub fn own(self, own: Option<f64>) -> Self {
        Self { own, ..self }
    }

    /// The goal for it.
    #[must_use]
    pub fn goal(self, goal: Option<Goal>) -> Self {
        Self { goal, ..self }
    }

    /// Cadre's and the peer's figures with the same model server.
    #[must_use]
    pub fn beside(self, wire: Option<f64>, peer: Option<f64>) -> Self {
        Self { wire, peer, ..self }
    }

    fn cells(&self) -> [String; COLUMNS] {
        let goal = match self.goal {
            Some(Goal::AtMost(goal)) => format!("≤ {}", number(goal)),
            Some(Goal::AtLeast(goal)) => format!("≥ {}", number(goal)),
            None => String::new(),
        };
        let of_goal = match (self.own, self.goal) {
            (Some(own), Some(Goal::AtMost(goal) | Goal::AtLeast(goal))) => format!("{:.2}", own / goal),
            _ => String::new(),
        };
        let better = match (self.wire, self.peer) {
            _ if self.no_ratio => String::new(),
            (Some(wire), Some(peer)) if self.more_is_better => ratio(wire, peer),
            (Some(wire), Some(peer)) => ratio(peer, wire),
            _ => String::new(),
        };
        let cell = |figure: Option<f64>| figure.map(number).unwrap_or_default();
        [
            self.name.clone(),
            self.unit.to_owned(),
            cell(self.own),
            goal,
            of_goal,
            cell(self.wire),
            cell(self.peer),
            better,
        ]
    }
}

const COLUMNS: usize = 8;
const HEAD: [&str; COLUMNS] =
    ["", "", "Cadre", "goal", "÷ goal", "Cadre, model by HTTP", "agno 3.1.10, model by HTTP", "Cadre better by"];

enum Line {
    Section(String),
    Row(Box<Row>),
}

/// All figures.
#[derive(Default)]
pub struct Table {
    lines: Vec<Line>,
}

impl Table {
    /// Begins a section.
    pub fn section(&mut self, title: impl Into<String>) {
        self.lines.push(Line::Section(title.into()));
    }

    /// Adds a figure; one that nobody has is left out.
    pub fn push(&mut self, row: Row) {
        if row.own.or(row.wire).or(row.peer).is_some() {
            self.lines.push(Line::Row(Box::new(row)));
        }
    }
}

/// Markdown, so that it can be kept as it is, aligned, so that it can be read as it is.
impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cells = vec![HEAD.map(str::to_owned)];
        for line in &self.lines {
            cells.push(match line {
                Line::Section(title) => {
                    let mut row = [const { String::new() }; COLUMNS];
                    row[0] = format!("**{title}**");
                    row
                }
                Line::Row(row) => row.cells(),
            });
        }
        // Columns that no figure is in are left out.
        let shown = |column: &usize| *column < 2 || cells.iter().skip(1).any(|row| !row[*column].is_empty());
        let columns: Vec<usize> = (0..COLUMNS).filter(shown).collect();
        let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let widths: Vec<usize> = columns.iter().map(|column| width(*column)).collect();
        for (index, row) in cells.iter().enumerate() {
            for (column, width) in columns.iter().zip(&widths) {
                let cell = &row[*column];
                if *column < 2 { write!(out, "| {cell:<width$} ")? } else { write!(out, "| {cell:>width$} ")? }
            }
            writeln!(out, "|")?;
            if index == 0 {
                for (column, width) in columns.iter().zip(&widths) {
                    let (line, end) = ("-".repeat(width + 1), if *column < 2 { "-" } else { ":" });
                    write!(out, "|{line}{end}")?;
                }
                writeln!(out, "|")?;
            }
        }
        Ok(())
    }
}

fn ratio(more: f64, less: f64) -> String {
    if less > 0.0 { format!("{} ×", number(more / less)) } else { String::new() }
}

/// Three significant digits, with the thousands apart.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        0.0..1.0 => 3,
        1.0..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let mut apart = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) && digit.is_ascii_digit() {
            apart.push(',');
        }
        apart.push(digit);
    }
    rest.map_or(apart.clone(), |rest| format!("{apart}.{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases =
            [(0.123_45, "0.123"), (1.5, "1.50"), (99.94, "99.9"), (1234.5, "1,234"), (1_000_000.0, "1,000,000")];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn ratios_say_how_much_better_and_empty_columns_are_left_out() {
        let mut table = Table::default();
        table.section("runs");
        table.push(Row::less("a", "ms").own(Some(1.0)).goal(Some(Goal::AtMost(2.0))).beside(Some(1.0), Some(5.0)));
        table.push(Row::more("b", "runs/s").beside(Some(3000.0), Some(100.0)));
        table.push(Row::less("nobody has it", "ms"));
        let text = table.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[3].contains("≤ 2.00 |   0.50"), "{text}");
        assert!(lines[3].ends_with("5.00 × |") && lines[4].ends_with("30.0 × |"), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() == lines[0].chars().count()), "{text}");

        let mut own = Table::default();
        own.push(Row::less("a", "ms").own(Some(1.0)));
        assert!(!own.to_string().contains("agno"));
    }
}
