//! The turn of a session: either no prompt is with the agent, or one is, with everything that is known about it.

use agent::AgentError;
use proto::socket::TurnOutcome;
use tokio::task::JoinHandle;

use super::history::HistoryRead;
use super::timer::Timer;
use crate::runtime::ModelReload;

/// The state of the agent's turn.
pub(super) enum Turn {
    /// No prompt is with the agent. When the timer fires, the next one is tried again.
    Idle { retry: Timer },
    /// The agent has a prompt, or gets it as soon as it is connected.
    Running(Box<RunningTurn>),
}

pub(super) struct RunningTurn {
    /// The id of the prompt.
    pub(super) prompt: String,
    pub(super) request: Request,
    pub(super) reload: ModelReload,
    /// Set once the turn is cancelled.
    pub(super) cancellation: Option<Cancellation>,
    /// The read of the agent's history that is in flight. The agent's events wait until it returns.
    pub(super) history: Option<JoinHandle<Result<HistoryRead, AgentError>>>,
    /// Fires when it is time to check whether a turn that seems over has really ended.
    pub(super) check: Timer,
    /// Whether the last history showed an idle agent that has not answered the prompt.
    pub(super) seems_abandoned: bool,
    /// The outcome, once it is logged.
    pub(super) outcome: Option<TurnOutcome>,
}

/// The request in flight to the agent. There is at most one: an abort that overtakes a prompt would have no effect, and
/// a prompt that overtakes an abort would be aborted.
pub(super) enum Request {
    None,
    Prompt(JoinHandle<Result<(), AgentError>>),
    Abort(JoinHandle<Result<(), AgentError>>),
}

#[derive(Default)]
pub(super) struct Cancellation {
    /// The number of abort requests sent to the agent.
    pub(super) aborts: u32,
}

/// Something that happened to the turn.
pub(super) enum TurnEvent {
    PromptSent(Result<(), AgentError>),
    AbortSent(Result<(), AgentError>),
    HistoryRead(Result<HistoryRead, AgentError>),
    TimerFired,
}

impl Turn {
    pub(super) fn idle() -> Self {
        Self::Idle { retry: Timer::default() }
    }

    pub(super) fn start(prompt: String) -> Self {
        Self::Running(Box::new(RunningTurn {
            prompt,
            request: Request::None,
            reload: ModelReload::default(),
            cancellation: None,
            history: None,
            check: Timer::default(),
            seems_abandoned: false,
            outcome: None,
        }))
    }

    pub(super) fn running(&self) -> Option<&RunningTurn> {
        match self {
            Self::Running(turn) => Some(turn),
            Self::Idle { .. } => None,
        }
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut RunningTurn> {
        match self {
            Self::Running(turn) => Some(turn),
            Self::Idle { .. } => None,
        }
    }

    /// The prompt of the running turn.
    pub(super) fn prompt(&self) -> Option<&str> {
        self.running().map(|turn| turn.prompt.as_str())
    }

    pub(super) fn is_running(&self) -> bool {
        self.running().is_some()
    }

    pub(super) fn is_reading_history(&self) -> bool {
        self.running().is_some_and(|turn| turn.history.is_some())
    }

    pub(super) fn has_request(&self) -> bool {
        self.running().is_some_and(|turn| !matches!(turn.request, Request::None))
    }

    /// The timer after which the session checks the turn, or tries to start the next one.
    pub(super) fn timer(&mut self) -> &mut Timer {
        match self {
            Self::Idle { retry } => retry,
            Self::Running(turn) => &mut turn.check,
        }
    }

    /// Ends the turn. A read of the agent's history for it is of no use any more.
    pub(super) fn end(&mut self) -> Option<RunningTurn> {
        match std::mem::replace(self, Self::idle()) {
            Self::Running(turn) => {
                if let Some(history) = &turn.history {
                    history.abort();
                }
                Some(*turn)
            }
            idle @ Self::Idle { .. } => {
                *self = idle;
                None
            }
        }
    }

    /// Waits for the next event, or forever.
    pub(super) async fn next(&mut self) -> TurnEvent {
        match self {
            Self::Idle { retry } => {
                retry.fired().await;
                TurnEvent::TimerFired
            }
            Self::Running(turn) => turn.next().await,
        }
    }
}

impl RunningTurn {
    /// Aborts every request in flight, so that none reaches the agent later.
    pub(super) fn abort_requests(&mut self) {
        self.abort_request();
        if let Some(history) = self.history.take() {
            history.abort();
        }
        (self.cancellation, self.check) = (None, Timer::default());
    }

    /// Aborts the prompt or the abort in flight.
    pub(super) fn abort_request(&mut self) {
        if let Request::Prompt(task) | Request::Abort(task) =
            std::mem::replace(&mut self.request, Request::None)
        {
            task.abort();
        }
    }

    async fn next(&mut self) -> TurnEvent {
        let Self { request, history, check, .. } = self;
        tokio::select! {
            event = request.sent() => event,
            read = read(history) => TurnEvent::HistoryRead(read),
            () = check.fired() => TurnEvent::TimerFired,
        }
    }
}

impl Request {
    async fn sent(&mut self) -> TurnEvent {
        let event = match self {
            Self::None => std::future::pending().await,
            Self::Prompt(task) => {
                TurnEvent::PromptSent(task.await.unwrap_or(Err(AgentError::Broken("send a prompt"))))
            }
            Self::Abort(task) => {
                TurnEvent::AbortSent(task.await.unwrap_or(Err(AgentError::Broken("cancel"))))
            }
        };
        *self = Self::None;
        event
    }
}

async fn read(
    history: &mut Option<JoinHandle<Result<HistoryRead, AgentError>>>,
) -> Result<HistoryRead, AgentError> {
    let read = match history {
        Some(task) => task.await.unwrap_or(Err(AgentError::Broken("read the history"))),
        None => std::future::pending().await,
    };
    *history = None;
    read
}
