//! What the agent itself remembers of a session, asked for when events may have been missed.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::event::{EventError, Info, Part};

/// The end of a session's history, as far back as it was asked for.
#[derive(Clone, Debug)]
pub struct History {
    /// As they came, the oldest first.
    pub pages: Vec<Bytes>,
    /// Whether the agent works on the session. Must have been asked for before the pages: an agent that was idle
    /// then has said all it will say.
    pub busy: bool,
}

/// A message with its parts.
#[derive(Debug, Deserialize)]
pub struct Entry<'a> {
    #[serde(borrow)]
    pub info: Info<'a>,
    #[serde(borrow, default)]
    pub parts: Vec<Part<'a>>,
}

impl History {
    /// All messages, the oldest first. One that cannot be understood is left out.
    pub fn entries(&self) -> Result<Vec<Entry<'_>>, EventError> {
        let mut entries = Vec::new();
        for page in &self.pages {
            let messages: Vec<&RawValue> = serde_json::from_slice(page)?;
            entries.extend(messages.iter().filter_map(|raw| serde_json::from_str(raw.get()).ok()));
        }
        Ok(entries)
    }

    /// Whether the agent has a message of this id: a prompt that is not there was never received.
    pub fn has(&self, message: &str) -> bool {
        self.entries().is_ok_and(|entries| entries.iter().any(|entry| entry.info.id == message))
    }
}
