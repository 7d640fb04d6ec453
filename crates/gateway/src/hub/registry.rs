//! Where live sessions are found, and the only place where they come to life: once each, however many ask.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::ws::Utf8Bytes;
use proto::SessionId;
use proto::socket::{CloseCode, ServerMessage, WireStatus};
use store::StoreError;
use tokio::sync::{OnceCell, mpsc, oneshot};

use super::command::{Asked, Command, Joined, Prompted};
use super::feed::Feed;
use super::session::Session;
use crate::app::AppState;
use crate::runtime::Inside;

/// Commands that may wait for a session; whoever has more to say waits with them.
const INBOX: usize = 256;

/// Why a session cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the session was given up: try again")]
    Gone,
}

/// The live sessions of this instance.
#[derive(Default)]
pub struct Hubs {
    live: Mutex<HashMap<SessionId, Arc<OnceCell<Hub>>>>,
}

/// A live session.
#[derive(Clone)]
pub struct Hub {
    commands: mpsc::Sender<Command>,
    pub(crate) feed: Arc<Feed>,
}

impl Hubs {
    /// The live session, brought to life if it is not. The caller has checked that somebody may have it.
    pub(crate) async fn open(&self, app: &AppState, id: SessionId) -> Result<Hub, HubError> {
        loop {
            let cell = self.live().entry(id).or_default().clone();
            let hub = cell.get_or_try_init(|| async { start(app, id).await }).await;
            let hub = match hub {
                Ok(hub) => hub.clone(),
                Err(error) => {
                    self.forget(id, &cell);
                    return Err(error.into());
                }
            };
            if !hub.commands.is_closed() {
                return Ok(hub);
            }
            // It ended a moment ago: the next one begins where it left off.
            self.forget(id, &cell);
        }
    }

    /// The live session, if it is alive here.
    pub(crate) fn get(&self, id: SessionId) -> Option<Hub> {
        let hub = self.live().get(&id).and_then(|cell| cell.get().cloned());
        hub.filter(|hub| !hub.commands.is_closed())
    }

    /// How many are alive.
    pub fn count(&self) -> usize {
        self.live().len()
    }

    fn forget(&self, id: SessionId, old: &Arc<OnceCell<Hub>>) {
        let mut live = self.live();
        if live.get(&id).is_some_and(|now| Arc::ptr_eq(now, old)) {
            live.remove(&id);
        }
    }

    fn live(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<OnceCell<Hub>>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn start(app: &AppState, id: SessionId) -> Result<Hub, StoreError> {
    let mut session = Session::load(app.clone(), id).await?;
    session.tidy().await?;
    let (commands, inbox) = mpsc::channel(INBOX);
    let hub = Hub { commands, feed: session.feed().clone() };
    let (app, last) = (app.clone(), LastWord(hub.feed.clone()));
    tokio::spawn(async move {
        let _last = last;
        session.run(inbox).await;
        let cell = app.hubs.live().get(&id).cloned();
        if let Some(cell) = cell
            && cell.get().is_some_and(|hub| hub.commands.is_closed())
        {
            app.hubs.forget(id, &cell);
        }
    });
    Ok(hub)
}

/// However an actor ends, nobody goes on listening to it.
struct LastWord(Arc<Feed>);

impl Drop for LastWord {
    fn drop(&mut self) {
        self.0.close(CloseCode::SETUP_FAILED);
    }
}

/// How long an answer of a live session may take.
const PATIENCE: Duration = Duration::from_secs(30);

impl Hub {
    pub(crate) async fn join(&self, passive: bool) -> Result<Joined, HubError> {
        self.ask(|reply| Command::Join { passive, reply }).await
    }

    pub(crate) fn leave(&self) {
        let commands = self.commands.clone();
        tokio::spawn(async move { commands.send(Command::Leave).await });
    }

    pub(crate) async fn history(&self) -> Result<Option<(Utf8Bytes, i64)>, HubError> {
        self.ask(|reply| Command::History { reply }).await
    }

    pub(crate) async fn prompt(&self, prompt: Asked) -> Result<Prompted, HubError> {
        self.ask(|reply| Command::Prompt { prompt, reply }).await
    }

    pub(crate) async fn state(&self) -> Result<(WireStatus, String), HubError> {
        self.ask(|reply| Command::State { reply }).await
    }

    pub(crate) async fn inside(&self) -> Result<Result<Inside, String>, HubError> {
        self.ask(|reply| Command::Inside { reply }).await
    }

    pub(crate) async fn stop(&self) -> Result<(), HubError> {
        self.ask(|reply| Command::Stop { reply }).await
    }

    pub(crate) async fn delete(&self, by: String) -> Result<(), HubError> {
        self.ask(|reply| Command::Delete { by, reply }).await
    }

    pub(crate) async fn cancel(&self) -> Result<(), HubError> {
        self.tell(Command::Cancel).await
    }

    pub(crate) async fn wake(&self) -> Result<(), HubError> {
        self.tell(Command::Wake).await
    }

    pub(crate) async fn over_budget(&self) -> Result<(), HubError> {
        self.tell(Command::OverBudget).await
    }

    pub(crate) async fn titled(&self, title: String) -> Result<(), HubError> {
        self.tell(Command::Titled(title)).await
    }

    pub(crate) async fn say(&self, message: ServerMessage) -> Result<(), HubError> {
        self.tell(Command::Say(Box::new(message))).await
    }

    async fn tell(&self, command: Command) -> Result<(), HubError> {
        self.commands.send(command).await.map_err(|_| HubError::Gone)
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, HubError> {
        let (reply, answer) = oneshot::channel();
        self.tell(command(reply)).await?;
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Err(HubError::Gone),
        }
    }
}
