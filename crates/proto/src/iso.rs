//! Timestamps on the wire as `2026-02-20T10:00:00.000Z`, always with milliseconds. JavaScript writes this
//! format, and old clients compare timestamps as text. For use in `#[serde(with = "…")]`.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serializer};

/// Formats a timestamp for the wire.
pub fn text(time: &DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

pub fn serialize<S: Serializer>(time: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&text(time))
}

/// Accepts any RFC 3339 timestamp.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DateTime<Utc>, D::Error> {
    DateTime::deserialize(deserializer)
}

/// A timestamp that may be `null`.
pub mod option {
    use super::{DateTime, Deserialize, Deserializer, Serializer, Utc, text};

    pub fn serialize<S: Serializer>(time: &Option<DateTime<Utc>>, serializer: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.serialize_str(&text(time)),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<DateTime<Utc>>, D::Error> {
        Option::deserialize(deserializer)
    }
}

/// An optional timestamp that is the empty string if absent; one old message uses this instead of `null`.
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
