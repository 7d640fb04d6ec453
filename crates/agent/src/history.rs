//! The agent's own record of a session, which is read when events may have been missed.

use std::ops::Range;

use bytes::Bytes;
use proto::socket::{OpenQuestion, QuestionKind};

/// The most recent part of a session's history.
#[derive(Debug, Default)]
pub struct History {
    /// The pages, oldest first.
    pub pages: Vec<Page>,
    /// Whether the agent works on the session. It must be asked for this before the pages: if it was idle then and had
    /// started the turn before, the pages are complete.
    pub busy: bool,
    /// The agent's requests that wait for an answer.
    pub requests: Vec<PendingRequest>,
}

/// Consecutive messages as the agent sent them. Only the agent's [`Translator`](crate::Translator) understands them.
#[derive(Debug)]
pub struct Page {
    bytes: Bytes,
    /// The id of each message and its byte range.
    messages: Vec<(String, Range<usize>)>,
}

/// One message of a history, not parsed yet.
#[derive(Clone, Copy, Debug)]
pub struct HistoryMessage<'a> {
    pub id: &'a str,
    pub content: &'a [u8],
}

/// A request of the agent that waits for an answer.
#[derive(Debug)]
pub struct PendingRequest {
    /// The agent session that waits.
    pub session: String,
    pub id: String,
    pub kind: QuestionKind,
    /// `None` if the question could not be parsed.
    pub question: Option<OpenQuestion>,
}

impl Page {
    /// Creates a page from raw bytes, and the id and byte range of each message in them.
    pub fn new(bytes: Bytes, messages: Vec<(String, Range<usize>)>) -> Self {
        Self { bytes, messages }
    }
}

impl History {
    pub fn new(busy: bool) -> Self {
        Self { busy, ..Self::default() }
    }

    /// Adds the page that precedes the existing ones.
    pub fn add_older(&mut self, page: Page) {
        self.pages.insert(0, page);
    }

    /// All messages with an id, oldest first.
    pub fn messages(&self) -> impl Iterator<Item = HistoryMessage<'_>> {
        self.pages.iter().flat_map(|page| {
            page.messages.iter().filter_map(|(id, range)| {
                Some(HistoryMessage { id, content: page.bytes.get(range.clone())? })
            })
        })
    }

    /// Whether the history contains this message. If a prompt is missing, the agent never received it.
    pub fn has(&self, message: &str) -> bool {
        self.messages().any(|known| known.id == message)
    }

    /// The size of all pages in bytes.
    pub fn bytes(&self) -> usize {
        self.pages.iter().map(|page| page.bytes.len()).sum()
    }
}
