//! One live session: an actor that is the only writer of its stream. Its loop handles every event of the session,
//! one after the other.

mod agent;
mod boot;
mod ending;
mod expiry;
mod load;
mod memory;
mod speak;
mod turns;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use opencode::api::ApiError;
use opencode::translate::Translator;
use proto::SessionStatus;
use proto::socket::{CloseCode, ServerMessage, TurnOutcome, WireStatus};
use store::{Owner, QueuedPrompt, SessionRecord, StoreError};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use self::expiry::{EXTENDING, Moving};
pub(super) use self::load::{about, spoken};
use self::memory::Memory;
pub(super) use self::speak::WHOLE;
use super::HubServices;
use super::command::{Command, Joined};
use super::feed::Feed;
use super::frame;
use super::presence::Watchers;
use super::room::Pulse;
use super::telemetry::Telemetry;
use super::transcript::Transcript;
use crate::runtime::{Agent, Held, LaunchError};
use shares::Party;

/// How often counters are written and idleness is checked.
const TICK: Duration = Duration::from_secs(30);
/// How long a session without watchers, turn or boot stays in memory.
const IDLE: Duration = Duration::from_mins(5);
pub(super) const DELETED: CloseCode = CloseCode { code: 1000, reason: "Session deleted" };

/// The reason why the actor ends.
#[derive(Debug)]
pub(super) enum Over {
    /// Another instance owns the session now.
    Fenced,
    /// The log cannot be written, and nothing may be broadcast that is not in the log.
    Store(StoreError),
    /// Nobody needs the session in memory.
    Idle,
    /// The session has been deleted.
    Deleted,
}

impl From<StoreError> for Over {
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
    feed: Arc<Feed>,
    pulse: Arc<Pulse>,
    /// The last reserved sequence number. Beyond it, more must be reserved first.
    reserved: i64,
    transcript: Transcript,
    telemetry: Telemetry,
    watchers: Watchers,
    agent: Option<Agent>,
    translator: Option<Translator>,
    boot: Option<Boot>,
    /// The number of consecutive failed boots.
    failures: u32,
    /// The number of consecutive agents lost soon after they started, and when the last agent started.
    losses: u32,
    had_at: Duration,
    queue: VecDeque<QueuedPrompt>,
    /// The prompt of the running turn.
    turn: Option<String>,
    /// The prompt in flight to the agent.
    dispatch: Option<JoinHandle<Result<(), ApiError>>>,
    /// Whether the running turn has been cancelled.
    cancelled: bool,
    /// The outcome of the running turn, once it is logged.
    outcome: Option<TurnOutcome>,
    /// The abort request in flight to the agent. No prompt may be sent before it returns, or the abort would hit
    /// that prompt too.
    aborting: Option<JoinHandle<Result<(), ApiError>>>,
    /// The number of abort requests sent for this turn.
    aborts: u32,
    /// The read of the agent's history that is in flight. The agent's events wait until it returns.
    reading: Option<JoinHandle<Result<Memory, ApiError>>>,
    /// Fires when it is time to check whether a turn that seems over has really ended.
    settling: Option<Pin<Box<Sleep>>>,
    /// Fires when the sandbox's lifetime is over.
    expiry: Option<Pin<Box<Sleep>>>,
    moving: Option<Moving>,
    /// The callers waiting for the session to be saved and stopped.
    stopping: Vec<oneshot::Sender<Result<(), String>>>,
    /// The number of consecutive failures to save the files.
    unsaved: u32,
    /// When the session was last needed.
    idle_since: Duration,
    /// The sequence number at which the log was last pruned.
    rested: i64,
    /// The queue length that was last broadcast.
    told_waiting: usize,
}

/// What an actor leaves behind when it ends.
pub(super) enum Left {
    /// The session was evicted from memory. These commands came too late and were not processed.
    ToRest(Vec<Command>),
    /// The session was given up, and every watcher was disconnected.
    GivenUp,
}

/// An agent boot in progress.
struct Boot {
    task: JoinHandle<Result<Agent, LaunchError>>,
    stages: mpsc::Receiver<&'static str>,
}

impl Session {
    /// Runs the actor until nobody needs it or another instance owns the session.
    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Command>) -> Left {
        let over = self.live(&mut inbox).await;
        let close = match &over {
            Over::Idle => None,
            Over::Fenced => Some(CloseCode::OWNERSHIP_TRANSFERRED),
            Over::Store(StoreError::DiskFull) => Some(CloseCode::DISK_FULL),
            Over::Store(_) => Some(CloseCode::SETUP_FAILED),
            Over::Deleted => Some(DELETED),
        };
        match &over {
            Over::Idle | Over::Deleted => tracing::debug!(session = %self.record.id, "session let go"),
            other => tracing::warn!(session = %self.record.id, reason = ?other, "session given up"),
        }
        if let Some(close) = close {
            self.feed.close(close);
            return Left::GivenUp;
        }
        inbox.close();
        let mut late = Vec::new();
        while let Some(command) = inbox.recv().await {
            late.push(command);
        }
        Left::ToRest(late)
    }

    /// The event loop. Rare branches are boxed; otherwise every waiting session would reserve memory for the
    /// largest of them.
    async fn live(&mut self, inbox: &mut mpsc::Receiver<Command>) -> Over {
        let mut tick = tokio::time::interval(TICK);
        loop {
            let done = tokio::select! {
                command = inbox.recv() => match command {
                    Some(command) => Box::pin(self.obey(command)).await,
                    None => Err(Over::Idle),
                },
                events = agent::next(&mut self.agent, &self.feed, self.reading.is_some()) => {
                    self.agent_said(events).await
                }
                read = background(&mut self.reading, "read the history") => Box::pin(self.remembered(read)).await,
                news = boot::news(&mut self.boot) => Box::pin(self.boot_news(news)).await,
                sent = background(&mut self.dispatch, "send a prompt") => Box::pin(self.sent(sent)).await,
                told = background(&mut self.aborting, "cancel") => Box::pin(self.aborted(told)).await,
                () = settled(&mut self.settling) => Box::pin(self.settle()).await,
                () = settled(&mut self.expiry) => Box::pin(self.expire()).await,
                step = expiry::step(&mut self.moving) => Box::pin(self.stepped(step)).await,
                _ = tick.tick() => Box::pin(self.tick()).await,
            };
            if let Err(over) = done {
                return over;
            }
            self.pulse.busy(self.is_busy());
        }
    }

    /// Whether the session must stay in memory: someone is watching, or there is work left.
    fn is_busy(&self) -> bool {
        Pulse::is_held(&self.pulse)
            || !self.watchers.is_empty()
            || self.turn.is_some()
            || self.boot.is_some()
            || self.moving.is_some()
            || (!self.queue.is_empty() && !self.has_ended())
            || self.is_overdue()
    }

    async fn obey(&mut self, command: Command) -> Result<(), Over> {
        match command {
            Command::Join { passive, user, reply } => {
                self.watchers.join(user);
                if !passive && !self.has_ended() {
                    self.wake().await?;
                }
                let (status, message) = self.state();
                let _ = reply.send(Joined { init: self.history().await, status, message });
            }
            Command::Leave { user } => {
                self.watchers.leave(user);
                self.idle_since = self.services.clock.elapsed();
            }
            Command::Presence { reply } => {
                let _ = reply.send(self.watchers.told());
            }
            Command::History { reply } => {
                let _ = reply.send(self.history().await);
            }
            Command::Prompt { prompt, reply } => {
                let prompted = self.prompt(*prompt).await?;
                let _ = reply.send(prompted);
            }
            Command::Cancel => self.cancel().await?,
            // A stopped or failed session boots only on a prompt.
            Command::Wake if self.has_ended() => {}
            Command::Wake => self.wake().await?,
            Command::Inside { reply } => {
                let _ = reply.send(self.inside());
            }
            Command::State { reply } => {
                let _ = reply.send(self.state());
            }
            Command::Touch { reply } => {
                self.idle_since = self.services.clock.elapsed();
                self.services.store.touch(&self.owner, self.services.clock.now()).await?;
                let _ = reply.send(());
            }
            Command::Flush { reply } => {
                self.flush().await?;
                let _ = reply.send(());
            }
            Command::Stop { discard: true, reply } => {
                self.discard().await?;
                let _ = reply.send(Ok(()));
            }
            Command::Stop { discard: false, reply } => self.stop(reply).await?,
            Command::OverBudget(why) => self.over_budget(&why).await?,
            Command::Rest if self.is_busy() => {}
            Command::Rest => {
                self.flush().await?;
                return Err(Over::Idle);
            }
            Command::Delete { by, reply } => {
                self.discard().await?;
                let (org, id) = (self.record.org_id, self.record.id);
                self.services.store.delete_session(org, id, &by, self.services.clock.now()).await?;
                let _ = reply.send(());
                return Err(Over::Deleted);
            }
            Command::Say(message) => self.say(vec![*message]).await?,
            Command::Titled(title) => {
                self.record.title = Some(title.clone());
                self.say(vec![ServerMessage::TitleUpdate { title }]).await?;
            }
        }
        Ok(())
    }

    async fn tick(&mut self) -> Result<(), Over> {
        self.flush().await?;
        self.watch_expiry();
        let now = self.services.clock.elapsed();
        if self.is_busy() {
            self.idle_since = now;
        }
        if now.saturating_sub(self.idle_since) > IDLE { Err(Over::Idle) } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), Over> {
        if let Some(flush) = self.telemetry.flush(self.services.clock.elapsed()) {
            self.services.store.flush_telemetry(&self.owner, flush.clone()).await?;
            self.telemetry.written(&flush);
        }
        Ok(())
    }

    /// Returns the running sandbox. An agent that runs outside our sandboxes has none that we could enter.
    fn inside(&self) -> Result<Held, String> {
        match &self.agent {
            Some(Agent { room: Some(room), .. }) => Ok(room.held_by(self.owner)),
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
        let status = match (&self.agent, &self.boot) {
            _ if self.moving.is_some() && self.is_up() => {
                return (WireStatus::Migrating, EXTENDING.to_owned());
            }
            (Some(_), _) => WireStatus::Running,
            (None, Some(_)) if self.record.sandbox_id.is_none() => WireStatus::Creating,
            (None, Some(_)) => WireStatus::Resuming,
            (None, None) => match self.record.status {
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

/// Waits for a background task, or forever if there is none.
async fn background<T>(
    task: &mut Option<JoinHandle<Result<T, ApiError>>>,
    what: &'static str,
) -> Result<T, ApiError> {
    match task {
        Some(task) => task.await.unwrap_or(Err(ApiError::Broken(what))),
        None => std::future::pending().await,
    }
}

/// Waits for a timer, or forever if it is not set.
async fn settled(settling: &mut Option<Pin<Box<Sleep>>>) {
    match settling {
        Some(sleep) => sleep.await,
        None => std::future::pending().await,
    }
}

fn millis(services: &HubServices) -> i64 {
    services.clock.now().timestamp_millis()
}
