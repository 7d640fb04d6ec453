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

/// A JSON value as a text that both databases can hold.
pub(crate) fn json_text(value: &JsonValue) -> String {
    let text = value.to_string();
    if text.contains("\\u0000") { storable_json(value.clone()).to_string() } else { text }
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
