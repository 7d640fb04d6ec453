//! One live session: an actor that is the only writer of its stream. Its loop handles every event of the session,
//! one after the other.
//!
//! Its state is two state machines: the phase of the sandbox ([`Phase`]) and the turn ([`Turn`]).

mod agent;
mod boot;
mod broadcast;
mod ending;
mod expiry;
mod history;
mod load;
mod phase;
mod prompts;
mod questions;
mod queue;
mod redact;
mod timer;
mod title;
mod turn;

use std::sync::Arc;
use std::time::Duration;

use proto::socket::{CloseCode, ServerMessage, WireStatus};
use proto::{ClientType, SessionStatus, TitleSource};
use store::{Owner, SessionRecord, StoreError};
use tokio::sync::mpsc;

pub(super) use self::broadcast::INIT_BYTES;
use self::broadcast::Stream;
use self::expiry::EXTENDING_MESSAGE;
pub(super) use self::load::{logged_messages, message_id};
use self::phase::{Phase, PhaseEvent};
use self::questions::Questions;
use self::queue::PromptQueue;
use self::timer::Timer;
pub(crate) use self::title::first_sentence;
use self::turn::{Turn, TurnEvent};
use super::HubServices;
use super::command::{Command, JoinReply};
use super::eviction::Activity;
use super::frame;
use super::presence::Watchers;
use super::telemetry::Telemetry;
use crate::runtime::{Agent, RunningSandbox};
use shares::Party;

/// How often counters are written and idleness is checked.
const TICK_INTERVAL: Duration = Duration::from_secs(30);
/// How long a session without watchers, turn or boot stays in memory.
const EVICT_AFTER: Duration = Duration::from_mins(5);
pub(super) const SESSION_DELETED: CloseCode = CloseCode { code: 1000, reason: "Session deleted" };

/// The reason why the actor ends.
#[derive(Debug)]
pub(super) enum End {
    /// Another instance owns the session now.
    Fenced,
    /// The log cannot be written, and nothing may be broadcast that is not in the log.
    Store(StoreError),
    /// The database refused the first change of a command, so nothing has changed. Ends that command only.
    Refused(StoreError),
    /// The secrets that no frame may show cannot be read.
    Secrets,
    /// The session was evicted, because nobody needs it in memory.
    Idle,
    /// The session has been deleted.
    Deleted,
}

impl End {
    /// The failure of a command that has changed nothing yet, neither in the database nor in memory.
    pub(super) fn before_change(error: StoreError) -> Self {
        if error.is_refused_statement() { Self::Refused(error) } else { error.into() }
    }

    /// The failure of a later step of a command that has changed something: its caller must not hear that nothing was.
    fn after_change(self) -> Self {
        match self {
            Self::Refused(error) => Self::Store(error),
            other => other,
        }
    }
}

impl From<StoreError> for End {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Fenced => Self::Fenced,
            other => Self::Store(other),
        }
    }
}

/// The state of the actor.
pub(super) struct Session {
    services: Arc<HubServices>,
    owner: Owner,
    record: SessionRecord,
    stream: Stream,
    telemetry: Telemetry,
    eviction: EvictionState,
    sandbox: Phase,
    /// Fires when the sandbox's lifetime is over.
    expiry: Timer,
    failures: Failures,
    queue: PromptQueue,
    turn: Turn,
    questions: Questions,
}

/// What decides whether the session may leave memory.
struct EvictionState {
    activity: Arc<Activity>,
    watchers: Watchers,
    /// The time at which the session was last needed.
    idle_since: Duration,
}

/// Consecutive failures. They decide when the session gives up.
struct Failures {
    boots: u32,
    /// Agents that were lost soon after they had connected.
    losses: u32,
    /// The time at which the last agent connected.
    connected_at: Duration,
    saves: u32,
}

/// The reason for which an actor ends.
pub(super) enum Exit {
    /// The session was evicted from memory. These commands came too late and were not processed.
    Evicted(Vec<Command>),
    /// The session was given up, and every watcher was disconnected.
    GivenUp,
}

impl Session {
    /// Runs the actor until nobody needs it or another instance owns the session.
    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Command>) -> Exit {
        let end = self.event_loop(&mut inbox).await;
        let close = match &end {
            End::Idle => None,
            End::Fenced => Some(CloseCode::OWNERSHIP_TRANSFERRED),
            End::Store(StoreError::DiskFull) => Some(CloseCode::DISK_FULL),
            End::Store(_) | End::Refused(_) | End::Secrets => Some(CloseCode::SETUP_FAILED),
            End::Deleted => Some(SESSION_DELETED),
        };
        match &end {
            End::Idle | End::Deleted => {
                tracing::debug!(session = %self.record.id, "session evicted from memory");
            }
            other => tracing::warn!(session = %self.record.id, reason = ?other, "session given up"),
        }
        if let Some(close) = close {
            self.stream.feed.close(close);
            return Exit::GivenUp;
        }
        inbox.close();
        let mut late = Vec::new();
        while let Some(command) = inbox.recv().await {
            late.push(command);
        }
        Exit::Evicted(late)
    }

    /// Handles events until one ends the actor. Rare branches are boxed; otherwise every waiting session would reserve
    /// memory for the largest of them.
    async fn event_loop(&mut self, inbox: &mut mpsc::Receiver<Command>) -> End {
        let mut tick = tokio::time::interval(TICK_INTERVAL);
        loop {
            let hold_events = self.turn.is_reading_history();
            let handled = tokio::select! {
                command = inbox.recv() => match command {
                    Some(command) => Box::pin(self.handle_alone(command)).await,
                    None => Err(End::Idle),
                },
                event = self.sandbox.next(&self.stream.feed, hold_events) => match event {
                    PhaseEvent::Agent(events) => self.agent_events(events).await,
                    event => Box::pin(self.phase_event(event)).await,
                },
                event = self.turn.next() => Box::pin(self.turn_event(event)).await,
                delivery = self.questions.delivered() => Box::pin(self.delivery_ended(delivery)).await,
                () = self.expiry.fired() => Box::pin(self.expire()).await,
                _ = tick.tick() => Box::pin(self.tick()).await,
            };
            if let Err(end) = handled {
                return end;
            }
            self.eviction.activity.set_busy(self.is_busy());
        }
    }

    async fn phase_event(&mut self, event: PhaseEvent) -> Result<(), End> {
        match event {
            PhaseEvent::Agent(events) => self.agent_events(events).await,
            PhaseEvent::BootStage(stage) => {
                let (status, _) = self.state();
                self.broadcast_status(status, stage).await
            }
            PhaseEvent::BootEnded(result) => self.boot_ended(*result).await,
            PhaseEvent::RetirementDue => self.retirement_due().await,
            PhaseEvent::Saved(result) => self.saved(*result).await,
        }
    }

    async fn turn_event(&mut self, event: TurnEvent) -> Result<(), End> {
        match event {
            TurnEvent::PromptSent(result) => self.prompt_sent(result).await,
            TurnEvent::AbortSent(result) => self.abort_sent(result).await,
            TurnEvent::HistoryRead(result) => self.history_read(result).await,
            TurnEvent::TimerFired => {
                self.read_history();
                self.after_turn().await
            }
        }
    }

    /// Whether somebody waits for the agent: a watcher, or the run of an automation until it has ended, which does so without
    /// a connection. While its agent waits for people, nobody waits for the agent.
    async fn has_client(&self) -> Result<bool, End> {
        if !self.eviction.watchers.is_empty() {
            return Ok(true);
        }
        if self.record.client_type != Some(ClientType::Automation) || self.questions.any_open() {
            return Ok(false);
        }
        Ok(self.services.store.has_open_run(self.record.org_id, self.record.id).await?)
    }

    /// Whether the session must stay in memory: someone is watching, or there is work left.
    fn is_busy(&self) -> bool {
        Activity::is_held(&self.eviction.activity)
            || !self.eviction.watchers.is_empty()
            || self.turn.is_running()
            || self.sandbox.is_in_transition()
            || (!self.queue.is_empty() && !self.has_ended())
            || self.is_overdue()
    }

    /// Handles a command. If the database refuses it alone, its caller gets no reply, and the session goes on.
    async fn handle_alone(&mut self, command: Command) -> Result<(), End> {
        match self.handle(command).await {
            Err(End::Refused(error)) => {
                tracing::error!(session = %self.record.id, %error, "the database refused a command");
                Ok(())
            }
            handled => handled,
        }
    }

    async fn handle(&mut self, command: Command) -> Result<(), End> {
        match command {
            Command::Join { passive, user, reply } => {
                self.eviction.watchers.join(user);
                if !passive && !self.has_ended() {
                    // Who gets no reply does not leave.
                    self.wake().await.inspect_err(|_| self.eviction.watchers.leave(user))?;
                }
                let (status, message) = self.state();
                let _ = reply.send(JoinReply { init: self.init_frame().await, status, message });
            }
            Command::Leave { user } => {
                self.eviction.watchers.leave(user);
                self.eviction.idle_since = self.services.clock.elapsed();
            }
            Command::Presence { reply } => {
                let _ = reply.send(self.eviction.watchers.presence());
            }
            Command::History { reply } => {
                let _ = reply.send(self.init_frame().await);
            }
            Command::Prompt { prompt, reply } => {
                let outcome = self.prompt(*prompt).await?;
                let _ = reply.send(outcome);
            }
            Command::Answer { answer, reply } => {
                let outcome = self.answer(*answer).await?;
                let _ = reply.send(outcome);
            }
            Command::Cancel => self.cancel().await?,
            // A stopped or failed session boots only on a prompt.
            Command::Wake if self.has_ended() => {}
            Command::Wake => self.wake().await?,
            Command::Sandbox { reply } => {
                let _ = reply.send(self.running_sandbox());
            }
            Command::State { reply } => {
                let _ = reply.send(self.state());
            }
            Command::Touch { reply } => {
                self.eviction.idle_since = self.services.clock.elapsed();
                let now = self.services.clock.now();
                self.services.store.touch(&self.owner, now).await.map_err(End::before_change)?;
                let _ = reply.send(());
            }
            Command::Flush { reply } => {
                self.flush().await?;
                let _ = reply.send(());
            }
            Command::OpenTranscript { reply } => {
                let _ = reply.send(Box::pin(self.open_transcript()).await?);
            }
            Command::Stop { discard: true, reply } => {
                self.discard().await?;
                let _ = reply.send(Ok(()));
            }
            Command::Stop { discard: false, reply } => self.stop(reply).await?,
            Command::OverBudget(reason) => self.over_budget(&reason).await?,
            Command::Evict if self.is_busy() => {}
            Command::Evict => {
                self.flush().await?;
                return Err(End::Idle);
            }
            Command::Delete { event, reply } => {
                self.delete(*event).await?;
                let _ = reply.send(());
                return Err(End::Deleted);
            }
            Command::SetModel { model, reply } => {
                let outcome = self.set_model(model).await?;
                let _ = reply.send(outcome);
            }
            Command::Broadcast(message) => self.broadcast(vec![*message]).await?,
            Command::SetTitle(title) => self.set_title(title).await?,
        }
        Ok(())
    }

    async fn set_title(&mut self, title: String) -> Result<(), End> {
        self.record.title = Some(title.clone());
        self.record.title_source = Some(TitleSource::Person);
        self.broadcast(vec![ServerMessage::TitleUpdate { title }]).await
    }

    async fn tick(&mut self) -> Result<(), End> {
        self.flush().await?;
        self.watch_expiry();
        self.tick_questions().await?;
        let now = self.services.clock.elapsed();
        if self.is_busy() {
            self.eviction.idle_since = now;
        }
        if now.saturating_sub(self.eviction.idle_since) > EVICT_AFTER { Err(End::Idle) } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), End> {
        if let Some(flush) = self.telemetry.flush(self.services.clock.elapsed()) {
            self.services.store.flush_telemetry(&self.owner, flush.clone()).await?;
            self.telemetry.written(&flush);
        }
        Ok(())
    }

    /// Returns the running sandbox. An agent that runs outside our sandboxes has none that we could enter.
    fn running_sandbox(&self) -> Result<RunningSandbox, String> {
        match self.sandbox.agent() {
            Some(Agent { handle: Some(handle), .. }) => Ok(handle.owned_by(self.owner)),
            Some(_) => Err(format!("the {} provider has no access to files", self.record.sandbox_provider)),
            None => Err("the session has no running sandbox: send a prompt first".to_owned()),
        }
    }

    /// The party whose share of memory the session uses.
    fn party(&self) -> Party {
        Party::session(self.record.id, self.record.org_id)
    }

    /// Whether only a prompt wakes the session.
    fn has_ended(&self) -> bool {
        matches!(self.record.status, SessionStatus::Stopped | SessionStatus::Failed)
    }

    fn state(&self) -> (WireStatus, String) {
        let status = match &self.sandbox {
            phase if phase.is_moving() && self.is_up() => {
                return (WireStatus::Migrating, EXTENDING_MESSAGE.to_owned());
            }
            Phase::Connected(_) => WireStatus::Running,
            Phase::Booting(_) if self.record.sandbox_id.is_none() => WireStatus::Creating,
            Phase::Booting(_) => WireStatus::Resuming,
            Phase::Disconnected { .. } | Phase::Saving(_) => match self.record.status {
                SessionStatus::Paused | SessionStatus::Suspended => WireStatus::Paused,
                _ => WireStatus::Stopped,
            },
        };
        // The reason for a failure stays visible until there is an agent again.
        let failed = self.record.status == SessionStatus::Failed;
        let reason = self.record.stop_reason.clone().filter(|_| failed && status == WireStatus::Stopped);
        (status, reason.unwrap_or_default())
    }
}

fn millis(services: &HubServices) -> i64 {
    services.clock.now().timestamp_millis()
}
