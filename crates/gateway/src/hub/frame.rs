//! Frames as bytes: what is said is written once, and the same text goes to the log and to everyone.

use axum::extract::ws::Utf8Bytes;
use bytes::Bytes;
use proto::socket::ServerMessage;

/// As long as a token is with all that is around it.
const USUAL: usize = 224;

/// Messages to everyone, numbered: a text of one line each for the log, and the same bytes as frames.
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
        // What serde writes is UTF-8.
        Utf8Bytes::try_from(frame).unwrap_or_default()
    });
    let frames = frames.collect();
    (Utf8Bytes::try_from(text).unwrap_or_default(), frames)
}

/// A message to one.
pub(crate) fn to_one(message: &ServerMessage) -> Utf8Bytes {
    alone(message, &[])
}

/// The whole conversation, with the number of the last frame that it contains and the owner's generation.
pub(crate) fn init(message: &ServerMessage, seq: i64, epoch: i64) -> Utf8Bytes {
    alone(message, &[("seq", seq), ("epoch", epoch)])
}

/// The conversation as the database has it, when there is no owner.
pub(crate) fn stored_init(message: &ServerMessage, seq: i64) -> Utf8Bytes {
    alone(message, &[("seq", seq)])
}

fn alone(message: &ServerMessage, more: &[(&str, i64)]) -> Utf8Bytes {
    let mut text = Vec::new();
    put(&mut text, message, more);
    Utf8Bytes::try_from(text).unwrap_or_default()
}

/// Writes a message with more fields at its top level.
fn put(text: &mut Vec<u8>, message: &ServerMessage, more: &[(&str, i64)]) {
    let start = text.len();
    // Our own types always become JSON; should one ever not, the client learns that something is missing.
    if let Err(error) = serde_json::to_writer(&mut *text, message) {
        tracing::error!(%error, "a message cannot be written");
        text.truncate(start);
        text.extend_from_slice(br#"{"type":"error","payload":{"message":"A message could not be written"}}"#);
    }
    // The object is never empty: it has a type.
    text.pop();
    for (name, value) in more {
        text.extend_from_slice(b",\"");
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b"\":");
        // A number always becomes JSON.
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
