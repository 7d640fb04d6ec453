//! A test harness for the translator: takes events as JSON and collects what it emits.

use agent::History;
use opencode::event::Event;
use opencode::history::split_page;
use opencode::translate::{Effect, Output, Translator};
use proto::socket::{Frame, ServerMessage};
use serde_json::{Value, json};

pub(crate) const SESSION: &str = "ses_1";
pub(crate) const PROMPT: &str = "msg_prompt";

pub(crate) struct Harness {
    pub(crate) translator: Translator,
    pub(crate) emitted: Vec<ServerMessage>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) now: i64,
}

impl Harness {
    /// A harness without a turn.
    pub(crate) fn new(session: &str) -> Self {
        Self { translator: Translator::new(session), emitted: Vec::new(), effects: Vec::new(), now: 1_000 }
    }

    /// A harness with a prompt sent and the agent busy.
    pub(crate) fn busy() -> Self {
        let mut harness = Self::new(SESSION);
        harness.translator.begin(PROMPT);
        harness.event(&status("busy"));
        harness
    }

    pub(crate) fn event(&mut self, event: &Value) {
        let text = event.to_string();
        let event = Event::parse(text.as_bytes()).unwrap();
        let output = self.translator.observe(&event, self.now);
        self.take(output);
    }

    pub(crate) fn events(&mut self, events: impl IntoIterator<Item = Value>) {
        for event in events {
            self.event(&event);
        }
    }

    pub(crate) fn reconcile(&mut self, messages: &Value, busy: bool) {
        let mut history = History::new(busy);
        history.add_older(split_page(messages.to_string().into()).unwrap());
        let output = self.translator.reconcile(&history, self.now);
        self.take(output);
    }

    pub(crate) fn take(&mut self, output: Output) {
        self.emitted.extend(output.messages);
        self.effects.extend(output.effects);
    }

    /// Everything that was emitted, in a short form for comparisons.
    pub(crate) fn script(&self) -> Vec<String> {
        self.emitted.iter().map(summarize).collect()
    }
}

/// A message in short form.
pub(crate) fn summarize(message: &ServerMessage) -> String {
    match message {
        ServerMessage::Message(message) => format!("message {}", message.id),
        ServerMessage::Token { message_id, part_id, token } => {
            format!("token {message_id} {part_id} {token}")
        }
        ServerMessage::TextPartComplete { message_id, part_id, text } => {
            format!("text {message_id} {part_id} {text}")
        }
        ServerMessage::MessageComplete { message_id } => format!("complete {message_id}"),
        ServerMessage::MessageCancelled { message_id } => {
            format!("cancelled {}", message_id.as_deref().unwrap_or("-"))
        }
        ServerMessage::ToolStart { tool_call_id, tool, args, .. } => {
            format!("tool_start {tool_call_id} {tool} {args}")
        }
        ServerMessage::ToolEnd { tool_call_id, result, duration_ms, .. } => {
            format!("tool_end {tool_call_id} {result} {duration_ms}")
        }
        ServerMessage::Error { message } => format!("error {message}"),
        ServerMessage::Status { message, .. } => format!("status {message}"),
        ServerMessage::TurnComplete { message_ids, outcome } => {
            format!("turn {} {outcome:?}", message_ids.join(","))
        }
        other => serde_json::to_string(&Frame::to_one(other.clone())).unwrap(),
    }
}

pub(crate) fn event(kind: &str, properties: Value) -> Value {
    json!({ "id": "evt_1", "type": kind, "properties": properties })
}

pub(crate) fn status(kind: &str) -> Value {
    event("session.status", json!({ "sessionID": SESSION, "status": { "type": kind } }))
}

pub(crate) fn retry(attempt: u32, message: &str) -> Value {
    let status = json!({ "type": "retry", "attempt": attempt, "message": message, "next": 1 });
    event("session.status", json!({ "sessionID": SESSION, "status": status }))
}

pub(crate) fn info(id: &str, role: &str) -> Value {
    json!({ "id": id, "role": role, "sessionID": SESSION, "time": { "created": 7 } })
}

pub(crate) fn message(id: &str, role: &str) -> Value {
    updated(info(id, role))
}

pub(crate) fn updated(info: Value) -> Value {
    event("message.updated", json!({ "sessionID": SESSION, "info": info }))
}

pub(crate) fn completed_info(id: &str) -> Value {
    let mut info = info(id, "assistant");
    info["time"]["completed"] = 9.into();
    info
}

pub(crate) fn completed(id: &str) -> Value {
    updated(completed_info(id))
}

pub(crate) fn failed_info(id: &str, name: &str, text: &str) -> Value {
    let mut info = completed_info(id);
    info["error"] = json!({ "name": name, "data": { "message": text } });
    info
}

pub(crate) fn session_error(name: &str, text: &str) -> Value {
    let error = json!({ "name": name, "data": { "message": text } });
    event("session.error", json!({ "sessionID": SESSION, "error": error }))
}

pub(crate) fn delta(message: &str, part: &str, text: &str) -> Value {
    let properties =
        json!({ "sessionID": SESSION, "messageID": message, "partID": part, "field": "text", "delta": text });
    event("message.part.delta", properties)
}

pub(crate) fn part(part: Value) -> Value {
    event("message.part.updated", json!({ "sessionID": SESSION, "part": part }))
}

pub(crate) fn text_part(message: &str, id: &str, text: &str, ended: bool) -> Value {
    let time = if ended { json!({ "start": 1, "end": 2 }) } else { json!({ "start": 1 }) };
    json!({ "id": id, "messageID": message, "sessionID": SESSION, "type": "text", "text": text, "time": time })
}

pub(crate) fn text(message: &str, id: &str, text: &str, ended: bool) -> Value {
    part(text_part(message, id, text, ended))
}

pub(crate) fn tool_part(message: &str, id: &str, state: Value) -> Value {
    json!({
        "id": id, "messageID": message, "sessionID": SESSION, "type": "tool", "tool": "bash",
        "callID": format!("call_{id}"), "state": state,
    })
}

pub(crate) fn tool(message: &str, id: &str, state: Value) -> Value {
    part(tool_part(message, id, state))
}

pub(crate) fn done_state() -> Value {
    json!({
        "status": "completed", "input": { "command": "ls" }, "output": "a.txt", "title": "ls",
        "metadata": { "output": "a.txt", "exit": 0 }, "time": { "start": 1_000, "end": 1_350 },
    })
}
