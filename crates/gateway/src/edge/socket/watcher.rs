//! One WebSocket connection to a session: sends the session's frames to the client, and executes the client's commands.

mod coalesce;
mod disk_full;
mod git;
mod sandbox;

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
use proto::{OrgId, SessionId, UserId};
use store::StoreError;
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::time::{interval, timeout};

use crate::access::{self, Act, CallerKind};
use crate::app::AppState;
use crate::edge::auth::LiveCredential;
use crate::git::failed as git_failed;
use crate::hub::{FeedRead, FrameText, Hub, HubError, JoinReply, Listener, to_one};
use crate::server::Inbound;
use crate::sessions::{self, PromptDraft, RequestContext, Requester, SessionError};

/// How long a client may accept no data before it is disconnected.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval between two pings to a client.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The number of unanswered pings after which a client counts as disconnected. Any message from it is an answer.
const MAX_UNANSWERED_PINGS: u32 = 3;
/// How long the gateway waits for a client to complete the closing handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The capacity of the queue of answers to one client.
const ANSWER_QUEUE_CAPACITY: usize = 16;
/// The number of sandbox tasks (git actions, snapshots, auto-start runs) that one client may have queued or running.
const WORK_WAITING: usize = 8;
const GATEWAY_STOPS: CloseCode = CloseCode { code: 1001, reason: "The gateway stops" };
/// The number of bytes of the event log that are read per page, for a client that reconnects or lags. A stalled client
/// keeps one page in memory.
const LOG_PAGE_BYTES: usize = 128 * 1024;

/// The size in bytes above which a message is parsed on a blocking thread.
const PARSED_AT_ONCE: usize = 256 * 1024;
/// Sent to a client whose message exceeds the memory share of its session or organization.
const OVER_SHARE: CloseCode = CloseCode { code: 1013, reason: "out of memory share, try again later" };

/// A client that connects to the stream of a session.
pub(super) struct Visitor {
    pub(super) session: SessionId,
    pub(super) org: OrgId,
    pub(super) credential: LiveCredential,
    /// The client's column in the table of `access`. Updated before every command.
    pub(super) kind: CallerKind,
    /// Whether the client counts as the session's creator.
    pub(super) owns: bool,
    pub(super) user: Option<UserId>,
    /// A passive client does not wake the session.
    pub(super) passive: bool,
    /// Accounts for the memory of the message that the client is sending.
    pub(super) inbound: Inbound,
}

/// A client that has joined a session.
struct Watcher {
    app: AppState,
    hub: Hub,
    visitor: Visitor,
    socket: WebSocket,
    /// The sequence number of the last frame that was sent to the client.
    place: i64,
    listener: Arc<Listener>,
    /// Results of git actions, which only this client gets. Queued as text, because a channel reserves memory per
    /// element and a [`ServerMessage`] is large.
    answers: (mpsc::Sender<Utf8Bytes>, mpsc::Receiver<Utf8Bytes>),
    /// Limits how many sandbox tasks are queued or running.
    work_places: Arc<Semaphore>,
    /// Makes sandbox tasks run one at a time. The mutex is fair, so they run in the order of their requests.
    work_line: Arc<Mutex<()>>,
}

/// Why a connection ends.
enum End {
    /// The connection broke, or the client no longer answers pings.
    Gone,
    /// The client closed the connection.
    Closed,
    /// The gateway closes the connection, with this code.
    Away(CloseCode),
}

/// Serves a client until either side ends the connection. Rarely used futures are boxed: otherwise every connection
/// would reserve memory for the largest of them.
pub(super) async fn serve(app: AppState, visitor: Visitor, mut since: Option<i64>, mut socket: WebSocket) {
    let (hub, joined) = match Box::pin(enter(&app, &visitor, &mut since, &mut socket)).await {
        Ok(entered) => entered,
        Err(end) => return Box::pin(close_socket(socket, end)).await,
    };
    let mut watcher = Watcher {
        place: hub.feed.head(),
        listener: hub.feed.listener(),
        answers: mpsc::channel(ANSWER_QUEUE_CAPACITY),
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
        end = watcher.serve_client(since, joined) => end,
    };
    watcher.hub.leave(watcher.visitor.user);
    Box::pin(close_socket(watcher.socket, end)).await;
}

/// Sends the client a first status, and joins it to the session. While the gateway's disk is full, the client waits
/// here.
async fn enter(
    app: &AppState,
    visitor: &Visitor,
    since: &mut Option<i64>,
    socket: &mut WebSocket,
) -> Result<(Hub, JoinReply), End> {
    let message = "Connecting to coding agent...".to_owned();
    let hello = to_one(&ServerMessage::Status { status: WireStatus::Resuming, message });
    in_time(socket.send(Message::Text(text(hello)))).await?;
    let mut told = false;
    loop {
        match app.hubs.join(visitor.session, (visitor.user, visitor.passive)).await {
            Ok(entered) => return Ok(entered),
            Err(HubError::Store(StoreError::DiskFull)) => {
                if !std::mem::replace(&mut told, true) {
                    disk_full::send_stored_conversation(app, visitor, since, socket).await?;
                }
                tokio::select! {
                    biased;
                    () = visitor.credential.clone().ended() => {
                        return Err(End::Away(CloseCode::CREDENTIAL_ENDED));
                    }
                    waited = disk_full::wait_for_retry(app, visitor, socket) => waited?,
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
    async fn serve_client(&mut self, since: Option<i64>, joined: JoinReply) -> End {
        match Box::pin(self.send_first_messages(since, joined)).await {
            Ok(()) => match self.watch().await {
                Ok(never) => match never {},
                Err(end) => end,
            },
            Err(end) => end,
        }
    }

    async fn send_first_messages(&mut self, since: Option<i64>, joined: JoinReply) -> Result<(), End> {
        let (init, head) = joined.init.ok_or(End::Away(CloseCode::SETUP_FAILED))?;
        let goes_on = match since {
            Some(since) => self.go_on(since).await?,
            None => false,
        };
        if !goes_on {
            if let Some(since) = since {
                self.send_message(&ServerMessage::Gap { from: since.saturating_add(1), to: head }).await?;
            }
            self.send(text(init)).await?;
            self.place = head;
        }
        let state = (joined.status, joined.message);
        // The replayed frames may contain a later status than the one at the time of joining.
        let (status, message) = if goes_on { self.hub.state().await.unwrap_or(state) } else { state };
        self.send_message(&ServerMessage::Status { status, message }).await
    }

    /// Replays every frame after `since`, from memory or else from the event log. `false` if that is not possible,
    /// because `since` is not a number of this stream or some of the frames are no longer stored.
    async fn go_on(&mut self, since: i64) -> Result<bool, End> {
        if since < 0 || since > self.hub.feed.head() {
            return Ok(false);
        }
        let missing = matches!(self.hub.feed.read_after(since), FeedRead::Gone);
        let store = &self.app.store;
        let away = |_| End::Away(CloseCode::SETUP_FAILED);
        if missing && !store.is_logged_after(self.visitor.session, since).await.map_err(away)? {
            return Ok(false);
        }
        self.place = since;
        while matches!(self.hub.feed.read_after(self.place), FeedRead::Gone) {
            if !self.send_logged().await? {
                return Ok(false);
            }
        }
        self.catch_up().await?;
        Ok(true)
    }

    /// Sends one page of the event log. `false` if the log does not contain the next frame any more.
    async fn send_logged(&mut self) -> Result<bool, End> {
        let batches = self.app.store.events_after(self.visitor.session, self.place, LOG_PAGE_BYTES).await;
        let batches = batches.map_err(|_| End::Away(CloseCode::SETUP_FAILED))?;
        if batches.is_empty() {
            return Ok(false);
        }
        for batch in batches {
            // The log may have been truncated since the previous page was read.
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
        let (mut said, mut ping) = (self.hub.feed.listen(), interval(PING_INTERVAL));
        let mut closing = pin!(self.app.process.closing.clone().cancelled_owned());
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
                            Box::pin(self.handle_message(text)).await?;
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
                    return Err(End::Away(GATEWAY_STOPS));
                }
            }
        }
    }

    /// Sends all frames after the client's position. For a client that lags far behind, consecutive tokens are merged.
    async fn catch_up(&mut self) -> Result<(), End> {
        let mut sent = false;
        loop {
            match self.hub.feed.read_after(self.place) {
                FeedRead::Nothing if sent => return self.flush().await,
                FeedRead::Nothing => return Ok(()),
                // The session drops frames from memory after each turn. A client that lags further behind is not
                // stalled yet, and gets them from the log.
                FeedRead::Gone => {
                    if !Box::pin(self.send_logged()).await? {
                        return Err(End::Away(CloseCode::SLOW_CONSUMER));
                    }
                }
                FeedRead::Batches(batches) => {
                    let waiting = coalesce::frames_after(&batches, self.place);
                    if self.hub.feed.is_far_behind(&self.listener) {
                        for frame in coalesce::merge_tokens(waiting) {
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

    /// Whether this client may do `act` now; if not, it gets an error message. A service may only watch, because it has
    /// no user in whose name it could prompt or change anything.
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

    async fn handle_message(&mut self, text: Utf8Bytes) -> Result<(), End> {
        let parsed = if text.len() <= PARSED_AT_ONCE {
            ClientMessage::parse(text.as_str())
        } else {
            // Parsing a prompt with images would delay the other tasks of this async worker.
            let parsing = tokio::task::spawn_blocking(move || ClientMessage::parse(text.as_str()));
            parsing.await.unwrap_or(Err(FrameError::UnknownType))
        };
        let message = match parsed {
            Ok(message) => message,
            // Unknown types come from clients of a later version. Malformed messages are ignored for compatibility.
            Err(FrameError::UnknownType | FrameError::Malformed(_)) => return Ok(()),
        };
        if matches!(message, ClientMessage::Ping) {
            return self.send_message(&ServerMessage::Pong).await;
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
            ClientMessage::AnswerQuestion { question_id, answers } => self.answer(question_id, answers).await,
            ClientMessage::Cancel => {
                let cancelled = sessions::cancel(&self.app.sessions, self.visitor.session).await;
                cancelled.map_err(|_| End::Away(CloseCode::SETUP_FAILED))
            }
            ClientMessage::SetModel { model_id } => self.set_model(&model_id).await,
            ClientMessage::GetStatus => {
                let state = self.hub.state().await.map_err(|_| End::Away(CloseCode::SETUP_FAILED))?;
                self.send_message(&ServerMessage::Status { status: state.0, message: state.1 }).await
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

    /// Sends the whole conversation up to the frame `head`. The frames up to `head` are sent first, because the
    /// conversation does not contain all of them.
    async fn send_history(&mut self, init: FrameText, head: i64) -> Result<(), End> {
        while self.place < head {
            let batches = match self.hub.feed.read_after(self.place) {
                FeedRead::Nothing => break,
                FeedRead::Batches(batches) => batches,
                FeedRead::Gone => {
                    if !Box::pin(self.send_logged()).await? {
                        return Err(End::Away(CloseCode::SLOW_CONSUMER));
                    }
                    continue;
                }
            };
            // The history was read between two batches, so no batch contains frames both before and after `head`.
            let until: Vec<_> = batches.into_iter().filter(|batch| batch.last() <= head).collect();
            let Some(last) = until.last() else { break };
            for frame in coalesce::frames_after(&until, self.place) {
                self.feed(frame).await?;
            }
            self.place = last.last();
            self.hub.feed.taken(&self.listener, last);
        }
        self.send(text(init)).await
    }

    async fn prompt(&mut self, content: String, images: Vec<String>) -> Result<(), End> {
        let Some(user) = self.visitor.user else { return self.error("Unauthorized").await };
        let requester = Requester::User { id: user, kind: self.visitor.kind };
        let request = RequestContext { org: self.visitor.org, requester, idempotency_key: None };
        let draft = PromptDraft { content, images, sender: user.to_string(), source: MessageSource::Web };
        match sessions::prompt(&self.app.sessions, &request, self.visitor.session, draft).await {
            Ok(_) => Ok(()),
            Err(error @ (SessionError::Invalid(_) | SessionError::Refused(_) | SessionError::QueueFull)) => {
                self.error(&error.to_string()).await
            }
            Err(_) => self.error("Failed to send prompt").await,
        }
    }

    /// Answers a question of the agent. Everybody sees an answer that was accepted.
    async fn answer(&mut self, question_id: String, answers: Vec<Vec<String>>) -> Result<(), End> {
        let Some(user) = self.visitor.user else { return self.error("Unauthorized").await };
        let requester = Requester::User { id: user, kind: self.visitor.kind };
        let session = self.visitor.session;
        match sessions::answer(&self.app.sessions, session, &requester, question_id, answers).await {
            Ok(()) => Ok(()),
            Err(
                error @ (SessionError::UnknownQuestion
                | SessionError::QuestionSettled
                | SessionError::InvalidAnswer(_)
                | SessionError::Refused(_)),
            ) => self.error(&error.to_string()).await,
            Err(_) => self.error("The answer could not be stored: try again").await,
        }
    }

    /// Changes the model. Everybody sees a change that was accepted.
    async fn set_model(&mut self, model: &str) -> Result<(), End> {
        match sessions::set_model(&self.app.sessions, self.visitor.session, model).await {
            Ok(_) => Ok(()),
            Err(error @ (SessionError::Model(..) | SessionError::Refused(_))) => {
                self.error(&error.to_string()).await
            }
            Err(_) => self.error("The model could not be changed: try again").await,
        }
    }

    /// Runs a git action in a task of its own, so that the stream continues. The actions of one client run one after
    /// the other, and only a few may be queued.
    async fn git(&mut self, action: GitAction, message: ClientMessage) -> Result<(), End> {
        let Ok(place) = self.work_places.clone().try_acquire_owned() else {
            let busy = git_failed(
                action,
                GitCode::RepoBusy,
                "An earlier git action of this connection is still running: try again later",
            );
            return self.send_message(&ServerMessage::GitResult(busy)).await;
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
                // The client has disconnected.
                if answers.send(text(to_one(&answer))).await.is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    async fn error(&mut self, message: &str) -> Result<(), End> {
        self.send_message(&ServerMessage::Error { message: message.to_owned() }).await
    }

    async fn send_message(&mut self, message: &ServerMessage) -> Result<(), End> {
        self.send(text(to_one(message))).await
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

/// The text of a frame, without a copy. A frame is valid UTF-8, so this never falls back.
fn text(frame: FrameText) -> Utf8Bytes {
    Utf8Bytes::try_from(frame.into_bytes()).unwrap_or_default()
}

/// The act of the table of `access` that a message needs permission for.
fn act(message: &ClientMessage) -> Act {
    match message {
        ClientMessage::Ping
        | ClientMessage::GetStatus
        | ClientMessage::GetMessages
        | ClientMessage::GetGitStatus { .. } => Act::Watch,
        ClientMessage::Prompt { .. }
        | ClientMessage::AnswerQuestion { .. }
        | ClientMessage::SetModel { .. } => Act::Prompt,
        ClientMessage::Cancel => Act::Steer,
        ClientMessage::SaveSnapshot { .. }
        | ClientMessage::RunAutoStart { .. }
        | ClientMessage::GitCreateBranch { .. }
        | ClientMessage::GitCommit { .. }
        | ClientMessage::GitPush { .. }
        | ClientMessage::GitCreatePr { .. } => Act::ChangeSession,
    }
}

/// Waits for a send to complete. A client that accepts no data for `STALL_TIMEOUT` is disconnected.
async fn in_time(sending: impl Future<Output = Result<(), axum::Error>>) -> Result<(), End> {
    let mut sending = pin!(sending);
    // Most sends complete at the first poll and need no timer.
    let sent = match poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await {
        Poll::Ready(sent) => Ok(sent),
        Poll::Pending => timeout(STALL_TIMEOUT, sending).await,
    };
    match sent {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(End::Gone),
        Err(_) => Err(End::Away(CloseCode::SLOW_CONSUMER)),
    }
}

/// Closes the connection: sends the reason, or answers the client's close frame. Then reads until both sides have
/// closed, because only reading writes that answer out, and only then is the client sure to receive the reason.
async fn close_socket(mut socket: WebSocket, end: End) {
    match end {
        End::Gone => return,
        End::Closed => {}
        End::Away(code) => {
            let frame = CloseFrame { code: code.code, reason: code.reason.into() };
            let _ = timeout(STALL_TIMEOUT, socket.send(Message::Close(Some(frame)))).await;
        }
    }
    let _ = timeout(CLOSE_TIMEOUT, async { while socket.next().await.is_some() {} }).await;
}
