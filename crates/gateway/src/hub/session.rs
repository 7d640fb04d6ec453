//! One live session: an actor that is the only writer of its stream. Everything that happens to a session happens in
//! this loop, one thing after the other.

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

/// How often counters are written down and idleness is looked at.
const TICK: Duration = Duration::from_secs(30);
/// How long a session without watchers, turn or boot stays in memory.
const IDLE: Duration = Duration::from_mins(5);
pub(super) const DELETED: CloseCode = CloseCode { code: 1000, reason: "Session deleted" };

/// Why the actor ends.
#[derive(Debug)]
pub(super) enum Over {
    /// Another instance is the owner now.
    Fenced,
    /// The log cannot be written, and nothing may be said that is not in it.
    Store(StoreError),
    /// Nobody needs it in memory.
    Idle,
    /// It is no more.
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
    /// The last number that may be used before more are reserved.
    reserved: i64,
    transcript: Transcript,
    telemetry: Telemetry,
    /// Those who watch.
    watchers: Watchers,
    agent: Option<Agent>,
    translator: Option<Translator>,
    boot: Option<Boot>,
    /// Boots that failed one after the other.
    failures: u32,
    /// Agents that were lost soon after they were had, one after the other; and when the last one was had.
    losses: u32,
    had_at: Duration,
    queue: VecDeque<QueuedPrompt>,
    /// The prompt whose turn runs.
    turn: Option<String>,
    /// The prompt on its way to the agent.
    dispatch: Option<JoinHandle<Result<(), ApiError>>>,
    /// Somebody cancelled the turn that runs.
    cancelled: bool,
    /// How the turn that runs ended, once that is logged.
    outcome: Option<TurnOutcome>,
    /// The agent is being told so. No prompt may follow before it knows, or it would be hit too.
    aborting: Option<JoinHandle<Result<(), ApiError>>>,
    /// How often it was told.
    aborts: u32,
    /// The agent's memory is being read. Its events wait until that is done.
    reading: Option<JoinHandle<Result<Memory, ApiError>>>,
    /// Runs out when it is time to look whether a turn that seems over is.
    settling: Option<Pin<Box<Sleep>>>,
    /// Runs out when the time of the sandbox is over.
    expiry: Option<Pin<Box<Sleep>>>,
    moving: Option<Moving>,
    /// Those who wait for the session to be saved and stopped.
    stopping: Vec<oneshot::Sender<Result<(), String>>>,
    /// How often its files could not be kept, one time after the other.
    unsaved: u32,
    /// Since when nobody needs it.
    idle_since: Duration,
    /// The last number when the log was last pruned.
    rested: i64,
    /// How many prompts wait, as everyone was told.
    told_waiting: usize,
}

/// What an actor leaves behind.
pub(super) enum Left {
    /// Nobody needs it in memory. These commands came too late, and were not looked at.
    ToRest(Vec<Command>),
    /// It was given up, and everyone was sent away.
    GivenUp,
}

/// An agent that is being had.
struct Boot {
    task: JoinHandle<Result<Agent, LaunchError>>,
    stages: mpsc::Receiver<&'static str>,
}

impl Session {
    /// Runs until nobody needs it, or somebody else owns it.
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

    /// What is rare is boxed: else every session holds room for the largest of it while it waits.
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

    /// Whether it cannot rest: somebody watches, or there is something to do.
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
            // One that has ended boots when it is prompted.
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

    /// The sandbox's inside. An agent that somebody else runs has none that we could ask.
    fn inside(&self) -> Result<Held, String> {
        match &self.agent {
            Some(Agent { room: Some(room), .. }) => Ok(room.held_by(self.owner)),
            Some(_) => Err(format!("the {} provider has no access to files", self.record.sandbox_provider)),
            None => Err("the session has no running sandbox: send a prompt first".to_owned()),
        }
    }

    /// Whose share of memory it uses.
    fn party(&self) -> Party {
        Party::session(self.record.id, self.record.org_id)
    }

    /// Whether only a prompt wakes it.
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
        // Why there is no agent stays known until there is one.
        let failed = self.record.status == SessionStatus::Failed;
        let reason = self.record.stop_reason.clone().filter(|_| failed && status == WireStatus::Stopped);
        (status, reason.unwrap_or_default())
    }
}

/// Waits for something in the background, if there is something.
async fn background<T>(
    task: &mut Option<JoinHandle<Result<T, ApiError>>>,
    what: &'static str,
) -> Result<T, ApiError> {
    match task {
        Some(task) => task.await.unwrap_or(Err(ApiError::Broken(what))),
        None => std::future::pending().await,
    }
}

/// Waits for a time that may not have been set.
async fn settled(settling: &mut Option<Pin<Box<Sleep>>>) {
    match settling {
        Some(sleep) => sleep.await,
        None => std::future::pending().await,
    }
}

/// Milliseconds since 1970.
fn millis(services: &HubServices) -> i64 {
    services.clock.now().timestamp_millis()
}
