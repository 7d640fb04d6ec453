//! OpenCode's events into what clients are told: a state machine without clock, network or memory of its own.
//!
//! It promises, whatever comes in: a message is announced before anything is said of it and completed once; the
//! tokens of a part are the beginning of its final text, each said once and under its own message; a tool call
//! ends at most once; a turn ends once, after its last message. What it holds is bounded.
//!
//! Its state can be made again from what it has said ([`Translator::resume`]), so that a new process goes on where
//! another one was killed.

mod bound;
mod recent;
mod reconcile;
mod said;
mod text;
mod tool;
mod turn;

use std::time::Duration;

use proto::socket::{Message, MessageRole, ServerMessage, WireStatus};

use crate::event::{Body, Event, Failure, Info, Part, PartKind, Status};
use recent::Recent;
use tool::ToolCall;
use turn::{End, Kind, Turn, Verdict};

/// Longer ids are made up.
const MAX_ID: usize = 128;
/// Characters of an error or a reason that people read.
const MAX_REASON: usize = 500;
/// How often OpenCode tries again before it gives up on its model.
const RETRIES: u32 = 5;
/// How long the end of a cancelled or failed turn may take to be written down by the agent.
const SETTLING: Duration = Duration::from_secs(1);

/// Requests of the agent that are answered, and errors and retries of it that are told, after one prompt.
const MOST_ASKED: u32 = 64;
const MOST_ERRORS: u32 = 64;
const MOST_RETRIES: u32 = 1_000;

const SILENT: &str = "The agent ended the turn without an answer.";
const STOPPED: &str = "The agent stopped before it had finished.";
const CUT: &str = "The agent sent more than can be shown; a part of it was left out.";

/// What follows from an event.
#[derive(Debug, Default)]
pub struct Output {
    /// To everyone who watches, in this order.
    pub messages: Vec<ServerMessage>,
    /// To be done once the messages are safe.
    pub effects: Vec<Effect>,
}

/// Something that the caller has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The agent waits for a permission that nobody can give: answer `reject`.
    RejectPermission { request: String },
    /// The agent waits for an answer that nobody can give: reject the question.
    RejectQuestion { request: String },
    /// The turn seems to be over and its last message is not: after this time, if the turn has not ended, fetch
    /// the history and call [`Translator::reconcile`].
    Settle { after: Duration },
    /// This message ended without the agent having finished it. Keep what there is of it and mark it.
    Interrupted { message: String },
}

/// The translator of one agent session.
#[derive(Debug)]
pub struct Translator {
    session: String,
    turn: Option<Turn>,
    /// The agent's messages of earlier turns.
    finished: Recent,
    /// Parts of the agent's finished messages.
    closed: Recent,
    /// Tool calls, by the id that clients know.
    calls: Recent,
    /// Messages that the agent was sent.
    prompts: Recent,
    /// The newest of them, for a turn that somebody else began.
    last_prompt: Option<String>,
    /// Sessions of sub-agents.
    children: Recent,
    /// Requests that were refused.
    refused: Recent,
    /// What was taken of that which has no end of its own, since the last prompt.
    taken: Taken,
}

#[derive(Debug, Default)]
struct Taken {
    asked: u32,
    errors: u32,
    retries: u32,
}

impl Translator {
    /// For this agent session, with no turn running.
    pub fn new(session: &str) -> Self {
        Self {
            session: session.to_owned(),
            turn: None,
            finished: Recent::default(),
            closed: Recent::default(),
            calls: Recent::default(),
            prompts: Recent::default(),
            last_prompt: None,
            children: Recent::default(),
            refused: Recent::default(),
            taken: Taken::default(),
        }
    }

    /// A prompt with this id is about to be sent.
    pub fn begin(&mut self, prompt: &str) {
        self.prompts.insert(prompt);
        self.taken = Taken::default();
        let turn = self.turn.get_or_insert_default();
        turn.user.get_or_insert_with(|| prompt.to_owned());
    }

    /// Whether a turn runs.
    pub fn is_busy(&self) -> bool {
        self.turn.is_some()
    }

    /// Takes an event of the stream. `now` is in milliseconds since 1970.
    pub fn observe(&mut self, event: &Event<'_>, now: i64) -> Output {
        let mut out = Output::default();
        self.observe_into(event, now, &mut out);
        out
    }

    /// Takes one of many events that are told together.
    pub fn observe_into(&mut self, event: &Event<'_>, now: i64, out: &mut Output) {
        let ours = event.session == self.session;
        match &event.body {
            Body::Session { parent } => self.session_seen(&event.session, parent),
            Body::PermissionAsked { id, permission } if ours || self.children.contains(&event.session) => {
                self.refuse_permission(id, permission, out);
            }
            Body::QuestionAsked { id } if ours || self.children.contains(&event.session) => {
                if self.may_ask(id) {
                    out.effects.push(Effect::RejectQuestion { request: id.clone().into_owned() });
                }
            }
            // An error of a plugin names no session; it is shown, and is no fault of the turn.
            Body::Error(failure) if event.session.is_empty() && !failure.is_abort() => {
                self.tell_error(reason(failure), out);
            }
            _ if !ours => {}
            Body::Delta { message, part, delta } => self.delta(message, part, delta, now, out),
            Body::Part { part, delta } => self.part(part, delta, false, now, out),
            Body::Message(info) => self.message(info, now, out),
            Body::Status(status) => self.status(status, now, out),
            Body::Error(failure) => self.failure(failure, out),
            Body::PermissionAsked { .. } | Body::QuestionAsked { .. } | Body::Other => {}
        }
    }

    /// Ends the turn that runs, for a reason that the agent cannot give: it is gone, or it never began.
    pub fn give_up(&mut self, reason: &str, now: i64) -> Output {
        let mut out = Output::default();
        if let Some(turn) = &mut self.turn {
            turn.judge(Verdict::Failed);
            out.messages.push(ServerMessage::Error { message: bound::line(reason, MAX_REASON) });
            self.end_turn(now, &mut out);
        }
        out
    }

    /// Whether the agent said that the turn failed before it said anything else: a prompt that it cannot use is no better
    /// when it comes again.
    pub fn has_refused(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.verdict == Verdict::Failed && turn.steps.is_empty())
    }

    /// Ends the turn that runs as the agent has judged it.
    pub fn close(&mut self, now: i64) -> Output {
        let mut out = Output::default();
        self.end_turn(now, &mut out);
        out
    }

    /// Ends the turn that runs as cancelled: the agent was told, and is idle.
    pub fn cancel(&mut self, now: i64) -> Output {
        if let Some(turn) = &mut self.turn {
            turn.judge(Verdict::Cancelled);
        }
        self.close(now)
    }

    fn session_seen(&mut self, session: &str, parent: &str) {
        if is_id(session) && (parent == self.session || self.children.contains(parent)) {
            self.children.insert(session);
        }
    }

    fn message(&mut self, info: &Info<'_>, now: i64, out: &mut Output) {
        match &*info.role {
            "user" if is_id(&info.id) => self.prompt_seen(&info.id),
            "assistant" if self.step(&info.id, info.time.created.unwrap_or(now), out) => {
                self.step_seen(info, out);
            }
            _ => {}
        }
    }

    fn prompt_seen(&mut self, id: &str) {
        if self.prompts.insert(id) {
            self.last_prompt = Some(id.to_owned());
        }
        if let Some(turn) = &mut self.turn {
            turn.user.get_or_insert_with(|| id.to_owned());
            turn.unpark(id);
        }
    }

    /// Makes sure that this message of the agent was announced. Whether it is open: those that have ended are not
    /// opened again, whatever is said of them later.
    fn step(&mut self, id: &str, created_at: i64, out: &mut Output) -> bool {
        if !is_id(id) || self.finished.contains(id) || self.prompts.contains(id) {
            return false;
        }
        let turn = self.turn.get_or_insert_with(|| Turn { user: self.last_prompt.take(), ..Turn::default() });
        turn.active = true;
        if let Some(step) = turn.step(id) {
            return !step.done;
        }
        self.complete_steps(out);
        let Some(turn) = &mut self.turn else { return false };
        let Ok(forgotten) = turn.add_step(id) else {
            cut(turn, out);
            return false;
        };
        if let Some(forgotten) = forgotten {
            self.finished.insert(&forgotten);
        }
        out.messages.push(ServerMessage::Message(stub(id, created_at)));
        self.say_parked(id, out);
        true
    }

    fn step_seen(&mut self, info: &Info<'_>, out: &mut Output) {
        if let Some(failure) = &info.error {
            self.failure(failure, out);
        }
        let cancelled = info.error.as_ref().is_some_and(Failure::is_abort);
        let step = self.turn.as_mut().and_then(|turn| turn.step_mut(&info.id));
        if let Some(step) = step.filter(|_| info.time.completed.is_some()) {
            step.end = Some(if cancelled { End::Cancelled } else { End::Complete });
        }
    }

    /// Tells that those messages are complete whose parts have all come: the next one begins, or the turn ends.
    fn complete_steps(&mut self, out: &mut Output) {
        let steps = self.turn.iter().flat_map(|turn| &turn.steps).filter(|step| !step.done);
        let ended: Vec<_> = steps.filter_map(|step| Some((step.id.clone(), step.end?))).collect();
        for (message_id, end) in ended {
            self.finish_step(&message_id);
            out.messages.push(match (end, &mut self.turn) {
                (End::Cancelled, Some(turn)) => {
                    turn.judge(Verdict::CancelTold);
                    ServerMessage::MessageCancelled { message_id: Some(message_id) }
                }
                _ => ServerMessage::MessageComplete { message_id },
            });
        }
    }

    fn finish_step(&mut self, id: &str) {
        let closed = self.turn.as_mut().map(|turn| turn.finish_step(id)).unwrap_or_default();
        for part in closed {
            self.closed.insert(&part);
        }
    }

    /// `from_history`: pieces of its text may have been missed.
    fn part(&mut self, part: &Part<'_>, delta: &str, from_history: bool, now: i64, out: &mut Output) {
        let known = self.turn.as_ref().is_some_and(|turn| turn.parts.contains_key(&*part.id));
        if !is_id(&part.id) || !is_id(&part.message) || (!known && self.closed.contains(&part.id)) {
            return;
        }
        match part.kind {
            PartKind::Text if !part.ignored => self.text(part, delta, from_history, now, out),
            PartKind::Tool if is_id(&part.call) && is_id(&part.tool) => self.tool(part, now, out),
            PartKind::Text | PartKind::Reasoning => self.thought(part, now, out),
            // Only the agent's own messages have these.
            PartKind::StepFinish => {
                self.step(&part.message, now, out);
            }
            PartKind::StepStart => self.step_start(part, from_history, now, out),
            _ => {}
        }
    }

    /// A second one in a message is a retry. Where its own notice was missed, this is the first sign of it.
    fn step_start(&mut self, part: &Part<'_>, from_history: bool, now: i64, out: &mut Output) {
        let open = self.step(&part.message, now, out);
        let Some(turn) = self.turn.as_mut().filter(|_| open) else { return };
        match turn.part(&part.id, &part.message, || Kind::Silent) {
            Ok((_, true)) if !from_history => text::begin_anew(turn, &part.message, None, out),
            Ok(_) => {}
            Err(_) => cut(turn, out),
        }
    }

    /// Remembers that this part is not for clients, since its pieces look like those of any other.
    fn thought(&mut self, part: &Part<'_>, now: i64, out: &mut Output) {
        if part.kind == PartKind::Reasoning {
            self.step(&part.message, now, out);
        }
        if let Some(turn) = &mut self.turn
            && turn.part(&part.id, &part.message, || Kind::Silent).is_err()
        {
            cut(turn, out);
        }
    }

    fn tool(&mut self, part: &Part<'_>, now: i64, out: &mut Output) {
        let open = self.step(&part.message, now, out);
        let Some(turn) = &mut self.turn else { return };
        let fresh = !turn.parts.contains_key(&*part.id);
        // A call may outlive its message, but none begins after it.
        if fresh && !open {
            return;
        }
        back_to_work(turn, out);
        if fresh {
            let Some(call) = unique(&mut self.calls, &part.call, &part.id) else { return };
            let new = || Kind::Tool(ToolCall::new(&call, &part.tool));
            if turn.part(&part.id, &part.message, new).is_err() {
                return cut(turn, out);
            }
        }
        if let Some(known) = turn.parts.get_mut(&*part.id)
            && let Kind::Tool(call) = &mut known.kind
            && known.message == part.message
        {
            call.update(part, fresh, now, &mut out.messages);
        }
    }

    fn status(&mut self, status: &Status<'_>, now: i64, out: &mut Output) {
        match status {
            Status::Busy => {
                let begun = || Turn { user: self.last_prompt.take(), ..Turn::default() };
                self.turn.get_or_insert_with(begun).active = true;
            }
            Status::Retry { attempt, message } => self.retry(*attempt, message, out),
            Status::Idle => self.idle(now, out),
            Status::Unknown => {}
        }
    }

    fn retry(&mut self, attempt: u32, message: &str, out: &mut Output) {
        let Some(turn) = &mut self.turn else { return };
        if !another(&mut self.taken.retries, MOST_RETRIES) {
            return;
        }
        (turn.active, turn.retrying) = (true, true);
        text::abandon(turn, out);
        let reason = bound::line(message, MAX_REASON);
        let message = format!("Retrying ({attempt}/{}): {reason}", RETRIES.max(attempt));
        out.messages.push(ServerMessage::Status { status: WireStatus::Running, message });
    }

    /// A clean turn has one, at its end. After a cancellation or an error there are two, and the first comes before
    /// the last words.
    fn idle(&mut self, now: i64, out: &mut Output) {
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.active) else { return };
        turn.idles += 1;
        let last_words = turn.verdict == Verdict::Fine || turn.idles > 1;
        if last_words && turn.steps.last().is_some_and(|step| step.end.is_some()) {
            self.end_turn(now, out);
        } else {
            let after = if turn.idles == 1 { SETTLING } else { Duration::ZERO };
            out.effects.push(Effect::Settle { after });
        }
    }

    fn failure(&mut self, failure: &Failure<'_>, out: &mut Output) {
        if failure.is_abort() {
            if let Some(turn) = &mut self.turn {
                turn.judge(Verdict::Cancelled);
            }
            return;
        }
        let message = reason(failure);
        if let Some(turn) = &mut self.turn {
            turn.judge(Verdict::Failed);
            // A prompt that cannot be used fails before the agent is busy with it, and no idle follows.
            if !std::mem::replace(&mut turn.active, true) {
                out.effects.push(Effect::Settle { after: SETTLING });
            }
            let known = &turn.last_error;
            if !known.is_empty() && (message.contains(known.as_str()) || known.contains(&message)) {
                return;
            }
            turn.last_error.clone_from(&message);
        }
        self.tell_error(message, out);
    }

    fn tell_error(&mut self, message: String, out: &mut Output) {
        if another(&mut self.taken.errors, MOST_ERRORS) {
            out.messages.push(ServerMessage::Error { message });
        }
    }

    /// Whether a request is new, and not one of too many: each costs a request of ours.
    fn may_ask(&mut self, request: &str) -> bool {
        is_id(request) && self.refused.insert(request) && another(&mut self.taken.asked, MOST_ASKED)
    }

    fn refuse_permission(&mut self, request: &str, permission: &str, out: &mut Output) {
        if self.may_ask(request) {
            let permission = bound::line(permission, MAX_ID);
            let message = format!("The agent asked for the permission \"{permission}\", and it was refused.");
            out.messages.push(ServerMessage::Error { message });
            out.effects.push(Effect::RejectPermission { request: request.to_owned() });
        }
    }

    /// Closes whatever is open, and then the turn.
    fn end_turn(&mut self, now: i64, out: &mut Output) {
        self.end_calls(now, out);
        self.complete_steps(out);
        let Some(mut turn) = self.turn.take() else { return };
        back_to_work(&mut turn, out);
        for (id, _) in turn.parts.drain() {
            self.closed.insert(&id);
        }
        let mut cancelled = turn.steps.last().map(|step| step.id.clone());
        for step in turn.steps.iter().filter(|step| !step.done) {
            out.effects.push(Effect::Interrupted { message: step.id.clone() });
            // It ends once: as cancelled, or as complete.
            if turn.verdict != Verdict::Cancelled || cancelled.as_ref() != Some(&step.id) {
                out.messages.push(ServerMessage::MessageComplete { message_id: step.id.clone() });
            }
        }
        if turn.verdict == Verdict::Cancelled {
            out.messages.push(ServerMessage::MessageCancelled { message_id: cancelled.take() });
        }
        for step in &turn.steps {
            self.finished.insert(&step.id);
        }
        let message_ids = turn.steps.into_iter().map(|step| step.id).collect();
        out.messages.push(ServerMessage::TurnComplete { message_ids, outcome: turn.verdict.into() });
    }

    /// Ends calls of which nothing more will be heard, before the messages that they are in.
    fn end_calls(&mut self, now: i64, out: &mut Output) {
        let Some(turn) = &mut self.turn else { return };
        let mut parts: Vec<_> = turn.parts.iter_mut().collect();
        parts.sort_by_key(|(id, _)| *id);
        for (id, part) in parts {
            if let Kind::Tool(call) = &mut part.kind {
                out.messages.extend(call.interrupt(id, now));
            }
        }
    }
}

/// Clients know a call by its id, so no two parts may have the same one: the second is named after its part too.
fn unique(calls: &mut Recent, call: &str, part: &str) -> Option<String> {
    [call.to_owned(), format!("{call}.{part}")].into_iter().find(|name| calls.insert(name))
}

/// Counts one more, unless there were as many as there may be.
fn another(count: &mut u32, most: u32) -> bool {
    let fits = *count < most;
    *count += u32::from(fits);
    fits
}

/// After a retry, takes the notice of it back with the first sign of success.
fn back_to_work(turn: &mut Turn, out: &mut Output) {
    if std::mem::take(&mut turn.retrying) {
        out.messages.push(ServerMessage::Status { status: WireStatus::Running, message: String::new() });
    }
}

/// Tells once in a turn that something was left out.
fn cut(turn: &mut Turn, out: &mut Output) {
    if !std::mem::replace(&mut turn.cut_told, true) {
        out.messages.push(ServerMessage::Error { message: CUT.to_owned() });
    }
}

fn reason(failure: &Failure<'_>) -> String {
    let known = [&failure.data.message, &failure.name].into_iter().find(|text| !text.trim().is_empty());
    known.map_or_else(|| "Unknown error".to_owned(), |text| bound::line(text.trim(), MAX_REASON))
}

fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= MAX_ID
}

fn stub(id: &str, created_at: i64) -> Message {
    Message {
        id: id.to_owned(),
        role: MessageRole::Assistant,
        content: String::new(),
        is_complete: false,
        created_at,
        sender_id: None,
        source: None,
        tool_calls: Vec::new(),
        parts: Vec::new(),
        interrupted: false,
        error: None,
    }
}
