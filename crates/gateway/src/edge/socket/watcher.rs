//! One connection to a session: a place in its stream, and a client that may speak.

mod beside;
mod coalesce;
mod disk_full;
mod git;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket};
use futures_util::{SinkExt as _, StreamExt as _};
use proto::socket::{
    AutoStartMode, ClientMessage, CloseCode, FrameError, GitAction, GitCode, MessageSource, ServerMessage,
    WireStatus,
};
use proto::{SessionId, UserId};
use store::StoreError;
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::time::{interval, timeout};

use crate::access::{self, Act, CallerKind};
use crate::app::AppState;
use crate::edge::auth::LiveCredential;
use crate::git::failed as git_failed;
use crate::hub::{After, Asked, Hub, HubError, Joined, Listener, Prompted, to_one};
use crate::server::Inbound;

/// How long a client may take nothing of what it is sent.
const STALLED: Duration = Duration::from_secs(30);
/// How often a client is asked whether it is there, and how long it may be silent.
const PING: Duration = Duration::from_secs(30);
/// A client that answers none of these has gone without closing its connection.
const MAX_UNANSWERED_PINGS: u32 = 3;
/// How long a client may take to close after it was told to.
const CLOSING: Duration = Duration::from_secs(2);
/// Answers that may wait for a client.
const ANSWERS: usize = 16;
/// Requests for work in the sandbox that one client may have under way.
const WORK_WAITING: usize = 8;
const STOPPING: CloseCode = CloseCode { code: 1001, reason: "The gateway stops" };
/// What is read of the log at once for a client that comes back or lags: as much as it pins while it stands still.
const PAGE: usize = 128 * 1024;

/// Larger messages are parsed off the async workers.
const PARSED_AT_ONCE: usize = 256 * 1024;
/// The client sends a message for which its session or organization has no memory left.
const OVER_SHARE: CloseCode = CloseCode { code: 1013, reason: "out of memory share, try again later" };

/// Who comes to watch what.
pub(super) struct Visitor {
    pub(super) session: SessionId,
    pub(super) credential: LiveCredential,
    /// The client's place in the table of `access`, which every command looks up anew, and whether it counts as the session's creator.
    pub(super) kind: CallerKind,
    pub(super) owns: bool,
    pub(super) user: Option<UserId>,
    /// Does not wake it.
    pub(super) passive: bool,
    /// What the client has sent of its next message.
    pub(super) inbound: Inbound,
}

/// A client that watches.
struct Watcher {
    app: AppState,
    hub: Hub,
    visitor: Visitor,
    socket: WebSocket,
    /// The number of the last frame that the client has.
    place: i64,
    listener: Arc<Listener>,
    /// Answers that take a while, for this client alone. As text, since every client holds room for them.
    answers: (mpsc::Sender<Utf8Bytes>, mpsc::Receiver<Utf8Bytes>),
    /// What waits to be done in the sandbox, and what is next: a lock lets in those who asked first.
    work_places: Arc<Semaphore>,
    work_line: Arc<Mutex<()>>,
}

/// Why a connection ends.
enum End {
    /// The client is gone, or as good as gone.
    Gone,
    /// The client closes.
    Closed,
    /// We send it away.
    Away(CloseCode),
}

/// Serves a client until one side has enough. What is rare is boxed: else every client holds room for the largest of it.
pub(super) async fn serve(app: AppState, visitor: Visitor, mut since: Option<i64>, mut socket: WebSocket) {
    let (hub, joined) = match Box::pin(enter(&app, &visitor, &mut since, &mut socket)).await {
        Ok(entered) => entered,
        Err(end) => return Box::pin(farewell(socket, end)).await,
    };
    let mut watcher = Watcher {
        place: hub.feed.head(),
        listener: hub.feed.listener(),
        answers: mpsc::channel(ANSWERS),
        work_places: Arc::new(Semaphore::new(WORK_WAITING)),
        work_line: Arc::default(),
        app,
        hub,
        visitor,
        socket,
    };
    let revoked = watcher.visitor.credential.clone().ended();
    let end = tokio::select! {
        biased;
        () = revoked => End::Away(CloseCode::CREDENTIAL_ENDED),
        end = watcher.stay(since, joined) => end,
    };
    watcher.hub.leave(watcher.visitor.user);
    Box::pin(farewell(watcher.socket, end)).await;
}

/// Tells the client that it is heard, and brings it to the session. While the disk is full it waits here.
async fn enter(
    app: &AppState,
    visitor: &Visitor,
    since: &mut Option<i64>,
    socket: &mut WebSocket,
) -> Result<(Hub, Joined), End> {
    let message = "Connecting to coding agent...".to_owned();
    let hello = to_one(&ServerMessage::Status { status: WireStatus::Resuming, message });
    in_time(socket.send(Message::Text(hello))).await?;
    let mut told = false;
    loop {
        match app.hubs.join(visitor.session, (visitor.user, visitor.passive)).await {
            Ok(entered) => return Ok(entered),
            Err(HubError::Store(StoreError::DiskFull)) => {
                if !std::mem::replace(&mut told, true) {
                    disk_full::tell(app, visitor, since, socket).await?;
                }
                tokio::select! {
                    biased;
                    () = visitor.credential.clone().ended() => {
                        return Err(End::Away(CloseCode::CREDENTIAL_ENDED));
                    }
                    waited = disk_full::wait(app, visitor, socket) => waited?,
                }
            }
            Err(error) => {
                tracing::warn!(session = %visitor.session, %error, "a session could not be opened");
                return Err(End::Away(CloseCode::SETUP_FAILED));
            }
        }
    }
}

impl Watcher {
    /// Serves the client until the connection has a reason to end.
    async fn stay(&mut self, since: Option<i64>, joined: Joined) -> End {
        match Box::pin(self.greet(since, joined)).await {
            Ok(()) => match self.watch().await {
                Ok(never) => match never {},
                Err(end) => end,
            },
            Err(end) => end,
        }
    }

    async fn greet(&mut self, since: Option<i64>, joined: Joined) -> Result<(), End> {
        let (init, head) = joined.init.ok_or(End::Away(CloseCode::SETUP_FAILED))?;
        let goes_on = match since {
            Some(since) => self.go_on(since).await?,
            None => false,
        };
        if !goes_on {
            if let Some(since) = since {
                self.tell(&ServerMessage::Gap { from: since.saturating_add(1), to: head }).await?;
            }
            self.send(init).await?;
            self.place = head;
        }
        let state = (joined.status, joined.message);
        // What was missed may tell of later states than that of the moment of joining.
        let (status, message) = if goes_on { self.hub.state().await.unwrap_or(state) } else { state };
        self.tell(&ServerMessage::Status { status, message }).await
    }

    /// Sends everything after a number, if it is still there: from memory, else from the log.
    async fn go_on(&mut self, since: i64) -> Result<bool, End> {
        if since < 0 || since > self.hub.feed.head() {
            return Ok(false);
        }
        let missing = matches!(self.hub.feed.after(since), After::Gone);
        let store = &self.app.store;
        let away = |_| End::Away(CloseCode::SETUP_FAILED);
        if missing && !store.is_logged_after(self.visitor.session, since).await.map_err(away)? {
            return Ok(false);
        }
        self.place = since;
        while matches!(self.hub.feed.after(self.place), After::Gone) {
            if !self.send_logged().await? {
                return Ok(false);
            }
        }
        self.catch_up().await?;
        Ok(true)
    }

    /// Sends a page of the log; `false` when it no longer has what comes next.
    async fn send_logged(&mut self) -> Result<bool, End> {
        let batches = self.app.store.events_after(self.visitor.session, self.place, PAGE).await;
        let batches = batches.map_err(|_| End::Away(CloseCode::SETUP_FAILED))?;
        if batches.is_empty() {
            return Ok(false);
        }
        for batch in batches {
            // The log may have been cut while it was read.
            if batch.first_seq > self.place + 1 {
                return Ok(false);
            }
            for (seq, line) in (batch.first_seq..).zip(batch.frames.lines()) {
                if seq > self.place {
                    self.feed(Utf8Bytes::from(line)).await?;
                }
            }
            self.place = batch.last_seq;
        }
        self.flush().await?;
        Ok(true)
    }

    async fn watch(&mut self) -> Result<std::convert::Infallible, End> {
        let (mut said, mut ping) = (self.hub.feed.listen(), interval(PING));
        let mut closing = pin!(self.app.closing.clone().cancelled_owned());
        let mut unanswered = 0;
        loop {
            self.catch_up().await?;
            if let Some(code) = self.hub.feed.closed() {
                return Err(End::Away(code));
            }
            tokio::select! {
                changed = said.changed() => changed.map_err(|_| End::Away(CloseCode::OWNERSHIP_TRANSFERRED))?,
                message = self.socket.next() => {
                    unanswered = 0;
                    match message {
                        Some(Ok(Message::Text(text))) => {
                            Box::pin(self.heard(text)).await?;
                            self.visitor.inbound.completed();
                        }
                        Some(Ok(Message::Binary(_))) => self.visitor.inbound.completed(),
                        Some(Ok(Message::Ping(payload) | Message::Pong(payload))) => {
                            self.visitor.inbound.control(payload.len());
                        }
                        Some(Err(_)) if self.visitor.inbound.is_over() => return Err(End::Away(OVER_SHARE)),
                        Some(Ok(Message::Close(_))) => return Err(End::Closed),
                        Some(Err(_)) | None => return Err(End::Gone),
                    }
                }
                Some(answer) = self.answers.1.recv() => self.send(answer).await?,
                _ = ping.tick() => {
                    if unanswered > MAX_UNANSWERED_PINGS {
                        return Err(End::Gone);
                    }
                    unanswered += 1;
                    self.feed_message(Message::Ping(axum::body::Bytes::new())).await?;
                    self.flush().await?;
                }
                () = &mut closing => {
                    return Err(End::Away(STOPPING));
                }
            }
        }
    }

    /// Sends what was said since the client's place. Tokens are joined for a client that lags.
    async fn catch_up(&mut self) -> Result<(), End> {
        let mut sent = false;
        loop {
            match self.hub.feed.after(self.place) {
                After::Nothing if sent => return self.flush().await,
                After::Nothing => return Ok(()),
                // Memory is let go of after each turn; one that lags behind that has not stalled yet.
                After::Gone => {
                    if !Box::pin(self.send_logged()).await? {
                        return Err(End::Away(CloseCode::SLOW_CONSUMER));
                    }
                }
                After::Batches(batches) => {
                    let waiting = coalesce::after(&batches, self.place);
                    if self.hub.feed.is_far_behind(&self.listener) {
                        for frame in coalesce::joined(waiting) {
                            self.feed(frame).await?;
                        }
                    } else {
                        for frame in waiting {
                            self.feed(frame).await?;
                        }
                    }
                    if let Some(last) = batches.last() {
                        self.place = last.last();
                        self.hub.feed.taken(&self.listener, last);
                    }
                    sent = true;
                }
            }
        }
    }

    /// Whether this client may do it; it is told if not. A service has no user who could prompt or change anything.
    async fn may(&mut self, act: Act) -> Result<bool, End> {
        match self.visitor.credential.kind(&self.app).await {
            Ok(Some(kind)) => self.visitor.kind = kind,
            Ok(None) => return Err(End::Away(CloseCode::CREDENTIAL_ENDED)),
            Err(error) => {
                tracing::warn!(%error, "a credential could not be looked up");
                self.error("The database is not available: nothing was done, try again").await?;
                return Ok(false);
            }
        }
        if act != Act::Watch && self.visitor.user.is_none() {
            self.error("Unauthorized").await?;
            return Ok(false);
        }
        let allowed = access::may(act, self.visitor.kind, self.visitor.owns);
        if !allowed {
            self.error("Not authorized to modify this session").await?;
        }
        Ok(allowed)
    }

    async fn heard(&mut self, text: Utf8Bytes) -> Result<(), End> {
        let parsed = if text.len() <= PARSED_AT_ONCE {
            ClientMessage::parse(text.as_str())
        } else {
            // Other tasks of this worker must not wait for a prompt with images.
            let parsing = tokio::task::spawn_blocking(move || ClientMessage::parse(text.as_str()));
            parsing.await.unwrap_or(Err(FrameError::UnknownType))
        };
        let message = match parsed {
            Ok(message) => message,
            // Unknown ones are of a later version; malformed ones are ignored as they always were.
            Err(FrameError::UnknownType | FrameError::Malformed(_)) => return Ok(()),
        };
        if matches!(message, ClientMessage::Ping) {
            return self.tell(&ServerMessage::Pong).await;
        }
        if !self.may(act(&message)).await? {
            return Ok(());
        }
        if let Some(action) = git::action(&message) {
            return self.git(action, message).await;
        }
        match message {
            ClientMessage::Prompt { content, images } => {
                self.prompt(content, images.unwrap_or_default()).await
            }
            ClientMessage::Cancel => self.hub.cancel().await.map_err(|_| End::Away(CloseCode::SETUP_FAILED)),
            ClientMessage::GetStatus => {
                let state = self.hub.state().await.map_err(|_| End::Away(CloseCode::SETUP_FAILED))?;
                self.tell(&ServerMessage::Status { status: state.0, message: state.1 }).await
            }
            ClientMessage::GetMessages => match self.hub.history().await {
                Ok(Some((init, head))) => self.send_history(init, head).await,
                _ => self.error("Failed to fetch messages").await,
            },
            ClientMessage::SaveSnapshot { .. } => self.save_snapshot().await,
            ClientMessage::RunAutoStart { run_id, mode, commands } => {
                let mode = mode.unwrap_or(AutoStartMode::Test);
                self.run_auto_start(run_id, mode, commands.unwrap_or_default()).await
            }
            // Pings and git were answered above.
            _ => Ok(()),
        }
    }

    /// The whole conversation up to a number. What was said until then comes before: not all of it is in there.
    async fn send_history(&mut self, init: Utf8Bytes, head: i64) -> Result<(), End> {
        while self.place < head {
            let batches = match self.hub.feed.after(self.place) {
                After::Nothing => break,
                After::Batches(batches) => batches,
                After::Gone => {
                    if !Box::pin(self.send_logged()).await? {
                        return Err(End::Away(CloseCode::SLOW_CONSUMER));
                    }
                    continue;
                }
            };
            // The history was read between two of them.
            let until: Vec<_> = batches.into_iter().filter(|batch| batch.last() <= head).collect();
            let Some(last) = until.last() else { break };
            for frame in coalesce::after(&until, self.place) {
                self.feed(frame).await?;
            }
            self.place = last.last();
            self.hub.feed.taken(&self.listener, last);
        }
        self.send(init).await
    }

    async fn prompt(&mut self, content: String, images: Vec<String>) -> Result<(), End> {
        let Some(user) = self.visitor.user else { return self.error("Unauthorized").await };
        if content.trim().is_empty() {
            return self.error("A prompt needs content").await;
        }
        let asked = Asked::new(content, images, Some(user.to_string()), Some(MessageSource::Web));
        match self.hub.prompt(asked).await {
            Ok(Prompted::Queued { .. }) => Ok(()),
            Ok(Prompted::Refused(refusal)) => self.error(&refusal.to_string()).await,
            Ok(Prompted::Full) => self.error("Too many prompts wait: let some be answered first").await,
            Err(_) => self.error("Failed to send prompt").await,
        }
    }

    /// Runs git actions beside the stream, one after the other for each client; only a few may wait.
    async fn git(&mut self, action: GitAction, message: ClientMessage) -> Result<(), End> {
        let Ok(place) = self.work_places.clone().try_acquire_owned() else {
            let busy = git_failed(
                action,
                GitCode::RepoBusy,
                "An earlier git action of this connection is still running: try again later",
            );
            return self.tell(&ServerMessage::GitResult(busy)).await;
        };
        let (app, hub, user) = (self.app.clone(), self.hub.clone(), self.visitor.user);
        let (answers, line) = (self.answers.0.clone(), self.work_line.clone());
        let credential = self.visitor.credential.clone();
        tokio::spawn(async move {
            let _in_line = (place, line.lock().await);
            if !credential.holds(&app).await {
                return;
            }
            for answer in git::run(&app, &hub, user, action, message).await {
                // A client that is gone needs no answer.
                if answers.send(to_one(&answer)).await.is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    async fn error(&mut self, message: &str) -> Result<(), End> {
        self.tell(&ServerMessage::Error { message: message.to_owned() }).await
    }

    async fn tell(&mut self, message: &ServerMessage) -> Result<(), End> {
        self.send(to_one(message)).await
    }

    async fn send(&mut self, frame: Utf8Bytes) -> Result<(), End> {
        self.feed(frame).await?;
        self.flush().await
    }

    async fn feed(&mut self, frame: Utf8Bytes) -> Result<(), End> {
        self.feed_message(Message::Text(frame)).await
    }

    async fn feed_message(&mut self, message: Message) -> Result<(), End> {
        in_time(self.socket.feed(message)).await
    }

    async fn flush(&mut self) -> Result<(), End> {
        in_time(self.socket.flush()).await
    }
}

/// What a client asks for, in the table's terms.
fn act(message: &ClientMessage) -> Act {
    match message {
        ClientMessage::Ping
        | ClientMessage::GetStatus
        | ClientMessage::GetMessages
        | ClientMessage::GetGitStatus { .. } => Act::Watch,
        ClientMessage::Prompt { .. } => Act::Prompt,
        ClientMessage::Cancel => Act::Steer,
        ClientMessage::SaveSnapshot { .. }
        | ClientMessage::RunAutoStart { .. }
        | ClientMessage::GitCreateBranch { .. }
        | ClientMessage::GitCommit { .. }
        | ClientMessage::GitPush { .. }
        | ClientMessage::GitCreatePr { .. } => Act::ChangeSession,
    }
}

/// A client that takes nothing for long is sent away.
async fn in_time(sending: impl Future<Output = Result<(), axum::Error>>) -> Result<(), End> {
    let mut sending = pin!(sending);
    // Nearly all is sent at once, and needs no clock.
    let sent = match poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await {
        Poll::Ready(sent) => Ok(sent),
        Poll::Pending => timeout(STALLED, sending).await,
    };
    match sent {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(End::Gone),
        Err(_) => Err(End::Away(CloseCode::SLOW_CONSUMER)),
    }
}

/// Says why, or answers the client's own close, and reads until both have closed: only that writes the answer, and only
/// so is the client sure to see it.
async fn farewell(mut socket: WebSocket, end: End) {
    match end {
        End::Gone => return,
        End::Closed => {}
        End::Away(code) => {
            let frame = CloseFrame { code: code.code, reason: code.reason.into() };
            let _ = timeout(STALLED, socket.send(Message::Close(Some(frame)))).await;
        }
    }
    let _ = timeout(CLOSING, async { while socket.next().await.is_some() {} }).await;
}
