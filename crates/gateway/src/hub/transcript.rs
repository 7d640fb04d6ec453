//! The conversation, made of what was said: messages that are still open are held here, finished ones go to the store.

use proto::socket::{Message, MessageRole, Part, ServerMessage, ToolCall, ToolStatus};
use store::StoredMessage;

/// A message with the ids of its parts, in the order of speaking.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Held {
    /// The number under which it was announced.
    since: i64,
    message: Message,
    parts: Vec<(String, Piece)>,
}

/// A part that may still grow.
#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    Image(String),
    Tool { call: ToolCall },
}

/// Messages that are not finished, in the order of their beginning.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    open: Vec<Held>,
}

impl Transcript {
    /// Takes in what is said to everyone under a number; gives the message that is finished by it and held no longer.
    pub(crate) fn apply(&mut self, said: &ServerMessage, seq: i64, now: i64) -> Option<Held> {
        match said {
            ServerMessage::Message(message) => {
                if self.open.iter().all(|held| held.message.id != message.id) {
                    self.open.push(Held::new(seq, message.clone()));
                }
                return if message.is_complete { self.finish(&message.id) } else { None };
            }
            ServerMessage::Token { message_id, part_id, token } => {
                if let Some(text) = self.text(message_id, part_id) {
                    text.push_str(token);
                }
            }
            ServerMessage::TextPartComplete { message_id, part_id, text } => {
                if let Some(held) = self.text(message_id, part_id) {
                    held.clone_from(text);
                }
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
            ServerMessage::MessageComplete { message_id } => return self.finish(message_id),
            _ => {}
        }
        None
    }

    /// The number up to which everything is in finished messages, if `head` is the last that was used.
    pub(crate) fn settled(&self, head: i64) -> i64 {
        self.open.first().map_or(head, |held| held.since - 1)
    }

    /// Everything that is open, in order, as it stands.
    pub(crate) fn open(&self) -> &[Held] {
        &self.open
    }

    /// Ends whatever is open: nothing more will be said of it.
    pub(crate) fn interrupt(&mut self) -> Vec<Held> {
        let mut all = std::mem::take(&mut self.open);
        for held in &mut all {
            held.message.is_complete = true;
            held.message.interrupted = true;
            for (_, piece) in &mut held.parts {
                if let Piece::Tool { call } = piece
                    && matches!(call.status, ToolStatus::Pending | ToolStatus::Running)
                {
                    call.status = ToolStatus::Error;
                }
            }
        }
        all
    }

    /// Marks one message as cut off; it is finished as any other.
    pub(crate) fn mark_interrupted(&mut self, message: &str) {
        if let Some(held) = self.find(message) {
            held.message.interrupted = true;
        }
    }

    fn find(&mut self, id: &str) -> Option<&mut Held> {
        self.open.iter_mut().find(|held| held.message.id == id)
    }

    fn finish(&mut self, id: &str) -> Option<Held> {
        let at = self.open.iter().position(|held| held.message.id == id)?;
        let mut held = self.open.remove(at);
        held.message.is_complete = true;
        Some(held)
    }

    fn text(&mut self, message: &str, part: &str) -> Option<&mut String> {
        let held = self.find(message)?;
        let known = held.parts.iter().position(|(id, _)| id == part);
        if known.is_none() {
            held.parts.push((part.to_owned(), Piece::Text(String::new())));
        }
        let at = known.unwrap_or(held.parts.len() - 1);
        match &mut held.parts[at].1 {
            Piece::Text(text) => Some(text),
            Piece::Image(_) | Piece::Tool { .. } => None,
        }
    }

    fn tool_started(&mut self, message: &str, part: &str, call: ToolCall) {
        let Some(held) = self.find(message) else { return };
        let known = held.parts.iter_mut().find_map(|(id, piece)| match piece {
            Piece::Tool { call } if id == part => Some(call),
            _ => None,
        });
        match known {
            Some(known) => known.args = call.args,
            None => held.parts.push((part.to_owned(), Piece::Tool { call })),
        }
    }

    /// A call may end after its message is finished: then it is in the store as it was, and the end in the log.
    fn tool_ended(&mut self, id: &str, result: &str, status: ToolStatus, now: i64) {
        let pieces = self.open.iter_mut().flat_map(|held| &mut held.parts);
        for (_, piece) in pieces {
            if let Piece::Tool { call } = piece
                && call.id == id
            {
                call.result = Some(result.to_owned());
                call.status = status;
                call.completed_at = Some(now);
            }
        }
    }
}

impl Held {
    fn new(since: i64, mut message: Message) -> Self {
        let given = std::mem::take(&mut message.parts);
        let parts = given.into_iter().enumerate().filter_map(|(at, part)| {
            let piece = match part {
                Part::Text { text } => Piece::Text(text),
                Part::Image { image } => Piece::Image(image),
                Part::Tool { .. } => return None,
            };
            Some((format!("given-{at}"), piece))
        });
        Self { since, parts: parts.collect(), message }
    }

    /// As it is stored.
    pub(crate) fn stored(&self) -> StoredMessage {
        StoredMessage::from_message(self.shown(), self.parts.iter().map(|(id, _)| id.clone()))
    }

    /// As clients see it.
    pub(crate) fn shown(&self) -> Message {
        let mut message = self.message.clone();
        message.content = self.text();
        message.parts = self.parts.iter().map(|(_, piece)| piece.shown()).collect();
        message.tool_calls = self
            .parts
            .iter()
            .filter_map(|(_, piece)| match piece {
                Piece::Tool { call } => Some(call.clone()),
                Piece::Text(_) | Piece::Image(_) => None,
            })
            .collect();
        message
    }

    fn text(&self) -> String {
        if self.message.role == MessageRole::User && !self.message.content.is_empty() {
            return self.message.content.clone();
        }
        let texts = self.parts.iter().filter_map(|(_, piece)| match piece {
            Piece::Text(text) => Some(text.as_str()),
            Piece::Image(_) | Piece::Tool { .. } => None,
        });
        texts.collect()
    }
}

impl Piece {
    fn shown(&self) -> Part {
        match self {
            Self::Text(text) => Part::Text { text: text.clone() },
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
    use serde_json::json;

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

    #[test]
    fn an_answer_grows_and_is_handed_over_when_it_is_complete() {
        let mut transcript = Transcript::default();
        let user = transcript.apply(&message("u", MessageRole::User, "hi"), 1, 5).unwrap().shown();
        assert_eq!((user.content.as_str(), user.is_complete), ("hi", true));
        let said = [message("a", MessageRole::Assistant, ""), token("He"), token("l"), started(json!({}))];
        for (number, said) in (2..).zip(&said) {
            assert!(transcript.apply(said, number, 6).is_none());
        }
        assert_eq!(transcript.settled(5), 1, "the answer begins with number 2");
        assert_eq!(transcript.open()[0].shown().content, "Hel");
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
        let done = transcript
            .apply(&ServerMessage::MessageComplete { message_id: "a".into() }, 9, 9)
            .unwrap()
            .shown();
        assert_eq!((done.content.as_str(), done.is_complete, done.parts.len()), ("Hello", true, 2));
        let call = &done.tool_calls[0];
        assert_eq!((call.args.clone(), call.result.as_deref()), (json!({"command": "ls"}), Some("x")));
        assert_eq!((call.status, call.started_at, call.completed_at), (ToolStatus::Completed, 6, Some(8)));
        assert_eq!((transcript.settled(9), transcript.open().len()), (9, 0));
    }

    #[test]
    fn a_call_that_failed_is_kept_as_failed() {
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
        assert_eq!(transcript.open()[0].shown().tool_calls[0].status, ToolStatus::Error);
    }

    #[test]
    fn what_is_cut_off_keeps_its_text_and_says_so() {
        let mut transcript = Transcript::default();
        for (number, said) in
            (1..).zip([message("a", MessageRole::Assistant, ""), token("partial"), started(json!({}))])
        {
            transcript.apply(&said, number, 1);
        }
        let cut = transcript.interrupt();
        let shown = cut[0].shown();
        assert_eq!((shown.content.as_str(), shown.interrupted, shown.is_complete), ("partial", true, true));
        assert_eq!(shown.tool_calls[0].status, ToolStatus::Error);
        assert!(transcript.open().is_empty());
        assert!(transcript.apply(&token("late"), 4, 1).is_none(), "nothing is said of it afterwards");
    }
}
