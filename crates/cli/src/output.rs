//! What commands print: tables and colours for people on a terminal, one JSON value for programs.

use std::io::Write as _;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GREEN: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
pub(crate) const YELLOW: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow)));
pub(crate) const RED: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));

/// Where a command's result goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// One result: the JSON value for programs, the sentence for people.
    pub(crate) fn result(self, value: &Value, sentence: &str) {
        if self.json { line(&value.to_string()) } else { line(sentence) }
    }

    /// Many results: a JSON array, or a table with these column names.
    pub(crate) fn list(self, values: Vec<Value>, columns: &[&str], rows: &[Vec<String>]) {
        if self.json {
            line(&Value::Array(values).to_string());
        } else if rows.is_empty() {
            line("none");
        } else {
            line(&table(columns, rows));
        }
    }

    /// Many results beside the one that was asked for: they go where errors go.
    pub(crate) fn beside(self, values: Vec<Value>, columns: &[&str], rows: &[Vec<String>]) {
        let text = if self.json { Value::Array(values).to_string() } else { table(columns, rows) };
        let _ = writeln!(anstream::stderr(), "{text}");
    }

    /// One result of several words: the JSON value, or a table of one row.
    pub(crate) fn one(self, value: &Value, columns: &[&str], row: Vec<String>) {
        if self.json { line(&value.to_string()) } else { line(&table(columns, &[row])) }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Something that turns while work goes on, on a terminal and for people only.
    pub(crate) fn spinner(self, what: &str) -> ProgressBar {
        if self.json {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new_spinner().with_message(what.to_owned());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed:.dim}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }
}

/// Says something to know beside the result.
pub(crate) fn note(text: &str) {
    let _ = writeln!(anstream::stderr(), "{YELLOW}note{YELLOW:#}: {text}");
}

/// Prints a line. A reader that went away (`| head`) is no error.
pub(crate) fn line(text: &str) {
    let mut out = anstream::stdout();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

fn table(columns: &[&str], rows: &[Vec<String>]) -> String {
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
        cells.chain([columns[at].chars().count()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let join = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let names = format!("{DIM}{}{DIM:#}", join(&mut columns.iter().copied()));
    let rows = rows.iter().map(|row| join(&mut row.iter().map(String::as_str)));
    std::iter::once(names).chain(rows).collect::<Vec<_>>().join("\n")
}
