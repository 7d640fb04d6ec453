//! The result of a query as JSON, up to its limits.

use std::collections::HashMap;

use proto::JsonObject;
use serde_json::{Value, json};

use crate::{Limits, Problem};

/// The largest integer that every JSON parser reads exactly.
pub(crate) const EXACT: i64 = (1 << 53) - 1;
/// The maximum number of columns of a result. PostgreSQL's protocol allows 65,535.
const MAX_COLUMNS: usize = 500;

/// The rows of a result. A row is an object, so that the redactor sees the names of columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    pub columns: Vec<String>,
    pub rows: Vec<JsonObject>,
    /// Whether the result has more rows than these.
    pub truncated: bool,
}

impl Rows {
    pub fn into_json(self) -> Value {
        json!({"columns": self.columns, "rows": self.rows, "rowCount": self.rows.len(), "truncated": self.truncated})
    }
}

/// Collects rows until a limit is reached.
pub(crate) struct Collector {
    limits: Limits,
    bytes: usize,
    result: Rows,
}

impl Collector {
    pub(crate) fn new(columns: &[&str], limits: Limits) -> Result<Self, Problem> {
        if columns.len() > MAX_COLUMNS {
            let found = columns.len();
            return Err(Problem::Invalid(format!(
                "the result has {found} columns, and at most {MAX_COLUMNS} are returned: select fewer"
            )));
        }
        Ok(Self { limits, bytes: 0, result: Rows { columns: unique_names(columns), ..Rows::default() } })
    }

    /// Adds a row. Returns `false` if it does not fit, after which no other may follow.
    pub(crate) fn push(&mut self, values: impl IntoIterator<Item = Value>) -> Result<bool, Problem> {
        if self.result.rows.len() >= self.limits.rows {
            self.result.truncated = true;
            return Ok(false);
        }
        let row: JsonObject = self.result.columns.iter().cloned().zip(values).collect();
        self.bytes += serde_json::to_string(&row).map_or(usize::MAX / 2, |text| text.len());
        if self.bytes > self.limits.bytes {
            return self.stop().map(|()| false);
        }
        self.result.rows.push(row);
        Ok(true)
    }

    /// Ends a result whose next row is too large.
    pub(crate) fn stop(&mut self) -> Result<(), Problem> {
        if self.result.rows.is_empty() {
            return Err(Problem::TooLarge(self.limits.bytes));
        }
        self.result.truncated = true;
        Ok(())
    }

    pub(crate) fn finish(self) -> Rows {
        self.result
    }
}

/// Names for the columns, each once: of two columns `id`, the second is `id_2`.
fn unique_names(names: &[&str]) -> Vec<String> {
    // The last number of each name.
    let mut taken: HashMap<String, usize> = HashMap::new();
    let mut unique = Vec::new();
    for name in names {
        let mut candidate = (*name).to_owned();
        while taken.contains_key(&candidate) {
            let number = taken.entry((*name).to_owned()).or_insert(1);
            *number += 1;
            candidate = format!("{name}_{number}");
        }
        taken.insert(candidate.clone(), 1);
        unique.push(candidate);
    }
    unique
}

/// An integer as a number, or as a string if not every JSON parser would read it exactly.
pub(crate) fn integer(value: i64) -> Value {
    if (-EXACT..=EXACT).contains(&value) { json!(value) } else { json!(value.to_string()) }
}

/// A float as a number, or as a string if JSON has no such number.
pub(crate) fn float(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or_else(|| json!(value.to_string()), Value::Number)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn collector(rows: usize, bytes: usize) -> Collector {
        Collector::new(&["a", "b", "a"], Limits { time: Duration::from_secs(1), rows, bytes }).unwrap()
    }

    #[test]
    fn columns_of_one_name_stay_apart() {
        let mut rows = collector(1, 100);
        assert_eq!(rows.push([json!(1), json!(2), json!(3)]), Ok(true));
        assert_eq!(json!(rows.finish().rows), json!([{"a": 1, "b": 2, "a_2": 3}]));
        assert_eq!(
            unique_names(&["a_2", "a", "a", "a", "a_2", ""]),
            ["a_2", "a", "a_3", "a_4", "a_2_2", ""],
            "a name of the result is never taken by another column"
        );
    }

    #[test]
    fn a_result_with_too_many_columns_is_refused() {
        let limits = Limits { time: Duration::from_secs(1), rows: 1, bytes: 1000 };
        assert!(Collector::new(&["a"; MAX_COLUMNS], limits).is_ok());
        let Err(Problem::Invalid(problem)) = Collector::new(&["a"; MAX_COLUMNS + 1], limits) else {
            panic!("501 columns are accepted")
        };
        assert_eq!(problem, "the result has 501 columns, and at most 500 are returned: select fewer");
    }

    #[test]
    fn rows_and_bytes_are_limited() {
        let row = || [json!("xxxxxxxxxx"), json!(null), json!(null)];
        let mut rows = collector(1, 1000);
        assert_eq!((rows.push(row()), rows.push(row())), (Ok(true), Ok(false)));
        assert!(rows.finish().truncated);
        let mut rows = collector(10, 60);
        assert_eq!((rows.push(row()), rows.push(row())), (Ok(true), Ok(false)));
        let rows = rows.finish();
        assert!(rows.truncated && rows.rows.len() == 1);
        assert_eq!(collector(10, 20).push(row()), Err(Problem::TooLarge(20)));
    }
}
