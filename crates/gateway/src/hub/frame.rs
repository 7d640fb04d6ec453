//! Serialized frames: each message is serialized once, and the same bytes go to the log and to every
//! watcher.

use axum::extract::ws::Utf8Bytes;
use bytes::Bytes;
use proto::socket::ServerMessage;

/// The typical size of a serialized token message, used to preallocate the buffer.
const USUAL: usize = 224;

/// Serializes broadcast messages with their sequence numbers: as text with one line per message for the
/// log, and as frames that share the same bytes.
pub(crate) fn numbered(messages: &[ServerMessage], first: i64) -> (Utf8Bytes, Vec<Utf8Bytes>) {
    let mut text = Vec::with_capacity(messages.len() * USUAL);
    let mut ends = Vec::with_capacity(messages.len());
    for (seq, message) in (first..).zip(messages) {
        if !text.is_empty() {
            text.push(b'\n');
        }
        put(&mut text, message, &[("seq", seq)]);
        ends.push(text.len());
    }
    let (text, mut start) = (Bytes::from(text), 0);
    let frames = ends.into_iter().map(|end| {
        let frame = text.slice(start..end);
        start = end + 1;
        // serde_json writes valid UTF-8, so this never falls back.
        Utf8Bytes::try_from(frame).unwrap_or_default()
    });
    let frames = frames.collect();
    (Utf8Bytes::try_from(text).unwrap_or_default(), frames)
}

/// Serializes a message to one watcher, without a sequence number.
pub(crate) fn to_one(message: &ServerMessage) -> Utf8Bytes {
    alone(message, &[])
}

/// Serializes the complete conversation, with the sequence number of the last frame it contains and the
/// owner's epoch.
pub(crate) fn init(message: &ServerMessage, seq: i64, epoch: i64) -> Utf8Bytes {
    alone(message, &[("seq", seq), ("epoch", epoch)])
}

/// Serializes the conversation as the database has it, for a session without an owner.
pub(crate) fn stored_init(message: &ServerMessage, seq: i64) -> Utf8Bytes {
    alone(message, &[("seq", seq)])
}

fn alone(message: &ServerMessage, more: &[(&str, i64)]) -> Utf8Bytes {
    let mut text = Vec::new();
    put(&mut text, message, more);
    Utf8Bytes::try_from(text).unwrap_or_default()
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

    #[test]
    fn frames_are_those_of_the_protocol() {
        let token = ServerMessage::Token {
            message_id: "m".to_owned(),
            part_id: "p".to_owned(),
            token: "a \"quoted\" }\n".to_owned(),
        };
        for message in [token, ServerMessage::Pong, ServerMessage::Queue { length: 3 }] {
            let expected = Frame::broadcast(message.clone(), 7);
            let (text, frames) = numbered(&[message.clone(), message.clone()], 7);
            assert_eq!(Frame::parse(&frames[0]).unwrap(), expected);
            assert_eq!(Frame::parse(&frames[1]).unwrap(), Frame::broadcast(message.clone(), 8));
            let lines: Vec<&str> = text.lines().collect();
            assert!(frames.iter().map(Utf8Bytes::as_str).eq(lines), "a frame is one line of the log");
            assert_eq!(Frame::parse(&to_one(&message)).unwrap(), Frame::to_one(message.clone()));
            let whole = Frame { epoch: Some(2), ..expected };
            assert_eq!(Frame::parse(&init(&message, 7, 2)).unwrap(), whole);
        }
    }
}
