//! The output of commands: tables and colours for people on a terminal, one JSON value for programs.

use std::io::Write as _;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use chrono::{DateTime, Utc};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::Value;

use crate::clean::{clean, clean_json, one_line};
use crate::failure::Failure;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GREEN: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
pub(crate) const YELLOW: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow)));
pub(crate) const RED: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));

/// Prints the result of a command, as text or as JSON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Prints one result: the JSON value for programs, the sentence for people.
    pub(crate) fn result(self, value: &Value, sentence: &str) {
        if self.json { json_line(value) } else { line(&clean(sentence)) }
    }

    /// Prints a list of results: a JSON array, or a table with these column names.
    pub(crate) fn list(self, values: Vec<Value>, columns: &[&str], rows: &[Vec<String>]) {
        if self.json {
            json_line(&Value::Array(values));
        } else if rows.is_empty() {
            line("none");
        } else {
            line(&table(columns, rows));
        }
    }

    /// Prints a list of additional results to stderr, so that they do not mix with the main result.
    pub(crate) fn list_on_stderr(self, values: Vec<Value>, columns: &[&str], rows: &[Vec<String>]) {
        let text =
            if self.json { clean_json(&Value::Array(values).to_string()) } else { table(columns, rows) };
        let _ = writeln!(anstream::stderr(), "{text}");
    }

    /// Prints one result that has several fields: the JSON value, or a table with one row.
    pub(crate) fn one(self, value: &Value, columns: &[&str], row: Vec<String>) {
        if self.json { json_line(value) } else { line(&table(columns, &[row])) }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// A progress spinner, hidden in JSON mode and when stderr is not a terminal.
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

/// Prints additional information to stderr.
pub(crate) fn note(text: &str) {
    let _ = writeln!(anstream::stderr(), "{YELLOW}note{YELLOW:#}: {}", clean(text));
}

/// Prints a warning to stderr about something that the user should change.
pub(crate) fn warn(text: &str) {
    let _ = writeln!(anstream::stderr(), "{YELLOW}warning{YELLOW:#}: {}", clean(text));
}

/// Asks the person at the terminal. Anything but a yes is a no.
pub(crate) fn ask(question: &str) -> Result<bool, Failure> {
    let _ = write!(anstream::stderr(), "{} [y/N] ", one_line(question));
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.map_err(|error| Failure::failed(format!("cannot read the answer: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Prints one JSON value as one line.
pub(crate) fn json_line(value: &impl Serialize) {
    line(&clean_json(&serde_json::to_string(value).unwrap_or_default()));
}

/// Formats how long ago a time was, or how far ahead; times more than 30 days away become a date.
pub(crate) fn ago(at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let (seconds, past) = ((now - at).num_seconds(), now >= at);
    let (number, unit) = match seconds.abs() {
        0..60 => return if past { "just now" } else { "in a moment" }.to_owned(),
        seconds @ 60..3_600 => (seconds / 60, "min"),
        seconds @ 3_600..86_400 => (seconds / 3_600, "h"),
        seconds @ 86_400..2_592_000 => (seconds / 86_400, "d"),
        _ => return at.format("%Y-%m-%d").to_string(),
    };
    if past { format!("{number} {unit} ago") } else { format!("in {number} {unit}") }
}

/// Prints a line and ignores write errors: a closed pipe (`| head`) is not an error.
pub(crate) fn line(text: &str) {
    let mut out = anstream::stdout();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

fn table(columns: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| one_line(cell)).collect()).collect();
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

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn times_are_relative_until_thirty_days() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(1000);
        let text = |seconds| ago(now - TimeDelta::seconds(seconds), now);
        assert_eq!(
            [5, 61, 7_300, 100_000, 3_000_000].map(text),
            ["just now", "1 min ago", "2 h ago", "1 d ago", "1972-08-23"]
        );
        assert_eq!([-5, -300].map(text), ["in a moment", "in 5 min"]);
    }

    #[test]
    fn a_table_has_one_line_for_each_row() {
        let text = table(&["NAME"], &[vec!["a\nb\u{1b}[2J\u{202e}".to_owned()]]);
        assert_eq!(text.lines().count(), 2, "{text:?}");
        assert!(text.contains("a\\nb\\u{1b}[2J\\u{202e}"), "{text:?}");
    }
}
