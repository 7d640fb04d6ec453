//! A difference between a row and the ledger.

use std::fmt;

use store::StoreError;

use super::VerifyError;

/// The first difference found: its place, the stored value, and the value according to the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub table: &'static str,
    /// The key of the row, as `column=value`.
    pub key: String,
    /// The column, or several if only their common hash is known.
    pub column: String,
    pub stored: String,
    pub recorded: String,
    /// The position of the record in the ledger.
    pub record: Option<u64>,
}

impl std::error::Error for Difference {}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, key, column, stored, recorded, record } = self;
        let gap = if key.is_empty() { "" } else { " " };
        write!(f, "{table}{gap}{key}, column {column}: stored {stored}, the ledger says {recorded}")?;
        record.map_or(Ok(()), |record| write!(f, " (record {record})"))
    }
}

/// The row that is compared.
pub(super) struct Place<'a> {
    pub(super) table: &'static str,
    pub(super) key: &'a dyn Fn() -> String,
    pub(super) record: Option<u64>,
}

impl Place<'_> {
    /// Returns an error if two values differ.
    pub(super) fn compare<T: PartialEq + fmt::Debug>(
        &self,
        column: &str,
        stored: &T,
        recorded: &T,
    ) -> Result<(), VerifyError> {
        if stored == recorded { Ok(()) } else { Err(self.differs(column, stored, recorded)) }
    }

    pub(super) fn differs(
        &self,
        column: &str,
        stored: &dyn fmt::Debug,
        recorded: &dyn fmt::Debug,
    ) -> VerifyError {
        self.difference(column, format!("{stored:?}"), format!("{recorded:?}"))
    }

    pub(super) fn difference(&self, column: &str, stored: String, recorded: String) -> VerifyError {
        let (table, key, column) = (self.table, (self.key)(), column.to_owned());
        Box::new(Difference { table, key, column, stored, recorded, record: self.record }).into()
    }
}

/// Turns damaged rows into a difference: a row in a format that we never write was changed by someone
/// else.
pub(super) fn readable<T>(table: &'static str, read: Result<T, StoreError>) -> Result<T, VerifyError> {
    read.map_err(|error| {
        if !error.is_damaged() {
            return error.into();
        }
        let place = Place { table, key: &String::new, record: None };
        place.difference(
            "of some row",
            format!("a value that we never write ({error})"),
            "nothing of it".to_owned(),
        )
    })
}
