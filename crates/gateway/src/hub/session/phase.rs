//! The phase of a session's sandbox, as its actor sees it: disconnected, booting, connected, or being saved.

use ::agent::Translator;
use sandbox::SandboxId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinHandle};

use super::super::feed::Feed;
use super::agent::{self, AgentEvents};
use super::timer::Timer;
use crate::runtime::{Agent, LaunchError, SnapshotError};

/// The translator of the last connection. The next connection continues with it if the agent still has its session.
type Resume = Option<Box<dyn Translator>>;

/// A caller who waits for the session to be saved and stopped. The error is the reason why that failed.
pub(super) type StopReply = oneshot::Sender<Result<(), String>>;

/// The phase of the sandbox.
pub(super) enum Phase {
    /// No agent is connected or booting. There may be a sandbox.
    Disconnected { resume: Resume },
    /// An agent boots.
    Booting(Boot),
    /// An agent is connected. Boxed because most sessions in memory have none.
    Connected(Box<Connection>),
    /// The files are copied, and then the sandbox ends.
    Saving(Save),
}

/// A boot in progress.
pub(super) struct Boot {
    pub(super) task: JoinHandle<Result<Agent, LaunchError>>,
    pub(super) stages: mpsc::Receiver<&'static str>,
    pub(super) purpose: BootPurpose,
    pub(super) resume: Resume,
}

/// Why an agent is booted.
pub(super) enum BootPurpose {
    /// Somebody needs the session.
    Connect,
    /// The session moves to another sandbox, because the lifetime of the last one was over.
    Move,
    /// The agent was lost after the lifetime of its sandbox was over, and has to end its turn first. See
    /// [`Connection::retiring`].
    Retire(Timer),
}

/// A connected agent.
pub(super) struct Connection {
    pub(super) agent: Agent,
    pub(super) translator: Box<dyn Translator>,
    /// Set once the lifetime of the sandbox is over: the files are saved when the turn has ended. When the timer fires,
    /// the turn is cancelled.
    pub(super) retiring: Option<Timer>,
}

/// A copy of the files in progress. The task returns the name of the next sandbox.
pub(super) struct Save {
    pub(super) task: JoinHandle<Result<SandboxId, SnapshotError>>,
    /// The callers who want the session to stop afterwards. If there are none, the session moves.
    pub(super) stop_replies: Vec<StopReply>,
    pub(super) resume: Resume,
}

/// Something that happened to the sandbox or its agent.
pub(super) enum PhaseEvent {
    /// The agent sent events, or its stream ended.
    Agent(AgentEvents),
    /// The boot entered this stage.
    BootStage(&'static str),
    BootEnded(Box<Result<Agent, LaunchError>>),
    /// The turn did not end by itself in the time that it had after the sandbox's lifetime.
    RetirementDue,
    Saved(Box<Result<SandboxId, SnapshotError>>),
}

impl Phase {
    pub(super) fn connection(&self) -> Option<&Connection> {
        match self {
            Self::Connected(connection) => Some(connection),
            _ => None,
        }
    }

    pub(super) fn agent(&self) -> Option<&Agent> {
        self.connection().map(|connection| &connection.agent)
    }

    pub(super) fn is_booting(&self) -> bool {
        matches!(self, Self::Booting(_))
    }

    pub(super) fn is_retiring(&self) -> bool {
        self.connection().is_some_and(|connection| connection.retiring.is_some())
    }

    /// Whether the session is on its way to another sandbox.
    pub(super) fn is_moving(&self) -> bool {
        match self {
            Self::Disconnected { .. } => false,
            Self::Booting(boot) => !matches!(boot.purpose, BootPurpose::Connect),
            Self::Connected(connection) => connection.retiring.is_some(),
            Self::Saving(_) => true,
        }
    }

    /// Whether the session must stay in memory because of its sandbox.
    pub(super) fn is_in_transition(&self) -> bool {
        self.is_booting() || self.is_moving()
    }

    pub(super) fn translator(&mut self) -> Option<&mut (dyn Translator + 'static)> {
        match self {
            Self::Connected(connection) => Some(connection.translator.as_mut()),
            Self::Disconnected { resume }
            | Self::Booting(Boot { resume, .. })
            | Self::Saving(Save { resume, .. }) => resume.as_deref_mut(),
        }
    }

    /// Disconnects from the agent. A running turn continues, and its output can be read from the agent's history later.
    pub(super) fn disconnect(&mut self) {
        let mut resume = self.take_resume();
        if let Some(translator) = &mut resume {
            translator.stream_lost();
        }
        *self = Self::Disconnected { resume };
    }

    /// Takes the translator out, and leaves the session disconnected.
    pub(super) fn take_resume(&mut self) -> Resume {
        match std::mem::replace(self, Self::Disconnected { resume: None }) {
            Self::Connected(connection) => Some(connection.translator),
            Self::Disconnected { resume }
            | Self::Booting(Boot { resume, .. })
            | Self::Saving(Save { resume, .. }) => resume,
        }
    }

    /// Forgets the agent's session: the next agent starts anew.
    pub(super) fn reset(&mut self) {
        *self = Self::Disconnected { resume: None };
    }

    /// Ends a boot, and returns its purpose.
    pub(super) fn end_boot(&mut self) -> BootPurpose {
        match std::mem::replace(self, Self::Disconnected { resume: None }) {
            Self::Booting(boot) => {
                *self = Self::Disconnected { resume: boot.resume };
                boot.purpose
            }
            other => {
                *self = other;
                BootPurpose::Connect
            }
        }
    }

    /// Ends a save, and returns the callers who wait for the stop.
    pub(super) fn end_save(&mut self) -> Vec<StopReply> {
        match std::mem::replace(self, Self::Disconnected { resume: None }) {
            Self::Saving(save) => {
                *self = Self::Disconnected { resume: save.resume };
                save.stop_replies
            }
            other => {
                *self = other;
                Vec::new()
            }
        }
    }

    /// Waits for the next event. With `hold_events`, the events of the agent wait.
    pub(super) async fn next(&mut self, feed: &Feed, hold_events: bool) -> PhaseEvent {
        match self {
            Self::Disconnected { .. } => std::future::pending().await,
            Self::Booting(boot) => boot.next().await,
            Self::Connected(connection) => connection.next(feed, hold_events).await,
            Self::Saving(save) => {
                let broken = |error: JoinError| Err(SnapshotError::NotRunning(error.to_string()));
                PhaseEvent::Saved(Box::new((&mut save.task).await.unwrap_or_else(broken)))
            }
        }
    }
}

impl Boot {
    async fn next(&mut self) -> PhaseEvent {
        let broken = |error: JoinError| Err(LaunchError::Broken(error.to_string()));
        let Self { task, stages, purpose, .. } = self;
        let grace = async {
            match purpose {
                BootPurpose::Retire(grace) => grace.fired().await,
                BootPurpose::Connect | BootPurpose::Move => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(stage) = stages.recv() => PhaseEvent::BootStage(stage),
            booted = task => PhaseEvent::BootEnded(Box::new(booted.unwrap_or_else(broken))),
            () = grace => PhaseEvent::RetirementDue,
        }
    }
}

impl Connection {
    async fn next(&mut self, feed: &Feed, hold_events: bool) -> PhaseEvent {
        let Self { agent, retiring, .. } = self;
        let events = async {
            if hold_events { std::future::pending().await } else { agent::next_events(agent, feed).await }
        };
        let Some(grace) = retiring else { return PhaseEvent::Agent(events.await) };
        tokio::select! {
            events = events => PhaseEvent::Agent(events),
            () = grace.fired() => PhaseEvent::RetirementDue,
        }
    }
}
