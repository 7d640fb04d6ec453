//! Frames as bytes: what is said is written once, and the same text goes to the log and to everyone.

use axum::extract::ws::Utf8Bytes;
use proto::socket::ServerMessage;

/// A message to everyone, with its number.
pub(crate) fn numbered(message: &ServerMessage, seq: i64) -> String {
    let mut text = plain(message);
    // The object is never empty: it has a type.
    text.pop();
    text.push_str(",\"seq\":");
    text.push_str(&seq.to_string());
    text.push('}');
    text
}

/// A message to one.
pub(crate) fn to_one(message: &ServerMessage) -> Utf8Bytes {
    plain(message).into()
}

/// The whole conversation, with the number of the last frame that it contains and the owner's generation.
pub(crate) fn init(message: &ServerMessage, seq: i64, epoch: i64) -> Utf8Bytes {
    let mut text = numbered(message, seq);
    text.pop();
    text.push_str(",\"epoch\":");
    text.push_str(&epoch.to_string());
    text.push('}');
    text.into()
}

/// Our own types always become JSON; should one ever not, the client learns that something is missing.
fn plain(message: &ServerMessage) -> String {
    serde_json::to_string(message).unwrap_or_else(|error| {
        tracing::error!(%error, "a message cannot be written");
        r#"{"type":"error","payload":{"message":"A message could not be written"}}"#.to_owned()
    })
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
            assert_eq!(Frame::parse(&numbered(&message, 7)).unwrap(), expected);
            assert_eq!(Frame::parse(&to_one(&message)).unwrap(), Frame::to_one(message.clone()));
            let whole = Frame { epoch: Some(2), ..expected };
            assert_eq!(Frame::parse(&init(&message, 7, 2)).unwrap(), whole);
            assert!(!numbered(&message, 7).contains('\n'), "a frame is one line of the log");
        }
    }
}
