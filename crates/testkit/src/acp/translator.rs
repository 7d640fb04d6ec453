//! Translates ACP's updates into messages for clients.

use std::collections::BTreeMap;

use agent::{History, Output, PendingRequest, SecretFinder, Translator};
use bytes::Bytes;
use proto::socket::{Message, MessageRole, ServerMessage, ToolStatus, TurnOutcome};
use serde_json::{Value, json};

pub(super) struct AcpTranslator {
    session: String,
    turn: Option<Turn>,
}

#[derive(Default)]
struct Turn {
    /// The agent's messages so far. Only the last one can be open.
    messages: Vec<String>,
    /// The text of the open part of the last message.
    text: Option<String>,
    /// The name of each tool call that has not ended, by its id.
    calls: BTreeMap<String, String>,
}

impl AcpTranslator {
    pub(super) fn new(session: &str) -> Self {
        Self { session: session.to_owned(), turn: None }
    }

    fn update(&mut self, update: &Value, now: i64, out: &mut Vec<ServerMessage>) {
        let Some(turn) = &mut self.turn else { return };
        let text = |field: &str| update[field].as_str().unwrap_or_default();
        match text("sessionUpdate") {
            "agent_message_chunk" => {
                turn.begin_message(text("messageId"), now, out);
                turn.token(update["content"]["text"].as_str().unwrap_or_default(), out);
            }
            "tool_call" => turn.start_call(text("toolCallId"), text("title"), &json!({}), out),
            "tool_call_update" => turn.update_call(text("toolCallId"), text("status"), update, out),
            _ => {}
        }
    }

    fn end(&mut self, outcome: TurnOutcome) -> Output {
        let mut out = Output::default();
        if let Some(mut turn) = self.turn.take() {
            for (id, name) in std::mem::take(&mut turn.calls) {
                out.messages.push(call_end(&id, name, String::new(), Some(ToolStatus::Error)));
            }
            turn.end_message(&mut out.messages);
            out.messages.push(ServerMessage::TurnComplete { message_ids: turn.messages, outcome });
        }
        out
    }
}

impl Turn {
    fn begin_message(&mut self, id: &str, now: i64, out: &mut Vec<ServerMessage>) {
        if self.messages.last().is_some_and(|last| last == id) {
            return;
        }
        self.end_message(out);
        self.messages.push(id.to_owned());
        out.push(ServerMessage::Message(Message {
            id: id.to_owned(),
            role: MessageRole::Assistant,
            content: String::new(),
            is_complete: false,
            created_at: now,
            sender_id: None,
            source: None,
            tool_calls: Vec::new(),
            parts: Vec::new(),
            interrupted: false,
            error: None,
        }));
    }

    fn token(&mut self, token: &str, out: &mut Vec<ServerMessage>) {
        let Some(message_id) = self.messages.last().cloned() else { return };
        self.text.get_or_insert_default().push_str(token);
        let part_id = text_part(&message_id);
        out.push(ServerMessage::Token { message_id, part_id, token: token.to_owned() });
    }

    fn end_text(&mut self, out: &mut Vec<ServerMessage>) {
        if let (Some(text), Some(message_id)) = (self.text.take(), self.messages.last().cloned()) {
            let part_id = text_part(&message_id);
            out.push(ServerMessage::TextPartComplete { message_id, part_id, text });
        }
    }

    fn end_message(&mut self, out: &mut Vec<ServerMessage>) {
        self.end_text(out);
        if let Some(message_id) = self.messages.last().cloned() {
            out.push(ServerMessage::MessageComplete { message_id });
        }
    }

    fn start_call(&mut self, id: &str, name: &str, args: &Value, out: &mut Vec<ServerMessage>) {
        self.end_text(out);
        self.calls.insert(id.to_owned(), name.to_owned());
        out.push(ServerMessage::ToolStart {
            message_id: self.messages.last().cloned(),
            part_id: id.to_owned(),
            tool_call_id: id.to_owned(),
            tool: name.to_owned(),
            args: args.clone(),
        });
    }

    /// The first update has the arguments, and the last one the result.
    fn update_call(&mut self, id: &str, status: &str, update: &Value, out: &mut Vec<ServerMessage>) {
        let Some(name) = self.calls.get(id).cloned() else { return };
        let title = update["title"].as_str().map(str::to_owned);
        let failed = match status {
            "completed" => None,
            "failed" => Some(ToolStatus::Error),
            _ if update["content"].is_null() => {
                return self.start_call(id, &name, &update["rawInput"], out);
            }
            _ => {
                let (tool_call_id, tool) = (id.to_owned(), name);
                return out.push(ServerMessage::ToolMetadata { tool_call_id, tool, title, metadata: None });
            }
        };
        self.calls.remove(id);
        let pieces = update["content"].as_array().into_iter().flatten();
        let result = pieces.filter_map(|piece| piece["content"]["text"].as_str()).collect();
        out.push(call_end(id, name, result, failed));
    }
}

fn text_part(message: &str) -> String {
    format!("{message}-text")
}

fn call_end(id: &str, tool: String, result: String, status: Option<ToolStatus>) -> ServerMessage {
    let (part_id, tool_call_id) = (id.to_owned(), id.to_owned());
    ServerMessage::ToolEnd { part_id, tool_call_id, tool, result, duration_ms: 0, status }
}

impl Translator for AcpTranslator {
    /// Cuts no text.
    fn set_secrets(&mut self, _: SecretFinder) {}

    fn begin(&mut self, _: &str) {
        self.turn.get_or_insert_default();
    }

    fn observe(&mut self, events: &[Bytes], now: i64, out: &mut Output) {
        for event in events {
            let event: Value = serde_json::from_slice(event).unwrap_or_default();
            let params = &event["params"];
            if params["sessionId"] == self.session.as_str() {
                self.update(&params["update"], now, &mut out.messages);
            } else if let Some(reason) = event["result"]["stopReason"].as_str() {
                let ended = self.end(match reason {
                    "end_turn" => TurnOutcome::Ok,
                    "cancelled" => TurnOutcome::Cancelled,
                    _ => TurnOutcome::Error,
                });
                out.messages.extend(ended.messages);
            }
        }
    }

    fn is_busy(&self) -> bool {
        self.turn.is_some()
    }

    fn has_refused(&self) -> bool {
        false
    }

    fn give_up(&mut self, reason: &str, _: i64) -> Output {
        let mut out = self.end(TurnOutcome::Error);
        if !out.messages.is_empty() {
            out.messages.insert(0, ServerMessage::Error { message: reason.to_owned() });
        }
        out
    }

    fn close(&mut self, _: i64) -> Output {
        self.end(TurnOutcome::Ok)
    }

    fn cancel(&mut self, _: i64) -> Output {
        self.end(TurnOutcome::Cancelled)
    }

    fn stream_lost(&mut self) {}

    fn recall(&mut self, _: &ServerMessage) {}

    /// The recording has no history, so a turn whose stream was lost ends.
    fn reconcile(&mut self, history: &History, _: i64) -> Output {
        if history.busy { Output::default() } else { self.end(TurnOutcome::Error) }
    }

    fn is_abandoned(&self, _: &History) -> bool {
        false
    }

    fn pending(&mut self, _: &[PendingRequest]) -> Output {
        Output::default()
    }
}
