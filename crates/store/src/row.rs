//! Converts rows of both databases to our types, and texts to what both databases can store.

use sqlx::types::JsonValue;

/// Implements `FromRow` for the rows of both databases by the same expression; with `inline` also for inline reads.
macro_rules! from_row {
    (inline $type:ty, $row:ident => $value:expr) => {
        impl $crate::sqlite::inline_reader::FromInlineRow for $type {
            fn from_inline_row($row: &$crate::sqlite::inline_reader::InlineRow<'_>) -> sqlx::Result<Self> {
                Ok($value)
            }
        }
        $crate::row::from_row!($type, $row => $value);
    };
    ($type:ty, $row:ident => $value:expr) => {
        impl sqlx::FromRow<'_, sqlx::sqlite::SqliteRow> for $type {
            fn from_row($row: &sqlx::sqlite::SqliteRow) -> sqlx::Result<Self> {
                use sqlx::Row as _;
                Ok($value)
            }
        }
        impl sqlx::FromRow<'_, sqlx::postgres::PgRow> for $type {
            fn from_row($row: &sqlx::postgres::PgRow) -> sqlx::Result<Self> {
                use sqlx::Row as _;
                Ok($value)
            }
        }
    };
}
pub(crate) use from_row;

/// Parses a value of a closed vocabulary.
pub(crate) fn word<T>(text: String) -> sqlx::Result<T>
where
    T: TryFrom<String, Error = proto::UnknownWord>,
{
    T::try_from(text).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// The same for a value that may be NULL.
pub(crate) fn optional_word<T>(text: Option<String>) -> sqlx::Result<Option<T>>
where
    T: TryFrom<String, Error = proto::UnknownWord>,
{
    text.map(word).transpose()
}

/// Replaces U+0000, which PostgreSQL refuses. An agent may print one, and the rest of its output must not be lost.
pub(crate) fn storable(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

/// JSON as a text that both databases can store. The caller serializes it, so that the queue's writer does not have to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonText(String);

impl JsonText {
    pub fn of(value: &impl serde::Serialize) -> Self {
        // Only a map with keys that are not strings fails, and we have none.
        let text = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
        if text.contains("\\u0000") {
            let value = serde_json::from_str(&text).unwrap_or_default();
            return Self(storable_json(value).to_string());
        }
        Self(text)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn value(&self) -> JsonValue {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

/// Replaces U+0000 in every string and key of a JSON value.
pub(crate) fn storable_json(value: JsonValue) -> JsonValue {
    match value {
        JsonValue::String(text) => JsonValue::String(storable(text)),
        JsonValue::Array(items) => JsonValue::Array(items.into_iter().map(storable_json).collect()),
        JsonValue::Object(map) => JsonValue::Object(
            map.into_iter().map(|(key, item)| (storable(key), storable_json(item))).collect(),
        ),
        other => other,
    }
}
