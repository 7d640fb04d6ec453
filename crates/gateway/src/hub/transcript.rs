//! The conversation, built from broadcast messages. Open messages are held here; complete ones go to the store.

use proto::socket::{Message, MessageRole, Part, ServerMessage, ToolCall, ToolStatus, TurnOutcome};
use serde_json::json;
use store::{StoredMessage, TranscriptWrite};

/// The maximum size of one text part, the same as for a complete one.
const MAX_TEXT: usize = 1024 * 1024;
/// The maximum size of all open messages together: text, arguments and results. A joining watcher is sent up to this
/// much.
const MAX_OPEN: usize = 4 * 1024 * 1024;
/// The marker that replaces text that was cut off.
const TRUNCATION_MARKER: &str = "\n… (the rest was not kept: it is more than a message may hold)";

/// An open message with the ids of its parts, in the order in which they started.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenMessage {
    /// The sequence number with which the message was announced.
    since: i64,
    message: Message,
    parts: Vec<(String, OpenPart)>,
    /// The size of its parts in bytes.
    bytes: usize,
}

/// A part that may still grow.
#[derive(Clone, Debug, PartialEq)]
enum OpenPart {
    Text(String),
    Image(String),
    Tool { call: ToolCall },
}

/// The open messages, in the order in which they started.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    open: Vec<OpenMessage>,
    /// The size of all parts in bytes.
    bytes: usize,
    /// The last prompt that was broadcast, and the last error since then.
    prompt: Option<String>,
    last_error: Option<String>,
}

impl Transcript {
    /// Applies a broadcast message with its sequence number. Returns what has to be saved because of it: a message
    /// that is now complete and no longer held here, or the error of a failed turn.
    pub(crate) fn apply(&mut self, event: &ServerMessage, seq: i64, now: i64) -> Option<TranscriptWrite> {
        match event {
            ServerMessage::Message(message) => {
                if message.role == MessageRole::User {
                    self.prompted(&message.id);
                }
                if self.open.iter().all(|held| held.message.id != message.id) {
                    let held = OpenMessage::new(seq, message.clone());
                    self.bytes += held.bytes;
                    self.open.push(held);
                }
                return if message.is_complete { self.finish(&message.id) } else { None };
            }
            ServerMessage::Token { message_id, part_id, token } => self.extend(message_id, part_id, token),
            ServerMessage::TextPartComplete { message_id, part_id, text } => {
                self.change(message_id, part_id, String::clear);
                self.extend(message_id, part_id, text);
            }
            ServerMessage::ToolStart { message_id: Some(message), part_id, tool_call_id, tool, args } => {
                let call = ToolCall {
                    id: tool_call_id.clone(),
                    tool: tool.clone(),
                    args: args.clone(),
                    result: None,
                    status: ToolStatus::Running,
                    started_at: now,
                    completed_at: None,
                };
                self.tool_started(message, part_id, call);
            }
            ServerMessage::ToolEnd { tool_call_id, result, status, .. } => {
                self.tool_ended(tool_call_id, result, status.unwrap_or(ToolStatus::Completed), now);
            }
            ServerMessage::MessageComplete { message_id }
            | ServerMessage::MessageCancelled { message_id: Some(message_id) } => {
                return self.finish(message_id);
            }
            ServerMessage::Error { message } => self.last_error = Some(message.clone()),
            ServerMessage::TurnComplete { message_ids, outcome: TurnOutcome::Error } => {
                let message_id = message_ids.last().cloned().or_else(|| self.prompt.clone())?;
                let reason = self.last_error.take().unwrap_or_else(|| "The turn failed".to_owned());
                return Some(TranscriptWrite::Failed { message_id, reason });
            }
            _ => {}
        }
        None
    }

    /// Records that the turn of this prompt is running.
    pub(crate) fn prompted(&mut self, id: &str) {
        (self.prompt, self.last_error) = (Some(id.to_owned()), None);
    }

    /// The sequence number up to which complete messages contain everything, if `head` is the last number used.
    pub(crate) fn settled(&self, head: i64) -> i64 {
        self.open.first().map_or(head, |held| held.since - 1)
    }

    /// The open messages in order, as they are now.
    pub(crate) fn open(&self) -> &[OpenMessage] {
        &self.open
    }

    /// Closes every open message as interrupted, because no more of it will arrive.
    pub(crate) fn interrupt(&mut self) -> Vec<OpenMessage> {
        self.bytes = 0;
        let mut all = std::mem::take(&mut self.open);
        for held in &mut all {
            held.message.is_complete = true;
            held.message.interrupted = true;
            for (_, piece) in &mut held.parts {
                if let OpenPart::Tool { call } = piece
                    && matches!(call.status, ToolStatus::Pending | ToolStatus::Running)
                {
                    call.status = ToolStatus::Error;
                }
            }
        }
        all
    }

    /// Marks one message as interrupted. It is completed like any other.
    pub(crate) fn mark_interrupted(&mut self, message: &str) {
        if let Some(held) = self.find(message) {
            held.message.interrupted = true;
        }
    }

    fn find(&mut self, id: &str) -> Option<&mut OpenMessage> {
        self.open.iter_mut().find(|held| held.message.id == id)
    }

    fn finish(&mut self, id: &str) -> Option<TranscriptWrite> {
        let at = self.open.iter().position(|held| held.message.id == id)?;
        let mut held = self.open.remove(at);
        self.bytes -= held.bytes;
        held.message.is_complete = true;
        Some(TranscriptWrite::Message(held.to_stored()))
    }

    /// Appends to a text part, within the size limits.
    fn extend(&mut self, message: &str, part: &str, more: &str) {
        let room = MAX_OPEN.saturating_sub(self.bytes);
        self.change(message, part, |text| {
            let room = room.min(MAX_TEXT.saturating_sub(text.len()));
            // Text after a cut would not continue the text before it.
            if text.ends_with(TRUNCATION_MARKER) {
                return;
            }
            if more.len() <= room {
                text.push_str(more);
            } else {
                text.push_str(&more[..more.floor_char_boundary(room)]);
                text.push_str(TRUNCATION_MARKER);
            }
        });
    }

    /// Changes the text of a part and updates the byte counts. Adds the part if it is new.
    fn change(&mut self, message: &str, part: &str, change: impl FnOnce(&mut String)) {
        let Some(held) = self.open.iter_mut().find(|held| held.message.id == message) else { return };
        let known = held.parts.iter().position(|(id, _)| id == part);
        if known.is_none() {
            held.parts.push((part.to_owned(), OpenPart::Text(String::new())));
        }
        let at = known.unwrap_or(held.parts.len() - 1);
        if let OpenPart::Text(text) = &mut held.parts[at].1 {
            let before = text.len();
            change(text);
            held.bytes = held.bytes + text.len() - before;
            self.bytes = self.bytes + text.len() - before;
        }
    }

    fn tool_started(&mut self, message: &str, part: &str, mut call: ToolCall) {
        if call.args.to_string().len() > MAX_OPEN.saturating_sub(self.bytes) {
            call.args = json!({ "truncated": true });
        }
        let size = call.args.to_string().len();
        let Some(held) = self.find(message) else { return };
        let known = held.parts.iter_mut().find_map(|(id, piece)| match piece {
            OpenPart::Tool { call } if id == part => Some(call),
            _ => None,
        });
        let before = if let Some(known) = known {
            std::mem::replace(&mut known.args, call.args).to_string().len()
        } else {
            held.parts.push((part.to_owned(), OpenPart::Tool { call }));
            0
        };
        held.bytes = held.bytes + size - before;
        self.bytes = self.bytes + size - before;
    }

    /// Records the end of a tool call. A call may end after its message is complete; the store then keeps the call as
    /// it was, and only the log has its end.
    fn tool_ended(&mut self, id: &str, result: &str, status: ToolStatus, now: i64) {
        let room = MAX_OPEN.saturating_sub(self.bytes);
        for held in &mut self.open {
            for (_, piece) in &mut held.parts {
                if let OpenPart::Tool { call } = piece
                    && call.id == id
                {
                    let kept = if result.len() <= room { result } else { TRUNCATION_MARKER.trim_start() };
                    call.result = Some(kept.to_owned());
                    call.status = status;
                    call.completed_at = Some(now);
                    held.bytes += kept.len();
                    self.bytes += kept.len();
                }
            }
        }
    }
}

impl OpenMessage {
    fn new(since: i64, mut message: Message) -> Self {
        let given = std::mem::take(&mut message.parts);
        let parts = given.into_iter().enumerate().filter_map(|(at, part)| {
            let piece = match part {
                Part::Text { text, .. } => OpenPart::Text(text),
                Part::Image { image } => OpenPart::Image(image),
                Part::Tool { .. } => return None,
            };
            Some((format!("given-{at}"), piece))
        });
        let parts: Vec<_> = parts.collect();
        let bytes = parts.iter().map(|(_, piece)| piece.bytes()).sum();
        Self { since, message, parts, bytes }
    }

    /// The message as it is stored.
    pub(crate) fn id(&self) -> &str {
        &self.message.id
    }

    pub(crate) fn to_stored(&self) -> StoredMessage {
        StoredMessage::from_message(self.to_message(), self.parts.iter().map(|(id, _)| id.clone()))
    }

    /// The message as clients see it.
    pub(crate) fn to_message(&self) -> Message {
        let mut message = self.message.clone();
        message.content = self.text();
        message.parts = self.parts.iter().map(|(id, piece)| piece.to_message(id)).collect();
        message.tool_calls = self
            .parts
            .iter()
            .filter_map(|(_, piece)| match piece {
                OpenPart::Tool { call } => Some(call.clone()),
                OpenPart::Text(_) | OpenPart::Image(_) => None,
            })
            .collect();
        message
    }

    fn text(&self) -> String {
        if self.message.role == MessageRole::User && !self.message.content.is_empty() {
            return self.message.content.clone();
        }
        let texts = self.parts.iter().filter_map(|(_, piece)| match piece {
            OpenPart::Text(text) => Some(text.as_str()),
            OpenPart::Image(_) | OpenPart::Tool { .. } => None,
        });
        texts.collect()
    }
}

impl OpenPart {
    /// The size of a part when its message is announced.
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Image(image) => image.len(),
            Self::Tool { .. } => 0,
        }
    }

    fn to_message(&self, id: &str) -> Part {
        match self {
            Self::Text(text) => Part::Text { text: text.clone(), part_id: Some(id.to_owned()) },
            Self::Image(image) => Part::Image { image: image.clone() },
            Self::Tool { call } => Part::Tool {
                tool_call_id: call.id.clone(),
                tool_name: call.tool.clone(),
                args: call.args.clone(),
                result: call.result.clone(),
                status: call.status,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &str, role: MessageRole, content: &str) -> ServerMessage {
        ServerMessage::Message(Message {
            id: id.to_owned(),
            role,
            content: content.to_owned(),
            is_complete: role == MessageRole::User,
            created_at: 1,
            sender_id: None,
            source: None,
            tool_calls: Vec::new(),
            parts: Vec::new(),
            interrupted: false,
            error: None,
        })
    }

    fn token(text: &str) -> ServerMessage {
        ServerMessage::Token { message_id: "a".into(), part_id: "p".into(), token: text.into() }
    }

    fn started(args: serde_json::Value) -> ServerMessage {
        ServerMessage::ToolStart {
            message_id: Some("a".into()),
            part_id: "t".into(),
            tool_call_id: "c".into(),
            tool: "bash".into(),
            args,
        }
    }

    fn finished(write: Option<TranscriptWrite>) -> Message {
        match write {
            Some(TranscriptWrite::Message(message)) => message.into(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_failed_turn_stores_its_reason_with_its_last_message() {
        let mut transcript = Transcript::default();
        let error = ServerMessage::Error { message: "the model refuses".into() };
        let over = |ids: &[&str]| ServerMessage::TurnComplete {
            message_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            outcome: TurnOutcome::Error,
        };
        for (ids, at) in [(&["a", "b"][..], "b"), (&[], "u")] {
            transcript.apply(&message("u", MessageRole::User, "hi"), 1, 5);
            transcript.apply(&error, 2, 5);
            let write = transcript.apply(&over(ids), 3, 5);
            let (message_id, reason) = (at.to_owned(), "the model refuses".to_owned());
            assert_eq!(write, Some(TranscriptWrite::Failed { message_id, reason }));
        }
    }

    #[test]
    fn an_answer_grows_and_is_returned_when_it_is_complete() {
        let mut transcript = Transcript::default();
        let user = finished(transcript.apply(&message("u", MessageRole::User, "hi"), 1, 5));
        assert_eq!((user.content.as_str(), user.is_complete), ("hi", true));
        let said = [message("a", MessageRole::Assistant, ""), token("He"), token("l"), started(json!({}))];
        for (number, said) in (2..).zip(&said) {
            assert!(transcript.apply(said, number, 6).is_none());
        }
        assert_eq!(transcript.settled(5), 1, "the answer begins with number 2");
        assert_eq!(transcript.open()[0].to_message().content, "Hel");
        transcript.apply(&started(json!({"command": "ls"})), 6, 7);
        let end = ServerMessage::ToolEnd {
            part_id: "t".into(),
            tool_call_id: "c".into(),
            tool: "bash".into(),
            result: "x".into(),
            duration_ms: 1,
            status: None,
        };
        transcript.apply(&end, 7, 8);
        let whole = ServerMessage::TextPartComplete {
            message_id: "a".into(),
            part_id: "p".into(),
            text: "Hello".into(),
        };
        transcript.apply(&whole, 8, 9);
        let end = ServerMessage::MessageComplete { message_id: "a".into() };
        let done = finished(transcript.apply(&end, 9, 9));
        assert_eq!((done.content.as_str(), done.is_complete, done.parts.len()), ("Hello", true, 2));
        let call = &done.tool_calls[0];
        assert_eq!((call.args.clone(), call.result.as_deref()), (json!({"command": "ls"}), Some("x")));
        assert_eq!((call.status, call.started_at, call.completed_at), (ToolStatus::Completed, 6, Some(8)));
        assert_eq!((transcript.settled(9), transcript.open().len()), (9, 0));
    }

    #[test]
    fn open_messages_are_bounded_in_size() {
        let mut transcript = Transcript::default();
        let piece = "é".repeat(30_000);
        for number in 0..100 {
            let id = format!("m{number}");
            transcript.apply(&message(&id, MessageRole::Assistant, ""), number, 1);
            let call = ServerMessage::ToolStart {
                message_id: Some(id.clone()),
                part_id: "t".into(),
                tool_call_id: id.clone(),
                tool: "write".into(),
                args: json!({ "content": piece }),
            };
            transcript.apply(&call, number, 1);
            for _ in 0..40 {
                let token = ServerMessage::Token {
                    message_id: id.clone(),
                    part_id: "p".into(),
                    token: piece.clone(),
                };
                transcript.apply(&token, number, 1);
            }
        }
        let first = transcript.open()[0].to_message().content;
        assert!(
            first.len() <= MAX_TEXT + TRUNCATION_MARKER.len() && first.ends_with(TRUNCATION_MARKER),
            "{}",
            first.len()
        );
        let held = |transcript: &Transcript| -> usize {
            transcript
                .open()
                .iter()
                .map(|held| serde_json::to_string(&held.to_message()).unwrap().len())
                .sum()
        };
        // Text and calls appear in a message twice.
        assert!((MAX_OPEN..2 * MAX_OPEN + 100_000).contains(&held(&transcript)), "{}", held(&transcript));
        for number in 0..100 {
            let id = format!("m{number}");
            let over = ServerMessage::TextPartComplete {
                message_id: id.clone(),
                part_id: "p".into(),
                text: "x".into(),
            };
            transcript.apply(&over, 200, 1);
            assert_eq!(transcript.find(&id).unwrap().to_message().content, "x");
            transcript.apply(&ServerMessage::MessageComplete { message_id: id }, 201, 1);
        }
        assert_eq!(transcript.bytes, 0);
    }

    #[test]
    fn a_failed_tool_call_stays_failed() {
        let mut transcript = Transcript::default();
        for (number, said) in (1..).zip([message("a", MessageRole::Assistant, ""), started(json!({}))]) {
            transcript.apply(&said, number, 1);
        }
        let end = ServerMessage::ToolEnd {
            part_id: "t".into(),
            tool_call_id: "c".into(),
            tool: "bash".into(),
            result: "no such file".into(),
            duration_ms: 1,
            status: Some(ToolStatus::Error),
        };
        transcript.apply(&end, 3, 2);
        assert_eq!(transcript.open()[0].to_message().tool_calls[0].status, ToolStatus::Error);
    }

    #[test]
    fn an_interrupted_message_keeps_its_text_and_is_marked() {
        let mut transcript = Transcript::default();
        for (number, said) in
            (1..).zip([message("a", MessageRole::Assistant, ""), token("partial"), started(json!({}))])
        {
            transcript.apply(&said, number, 1);
        }
        let cut = transcript.interrupt();
        let shown = cut[0].to_message();
        assert_eq!((shown.content.as_str(), shown.interrupted, shown.is_complete), ("partial", true, true));
        assert_eq!(shown.tool_calls[0].status, ToolStatus::Error);
        assert!(transcript.open().is_empty());
        assert!(transcript.apply(&token("late"), 4, 1).is_none(), "nothing is added afterwards");
    }
}
