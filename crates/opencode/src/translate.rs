//! Translates OpenCode's events into messages for clients: a state machine without a clock, network access or
//! storage.
//!
//! It guarantees, whatever the input: a message is announced before anything refers to it, and completed
//! once; the tokens of a part are a prefix of its final text, each sent once and with its own message; a tool
//! call ends at most once; a turn ends once, after its last message. Its memory is bounded.
//!
//! Its state can be rebuilt from the messages it has emitted ([`Translator::resume`]), so that a new process
//! continues where another one was killed.

mod emitted;
mod recent_ids;
mod reconcile;
mod text;
mod tool;
mod truncate;
mod turn;

use std::time::Duration;

pub use agent::{Effect, Output};
use agent::{PendingRequest, SecretFinder};
use proto::socket::{Message, MessageRole, OpenQuestion, QuestionKind, ServerMessage, WireStatus};

use crate::event::{Body, Event, Failure, Info, Part, PartKind, Status};
use recent_ids::RecentIds;
use tool::ToolCall;
use turn::{End, Kind, Turn, Verdict};

/// Maximum length of an id; OpenCode's own are shorter, so longer ones are forged.
const MAX_ID: usize = 128;
/// Maximum length of an error message or reason for people, in characters.
const MAX_REASON: usize = 500;
/// Maximum length of a title, in characters.
const MAX_TITLE: usize = 200;
/// How often OpenCode retries before it gives up on its model.
const MAX_MODEL_RETRIES: u32 = 5;
/// How long the agent may take to store the end of a cancelled or failed turn.
const SETTLE_DELAY: Duration = Duration::from_secs(1);

/// Limits per prompt: answered requests of the agent, reported errors, and reported retries.
const MAX_REQUESTS: u32 = 64;
const MAX_ERRORS: u32 = 64;
const MAX_REPORTED_RETRIES: u32 = 1_000;

const NO_ANSWER_MESSAGE: &str = "The agent ended the turn without an answer.";
const AGENT_STOPPED_MESSAGE: &str = "The agent stopped before it had finished.";
const OUTPUT_OMITTED_MESSAGE: &str = "The agent sent more than can be shown; some of it was omitted.";

/// The translator of one agent session.
#[derive(Debug)]
pub struct Translator {
    session: String,
    turn: Option<Turn>,
    /// Ids of the agent's messages of earlier turns.
    finished: RecentIds,
    /// Ids of parts of the agent's finished messages.
    closed: RecentIds,
    /// Tool calls, by the id that clients know.
    calls: RecentIds,
    /// Ids of the prompts that were sent to the agent.
    prompts: RecentIds,
    /// The most recent prompt, for a turn that somebody else started.
    last_prompt: Option<String>,
    /// The last title of the agent's session.
    title: String,
    /// Ids of the sessions of sub-agents.
    children: RecentIds,
    /// Ids of the agent's requests that have become effects.
    requests: RecentIds,
    /// Counts, since the last prompt, of events that an agent could send without end.
    counters: Counters,
    /// The secrets of which no part may be left where a text is cut.
    secrets: SecretFinder,
}

#[derive(Debug, Default)]
struct Counters {
    requests: u32,
    errors: u32,
    retries: u32,
}

impl Translator {
    /// A translator for this agent session without an active turn.
    pub fn new(session: &str) -> Self {
        Self {
            session: session.to_owned(),
            turn: None,
            finished: RecentIds::default(),
            closed: RecentIds::default(),
            calls: RecentIds::default(),
            prompts: RecentIds::default(),
            last_prompt: None,
            title: String::new(),
            children: RecentIds::default(),
            requests: RecentIds::default(),
            counters: Counters::default(),
            secrets: SecretFinder::default(),
        }
    }

    /// Sets the secrets of which no part may be left where a text is cut from now on.
    pub fn set_secrets(&mut self, secrets: SecretFinder) {
        self.secrets = secrets;
    }

    /// Call this before a prompt with this id is sent.
    pub fn begin(&mut self, prompt: &str) {
        self.prompts.insert(prompt);
        self.counters = Counters::default();
        let turn = self.turn.get_or_insert_default();
        turn.user.get_or_insert_with(|| prompt.to_owned());
    }

    /// Whether a turn is active.
    pub fn is_busy(&self) -> bool {
        self.turn.is_some()
    }

    /// Processes an event of the stream. `now` is in milliseconds since the Unix epoch.
    pub fn observe(&mut self, event: &Event<'_>, now: i64) -> Output {
        let mut out = Output::default();
        self.observe_into(event, now, &mut out);
        out
    }

    /// Like [`Translator::observe`], but appends to `out`, so that several events can share it.
    pub fn observe_into(&mut self, event: &Event<'_>, now: i64, out: &mut Output) {
        let ours = event.session == self.session;
        match &event.body {
            Body::Session { parent, title } => {
                self.session_seen(&event.session, parent);
                if ours {
                    self.title_seen(title, out);
                }
            }
            Body::Asked { id, kind, question } if ours || self.children.contains(&event.session) => {
                self.ask(id, *kind, question.as_deref(), out);
            }
            Body::Settled { id } if ours || self.children.contains(&event.session) => {
                if is_id(id) {
                    out.effects.push(Effect::Settled { request: id.clone().into_owned() });
                }
            }
            // A plugin's error names no session. It is shown, but does not fail the turn.
            Body::Error(failure) if event.session.is_empty() && !failure.is_abort() => {
                self.report_error(failure_message(failure, &self.secrets), out);
            }
            _ if !ours => {}
            Body::Delta { message, part, delta } => self.delta(message, part, delta, now, out),
            Body::Part { part, delta } => self.part(part, delta, false, now, out),
            Body::Message(info) => self.message(info, now, out),
            Body::Status(status) => self.status(status, now, out),
            Body::Error(failure) => self.failure(failure, out),
            Body::Asked { .. } | Body::Settled { .. } | Body::Other => {}
        }
    }

    /// Ends the active turn for a reason that the agent cannot report: it is gone, or it never started.
    pub fn give_up(&mut self, reason: &str, now: i64) -> Output {
        let mut out = Output::default();
        if let Some(turn) = &mut self.turn {
            turn.judge(Verdict::Failed);
            out.messages
                .push(ServerMessage::Error { message: truncate::line(reason, MAX_REASON, &self.secrets) });
            self.end_turn(now, &mut out);
        }
        out
    }

    /// Whether the agent failed the turn before it produced anything. Sending such a prompt again would not
    /// help.
    pub fn has_refused(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.verdict == Verdict::Failed && turn.steps.is_empty())
    }

    /// Ends the active turn with the outcome so far.
    pub fn close(&mut self, now: i64) -> Output {
        let mut out = Output::default();
        self.end_turn(now, &mut out);
        out
    }

    /// Ends the active turn as cancelled. Call it once the agent has been aborted and is idle.
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

    fn title_seen(&mut self, title: &str, out: &mut Output) {
        let title = truncate::line(title, MAX_TITLE, &self.secrets);
        if is_real_title(&title) && title != self.title {
            self.title.clone_from(&title);
            out.effects.push(Effect::Title(title));
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
            turn.take_pending(id);
        }
    }

    /// Announces this message of the agent if necessary. Returns whether it is open; a finished message is
    /// never reopened.
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
            report_omission(turn, out);
            return false;
        };
        if let Some(forgotten) = forgotten {
            self.finished.insert(&forgotten);
        }
        out.messages.push(ServerMessage::Message(announcement(id, created_at)));
        self.emit_pending_texts(id, out);
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

    /// Completes the messages that have ended, because the next one starts or the turn ends.
    fn complete_steps(&mut self, out: &mut Output) {
        let steps = self.turn.iter().flat_map(|turn| &turn.steps).filter(|step| !step.done);
        let ended: Vec<_> = steps.filter_map(|step| Some((step.id.clone(), step.end?))).collect();
        for (message_id, end) in ended {
            self.finish_step(&message_id);
            out.messages.push(match (end, &mut self.turn) {
                (End::Cancelled, Some(turn)) => {
                    turn.judge(Verdict::CancelReported);
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

    /// `from_history`: pieces of the text may have been missed.
    fn part(&mut self, part: &Part<'_>, delta: &str, from_history: bool, now: i64, out: &mut Output) {
        let known = self.turn.as_ref().is_some_and(|turn| turn.parts.contains_key(&*part.id));
        if !is_id(&part.id) || !is_id(&part.message) || (!known && self.closed.contains(&part.id)) {
            return;
        }
        match part.kind {
            PartKind::Text if !part.ignored => self.text(part, delta, from_history, now, out),
            PartKind::Tool if is_id(&part.call) && is_id(&part.tool) => self.tool(part, now, out),
            PartKind::Text | PartKind::Reasoning => self.silent_part(part, now, out),
            // Only the agent's own messages have these parts.
            PartKind::StepFinish => {
                self.step(&part.message, now, out);
            }
            PartKind::StepStart => self.step_start(part, from_history, now, out),
            _ => {}
        }
    }

    /// A second step in a message is a retry. If the retry event itself was missed, this is the first sign of
    /// it.
    fn step_start(&mut self, part: &Part<'_>, from_history: bool, now: i64, out: &mut Output) {
        let open = self.step(&part.message, now, out);
        let Some(turn) = self.turn.as_mut().filter(|_| open) else { return };
        match turn.part(&part.id, &part.message, || Kind::Silent) {
            Ok((_, true)) if !from_history => text::discard_before_retry(turn, &part.message, None, out),
            Ok(_) => {}
            Err(_) => report_omission(turn, out),
        }
    }

    /// Remembers that this part is not for clients, because its deltas look like those of any other part.
    fn silent_part(&mut self, part: &Part<'_>, now: i64, out: &mut Output) {
        if part.kind == PartKind::Reasoning {
            self.step(&part.message, now, out);
        }
        if let Some(turn) = &mut self.turn
            && turn.part(&part.id, &part.message, || Kind::Silent).is_err()
        {
            report_omission(turn, out);
        }
    }

    fn tool(&mut self, part: &Part<'_>, now: i64, out: &mut Output) {
        let open = self.step(&part.message, now, out);
        let Some(turn) = &mut self.turn else { return };
        let fresh = !turn.parts.contains_key(&*part.id);
        // A call may outlive its message, but cannot start after it.
        if fresh && !open {
            return;
        }
        clear_retry_status(turn, out);
        if fresh {
            let Some(call) = unique_call_id(&mut self.calls, &part.call, &part.id) else { return };
            let new = || Kind::Tool(ToolCall::new(&call, &part.tool));
            if turn.part(&part.id, &part.message, new).is_err() {
                return report_omission(turn, out);
            }
        }
        if let Some(known) = turn.parts.get_mut(&*part.id)
            && let Kind::Tool(call) = &mut known.kind
            && known.message == part.message
        {
            call.update(part, fresh, &self.secrets, now, &mut out.messages);
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
        if !increment_below(&mut self.counters.retries, MAX_REPORTED_RETRIES) {
            return;
        }
        (turn.active, turn.retrying) = (true, true);
        text::discard_open_texts(turn, out);
        let reason = truncate::line(message, MAX_REASON, &self.secrets);
        let message = format!("Retrying ({attempt}/{}): {reason}", MAX_MODEL_RETRIES.max(attempt));
        out.messages.push(ServerMessage::Status { status: WireStatus::Running, message });
    }

    /// A clean turn has one idle status, at its end. After a cancellation or an error there are two, and the
    /// first precedes the final text.
    fn idle(&mut self, now: i64, out: &mut Output) {
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.active) else { return };
        // Late events of a turn that the history has already ended look like the start of another one.
        if turn.user.is_none() && turn.steps.is_empty() && turn.verdict == Verdict::Ok {
            self.turn = None;
            return;
        }
        turn.idles += 1;
        let last_words = turn.verdict == Verdict::Ok || turn.idles > 1;
        if last_words && turn.steps.last().is_some_and(|step| step.end.is_some()) {
            self.end_turn(now, out);
        } else {
            let after = if turn.idles == 1 { SETTLE_DELAY } else { Duration::ZERO };
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
        let message = failure_message(failure, &self.secrets);
        if let Some(turn) = &mut self.turn {
            turn.judge(Verdict::Failed);
            // A prompt that cannot be used fails before the agent becomes busy, so no idle status follows.
            if !std::mem::replace(&mut turn.active, true) {
                out.effects.push(Effect::Settle { after: SETTLE_DELAY });
            }
            let known = &turn.last_error;
            if !known.is_empty() && (message.contains(known.as_str()) || known.contains(&message)) {
                return;
            }
            turn.last_error.clone_from(&message);
        }
        self.report_error(message, out);
    }

    fn report_error(&mut self, message: String, out: &mut Output) {
        if increment_below(&mut self.counters.errors, MAX_ERRORS) {
            out.messages.push(ServerMessage::Error { message });
        }
    }

    /// Whether to answer a request: it must be new and within the limit, because each answer costs us a
    /// request.
    fn accept_request(&mut self, request: &str) -> bool {
        is_id(request)
            && self.requests.insert(request)
            && increment_below(&mut self.counters.requests, MAX_REQUESTS)
    }

    fn ask(&mut self, id: &str, kind: QuestionKind, question: Option<&OpenQuestion>, out: &mut Output) {
        if self.accept_request(id) {
            out.effects.push(match question {
                Some(question) => Effect::Ask(question.clone()),
                None => Effect::Reject { request: id.to_owned(), kind },
            });
        }
    }

    /// Processes the agent's list of requests that wait, because some may have been missed.
    pub fn pending(&mut self, requests: &[PendingRequest]) -> Output {
        let mut out = Output::default();
        for request in requests {
            if request.session == self.session || self.children.contains(&request.session) {
                self.ask(&request.id, request.kind, request.question.as_ref(), &mut out);
            }
        }
        out
    }

    /// Closes everything that is open, then the turn.
    fn end_turn(&mut self, now: i64, out: &mut Output) {
        self.end_calls(now, out);
        self.complete_steps(out);
        let Some(mut turn) = self.turn.take() else { return };
        clear_retry_status(&mut turn, out);
        for (id, _) in turn.parts.drain() {
            self.closed.insert(&id);
        }
        let mut cancelled = turn.steps.last().map(|step| step.id.clone());
        for step in turn.steps.iter().filter(|step| !step.done) {
            out.effects.push(Effect::Interrupted { message: step.id.clone() });
            // A message ends once: either cancelled or complete.
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

    /// Ends calls for which no more events will arrive, before their messages end.
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

/// Clients identify a call by its id, so two parts must not share one: the second gets the part's id
/// appended.
fn unique_call_id(calls: &mut RecentIds, call: &str, part: &str) -> Option<String> {
    [call.to_owned(), format!("{call}.{part}")].into_iter().find(|name| calls.insert(name))
}

/// Increments the counter and returns true, unless the limit is reached.
fn increment_below(count: &mut u32, most: u32) -> bool {
    let fits = *count < most;
    *count += u32::from(fits);
    fits
}

/// Clears the retry status at the first sign of success.
fn clear_retry_status(turn: &mut Turn, out: &mut Output) {
    if std::mem::take(&mut turn.retrying) {
        out.messages.push(ServerMessage::Status { status: WireStatus::Running, message: String::new() });
    }
}

/// Reports once per turn that something was omitted.
fn report_omission(turn: &mut Turn, out: &mut Output) {
    if !std::mem::replace(&mut turn.omission_reported, true) {
        out.messages.push(ServerMessage::Error { message: OUTPUT_OMITTED_MESSAGE.to_owned() });
    }
}

fn failure_message(failure: &Failure<'_>, secrets: &SecretFinder) -> String {
    let known = [&failure.data.message, &failure.name].into_iter().find(|text| !text.trim().is_empty());
    known.map_or_else(|| "Unknown error".to_owned(), |text| truncate::line(text.trim(), MAX_REASON, secrets))
}

/// Whether somebody chose or made this title. Without one, OpenCode uses the time. Earlier versions of the gateway called every
/// session `Session`.
fn is_real_title(title: &str) -> bool {
    !title.is_empty() && title != "Session" && !title.starts_with("New session - ")
}

fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= MAX_ID
}

fn announcement(id: &str, created_at: i64) -> Message {
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
