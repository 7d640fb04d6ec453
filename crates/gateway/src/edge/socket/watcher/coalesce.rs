//! Merges consecutive tokens for a client that lags, so that it gets the same text in fewer frames and catches up.

use std::sync::Arc;

use axum::extract::ws::Utf8Bytes;
use proto::socket::{Frame, ServerMessage};

use super::text;
use crate::hub::Batch;

/// The most bytes of a merged token.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
const TOKEN_PREFIX: &str = r#"{"type":"token""#;

/// The frames after the sequence number `place`, unchanged.
pub(super) fn frames_after(batches: &[Arc<Batch>], place: i64) -> impl Iterator<Item = Utf8Bytes> {
    let numbered = batches.iter().flat_map(|batch| (batch.first..).zip(&batch.frames));
    numbered.filter(move |(seq, _)| *seq > place).map(|(_, frame)| text(frame.clone()))
}

/// The same frames with consecutive tokens merged, for a client that lags.
pub(super) fn merge_tokens(waiting: impl Iterator<Item = Utf8Bytes>) -> Vec<Utf8Bytes> {
    let mut out = Vec::new();
    let mut open: Option<Frame> = None;
    for frame in waiting {
        let token = frame.starts_with(TOKEN_PREFIX).then(|| Frame::parse(&frame).ok()).flatten();
        if let (Some(first), Some(next)) = (&mut open, &token)
            && join(first, next)
        {
            continue;
        }
        out.extend(open.take().and_then(|frame| serde_json::to_string(&frame).ok()).map(Utf8Bytes::from));
        match token {
            Some(token) => open = Some(token),
            None => out.push(frame),
        }
    }
    out.extend(open.and_then(|frame| serde_json::to_string(&frame).ok()).map(Utf8Bytes::from));
    out
}

/// Appends the token of `next` to that of `first`, if both belong to the same part of a message. `false` if they do
/// not, or if the merged token would be too long.
fn join(first: &mut Frame, next: &Frame) -> bool {
    let (
        ServerMessage::Token { message_id, part_id, token },
        ServerMessage::Token { message_id: message, part_id: part, token: more },
    ) = (&mut first.message, &next.message)
    else {
        return false;
    };
    if message_id != message || part_id != part || token.len() + more.len() > MAX_TOKEN_BYTES {
        return false;
    }
    token.push_str(more);
    first.seq_from = first.seq_from.or(first.seq);
    first.seq = next.seq;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::FrameText;

    fn token(part: &str, text: &str) -> ServerMessage {
        ServerMessage::Token { message_id: "m".into(), part_id: part.into(), token: text.into() }
    }

    fn batch(first: i64, messages: &[ServerMessage]) -> Arc<Batch> {
        let frames = (first..).zip(messages).map(|(seq, message)| {
            FrameText::from(serde_json::to_string(&Frame::broadcast(message.clone(), seq)).unwrap())
        });
        Arc::new(Batch::new(first, frames.collect()))
    }

    #[test]
    fn a_fast_client_gets_every_frame_unchanged() {
        let batch = batch(5, &[token("a", "x"), token("a", "y"), token("a", "z")]);
        let frames: Vec<_> = frames_after(std::slice::from_ref(&batch), 5).collect();
        let expected: Vec<_> = batch.frames[1..].iter().cloned().map(text).collect();
        assert_eq!(frames, expected);
    }

    #[test]
    fn a_slow_client_gets_the_same_text_in_fewer_frames() {
        let mut messages = vec![token("a", "x"); 300];
        messages.push(ServerMessage::MessageComplete { message_id: "m".into() });
        messages.extend(vec![token("b", "y"); 2]);
        let got: Vec<_> = merge_tokens(frames_after(&[batch(1, &messages)], 0))
            .iter()
            .map(|f| Frame::parse(f).unwrap())
            .collect();
        assert_eq!(got.len(), 3);
        assert_eq!(
            (got[0].seq_from, got[0].seq, &got[0].message),
            (Some(1), Some(300), &token("a", &"x".repeat(300)))
        );
        assert_eq!((got[1].seq_from, got[1].seq), (None, Some(301)));
        assert_eq!((got[2].seq_from, got[2].seq, &got[2].message), (Some(302), Some(303), &token("b", "yy")));
    }
}
