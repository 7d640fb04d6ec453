//! From a row of either database to a type of ours, and from a text of anybody's to one that both can hold.

use sqlx::types::JsonValue;

/// Implements `FromRow` for the rows of both databases by the same expression; with `near` also for rows that are found
/// without leaving a thread.
macro_rules! from_row {
    (near $type:ty, $row:ident => $value:expr) => {
        impl $crate::near::FromNear for $type {
            fn from_near($row: &$crate::near::NearRow<'_>) -> sqlx::Result<Self> {
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

/// A word of one of our vocabularies.
pub(crate) fn word<T>(text: String) -> sqlx::Result<T>
where
    T: TryFrom<String, Error = proto::UnknownWord>,
{
    T::try_from(text).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// A word that may be missing.
pub(crate) fn optional_word<T>(text: Option<String>) -> sqlx::Result<Option<T>>
where
    T: TryFrom<String, Error = proto::UnknownWord>,
{
    text.map(word).transpose()
}

/// PostgreSQL refuses U+0000 in a text. An agent may print one, and that must not lose the rest of its answer.
pub(crate) fn storable(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

/// JSON as a text that both databases can hold. Made by whoever has the value: those who write stand in line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonText(String);

impl JsonText {
    pub fn of(value: &impl serde::Serialize) -> Self {
        // Only a map whose keys are no texts has no JSON, and we have none.
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

/// The same for every text inside a JSON value, keys included.
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
