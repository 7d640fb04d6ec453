//! Asks the agent for things over HTTP. Every request has a byte stream of its own, which the caller dials: into
//! a sandbox, or to wherever somebody else runs the agent.
//!
//! Bodies and times are bounded, and no error holds anything of a body: the agent can say what it likes, and its
//! configuration holds a key.

mod body;
mod driven;
mod error;
mod events;
mod exchange;
mod head;
mod prompt;

use std::io;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use hyper::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};

use crate::history::{History, Page};
use exchange::Limit;

pub use error::ApiError;
pub use events::Events;
pub use prompt::Prompt;

/// Between two questions whether the agent is there: at first, and at most.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Messages on a page of the history, and pages at most.
const PAGE: usize = 20;
const MAX_PAGES: usize = 50;
/// A page with the outputs of tools and images is the longest honest answer; all other answers are short.
const MAX_PAGE: usize = 32 * 1024 * 1024;
const MAX_REPLY: usize = 1024 * 1024;

/// Says whether so many more bytes may be held.
pub type Allow<'a> = dyn FnMut(usize) -> bool + Send + 'a;

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

/// How the agent is addressed once a stream to it is open.
#[derive(Clone, Debug)]
pub struct Place {
    authority: HeaderValue,
    prefix: String,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Place {
    /// An agent that serves nothing else, in a sandbox of ours.
    pub fn local() -> Self {
        Self { authority: HeaderValue::from_static("localhost"), prefix: String::new(), header: None }
    }

    /// An agent behind a path, such as `host:80` and `/s/1`.
    pub fn remote(authority: &str, prefix: &str) -> Result<Self, ApiError> {
        let authority = HeaderValue::from_str(authority).map_err(|_| ApiError::BadPlace)?;
        let prefix = prefix.trim_end_matches('/').to_owned();
        let fine = |byte: u8| byte.is_ascii_graphic() && !b"?#".contains(&byte);
        if !prefix.bytes().all(fine) || !(prefix.is_empty() || prefix.starts_with('/')) {
            return Err(ApiError::BadPlace);
        }
        Ok(Self { authority, prefix, header: None })
    }

    /// With a secret on every request.
    pub fn with_secret(mut self, name: HeaderName, secret: &str) -> Result<Self, ApiError> {
        let mut value = HeaderValue::from_str(secret).map_err(|_| ApiError::BadPlace)?;
        value.set_sensitive(true);
        self.header = Some((name, value));
        Ok(self)
    }
}

/// The agent's interface.
#[derive(Clone, Debug)]
pub struct Client<D> {
    dial: D,
    place: Place,
}

impl<D: Dial> Client<D> {
    pub fn new(dial: D, place: Place) -> Self {
        Self { dial, place }
    }

    /// The agent's version, if it listens. That says nothing of the project, which is loaded with the first
    /// request for it.
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

    /// Waits until the agent listens and has loaded the project and its tools, for at most so long. Returns its
    /// version.
    pub async fn wait_until_ready(&self, patience: Duration) -> Result<String, ApiError> {
        let ready = async {
            let version = self.listening().await;
            self.tools().await.map(|_| version)
        };
        timeout(patience, ready).await.unwrap_or(Err(ApiError::TimedOut("wait until it is ready")))
    }

    /// Waits until the agent listens; whether it is any good is its own business. Returns its version.
    pub async fn wait_until_listening(&self, patience: Duration) -> Result<String, ApiError> {
        timeout(patience, self.listening()).await.map_err(|_| ApiError::TimedOut("wait until it listens"))
    }

    async fn listening(&self) -> String {
        let mut wait = FIRST_WAIT;
        loop {
            // A connection that came too early may never be answered.
            match timeout(LONGEST_WAIT, self.health()).await {
                Ok(Ok(version)) => return version,
                Ok(Err(_)) => sleep(wait).await,
                Err(_) => {}
            }
            wait = LONGEST_WAIT.min(wait.mul_f32(1.5));
        }
    }

    /// The names of all tools. Fails if one of their files is broken, and then every prompt would.
    pub async fn tools(&self) -> Result<Vec<String>, ApiError> {
        self.call("list its tools", Method::GET, "/experimental/tool/ids", None).await?.read()
    }

    /// Makes a session and returns its id. A title saves the agent from asking its model for one.
    pub async fn create_session(&self, title: &str) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        struct Created {
            id: String,
        }
        let body = json!({ "title": title });
        let created: Created =
            self.call("create a session", Method::POST, "/session", Some(&body)).await?.read()?;
        exchange::segment(&created.id)?;
        Ok(created.id)
    }

    /// Whether the agent knows this session, for instance after it was restored.
    pub async fn has_session(&self, session: &str) -> Result<bool, ApiError> {
        let path = format!("/session/{}", exchange::segment(session)?);
        match self.call("get a session", Method::GET, &path, None).await {
            Ok(_) => Ok(true),
            Err(ApiError::Refused { status: 404, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a prompt; the answer comes as events. Sending it again with the same ids is no second turn.
    pub async fn prompt(&self, session: &str, prompt: &Prompt<'_>) -> Result<(), ApiError> {
        let path = format!("/session/{}/prompt_async", exchange::segment(session)?);
        self.call("send a prompt", Method::POST, &path, Some(&prompt.body()?)).await.map(drop)
    }

    /// Cancels what the session does; returns when the agent has written down what there was of the answer.
    pub async fn abort(&self, session: &str) -> Result<(), ApiError> {
        let path = format!("/session/{}/abort", exchange::segment(session)?);
        self.call("cancel", Method::POST, &path, None).await.map(drop)
    }

    /// What the agent remembers of the session, back to this message if it is there and not too far away. `allow` is
    /// asked before more bytes are held, and ends the reading by `false`.
    pub async fn history(
        &self,
        session: &str,
        back_to: &str,
        allow: &mut Allow<'_>,
    ) -> Result<History, ApiError> {
        const WHAT: &str = "read the history";
        let path = format!("/session/{}/message", exchange::segment(session)?);
        let mut history = History::new(self.is_busy(session).await?);
        let mut query = format!("?limit={PAGE}");
        for _ in 0..MAX_PAGES {
            let path = format!("{path}{query}");
            let limit = Limit { most: MAX_PAGE, allow: &mut *allow };
            let asked = exchange::whole(&self.dial, &self.place, WHAT, Method::GET, &path, None, limit);
            let reply = asked.await?;
            // A page can be large enough to keep a worker busy for a second.
            let page = tokio::task::spawn_blocking(move || Page::split(reply.body)).await;
            history
                .add_older(page.map_err(|_| ApiError::Broken(WHAT))?.map_err(|_| ApiError::Malformed(WHAT))?);
            match reply.cursor {
                Some(cursor) if !history.has(back_to) => query = format!("?limit={PAGE}&before={cursor}"),
                _ => break,
            }
        }
        Ok(history)
    }

    async fn is_busy(&self, session: &str) -> Result<bool, ApiError> {
        let all: Value = self.call("ask who is busy", Method::GET, "/session/status", None).await?.read()?;
        Ok(all.get(session).is_some_and(|status| status["type"] != "idle"))
    }

    /// Everything that happens from now on.
    pub async fn events(&self) -> Result<Events, ApiError> {
        events::listen(&self.dial, &self.place).await
    }

    /// Refuses a permission that the agent asks for.
    pub async fn reject_permission(&self, request: &str) -> Result<(), ApiError> {
        let path = format!("/permission/{}/reply", exchange::segment(request)?);
        let body = json!({ "reply": "reject" });
        self.call("refuse a permission", Method::POST, &path, Some(&body)).await.map(drop)
    }

    /// Refuses to answer a question of the agent.
    pub async fn reject_question(&self, request: &str) -> Result<(), ApiError> {
        let path = format!("/question/{}/reject", exchange::segment(request)?);
        self.call("refuse a question", Method::POST, &path, None).await.map(drop)
    }

    /// Makes the agent forget its configuration and tools, so that the next request loads them anew. Ends the
    /// stream of events.
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
        let limit = Limit { most: MAX_REPLY, allow: &mut |_| true };
        exchange::whole(&self.dial, &self.place, what, method, path, body, limit).await
    }
}
