//! The registry of live sessions. Only the registry starts session actors, and it starts one per session, however many
//! callers ask at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::{Mutex, MutexGuard};
use proto::http::Presence;
use proto::socket::{CloseCode, ServerMessage, WireStatus};
use proto::{SessionId, UserId};
use store::{NewEvent, OpenTranscript, StoreError};
use tokio::sync::{OnceCell, mpsc, oneshot};

use super::command::{Answer, AnswerOutcome, Command, JoinReply, PromptOutcome, PromptRequest};
use super::eviction::{Activity, sessions_to_evict};
use super::feed::Feed;
use super::frame::FrameText;
use super::services::HubServices;
use super::session::{Exit, SESSION_DELETED, Session};
use crate::admission::Refusal;
use crate::runtime::{ConnectedSandbox, RunningSandbox};

/// The capacity of a session's inbox. Senders wait when it is full.
const INBOX_CAPACITY: usize = 256;
/// How many times a command is retried when the session is being evicted at that moment.
const MAX_ATTEMPTS: usize = 5;

/// The reason why a live session cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the session was given up: try again")]
    Gone,
    /// The session goes on; its log has the reason.
    #[error("the database refused the command: nothing was changed")]
    Refused,
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
    activity: Arc<Activity>,
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
                self.mark_used(&hub);
                self.evict_idle();
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
    ) -> Result<(Hub, JoinReply), HubError> {
        for _ in 0..MAX_ATTEMPTS {
            let hub = self.open(id).await?;
            let (reply, answer) = oneshot::channel();
            if hub.commands.send(Command::Join { passive, user, reply }).await.is_err() {
                continue;
            }
            match tokio::time::timeout(REPLY_TIMEOUT, answer).await {
                Ok(Ok(joined)) => return Ok((hub, joined)),
                Ok(Err(_)) if hub.is_evicted() => {}
                Ok(Err(_)) => return Err(hub.why_it_ended()),
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
        hub.filter(|hub| !hub.commands.is_closed()).inspect(|hub| self.mark_used(hub))
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

    fn mark_used(&self, hub: &Hub) {
        hub.activity.set_used(self.0.uses.fetch_add(1, Ordering::Relaxed));
    }

    /// Asks a session to leave memory, unless somebody uses it.
    pub(crate) fn evict(&self, id: SessionId) {
        let inbox = self.live().get(&id).and_then(|cell| cell.get()).map(|hub| hub.commands.clone());
        if let Some(inbox) = inbox {
            // A session with a full inbox is in use, so it is skipped.
            let _ = inbox.try_send(Command::Evict);
        }
    }

    /// Asks the least recently used idle sessions to leave memory when there are more than `most`.
    fn evict_idle(&self) {
        let (readings, inboxes): (Vec<_>, Vec<_>) = {
            let live = self.live();
            if live.len() <= self.0.most {
                return;
            }
            let hubs = live.values().filter_map(|cell| cell.get());
            hubs.map(|hub| (Activity::read(&hub.activity), hub.commands.clone())).unzip()
        };
        for at in sessions_to_evict(&readings, self.0.most) {
            // A session with a full inbox is in use, so it is skipped.
            let _ = inboxes[at].try_send(Command::Evict);
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
    session.close_open_messages().await?;
    let (commands, inbox) = mpsc::channel(INBOX_CAPACITY);
    let (feed, activity) = (session.feed().clone(), session.activity().clone());
    let registry = Arc::downgrade(registry);
    let hub = Hub { registry: registry.clone(), services, id, commands, feed, activity };
    let closer = FeedCloser(Some(hub.feed.clone()));
    tokio::spawn(run(registry, session, inbox, closer));
    Ok(hub)
}

/// Runs the actor until it ends. Boxed because the leftover commands may start the same session again, which makes this
/// future recursive.
fn run(
    registry: Weak<Registry>,
    session: Session,
    inbox: mpsc::Receiver<Command>,
    closer: FeedCloser,
) -> BoxFuture<'static, ()> {
    async move {
        let id = session.id();
        let exit = session.run(inbox).await;
        // If the registry is gone, the gateway is shutting down and nobody can miss the session.
        let Some(hubs) = registry.upgrade().map(Hubs) else { return };
        let cell = hubs.live().get(&id).cloned();
        if let Some(cell) = cell
            && cell.get().is_some_and(|hub| hub.commands.is_closed())
        {
            hubs.forget(id, &cell);
        }
        if let Exit::Evicted(commands) = exit {
            // Nobody is watching. Anyone about to join sees the closed inbox with an open feed and tries again.
            closer.disarm();
            for command in commands {
                if let Err(error) = Box::pin(forward(&hubs, id, command)).await {
                    tracing::error!(session = %id, %error, "a command to an evicted session was lost");
                }
            }
        }
    }
    .boxed()
}

/// Passes a command that an evicted session did not process to the session's next actor.
async fn forward(hubs: &Hubs, id: SessionId, command: Command) -> Result<(), HubError> {
    match command {
        // A joining watcher retries by itself, a watcher that left is not counted by the next actor, and an eviction
        // has already happened.
        Command::Join { .. } | Command::Leave { .. } | Command::Evict => Ok(()),
        other => hubs.open(id).await?.send(other).await,
    }
}

/// Closes the feed when the actor ends, even by a panic, so that no watcher keeps listening to it.
struct FeedCloser(Option<Arc<Feed>>);

impl FeedCloser {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for FeedCloser {
    fn drop(&mut self) {
        if let Some(feed) = &self.0 {
            feed.close(CloseCode::SETUP_FAILED);
        }
    }
}

/// How long a live session may take to answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

impl Hub {
    pub(crate) fn leave(&self, user: Option<UserId>) {
        let commands = self.commands.clone();
        tokio::spawn(async move { commands.send(Command::Leave { user }).await });
    }

    pub(crate) async fn presence(&self) -> Result<Presence, HubError> {
        self.request(|reply| Command::Presence { reply }).await
    }

    pub(crate) async fn history(&self) -> Result<Option<(FrameText, i64)>, HubError> {
        self.request(|reply| Command::History { reply }).await
    }

    pub(crate) async fn prompt(&self, prompt: PromptRequest) -> Result<PromptOutcome, HubError> {
        self.request(|reply| Command::Prompt { prompt: Box::new(prompt), reply }).await
    }

    pub(crate) async fn answer(&self, answer: Answer) -> Result<AnswerOutcome, HubError> {
        self.request(|reply| Command::Answer { answer: Box::new(answer), reply }).await
    }

    pub(crate) async fn state(&self) -> Result<(WireStatus, String), HubError> {
        self.request(|reply| Command::State { reply }).await
    }

    pub(crate) async fn touch(&self) -> Result<(), HubError> {
        self.request(|reply| Command::Touch { reply }).await
    }

    pub(crate) async fn open_transcript(&self) -> Result<OpenTranscript, HubError> {
        self.request(|reply| Command::OpenTranscript { reply }).await
    }

    /// Returns a connection into the session's running sandbox, or the reason why it cannot be reached. The caller
    /// connects, not the actor, because the actor has others to serve while a supervisor is slow.
    pub(crate) async fn inside(&self) -> Result<Result<ConnectedSandbox, String>, HubError> {
        Ok(match self.sandbox().await? {
            Ok(sandbox) => {
                sandbox.connect(&self.services.runtime.sandboxes).await.map_err(|error| error.to_string())
            }
            Err(reason) => Err(reason),
        })
    }

    /// Returns the session's running sandbox, for callers that need no connection into it.
    pub(crate) async fn sandbox(&self) -> Result<Result<RunningSandbox, String>, HubError> {
        self.request(|reply| Command::Sandbox { reply }).await
    }

    /// Returns `Err` with the reason if the files could not be saved, in which case the session keeps running.
    pub(crate) async fn stop(&self, discard: bool) -> Result<Result<(), String>, HubError> {
        self.request(|reply| Command::Stop { discard, reply }).await
    }

    pub(crate) async fn delete(&self, event: NewEvent) -> Result<(), HubError> {
        let event = Box::new(event);
        self.request(|reply| Command::Delete { event, reply }).await
    }

    pub(crate) async fn cancel(&self) -> Result<(), HubError> {
        self.send(Command::Cancel).await
    }

    pub(crate) async fn wake(&self) -> Result<(), HubError> {
        self.send(Command::Wake).await
    }

    pub(crate) async fn over_budget(&self, reason: String) -> Result<(), HubError> {
        self.send(Command::OverBudget(reason)).await
    }

    pub(crate) async fn set_title(&self, title: String) -> Result<(), HubError> {
        self.send(Command::SetTitle(title)).await
    }

    pub(crate) async fn set_model(&self, model: String) -> Result<Result<(), Refusal>, HubError> {
        self.request(|reply| Command::SetModel { model, reply }).await
    }

    pub(crate) async fn broadcast(&self, message: ServerMessage) -> Result<(), HubError> {
        self.send(Command::Broadcast(Box::new(message))).await
    }

    /// Whether the actor was evicted: it has processed nothing that was sent since, and the next actor can be asked
    /// instead.
    fn is_evicted(&self) -> bool {
        self.commands.is_closed() && self.feed.closed().is_none()
    }

    async fn send(&self, mut command: Command) -> Result<(), HubError> {
        let mut hub = self.clone();
        for _ in 0..MAX_ATTEMPTS {
            match hub.commands.send(command).await {
                Ok(()) => return Ok(()),
                Err(mpsc::error::SendError(back)) if hub.is_evicted() => command = back,
                Err(_) => return Err(hub.why_it_ended()),
            }
            let hubs = self.registry.upgrade().map(Hubs).ok_or(HubError::Gone)?;
            hub = hubs.open(self.id).await?;
        }
        Err(HubError::Gone)
    }

    async fn request<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, HubError> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply)).await?;
        match tokio::time::timeout(REPLY_TIMEOUT, answer).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(_)) => {}
            Err(_) => return Err(self.why_it_ended()),
        }
        if self.goes_on().await { Err(HubError::Refused) } else { Err(self.why_it_ended()) }
    }

    /// Whether the actor handles another command. An actor that ends drops the reply of its last command before its inbox,
    /// so an open inbox does not tell.
    async fn goes_on(&self) -> bool {
        let asked = async {
            let (reply, answer) = oneshot::channel();
            self.commands.send(Command::State { reply }).await.is_ok() && answer.await.is_ok()
        };
        tokio::time::timeout(REPLY_TIMEOUT, asked).await.unwrap_or(false)
    }

    /// The reason why the actor does not answer.
    fn why_it_ended(&self) -> HubError {
        match self.feed.closed() {
            Some(SESSION_DELETED) => HubError::Deleted,
            Some(CloseCode::DISK_FULL) => HubError::Store(StoreError::DiskFull),
            _ => HubError::Gone,
        }
    }
}
