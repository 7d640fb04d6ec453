//! The agent's own history of a session, which is fetched when events may have been missed.
//!
//! An agent can serve pages of any size and shape. Each page is split into messages once and each message is
//! parsed once; callers do both outside the async workers.

use std::fmt;

use agent::{HistoryMessage, Page};
use bytes::Bytes;
use serde::de::{Error as _, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::event::{EventError, Info, Part};

/// Maximum number of messages per page; more than we request.
const MAX_MESSAGES: usize = 200;
/// Maximum number of parts per message, the same as for a turn; further ones are dropped. Without a limit, a
/// page of `{}` would need a hundred times its size in memory.
const MAX_PARTS: usize = 1024;

/// A message with its parts.
#[derive(Debug, Deserialize)]
pub struct Entry<'a> {
    #[serde(borrow)]
    pub info: Info<'a>,
    #[serde(borrow, default, deserialize_with = "parts")]
    pub parts: Vec<Part<'a>>,
}

/// Finds the messages of a page. Malformed ones are skipped.
pub fn split_page(bytes: Bytes) -> Result<Page, EventError> {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(borrow)]
        info: Info<'a>,
    }
    let raw: Bounded<&RawValue, MAX_MESSAGES> = serde_json::from_slice(&bytes)?;
    if raw.left_out {
        return Err(serde_json::Error::custom("a page has too many messages").into());
    }
    let start = bytes.as_ptr().addr();
    let message = |raw: &RawValue| {
        let head: Head<'_> = serde_json::from_str(raw.get()).ok()?;
        let first = raw.get().as_ptr().addr() - start;
        Some((head.info.id.into_owned(), first..first + raw.get().len()))
    };
    let messages = raw.items.into_iter().filter_map(message).collect();
    Ok(Page::new(bytes, messages))
}

impl<'a> Entry<'a> {
    /// Parses a message; `None` if it is malformed.
    pub fn parse(message: &HistoryMessage<'a>) -> Option<Self> {
        serde_json::from_slice(message.content).ok()
    }
}

fn parts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Part<'de>>, D::Error> {
    Ok(Bounded::<Part<'de>, MAX_PARTS>::deserialize(deserializer)?.items)
}

/// The first `MOST` items of a list.
struct Bounded<T, const MOST: usize> {
    items: Vec<T>,
    left_out: bool,
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Bounded<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Items::<T, MOST>(std::marker::PhantomData))
    }
}

struct Items<T, const MOST: usize>(std::marker::PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Items<T, MOST> {
    type Value = Bounded<T, MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while items.len() < MOST {
            let Some(item) = list.next_element()? else { return Ok(Bounded { items, left_out: false }) };
            items.push(item);
        }
        let mut left_out = false;
        while list.next_element::<IgnoredAny>()?.is_some() {
            left_out = true;
        }
        Ok(Bounded { items, left_out })
    }
}

#[cfg(test)]
mod tests {
    use agent::History;

    use super::*;

    #[test]
    fn messages_and_parts_of_a_page_are_limited() {
        let crowd = format!("[{}1]", "1,".repeat(MAX_MESSAGES));
        assert!(split_page(crowd.into()).is_err(), "too many messages");
        let parts = format!("[{}{{}}]", "{},".repeat(1_000_000));
        let page = format!(r#"[{{"info":{{"id":"m"}},"parts":{parts}}}]"#);
        let mut history = History::new(false);
        history.add_older(split_page(page.into()).unwrap());
        let parts = history.messages().next().and_then(|message| Some(Entry::parse(&message)?.parts.len()));
        assert_eq!(parts, Some(MAX_PARTS));
        assert!(history.has("m"));
    }
}
