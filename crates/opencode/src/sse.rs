//! Decodes a stream of server-sent events from an untrusted sender. Existing libraries do not handle endless
//! lines, byte order marks or bare carriage returns: they use unbounded memory, panic, or lose the event.
//!
//! Bytes are fed in arbitrary pieces; complete events come out. Only the data of an event is kept, because
//! OpenCode sends no ids, names or retry times.

use bytes::{Buf as _, Bytes, BytesMut};

/// Maximum size of one event. An echoed prompt with images is the largest legitimate one.
pub const MAX_EVENT: usize = 8 * 1024 * 1024;

/// The byte order mark, which may start a stream and is ignored.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The prefix of a data line. The limit of a line includes it, so that the longest accepted data fits.
const DATA_PREFIX: &[u8] = b"data: ";

/// Why an event was skipped. The decoder continues with the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    #[error("an event is longer than {most} bytes; it was skipped")]
    TooLong { most: usize },
}

/// The decoder's state between two pieces of input.
#[derive(Debug)]
pub struct Decoder {
    most: usize,
    /// Received bytes that are not split into lines yet.
    input: BytesMut,
    /// How much of the input was already searched for a line end.
    searched: usize,
    data: Data,
    /// Whether the last line ended with a carriage return, so that a following line feed belongs to it.
    after_return: bool,
    /// Whether the start of the stream, where a byte order mark is allowed, has passed.
    past_start: bool,
    skip: Skip,
}

/// The rest of an event that is too long, which is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skip {
    Nothing,
    /// The remaining lines of the event.
    Event,
    /// The rest of the current line and the remaining lines of the event.
    LineAndEvent,
}

/// The data lines of the current event.
#[derive(Debug, Default)]
enum Data {
    #[default]
    None,
    /// The usual case: a slice of the input, without a copy.
    One(Bytes),
    Several(BytesMut),
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(MAX_EVENT)
    }
}

impl Decoder {
    /// Rejects events and lines with more than `most` bytes.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            input: BytesMut::new(),
            searched: 0,
            data: Data::None,
            after_return: false,
            past_start: false,
            skip: Skip::Nothing,
        }
    }

    /// Adds received bytes. Call [`Decoder::next_event`] until it returns `None` before feeding more.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// The data of the next complete event.
    pub fn next_event(&mut self) -> Option<Result<Bytes, SseError>> {
        while let Some(line) = self.line() {
            if !line.is_empty() {
                if let Err(error) = self.process_line(line) {
                    return Some(Err(error));
                }
            } else if self.skip == Skip::Event {
                self.skip = Skip::Nothing;
            } else if let Some(data) = std::mem::take(&mut self.data).finish() {
                return Some(Ok(data));
            }
        }
        self.overflow().map(Err)
    }

    /// Frees the buffer if it is empty.
    pub(crate) fn release_buffer(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }

    /// The number of buffered bytes, for memory accounting.
    pub fn buffered_len(&self) -> usize {
        self.input.len() + self.data.len()
    }

    /// The next complete line without its line end.
    fn line(&mut self) -> Option<Bytes> {
        if !self.past_start {
            if self.input.len() < BYTE_ORDER_MARK.len() && BYTE_ORDER_MARK.starts_with(&self.input) {
                return None;
            }
            self.past_start = true;
            if self.input.starts_with(BYTE_ORDER_MARK) {
                self.input.advance(BYTE_ORDER_MARK.len());
            }
        }
        if self.after_return && !self.input.is_empty() {
            self.after_return = false;
            if self.input[0] == b'\n' {
                self.input.advance(1);
            }
        }
        let Some(found) = memchr::memchr2(b'\n', b'\r', &self.input[self.searched..]) else {
            self.searched = self.input.len();
            return None;
        };
        let line = match self.searched + found {
            0 => Bytes::new(),
            length => self.input.split_to(length).freeze(),
        };
        self.searched = 0;
        self.after_return = self.input.get_u8() == b'\r';
        // The tail of a skipped line must not count as a line, least of all as an empty one.
        if self.skip == Skip::LineAndEvent {
            self.skip = Skip::Event;
            return self.line();
        }
        Some(line)
    }

    /// Processes a line that is not empty.
    fn process_line(&mut self, line: Bytes) -> Result<(), SseError> {
        if self.skip != Skip::Nothing {
            return Ok(());
        }
        if line.len() > self.most + DATA_PREFIX.len() {
            return Err(self.skip());
        }
        if let Some(value) = data_of(line) {
            if self.data.len_with(&value) > self.most {
                return Err(self.skip());
            }
            self.data.push(value);
        }
        Ok(())
    }

    /// Discards an unfinished line that is already too long.
    fn overflow(&mut self) -> Option<SseError> {
        if self.skip != Skip::LineAndEvent && self.input.len() <= self.most + DATA_PREFIX.len() {
            return None;
        }
        self.input.clear();
        self.searched = 0;
        let already_reported = self.skip != Skip::Nothing;
        let error = self.skip();
        self.skip = Skip::LineAndEvent;
        (!already_reported).then_some(error)
    }

    fn skip(&mut self) -> SseError {
        self.skip = Skip::Event;
        self.data = Data::None;
        SseError::TooLong { most: self.most }
    }
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(bytes) => bytes.len(),
            Self::Several(bytes) => bytes.len(),
        }
    }

    /// The length with one more line.
    fn len_with(&self, value: &[u8]) -> usize {
        match self {
            Self::None => value.len(),
            before => before.len() + 1 + value.len(),
        }
    }

    fn push(&mut self, value: Bytes) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(value),
            Self::One(first) => {
                let mut joined = BytesMut::with_capacity(first.len() + 1 + value.len());
                joined.extend_from_slice(&first);
                Self::joined(joined, &value)
            }
            Self::Several(joined) => Self::joined(joined, &value),
        };
    }

    fn joined(mut before: BytesMut, value: &[u8]) -> Self {
        before.extend_from_slice(b"\n");
        before.extend_from_slice(value);
        Self::Several(before)
    }

    /// Without a data line there is no event, as the specification says.
    fn finish(self) -> Option<Bytes> {
        match self {
            Self::None => None,
            Self::One(bytes) => Some(bytes),
            Self::Several(bytes) => Some(bytes.freeze()),
        }
    }
}

/// The value of a `data` line; `None` for comments and other fields.
fn data_of(mut line: Bytes) -> Option<Bytes> {
    let rest = line.strip_prefix(b"data")?;
    let skip = match rest {
        [] => 0,
        [b':', b' ', ..] => 2,
        [b':', ..] => 1,
        _ => return None,
    };
    line.advance("data".len() + skip);
    Some(line)
}
