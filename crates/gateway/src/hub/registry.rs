//! The registry of live sessions. Only the registry starts session actors, and it starts one per session, however many
//! callers ask at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::extract::ws::Utf8Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::{Mutex, MutexGuard};
use proto::http::Presence;
use proto::socket::{CloseCode, ServerMessage, WireStatus};
use proto::{SessionId, UserId};
use store::StoreError;
use tokio::sync::{OnceCell, mpsc, oneshot};

use super::command::{Asked, Command, Joined, Prompted};
use super::feed::Feed;
use super::room::{Pulse, leaving};
use super::services::HubServices;
use super::session::{DELETED, Left, Session};
use crate::runtime::{Held, Inside};

/// The capacity of a session's inbox. Senders wait when it is full.
const INBOX: usize = 256;
/// How many times a command is retried when the session is being evicted at that moment.
const ATTEMPTS: usize = 5;

/// The reason why a live session cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the session was given up: try again")]
    Gone,
    #[error("the session was deleted")]
    Deleted,
}

/// The live sessions of this instance.
#[derive(Clone)]
pub struct Hubs(Arc<Registry>);

struct Registry {
    services: Arc<HubServices>,
    live: Mutex<HashMap<SessionId, Arc<OnceCell<Hub>>>>,
    /// The number of live sessions above which idle ones are evicted.
    most: usize,
    /// A logical clock for the LRU order: counts lookups of sessions.
    uses: AtomicU64,
}

/// A live session.
#[derive(Clone)]
pub struct Hub {
    /// Weak, because the registry holds the hubs.
    registry: Weak<Registry>,
    services: Arc<HubServices>,
    id: SessionId,
    commands: mpsc::Sender<Command>,
    pub(crate) feed: Arc<Feed>,
    pulse: Arc<Pulse>,
}

impl Hubs {
    pub(crate) fn new(most: usize, services: HubServices) -> Self {
        let (services, live, uses) = (Arc::new(services), Mutex::default(), AtomicU64::new(0));
        Self(Arc::new(Registry { services, live, most, uses }))
    }

    /// Returns the live session and starts its actor if needed. The caller has checked that the session may be opened.
    pub(crate) async fn open(&self, id: SessionId) -> Result<Hub, HubError> {
        loop {
            let cell = self.live().entry(id).or_default().clone();
            let hub = cell.get_or_try_init(|| async { start(&self.0, id).await }).await;
            let hub = match hub {
                Ok(hub) => hub.clone(),
                Err(error) => {
                    self.forget(id, &cell);
                    return Err(error.into());
                }
            };
            if !hub.commands.is_closed() {
                self.use_of(&hub);
                self.make_room();
                return Ok(hub);
            }
            // The actor ended a moment ago. Remove it and start the next one, which continues from the database.
            self.forget(id, &cell);
        }
    }

    /// Starts watching a session. A session that is being evicted at that moment is started again.
    pub(crate) async fn join(
        &self,
        id: SessionId,
        (user, passive): (Option<UserId>, bool),
    ) -> Result<(Hub, Joined), HubError> {
        for _ in 0..ATTEMPTS {
            let hub = self.open(id).await?;
            let (reply, answer) = oneshot::channel();
            if hub.commands.send(Command::Join { passive, user, reply }).await.is_err() {
                continue;
            }
            match tokio::time::timeout(PATIENCE, answer).await {
                Ok(Ok(joined)) => return Ok((hub, joined)),
                Ok(Err(_)) if hub.rests() => {}
                Ok(Err(_)) => return Err(hub.ended()),
                Err(_) => {
                    // The actor may still process the join and count this watcher.
                    hub.leave(user);
                    return Err(HubError::Gone);
                }
            }
        }
        Err(HubError::Gone)
    }

    /// Returns the live session if this instance runs it.
    pub(crate) fn get(&self, id: SessionId) -> Option<Hub> {
        let hub = self.live().get(&id).and_then(|cell| cell.get().cloned());
        hub.filter(|hub| !hub.commands.is_closed()).inspect(|hub| self.use_of(hub))
    }

    /// Whether this instance runs the session. Unlike [`Hubs::get`], this does not count as a use.
    pub(crate) fn is_alive(&self, id: SessionId) -> bool {
        self.live().get(&id).and_then(|cell| cell.get()).is_some_and(|hub| !hub.commands.is_closed())
    }

    /// Makes every live session write its counters, as the last step of a shutdown.
    pub(crate) async fn flush(&self) {
        let hubs: Vec<Hub> = self.live().values().filter_map(|cell| cell.get().cloned()).collect();
        let flushes = hubs.iter().filter(|hub| !hub.commands.is_closed()).map(|hub| async {
            let (reply, answer) = oneshot::channel();
            if hub.commands.send(Command::Flush { reply }).await.is_ok() {
                // An actor that ends at this moment flushes by itself.
                let _ = answer.await;
            }
        });
        join_all(flushes).await;
    }

    pub(super) fn services(&self) -> &HubServices {
        &self.0.services
    }

    /// The number of live sessions.
    pub fn count(&self) -> usize {
        self.live().len()
    }

    fn use_of(&self, hub: &Hub) {
        hub.pulse.used(self.0.uses.fetch_add(1, Ordering::Relaxed));
    }

    /// Asks the least recently used idle sessions to leave memory when there are more than `most`.
    fn make_room(&self) {
        let (felt, inboxes): (Vec<_>, Vec<_>) = {
            let live = self.live();
            if live.len() <= self.0.most {
                return;
            }
            let hubs = live.values().filter_map(|cell| cell.get());
            hubs.map(|hub| (Pulse::felt(&hub.pulse), hub.commands.clone())).unzip()
        };
        for at in leaving(&felt, self.0.most) {
            // A session with a full inbox is in use, so it is skipped.
            let _ = inboxes[at].try_send(Command::Rest);
        }
    }

    fn forget(&self, id: SessionId, old: &Arc<OnceCell<Hub>>) {
        let mut live = self.live();
        if live.get(&id).is_some_and(|now| Arc::ptr_eq(now, old)) {
            live.remove(&id);
        }
    }

    fn live(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<OnceCell<Hub>>>> {
        self.0.live.lock()
    }
}

async fn start(registry: &Arc<Registry>, id: SessionId) -> Result<Hub, StoreError> {
    let services = registry.services.clone();
    let mut session = Session::load(services.clone(), id).await?;
    session.tidy().await?;
    let (commands, inbox) = mpsc::channel(INBOX);
    let (feed, pulse) = (session.feed().clone(), session.pulse().clone());
    let registry = Arc::downgrade(registry);
    let hub = Hub { registry: registry.clone(), services, id, commands, feed, pulse };
    let last = LastWord(Some(hub.feed.clone()));
    tokio::spawn(live(registry, session, inbox, last));
    Ok(hub)
}

/// Runs the actor until it ends. Boxed because the leftover commands may start the same session again, which makes this
/// future recursive.
fn live(
    registry: Weak<Registry>,
    session: Session,
    inbox: mpsc::Receiver<Command>,
    last: LastWord,
) -> BoxFuture<'static, ()> {
    async move {
        let id = session.id();
        let left = session.run(inbox).await;
        // If the registry is gone, the gateway is shutting down and nobody can miss the session.
        let Some(hubs) = registry.upgrade().map(Hubs) else { return };
        let cell = hubs.live().get(&id).cloned();
        if let Some(cell) = cell
            && cell.get().is_some_and(|hub| hub.commands.is_closed())
        {
            hubs.forget(id, &cell);
        }
        if let Left::ToRest(commands) = left {
            // Nobody is watching. Anyone about to join sees the closed inbox with an open feed and tries again.
            last.unsaid();
            for command in commands {
                if let Err(error) = Box::pin(hand_on(&hubs, id, command)).await {
                    tracing::error!(session = %id, %error, "a command to a session at rest was lost");
                }
            }
        }
    }
    .boxed()
}

/// Passes a command that an evicted session did not process to the session's next actor.
async fn hand_on(hubs: &Hubs, id: SessionId, command: Command) -> Result<(), HubError> {
    match command {
        // A joining watcher retries by itself, a watcher that left is not counted by the next actor, and an eviction
        // has already happened.
        Command::Join { .. } | Command::Leave { .. } | Command::Rest => Ok(()),
        other => hubs.open(id).await?.tell(other).await,
    }
}

/// Closes the feed when the actor ends, even by a panic, so that no watcher keeps listening to it.
struct LastWord(Option<Arc<Feed>>);

impl LastWord {
    fn unsaid(mut self) {
        self.0 = None;
    }
}

impl Drop for LastWord {
    fn drop(&mut self) {
        if let Some(feed) = &self.0 {
            feed.close(CloseCode::SETUP_FAILED);
        }
    }
}

/// How long a live session may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

impl Hub {
    pub(crate) fn leave(&self, user: Option<UserId>) {
        let commands = self.commands.clone();
        tokio::spawn(async move { commands.send(Command::Leave { user }).await });
    }

    pub(crate) async fn presence(&self) -> Result<Presence, HubError> {
        self.ask(|reply| Command::Presence { reply }).await
    }

    pub(crate) async fn history(&self) -> Result<Option<(Utf8Bytes, i64)>, HubError> {
        self.ask(|reply| Command::History { reply }).await
    }

    pub(crate) async fn prompt(&self, prompt: Asked) -> Result<Prompted, HubError> {
        self.ask(|reply| Command::Prompt { prompt: Box::new(prompt), reply }).await
    }

    pub(crate) async fn state(&self) -> Result<(WireStatus, String), HubError> {
        self.ask(|reply| Command::State { reply }).await
    }

    pub(crate) async fn touch(&self) -> Result<(), HubError> {
        self.ask(|reply| Command::Touch { reply }).await
    }

    /// Returns a connection into the session's running sandbox, or the reason why it cannot be reached. The caller
    /// connects, not the actor, because the actor has others to serve while a supervisor is slow.
    pub(crate) async fn inside(&self) -> Result<Result<Inside, String>, HubError> {
        Ok(match self.held().await? {
            Ok(held) => held.enter(&self.services.runtime.sandboxes).await.map_err(|error| error.to_string()),
            Err(reason) => Err(reason),
        })
    }

    /// Returns the session's running sandbox, for callers that need no connection into it.
    pub(crate) async fn held(&self) -> Result<Result<Held, String>, HubError> {
        self.ask(|reply| Command::Inside { reply }).await
    }

    /// Returns `Err` with the reason if the files could not be saved, in which case the session keeps running.
    pub(crate) async fn stop(&self, discard: bool) -> Result<Result<(), String>, HubError> {
        self.ask(|reply| Command::Stop { discard, reply }).await
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

    pub(crate) async fn over_budget(&self, why: String) -> Result<(), HubError> {
        self.tell(Command::OverBudget(why)).await
    }

    pub(crate) async fn titled(&self, title: String) -> Result<(), HubError> {
        self.tell(Command::Titled(title)).await
    }

    pub(crate) async fn say(&self, message: ServerMessage) -> Result<(), HubError> {
        self.tell(Command::Say(Box::new(message))).await
    }

    /// Whether the actor was evicted: it has processed nothing that was sent since, and the next actor can be asked
    /// instead.
    fn rests(&self) -> bool {
        self.commands.is_closed() && self.feed.closed().is_none()
    }

    async fn tell(&self, mut command: Command) -> Result<(), HubError> {
        let mut hub = self.clone();
        for _ in 0..ATTEMPTS {
            match hub.commands.send(command).await {
                Ok(()) => return Ok(()),
                Err(mpsc::error::SendError(back)) if hub.rests() => command = back,
                Err(_) => return Err(hub.ended()),
            }
            let hubs = self.registry.upgrade().map(Hubs).ok_or(HubError::Gone)?;
            hub = hubs.open(self.id).await?;
        }
        Err(HubError::Gone)
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, HubError> {
        let (reply, answer) = oneshot::channel();
        self.tell(command(reply)).await?;
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Err(self.ended()),
        }
    }

    /// The reason why the actor does not answer.
    fn ended(&self) -> HubError {
        match self.feed.closed() {
            Some(DELETED) => HubError::Deleted,
            Some(CloseCode::DISK_FULL) => HubError::Store(StoreError::DiskFull),
            _ => HubError::Gone,
        }
    }
}
