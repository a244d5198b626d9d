//! Tables that fit the terminal: all columns but the last keep their width, the last takes
//! what is left.

use crate::look::{Look, Tone};
use crate::text;

/// Spaces between columns.
const GAP: usize = 2;
/// The least that the last column is given, however narrow the terminal.
const LAST_WIDTH_MIN: usize = 12;

/// A table in the making. Cells are shown as plain text, whatever they hold.
pub struct Table {
    head: Vec<&'static str>,
    widths_max: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table of columns, each with the most it may take; the last one may take all.
    pub fn new(columns: &[(&'static str, usize)]) -> Self {
        Self {
            head: columns.iter().map(|(name, _)| *name).collect(),
            widths_max: columns.iter().map(|(_, width)| *width).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row with a cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.head.len(), "a row has a cell for each column");
        self.rows.push(cells.iter().map(|cell| text::plain(cell)).collect());
    }

    /// Gives the lines; none without rows.
    pub fn lines(&self, look: &Look) -> Vec<String> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        let widths = self.widths(look);
        let head = self.line(self.head.iter().copied(), &widths);
        let rows = self.rows.iter().map(|row| self.line(row.iter().map(String::as_str), &widths));
        std::iter::once(look.tone(Tone::Dim, &head)).chain(rows).collect()
    }

    fn widths(&self, look: &Look) -> Vec<usize> {
        let last = self.head.len() - 1;
        let mut widths: Vec<usize> = (0..=last).map(|column| self.needed(column)).collect();
        for (width, most) in widths[..last].iter_mut().zip(&self.widths_max) {
            *width = (*width).min(*most);
        }
        let taken: usize = widths[..last].iter().map(|width| width + GAP).sum();
        widths[last] = widths[last].min(look.width.saturating_sub(taken).max(LAST_WIDTH_MIN));
        widths
    }

    fn needed(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| text::width(&row[column]));
        cells.chain([text::width(self.head[column])]).max().unwrap_or(0)
    }

    fn line<'a>(&self, cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
        let gap = " ".repeat(GAP);
        let padded: Vec<String> =
            cells.zip(widths).map(|(cell, width)| text::pad(cell, *width)).collect();
        padded.join(&gap).trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::samples::{pipe, terminal};

    fn table() -> Table {
        let mut table = Table::new(&[("NAME", 8), ("STATE", 10), ("WHAT", usize::MAX)]);
        table.row(vec!["a".into(), "running".into(), "short".into()]);
        table.row(vec!["longer-than-eight".into(), "failed\u{1b}".into(), "x".repeat(100)]);
        table
    }

    #[test]
    fn the_last_column_takes_what_is_left() {
        let lines = table().lines(&terminal(40));
        assert_eq!(lines[0], "NAME      STATE    WHAT");
        assert_eq!(lines[2], format!("longer-…  failed␛  {}…", "x".repeat(20)));
        for width in [40, 80, 200] {
            let lines = table().lines(&terminal(width));
            assert!(lines.iter().all(|line| text::width(line) <= width), "{width}");
        }
    }

    #[test]
    fn nothing_is_cut_in_a_pipe_but_what_has_a_limit() {
        assert!(table().lines(&pipe())[2].ends_with(&"x".repeat(100)));
        assert!(Table::new(&[("NAME", 8)]).lines(&pipe()).is_empty());
    }
}
