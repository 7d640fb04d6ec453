//! Reads a stream of server-sent events, because the sender is a sandbox: what ready-made readers do with an
//! endless line, a byte order mark or a bare carriage return is to grow, to panic and to lose the event.
//!
//! Bytes go in as they come, in any pieces; the events that they complete come out. Only the data of an event is
//! kept: OpenCode sends no ids, names or retry times.

use bytes::{Buf as _, Bytes, BytesMut};

/// The most that one event may hold. An echoed prompt with images is the largest honest one.
pub const MAX_EVENT: usize = 8 * 1024 * 1024;

/// The byte order mark, which may open a stream and means nothing.
const MARK: &[u8] = b"\xef\xbb\xbf";
/// What may stand before the data in a line, so that a line of the longest data is not too long.
const PREFIX: &[u8] = b"data: ";

/// Why an event was left out. The decoder has skipped it and goes on with the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    #[error("an event is longer than {most} bytes; it was skipped")]
    TooLong { most: usize },
}

/// The state between two pieces of input.
#[derive(Debug)]
pub struct Decoder {
    most: usize,
    /// What has come and is not yet cut into lines.
    input: BytesMut,
    /// This much of the input has been searched for a line end already.
    searched: usize,
    data: Data,
    /// The last line ended with a carriage return, so a line feed that follows belongs to it.
    after_return: bool,
    /// The byte order mark can only be at the very beginning.
    begun: bool,
    skip: Skip,
}

/// What is thrown away of an event that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skip {
    Nothing,
    /// The lines to come, up to the end of the event.
    Event,
    /// Also the rest of the line that is coming in.
    LineAndEvent,
}

/// The data lines of the event that is being read.
#[derive(Debug, Default)]
enum Data {
    #[default]
    None,
    /// The usual case: it is a piece of the input and was not copied.
    One(Bytes),
    Several(BytesMut),
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(MAX_EVENT)
    }
}

impl Decoder {
    /// Refuses events, and lines, of more bytes than this.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            input: BytesMut::new(),
            searched: 0,
            data: Data::None,
            after_return: false,
            begun: false,
            skip: Skip::Nothing,
        }
    }

    /// Takes what has come. Call [`Decoder::next_event`] until it has no more before feeding again.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// The data of the next event that is complete.
    pub fn next_event(&mut self) -> Option<Result<Bytes, SseError>> {
        while let Some(line) = self.line() {
            if !line.is_empty() {
                if let Err(error) = self.take(line) {
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

    /// Holds no room for what comes next, where nothing is half read.
    pub(crate) fn rest(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }

    /// How many bytes are held, for those who watch over memory.
    pub fn held(&self) -> usize {
        self.input.len() + self.data.len()
    }

    /// The next whole line without its end.
    fn line(&mut self) -> Option<Bytes> {
        if !self.begun {
            if self.input.len() < MARK.len() && MARK.starts_with(&self.input) {
                return None;
            }
            self.begun = true;
            if self.input.starts_with(MARK) {
                self.input.advance(MARK.len());
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
        // The tail of a line whose head was thrown away is no line of its own, and above all no empty one.
        if self.skip == Skip::LineAndEvent {
            self.skip = Skip::Event;
            return self.line();
        }
        Some(line)
    }

    /// Takes a line that is not empty.
    fn take(&mut self, line: Bytes) -> Result<(), SseError> {
        if self.skip != Skip::Nothing {
            return Ok(());
        }
        if line.len() > self.most + PREFIX.len() {
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

    /// An unfinished line that is too long already is thrown away as it comes.
    fn overflow(&mut self) -> Option<SseError> {
        if self.skip != Skip::LineAndEvent && self.input.len() <= self.most + PREFIX.len() {
            return None;
        }
        self.input.clear();
        self.searched = 0;
        let told_already = self.skip != Skip::Nothing;
        let error = self.skip();
        self.skip = Skip::LineAndEvent;
        (!told_already).then_some(error)
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

    /// How long it would be with one more line.
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

    /// Without a line of data there is no event, as the standard has it.
    fn finish(self) -> Option<Bytes> {
        match self {
            Self::None => None,
            Self::One(bytes) => Some(bytes),
            Self::Several(bytes) => Some(bytes.freeze()),
        }
    }
}

/// The value, if this is a line of data; comments and all other fields are not.
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
