//! One answer of the agent, step by step, with the events in the order of the real agent.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Inner, Shared};

/// A prompt that the agent has accepted. Only the test makes it progress.
#[derive(Debug)]
pub struct Turn {
    pub(super) state: Arc<Shared>,
    pub session: String,
    /// The id of the prompt's message.
    pub prompt: String,
    pub text: String,
    /// The model with its provider, and the variant of it.
    pub model: String,
    pub variant: Option<String>,
}

/// The message that the agent is producing in a session.
#[derive(Debug)]
pub(crate) struct MessageInProgress {
    message: String,
    part: String,
    text: String,
}

impl Turn {
    pub(super) fn new(state: Arc<Shared>, inner: &mut Inner, session: &str, body: &Value) -> Self {
        let prompt = body["messageID"].as_str().unwrap_or_default().to_owned();
        let text = body["parts"][0]["text"].as_str().unwrap_or_default().to_owned();
        let created = inner.next();
        let info =
            json!({ "id": prompt, "sessionID": session, "role": "user", "time": { "created": created } });
        let part = json!({ "id": body["parts"][0]["id"], "sessionID": session, "messageID": prompt,
            "type": "text", "text": text });
        if let Some(memory) = inner.sessions.get_mut(session) {
            memory.messages.push(json!({ "info": info, "parts": [part] }));
        }
        inner.emit(&event("message.updated", session, &json!({ "info": info })));
        inner.emit(&event("message.part.updated", session, &json!({ "part": part, "time": created })));
        let (provider, model) = (&body["model"]["providerID"], &body["model"]["modelID"]);
        let model =
            format!("{}/{}", provider.as_str().unwrap_or_default(), model.as_str().unwrap_or_default());
        let variant = body["variant"].as_str().map(str::to_owned);
        Self { state, session: session.to_owned(), prompt, text, model, variant }
    }

    /// Becomes busy and announces a message.
    pub fn begin(&self) {
        self.state.change(|inner| begin(inner, &self.session));
    }

    /// Emits a piece of text.
    pub fn say(&self, piece: &str) {
        self.state.change(|inner| say(inner, &self.session, piece));
    }

    /// Calls a tool, which completes immediately.
    pub fn call(&self, tool: &str, input: &Value, output: &str) {
        self.state.change(|inner| call(inner, &self.session, tool, input, output));
    }

    /// Finishes the message and becomes idle.
    pub fn end(&self) {
        self.state.change(|inner| {
            finish(inner, &self.session, None);
            idle(inner, &self.session);
        });
    }

    /// Finishes the message and starts the next one of the same turn.
    pub fn step(&self) {
        self.state.change(|inner| {
            finish(inner, &self.session, None);
            begin(inner, &self.session);
        });
    }

    /// Begins the answer, emits this text and ends.
    pub fn answer(&self, text: &str) {
        self.begin();
        self.say(text);
        self.end();
    }

    /// Ends the turn with an error of the model.
    pub fn fail(&self, reason: &str) {
        let error = json!({ "name": "APIError", "data": { "message": reason } });
        self.state.change(|inner| {
            inner.emit(&event("session.error", &self.session, &json!({ "error": error })));
            finish(inner, &self.session, Some(&error));
            idle(inner, &self.session);
        });
    }

    /// Rejects the prompt before becoming busy, and stores nothing of it. No idle status follows.
    pub fn refuse(&self, reason: &str) {
        let error = json!({ "name": "UnknownError", "data": { "message": reason } });
        self.state.change(|inner| {
            if let Some(memory) = inner.sessions.get_mut(&self.session) {
                memory.messages.pop();
                (memory.busy, memory.turn) = (false, None);
            }
            inner.emit(&event("session.error", &self.session, &json!({ "error": error })));
        });
    }

    /// Simulates a crash and a restart: the stored message has no text, and no event is sent.
    pub fn die(&self) {
        self.state.change(|inner| {
            if let Some(memory) = inner.sessions.get_mut(&self.session) {
                (memory.busy, memory.turn, memory.restarted) = (false, None, true);
            }
        });
    }

    pub(super) fn echo(&self, inner: &mut Inner) {
        begin(inner, &self.session);
        say(inner, &self.session, &format!("echo: {}", self.text));
        finish(inner, &self.session, None);
        idle(inner, &self.session);
    }
}

/// After a restart, the agent works on its last message if that is a prompt which is sent again, like on a new one.
pub(super) fn forget_unanswered(inner: &mut Inner, session: &str, prompt: &str) {
    let Some(memory) = inner.sessions.get_mut(session) else { return };
    let is_last = memory.messages.last().is_some_and(|last| last["info"]["id"] == prompt);
    if std::mem::take(&mut memory.restarted) && is_last {
        memory.messages.pop();
    }
}

/// Ends the active turn in the order of the real agent: two idle statuses with the final text between them.
pub(super) fn abort(inner: &mut Inner, session: &str) {
    if !inner.sessions.get(session).is_some_and(|memory| memory.busy) {
        return;
    }
    let error = json!({ "name": "MessageAbortedError", "data": { "message": "Aborted" } });
    inner.emit(&event("session.error", session, &json!({ "error": error })));
    idle(inner, session);
    finish(inner, session, Some(&error));
    idle(inner, session);
}

fn begin(inner: &mut Inner, session: &str) {
    let (message, part) = (format!("msg_{}", inner.next()), format!("prt_{}", inner.next()));
    let created = inner.next();
    let info =
        json!({ "id": message, "sessionID": session, "role": "assistant", "time": { "created": created } });
    let text = text_part(session, &message, &part, "");
    inner.emit(&event("session.status", session, &json!({ "status": { "type": "busy" } })));
    inner.emit(&event("message.updated", session, &json!({ "info": info })));
    inner.emit(&event("message.part.updated", session, &json!({ "part": text, "time": created })));
    if let Some(memory) = inner.sessions.get_mut(session) {
        memory.busy = true;
        memory.messages.push(json!({ "info": info, "parts": [text] }));
        memory.turn = Some(MessageInProgress { message, part, text: String::new() });
    }
}

fn say(inner: &mut Inner, session: &str, piece: &str) {
    let Some(turn) = inner.sessions.get_mut(session).and_then(|memory| memory.turn.as_mut()) else { return };
    turn.text.push_str(piece);
    let delta = json!({ "messageID": turn.message, "partID": turn.part, "field": "text", "delta": piece });
    inner.emit(&event("message.part.delta", session, &delta));
}

fn call(inner: &mut Inner, session: &str, tool: &str, input: &Value, output: &str) {
    let (part, call, start) =
        (format!("prt_{}", inner.next()), format!("call_{}", inner.next()), inner.next());
    let Some(turn) = inner.sessions.get(session).and_then(|memory| memory.turn.as_ref()) else { return };
    let message = turn.message.clone();
    let states = [
        json!({ "status": "pending", "input": {}, "raw": "" }),
        json!({ "status": "running", "input": input, "time": { "start": start } }),
        json!({ "status": "completed", "input": input, "output": output, "title": tool, "metadata": {},
            "time": { "start": start, "end": start + 5 } }),
    ];
    for state in states {
        let part = json!({ "id": part, "messageID": message, "sessionID": session, "type": "tool", "tool": tool,
            "callID": call, "state": state });
        inner.emit(&event("message.part.updated", session, &json!({ "part": part, "time": start })));
    }
}

fn finish(inner: &mut Inner, session: &str, error: Option<&Value>) {
    let end = inner.next();
    let Some(memory) = inner.sessions.get_mut(session) else { return };
    let Some(turn) = memory.turn.take() else { return };
    let Some(entry) = memory.messages.iter_mut().find(|entry| entry["info"]["id"] == turn.message.as_str())
    else {
        return;
    };
    entry["info"]["time"]["completed"] = json!(end);
    if let Some(error) = error {
        entry["info"]["error"] = error.clone();
    }
    let mut text = text_part(session, &turn.message, &turn.part, &turn.text);
    text["time"] = json!({ "start": end, "end": end });
    entry["parts"] = json!([text]);
    let info = entry["info"].clone();
    inner.emit(&event("message.part.updated", session, &json!({ "part": text, "time": end })));
    inner.emit(&event("message.updated", session, &json!({ "info": info })));
}

fn idle(inner: &mut Inner, session: &str) {
    if let Some(memory) = inner.sessions.get_mut(session) {
        memory.busy = false;
    }
    inner.emit(&event("session.status", session, &json!({ "status": { "type": "idle" } })));
    inner.emit(&event("session.idle", session, &json!({})));
}

fn text_part(session: &str, message: &str, part: &str, text: &str) -> Value {
    json!({ "id": part, "messageID": message, "sessionID": session, "type": "text", "text": text })
}

fn event(kind: &str, session: &str, properties: &Value) -> Value {
    let mut properties = properties.clone();
    properties["sessionID"] = json!(session);
    json!({ "type": kind, "properties": properties })
}
