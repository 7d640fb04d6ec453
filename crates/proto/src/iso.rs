//! Times on the wire as `2026-02-20T10:00:00.000Z`, always with milliseconds: the form that JavaScript
//! writes, so that old clients that compare texts keep working. For use in `#[serde(with = "…")]`.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serializer};

/// The wire form of a time.
pub fn text(time: &DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Writes a time.
pub fn serialize<S: Serializer>(time: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&text(time))
}

/// Reads any RFC 3339 time.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DateTime<Utc>, D::Error> {
    DateTime::deserialize(deserializer)
}

/// A time that may be `null`.
pub mod option {
    use super::{DateTime, Deserialize, Deserializer, Serializer, Utc, text};

    /// Writes the time or `null`.
    pub fn serialize<S: Serializer>(time: &Option<DateTime<Utc>>, serializer: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.serialize_str(&text(time)),
            None => serializer.serialize_none(),
        }
    }

    /// Reads a time or `null`.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<DateTime<Utc>>, D::Error> {
        Option::deserialize(deserializer)
    }
}

/// A time that is the empty text when there is none, which one old message does instead of `null`.
pub(crate) mod or_empty {
    use super::{DateTime, Deserialize, Deserializer, Serializer, Utc, text};
    use serde::de::Error;

    #[expect(clippy::ref_option, reason = "serde prescribes the signature")]
    pub(crate) fn serialize<S: Serializer>(
        time: &Option<DateTime<Utc>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&time.as_ref().map(text).unwrap_or_default())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<DateTime<Utc>>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(None);
        }
        DateTime::parse_from_rfc3339(&text).map(|time| Some(time.to_utc())).map_err(D::Error::custom)
    }
}
