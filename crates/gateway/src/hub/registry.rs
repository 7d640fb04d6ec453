//! Where live sessions are found, and the only place where they come to life: once each, however many ask.

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

/// Commands that may wait for a session; whoever has more to say waits with them.
const INBOX: usize = 256;
/// How often a command is brought to a session that goes to rest at that moment.
const ATTEMPTS: usize = 5;

/// Why a session cannot be had.
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
    /// How many may be alive before those that nobody needs are let go.
    most: usize,
    /// Counts who is asked for.
    uses: AtomicU64,
}

/// A live session.
#[derive(Clone)]
pub struct Hub {
    /// Weak: the registry holds the hubs.
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

    /// The live session, brought to life if it is not. The caller has checked that somebody may have it.
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
            // It ended a moment ago: the next one begins where it left off.
            self.forget(id, &cell);
        }
    }

    /// Begins to watch a session. One that goes to rest at this moment is woken again.
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
                    // It may still be counted.
                    hub.leave(user);
                    return Err(HubError::Gone);
                }
            }
        }
        Err(HubError::Gone)
    }

    /// The live session, if it is alive here.
    pub(crate) fn get(&self, id: SessionId) -> Option<Hub> {
        let hub = self.live().get(&id).and_then(|cell| cell.get().cloned());
        hub.filter(|hub| !hub.commands.is_closed()).inspect(|hub| self.use_of(hub))
    }

    /// Whether it is alive here; asking does not keep it so.
    pub(crate) fn is_alive(&self, id: SessionId) -> bool {
        self.live().get(&id).and_then(|cell| cell.get()).is_some_and(|hub| !hub.commands.is_closed())
    }

    /// Writes down what all of them have counted: the last thing before the end.
    pub(crate) async fn flush(&self) {
        let hubs: Vec<Hub> = self.live().values().filter_map(|cell| cell.get().cloned()).collect();
        let flushes = hubs.iter().filter(|hub| !hub.commands.is_closed()).map(|hub| async {
            let (reply, answer) = oneshot::channel();
            if hub.commands.send(Command::Flush { reply }).await.is_ok() {
                // One that ends at this moment writes by itself.
                let _ = answer.await;
            }
        });
        join_all(flushes).await;
    }

    pub(super) fn services(&self) -> &HubServices {
        &self.0.services
    }

    /// How many are alive.
    pub fn count(&self) -> usize {
        self.live().len()
    }

    fn use_of(&self, hub: &Hub) {
        hub.pulse.used(self.0.uses.fetch_add(1, Ordering::Relaxed));
    }

    /// Asks those to rest that nobody needs and that were not asked for the longest, where there are too many.
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
            // One whose inbox is full is needed.
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

/// Boxed, because what is left behind may bring the same session to life again.
fn live(
    registry: Weak<Registry>,
    session: Session,
    inbox: mpsc::Receiver<Command>,
    last: LastWord,
) -> BoxFuture<'static, ()> {
    async move {
        let id = session.id();
        let left = session.run(inbox).await;
        // A gateway that is gone has nobody who could miss the session.
        let Some(hubs) = registry.upgrade().map(Hubs) else { return };
        let cell = hubs.live().get(&id).cloned();
        if let Some(cell) = cell
            && cell.get().is_some_and(|hub| hub.commands.is_closed())
        {
            hubs.forget(id, &cell);
        }
        if let Left::ToRest(commands) = left {
            // Nobody watches; those who are about to are told by this that they must ask again.
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

/// Brings a command to the session after the one that rests.
async fn hand_on(hubs: &Hubs, id: SessionId, command: Command) -> Result<(), HubError> {
    match command {
        // Who joins asks again, who left is not counted there, and rest is what it has.
        Command::Join { .. } | Command::Leave { .. } | Command::Rest => Ok(()),
        other => hubs.open(id).await?.tell(other).await,
    }
}

/// However an actor ends, nobody goes on listening to it.
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

/// How long an answer of a live session may take.
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

    /// The inside of the session's running sandbox, or why it cannot be reached. Reached from here: the session has others
    /// to serve while it waits for a supervisor.
    pub(crate) async fn inside(&self) -> Result<Result<Inside, String>, HubError> {
        Ok(match self.held().await? {
            Ok(held) => held.enter(&self.services.runtime.sandboxes).await.map_err(|error| error.to_string()),
            Err(reason) => Err(reason),
        })
    }

    /// The session's running sandbox, for whoever needs nobody inside.
    pub(crate) async fn held(&self) -> Result<Result<Held, String>, HubError> {
        self.ask(|reply| Command::Inside { reply }).await
    }

    /// `Err`: why the files could not be saved, so that the session goes on.
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

    /// Whether it went to rest: nothing that was said to it since has been heard, and the next one can be asked.
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

    /// Why it does not answer.
    fn ended(&self) -> HubError {
        match self.feed.closed() {
            Some(DELETED) => HubError::Deleted,
            Some(CloseCode::DISK_FULL) => HubError::Store(StoreError::DiskFull),
            _ => HubError::Gone,
        }
    }
}
