//! A row that does not say what the ledger says.

use std::fmt;

use store::StoreError;

use super::VerifyError;

/// The first difference that was found: where, what is stored there, and what the ledger says instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub table: &'static str,
    /// The key of the row, as `column=value`.
    pub key: String,
    /// The column, or several where only a hash of them is known.
    pub column: String,
    pub stored: String,
    pub recorded: String,
    /// The position of the record that says it.
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

/// The row of a table that is compared.
pub(super) struct Place<'a> {
    pub(super) table: &'static str,
    pub(super) key: &'a dyn Fn() -> String,
    pub(super) record: Option<u64>,
}

impl Place<'_> {
    /// Refuses two values that differ.
    pub(super) fn same<T: PartialEq + fmt::Debug>(
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
        self.said(column, format!("{stored:?}"), format!("{recorded:?}"))
    }

    pub(super) fn said(&self, column: &str, stored: String, recorded: String) -> VerifyError {
        let (table, key, column) = (self.table, (self.key)(), column.to_owned());
        Box::new(Difference { table, key, column, stored, recorded, record: self.record }).into()
    }
}

/// What was read of a table. A row that is not even of the form that we write is a difference too.
pub(super) fn readable<T>(table: &'static str, read: Result<T, StoreError>) -> Result<T, VerifyError> {
    read.map_err(|error| {
        if !error.is_damaged() {
            return error.into();
        }
        let place = Place { table, key: &String::new, record: None };
        place.said(
            "of some row",
            format!("a value that we never write ({error})"),
            "nothing of it".to_owned(),
        )
    })
}
