//! The HTTP client for the agent's API. Every request uses its own byte stream, which the caller dials: into
//! a sandbox, or to wherever an operator runs the agent.
//!
//! Body sizes and durations are limited. No error contains any part of a body, because the agent controls its
//! responses and its configuration contains a key.

mod body;
mod connection;
mod error;
mod events;
mod exchange;
mod head;
mod prompt;

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use agent::{AllowBytes, History, PendingRequest, Prompt};
use bytes::Bytes;
use hyper::Method;
use hyper::header::{HeaderName, HeaderValue};
use proto::socket::QuestionKind;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};

use crate::event::parse_pending;
use crate::history::split_page;
use exchange::Limit;

pub use error::ApiError;
pub use events::Events;
pub(crate) use prompt::variant;

/// Polling interval while waiting for the agent to listen: initial and maximum.
const INITIAL_POLL_INTERVAL: Duration = Duration::from_millis(200);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Messages per page of the history, and the maximum number of pages.
const PAGE_LENGTH: usize = 20;
const MAX_PAGES: usize = 50;
/// A page with tool outputs and images is the longest legitimate response; all others but the list of models are short.
const MAX_PAGE_BYTES: usize = 32 * 1024 * 1024;
const MAX_REPLY_BYTES: usize = 1024 * 1024;
/// Providers of models have hundreds of them.
const MAX_MODELS_BYTES: usize = 8 * 1024 * 1024;

/// Opens a byte stream to the agent's port.
pub trait Dial: Send + Sync {
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    fn dial(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl<F, D, S> Dial for F
where
    F: Fn() -> D + Send + Sync,
    D: Future<Output = io::Result<S>> + Send,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Stream = S;

    async fn dial(&self) -> io::Result<S> {
        self().await
    }
}

/// How requests address the agent once a stream is open: host, path prefix and an optional secret header.
#[derive(Clone, Debug)]
pub struct Endpoint {
    authority: HeaderValue,
    prefix: String,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Endpoint {
    /// An agent in one of our sandboxes, on a port of its own.
    pub fn local() -> Self {
        Self { authority: HeaderValue::from_static("localhost"), prefix: String::new(), header: None }
    }

    /// An agent behind a path prefix, for example `host:80` and `/s/1`.
    pub fn remote(authority: &str, prefix: &str) -> Result<Self, ApiError> {
        let authority = HeaderValue::from_str(authority).map_err(|_| ApiError::BadEndpoint)?;
        let prefix = prefix.trim_end_matches('/').to_owned();
        let valid = |byte: u8| byte.is_ascii_graphic() && !b"?#".contains(&byte);
        if !prefix.bytes().all(valid) || !(prefix.is_empty() || prefix.starts_with('/')) {
            return Err(ApiError::BadEndpoint);
        }
        Ok(Self { authority, prefix, header: None })
    }

    /// Adds a secret header to every request.
    pub fn with_secret(mut self, name: HeaderName, secret: &str) -> Result<Self, ApiError> {
        let mut value = HeaderValue::from_str(secret).map_err(|_| ApiError::BadEndpoint)?;
        value.set_sensitive(true);
        self.header = Some((name, value));
        Ok(self)
    }
}

/// A client for the agent's HTTP API.
#[derive(Clone, Debug)]
pub struct Client<D> {
    dial: D,
    endpoint: Endpoint,
}

impl<D: Dial> Client<D> {
    pub fn new(dial: D, endpoint: Endpoint) -> Self {
        Self { dial, endpoint }
    }

    /// The agent's version, if it listens. This does not mean that the project is loaded: the first request
    /// for the project loads it.
    pub async fn health(&self) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        struct Health {
            healthy: bool,
            #[serde(default)]
            version: String,
        }
        let health: Health =
            self.call("ask for its health", Method::GET, "/global/health", None).await?.read()?;
        if health.healthy { Ok(health.version) } else { Err(ApiError::Malformed("ask for its health")) }
    }

    /// Waits until the agent listens and has loaded the project and its tools. Returns its version.
    pub async fn wait_until_ready(&self, limit: Duration) -> Result<String, ApiError> {
        let ready = async {
            let version = self.poll_until_listening().await;
            self.tools().await.map(|_| version)
        };
        timeout(limit, ready).await.unwrap_or(Err(ApiError::TimedOut("wait until it is ready")))
    }

    /// Waits until the agent listens, without loading the project. Returns its version.
    pub async fn wait_until_listening(&self, limit: Duration) -> Result<String, ApiError> {
        timeout(limit, self.poll_until_listening())
            .await
            .map_err(|_| ApiError::TimedOut("wait until it listens"))
    }

    async fn poll_until_listening(&self) -> String {
        let mut wait = INITIAL_POLL_INTERVAL;
        loop {
            // A connection that arrives before the agent listens may never be answered, hence the timeout.
            match timeout(MAX_POLL_INTERVAL, self.health()).await {
                Ok(Ok(version)) => return version,
                Ok(Err(_)) => sleep(wait).await,
                Err(_) => {}
            }
            wait = MAX_POLL_INTERVAL.min(wait.mul_f32(1.5));
        }
    }

    /// The names of all tools. Fails if one of their files is broken, in which case every prompt would fail
    /// too.
    pub async fn tools(&self) -> Result<Vec<String>, ApiError> {
        self.call("list its tools", Method::GET, "/experimental/tool/ids", None).await?.read()
    }

    /// Whether a provider of the agent has this model, given as `provider/model`.
    pub async fn has_model(&self, model: &str) -> Result<bool, ApiError> {
        #[derive(Deserialize)]
        struct Listed {
            providers: Vec<Provider>,
        }
        #[derive(Deserialize)]
        struct Provider {
            id: String,
            #[expect(clippy::zero_sized_map_values, reason = "a set cannot be read from an object")]
            models: HashMap<String, IgnoredAny>,
        }
        let limit = Limit { max: MAX_MODELS_BYTES, allow: &mut |_| true };
        let (what, path) = ("list its models", "/config/providers");
        let reply =
            exchange::request_complete(&self.dial, &self.endpoint, what, Method::GET, path, None, limit);
        let listed: Listed = reply.await?.read()?;
        let (provider, name) = model.split_once('/').unwrap_or_default();
        let ours = listed.providers.iter().filter(|known| known.id == provider);
        Ok(ours.into_iter().any(|known| known.models.contains_key(name)))
    }

    /// Creates a session and returns its id. Without a title, the agent asks its model for one at the first prompt.
    pub async fn create_session(&self, title: Option<&str>) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        struct Created {
            id: String,
        }
        let body = title.map_or_else(|| json!({}), |title| json!({ "title": title }));
        let created: Created =
            self.call("create a session", Method::POST, "/session", Some(&body)).await?.read()?;
        exchange::check_path_segment(&created.id)?;
        Ok(created.id)
    }

    /// Whether the agent knows this session, for example after a restore.
    pub async fn has_session(&self, session: &str) -> Result<bool, ApiError> {
        let path = format!("/session/{}", exchange::check_path_segment(session)?);
        match self.call("get a session", Method::GET, &path, None).await {
            Ok(_) => Ok(true),
            Err(ApiError::Refused { status: 404, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a prompt; the answer arrives as events. Sending it again under the same id does not start a
    /// second turn.
    pub async fn prompt(&self, session: &str, prompt: &Prompt<'_>) -> Result<(), ApiError> {
        let path = format!("/session/{}/prompt_async", exchange::check_path_segment(session)?);
        self.call("send a prompt", Method::POST, &path, Some(&prompt::body(prompt)?)).await.map(drop)
    }

    /// Cancels the current turn. Returns after the agent has stored the partial answer.
    pub async fn abort(&self, session: &str) -> Result<(), ApiError> {
        let path = format!("/session/{}/abort", exchange::check_path_segment(session)?);
        self.call("cancel", Method::POST, &path, None).await.map(drop)
    }

    /// The agent's history of the session, back to the given message if it is found within the page limit.
    /// `allow` is called before more bytes are held; `false` aborts the request.
    pub async fn history(
        &self,
        session: &str,
        back_to: &str,
        allow: &mut AllowBytes<'_>,
    ) -> Result<History, ApiError> {
        const OPERATION: &str = "read the history";
        let path = format!("/session/{}/message", exchange::check_path_segment(session)?);
        let mut history = History::new(self.is_busy(session).await?);
        let mut query = format!("?limit={PAGE_LENGTH}");
        for _ in 0..MAX_PAGES {
            let path = format!("{path}{query}");
            let limit = Limit { max: MAX_PAGE_BYTES, allow: &mut *allow };
            let request = exchange::request_complete(
                &self.dial,
                &self.endpoint,
                OPERATION,
                Method::GET,
                &path,
                None,
                limit,
            );
            let reply = request.await?;
            // Parsing a page can take up to a second, which would block an async worker.
            let page = tokio::task::spawn_blocking(move || split_page(reply.body)).await;
            history.add_older(
                page.map_err(|_| ApiError::Broken(OPERATION))?.map_err(|_| ApiError::Malformed(OPERATION))?,
            );
            match reply.cursor {
                Some(cursor) if !history.has(back_to) => {
                    query = format!("?limit={PAGE_LENGTH}&before={cursor}");
                }
                _ => break,
            }
        }
        Ok(history)
    }

    async fn is_busy(&self, session: &str) -> Result<bool, ApiError> {
        let all: Value = self.call("ask who is busy", Method::GET, "/session/status", None).await?.read()?;
        Ok(all.get(session).is_some_and(|status| status["type"] != "idle"))
    }

    /// Subscribes to all events from now on.
    pub async fn events(&self) -> Result<Events, ApiError> {
        events::subscribe(&self.dial, &self.endpoint).await
    }

    /// Answers a request for a permission: `once`, `always` or `reject`.
    pub async fn reply_permission(&self, request: &str, reply: &str) -> Result<(), ApiError> {
        let path = format!("/permission/{}/reply", exchange::check_path_segment(request)?);
        let body = json!({ "reply": reply });
        self.call("answer a request for a permission", Method::POST, &path, Some(&body)).await.map(drop)
    }

    /// Answers a question of the agent, in the order of its parts.
    pub async fn reply_question(&self, request: &str, answers: &[Vec<String>]) -> Result<(), ApiError> {
        let path = format!("/question/{}/reply", exchange::check_path_segment(request)?);
        let body = json!({ "answers": answers });
        self.call("answer a question", Method::POST, &path, Some(&body)).await.map(drop)
    }

    /// Rejects a question of the agent.
    pub async fn reject_question(&self, request: &str) -> Result<(), ApiError> {
        let path = format!("/question/{}/reject", exchange::check_path_segment(request)?);
        self.call("reject a question", Method::POST, &path, None).await.map(drop)
    }

    /// The requests of all sessions that wait for an answer.
    pub async fn pending_requests(&self) -> Result<Vec<PendingRequest>, ApiError> {
        const OPERATION: &str = "list its questions";
        let mut pending = Vec::new();
        for (kind, path) in [(QuestionKind::Question, "/question"), (QuestionKind::Permission, "/permission")]
        {
            let reply = self.call(OPERATION, Method::GET, path, None).await?;
            pending.extend(parse_pending(kind, &reply.body).map_err(|_| ApiError::Malformed(OPERATION))?);
        }
        Ok(pending)
    }

    /// Makes the agent drop its configuration and tools, so that the next request loads them again. This ends
    /// the event stream.
    pub async fn dispose(&self) -> Result<(), ApiError> {
        self.call("reload", Method::POST, "/instance/dispose", None).await.map(drop)
    }

    async fn call(
        &self,
        what: &'static str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<exchange::Reply, ApiError> {
        let body = body.map(|body| Bytes::from(body.to_string()));
        let limit = Limit { max: MAX_REPLY_BYTES, allow: &mut |_| true };
        exchange::request_complete(&self.dial, &self.endpoint, what, method, path, body, limit).await
    }
}
