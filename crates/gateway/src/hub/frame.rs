//! Serialized frames: each message is serialized once, and the same bytes go to the log and to every
//! watcher.

use bytes::Bytes;
use proto::socket::ServerMessage;

/// The typical size of a serialized token message, used to preallocate the buffer.
const TYPICAL_BYTES: usize = 224;

/// One serialized frame. Clones share the same bytes, which are valid UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrameText(Bytes);

impl FrameText {
    /// The bytes, for a socket that takes them without a copy.
    pub(crate) fn into_bytes(self) -> Bytes {
        self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl From<String> for FrameText {
    fn from(text: String) -> Self {
        Self(Bytes::from(text))
    }
}

/// Broadcast messages with their sequence numbers, as text with one line per message.
pub(crate) struct NumberedLines {
    text: String,
    /// The end of each line in the text.
    ends: Vec<usize>,
}

impl NumberedLines {
    /// The text for the log.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The lines as frames that share the bytes of the text.
    pub(crate) fn into_frames(self) -> Vec<FrameText> {
        let (text, mut start) = (Bytes::from(self.text), 0);
        let frames = self.ends.into_iter().map(|end| {
            let frame = text.slice(start..end);
            start = end + 1;
            FrameText(frame)
        });
        frames.collect()
    }
}

/// Serializes broadcast messages with their sequence numbers.
pub(crate) fn numbered(messages: &[ServerMessage], first: i64) -> NumberedLines {
    let mut text = Vec::with_capacity(messages.len() * TYPICAL_BYTES);
    let mut ends = Vec::with_capacity(messages.len());
    for (seq, message) in (first..).zip(messages) {
        if !text.is_empty() {
            text.push(b'\n');
        }
        put(&mut text, message, &[("seq", seq)]);
        ends.push(text.len());
    }
    NumberedLines { text: utf8(text), ends }
}

/// Serializes a message to one watcher, without a sequence number.
pub(crate) fn to_one(message: &ServerMessage) -> FrameText {
    message_frame(message, &[])
}

/// Serializes the complete conversation, with the sequence number of the last frame it contains and the
/// owner's epoch.
pub(crate) fn init(message: &ServerMessage, seq: i64, epoch: i64) -> FrameText {
    message_frame(message, &[("seq", seq), ("epoch", epoch)])
}

/// Serializes the conversation as the database has it, for a session without an owner.
pub(crate) fn stored_init_frame(message: &ServerMessage, seq: i64) -> FrameText {
    message_frame(message, &[("seq", seq)])
}

fn message_frame(message: &ServerMessage, more: &[(&str, i64)]) -> FrameText {
    let mut text = Vec::new();
    put(&mut text, message, more);
    FrameText::from(utf8(text))
}

/// Never copies, because `serde_json` writes valid UTF-8.
fn utf8(text: Vec<u8>) -> String {
    String::from_utf8(text).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Appends a serialized message with extra fields at its top level.
fn put(text: &mut Vec<u8>, message: &ServerMessage, more: &[(&str, i64)]) {
    let start = text.len();
    // Our own types always serialize. If one ever does not, the client at least learns that a message is
    // missing.
    if let Err(error) = serde_json::to_writer(&mut *text, message) {
        tracing::error!(%error, "a message cannot be written");
        text.truncate(start);
        text.extend_from_slice(br#"{"type":"error","payload":{"message":"A message could not be written"}}"#);
    }
    // Removes the closing brace. The object is never empty because it has a type, so a comma may follow.
    text.pop();
    for (name, value) in more {
        text.extend_from_slice(b",\"");
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b"\":");
        // Writing an integer to memory cannot fail.
        let _ = serde_json::to_writer(&mut *text, value);
    }
    text.push(b'}');
}

#[cfg(test)]
mod tests {
    use proto::socket::{Frame, ServerMessage};

    use super::*;

    fn text(frame: &FrameText) -> &str {
        std::str::from_utf8(&frame.0).unwrap()
    }

    fn parse(frame: &FrameText) -> Frame {
        Frame::parse(text(frame)).unwrap()
    }

    #[test]
    fn frames_are_those_of_the_protocol() {
        let token = ServerMessage::Token {
            message_id: "m".to_owned(),
            part_id: "p".to_owned(),
            token: "a \"quoted\" }\n".to_owned(),
        };
        for message in [token, ServerMessage::Pong, ServerMessage::Queue { length: 3 }] {
            let expected = Frame::broadcast(message.clone(), 7);
            let lines = numbered(&[message.clone(), message.clone()], 7);
            let log = lines.text().to_owned();
            let frames = lines.into_frames();
            assert_eq!(parse(&frames[0]), expected);
            assert_eq!(parse(&frames[1]), Frame::broadcast(message.clone(), 8));
            assert!(frames.iter().map(text).eq(log.lines()), "a frame is one line of the log");
            assert_eq!(parse(&to_one(&message)), Frame::to_one(message.clone()));
            let with_epoch = Frame { epoch: Some(2), ..expected };
            assert_eq!(parse(&init(&message, 7, 2)), with_epoch);
        }
    }
}
