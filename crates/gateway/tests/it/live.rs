//! A gateway with a fake agent that each test scripts, and clients that watch over real sockets.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use futures_util::{SinkExt as _, StreamExt as _};
use gateway::AppState;
use proto::{Role, SessionId};
use serde_json::{Value, json};
use testkit::{FakeAgent, Turn};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::document::assert_described;
use crate::harness::{Running, Setup, client, within};
use crate::people::{Person, org, person, service_token};

/// The database that a test runs on.
#[derive(Clone, Copy)]
pub(crate) enum On {
    Sqlite,
    Postgres,
}

impl On {
    pub(crate) async fn setup(self) -> Setup {
        match self {
            Self::Sqlite => Setup::sqlite(),
            Self::Postgres => Setup::postgres().await,
        }
    }
}

/// Generates two tests for each function: `sqlite::…` and `postgres::…`.
macro_rules! on_both {
    ($($story:ident)+) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $story() {
                super::$story(crate::live::On::Sqlite).await;
            })+
        }
        mod postgres {
            $(#[tokio::test]
            async fn $story() {
                super::$story(crate::live::On::Postgres).await;
            })+
        }
    };
}
pub(crate) use on_both;

/// A gateway on its port, its fake agent, and a member.
pub(crate) struct Live {
    pub(crate) agent: FakeAgent,
    pub(crate) gateway: Running,
    pub(crate) app: AppState,
    pub(crate) ada: Person,
}

impl Live {
    pub(crate) async fn start(on: On) -> Self {
        Self::with(on.setup().await).await
    }

    /// Starts a gateway with this setup.
    pub(crate) async fn with(setup: Setup) -> Self {
        let agent = FakeAgent::start().await.unwrap();
        let url = agent.url();
        Self::at(agent, &url, setup).await
    }

    /// Starts a gateway whose agent is unreachable: the URL says TLS, which the agent does not speak.
    pub(crate) async fn unreachable(on: On) -> Self {
        let agent = FakeAgent::start().await.unwrap();
        let url = agent.url().replace("http://", "https://");
        Self::at(agent, &url, on.setup().await).await
    }

    /// Starts a gateway whose agent answers every prompt by itself.
    pub(crate) async fn echoing(on: On) -> Self {
        let live = Self::start(on).await;
        live.agent.behave(|manner| manner.echoes = true);
        live
    }

    /// Starts a gateway that runs its own local sandboxes and never calls the fake agent.
    pub(crate) async fn local(setup: Setup) -> Self {
        // The gateway checks that the agent's program exists; the tests never run it.
        let program = setup.directory().join("bin/opencode");
        std::fs::write(&program, "").unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        Self::around(FakeAgent::start().await.unwrap(), setup).await
    }

    /// Starts a gateway that reaches the agent at this URL instead of the agent's own.
    pub(crate) async fn at(agent: FakeAgent, url: &str, setup: Setup) -> Self {
        Self::around(agent, setup.set("SANDBOX_PROVIDER", "attach").set("SANDBOX_ATTACH_URL", url)).await
    }

    async fn around(agent: FakeAgent, setup: Setup) -> Self {
        let gateway = setup.start().await;
        let app = gateway.app.clone();
        let org = org(&app).await;
        let ada = person(&app, org, Role::Member).await;
        Self { agent, gateway: gateway.serve(), app, ada }
    }

    /// Restarts the gateway.
    pub(crate) async fn restarted(self) -> Self {
        self.restarted_after(&[]).await
    }

    /// Restarts the gateway and runs this SQL while it is down; PostgreSQL only.
    pub(crate) async fn restarted_after(self, sql: &[&str]) -> Self {
        let setup = self.gateway.stop().await;
        for text in sql {
            setup.sql(text).await;
        }
        let gateway = setup.start().await;
        let app = gateway.app.clone();
        Self { gateway: gateway.serve(), app, ..self }
    }

    /// Sends a GET request as the member and returns the body.
    pub(crate) async fn get(&self, path: &str) -> Value {
        self.ask("GET", path, Some(&self.ada.token), &json!(null), None).await.1
    }

    /// The status of a session.
    pub(crate) async fn status(&self, session: &str) -> Value {
        self.get(&format!("/proliferate/sessions/{session}/status")).await
    }

    /// The conversation as a client that connects now receives it.
    pub(crate) async fn init(&self, session: &str) -> Value {
        self.watch(session).await.until_type("init").await.pop().unwrap()
    }

    /// Waits for the next turn that the agent receives.
    pub(crate) async fn next_turn(&self) -> Turn {
        within(self.agent.next_turn()).await
    }

    /// Boots a session with a service token.
    pub(crate) async fn eager_start(&self, session: &str) {
        let (path, token) = (format!("/proliferate/{session}/eager-start"), service_token(&self.app, None));
        let (status, answer) = self.ask("POST", &path, Some(&token), &json!({}), None).await;
        assert_eq!(status, 202, "{answer}");
    }

    /// Sends a POST request as the member and expects success.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.ask("POST", path, Some(&self.ada.token), body, None).await;
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
        answer
    }

    /// Adds a repository as an admin.
    pub(crate) async fn add_repo(&self, url: &str) -> Value {
        let admin = person(&self.app, self.ada.org, Role::Admin).await.token;
        let (status, repo) = self.ask("POST", "/v1/repos", Some(&admin), &json!({ "url": url }), None).await;
        assert_eq!(status, 201, "{repo}");
        repo
    }

    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &Value,
        key: Option<&str>,
    ) -> (u16, Value) {
        let mut request = client().request(method.parse().unwrap(), self.gateway.url(path));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        if !body.is_null() {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = within(request.send()).await.unwrap();
        let status = answer.status().as_u16();
        assert_described(method, path.split('?').next().unwrap(), status);
        if path == "/v1/changes" && status == 200 {
            // It does not end.
            return (status, Value::Null);
        }
        (status, serde_json::from_str(&within(answer.text()).await.unwrap()).unwrap_or_default())
    }

    /// Creates a session of the member with additional fields in the request.
    pub(crate) async fn session_with(&self, more: &Value) -> String {
        let mut body = json!({ "sessionType": "coding", "clientType": "web" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.post("/proliferate/sessions", &body).await["sessionId"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn session(&self) -> String {
        self.session_with(&json!({})).await
    }

    pub(crate) async fn prompt(&self, session: &str, content: &str) {
        let body = json!({ "type": "prompt", "content": content });
        self.post(&format!("/proliferate/{session}/message"), &body).await;
    }

    pub(crate) async fn watch(&self, session: &str) -> Socket {
        self.watch_with(session, "").await
    }

    /// Watches with additional query parameters, such as `&since=3`.
    pub(crate) async fn watch_with(&self, session: &str, more: &str) -> Socket {
        self.try_watch(session, &self.ada.token, more)
            .await
            .unwrap_or_else(|status| panic!("refused: {status}"))
    }

    /// Tries to watch; on refusal returns the HTTP status.
    pub(crate) async fn try_watch(&self, session: &str, token: &str, more: &str) -> Result<Socket, u16> {
        let stream = within(TcpStream::connect(self.gateway.address)).await.unwrap();
        self.watch_over(stream, session, token, more).await
    }

    /// Watches over a connection with a small receive buffer.
    pub(crate) async fn watch_narrowly(&self, session: &str) -> Socket {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 * 1024).unwrap();
        let stream = within(socket.connect(self.gateway.address)).await.unwrap();
        self.watch_over(stream, session, &self.ada.token, "").await.unwrap()
    }

    async fn watch_over(
        &self,
        stream: TcpStream,
        session: &str,
        token: &str,
        more: &str,
    ) -> Result<Socket, u16> {
        let url = format!("ws://{}/proliferate/{session}?token={token}{more}", self.gateway.address);
        // Lift the size limits: a complete conversation arrives in one frame.
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        match within(client_async_with_config(url, stream, Some(config))).await {
            Ok((socket, _)) => Ok(Socket { socket }),
            Err(Error::Http(answer)) => Err(answer.status().as_u16()),
            Err(other) => panic!("{other}"),
        }
    }

    /// Watches a session and returns once its agent is running, with all earlier frames read.
    pub(crate) async fn running(&self, session: &str) -> Socket {
        let mut socket = self.watch(session).await;
        socket.until(|frame| is_status(frame, "running")).await;
        socket
    }
}

/// A turn in progress that has produced text, and a client that has read it.
pub(crate) struct Midway {
    pub(crate) live: Live,
    pub(crate) session: String,
    pub(crate) socket: Socket,
    pub(crate) turn: Turn,
    /// All frames since the prompt.
    pub(crate) frames: Vec<Value>,
}

impl Midway {
    pub(crate) async fn start(on: On, said: &str) -> Self {
        let live = Live::start(on).await;
        let session = live.session().await;
        let mut socket = live.running(&session).await;
        socket.prompt("go").await;
        let turn = live.next_turn().await;
        turn.begin();
        turn.say(said);
        let frames = socket.until_type("token").await;
        Self { live, session, socket, turn, frames }
    }
}

pub(crate) fn id(session: &str) -> SessionId {
    session.parse().unwrap()
}

/// A WebSocket client that watches a session.
pub(crate) struct Socket {
    pub(crate) socket: WebSocketStream<TcpStream>,
}

impl Socket {
    pub(crate) async fn send(&mut self, message: &Value) {
        within(self.socket.send(Message::text(message.to_string()))).await.unwrap();
    }

    pub(crate) async fn prompt(&mut self, content: &str) {
        self.send(&json!({ "type": "prompt", "content": content })).await;
    }

    /// The next frame as raw text.
    pub(crate) async fn text(&mut self) -> String {
        match self.next_or_close().await {
            Ok(text) => text,
            Err(close) => panic!("closed: {close:?}"),
        }
    }

    pub(crate) async fn frame(&mut self) -> Value {
        serde_json::from_str(&self.text().await).unwrap()
    }

    /// The next frame, or the close code and reason.
    pub(crate) async fn next_or_close(&mut self) -> Result<String, (u16, String)> {
        // One timeout for all messages: pings must not extend it, or they would hide a hang.
        within(async {
            loop {
                match self.socket.next().await {
                    Some(Ok(Message::Text(text))) => return Ok(text.to_string()),
                    Some(Ok(Message::Close(Some(close)))) => {
                        return Err((close.code.into(), close.reason.to_string()));
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err((0, error.to_string())),
                    None => return Err((0, String::new())),
                }
            }
        })
        .await
    }

    /// Reads all frames up to and including the first one that `wanted` accepts.
    pub(crate) async fn until(&mut self, mut wanted: impl FnMut(&Value) -> bool) -> Vec<Value> {
        let mut frames = Vec::new();
        loop {
            let frame = self.frame().await;
            let found = wanted(&frame);
            frames.push(frame);
            if found {
                return frames;
            }
        }
    }

    pub(crate) async fn until_type(&mut self, kind: &str) -> Vec<Value> {
        self.until(|frame| frame["type"] == kind).await
    }

    /// Reads all frames up to the end of this many turns.
    pub(crate) async fn until_turns(&mut self, turns: usize) -> Vec<Value> {
        let mut ended = 0;
        let over = |frame: &Value| {
            ended += usize::from(frame["type"] == "turn_complete");
            ended == turns
        };
        self.until(over).await
    }

    /// Sends a ping and asserts that no other frame arrives before the pong.
    pub(crate) async fn nothing_but_pong(&mut self) {
        self.send(&json!({ "type": "ping" })).await;
        assert_eq!(self.frame().await, json!({ "type": "pong" }));
    }

    /// Reads until the server closes the connection, and returns the close code and reason.
    pub(crate) async fn closed(&mut self) -> (u16, String) {
        loop {
            if let Err(close) = self.next_or_close().await {
                return close;
            }
        }
    }
}

pub(crate) fn is_status(frame: &Value, status: &str) -> bool {
    frame["type"] == "status" && frame["payload"]["status"] == status && frame["seq"].is_number()
}

/// The sequence numbers of all numbered frames; a merged frame counts with its complete range.
pub(crate) fn numbers(frames: &[Value]) -> Vec<i64> {
    let numbered = frames.iter().filter(|frame| frame["type"] != "init");
    numbered
        .filter_map(|frame| {
            let last = frame["seq"].as_i64()?;
            Some(frame["seqFrom"].as_i64().unwrap_or(last)..=last)
        })
        .flatten()
        .collect()
}

/// Asserts that sequence numbers increase by exactly one.
pub(crate) fn assert_unbroken(frames: &[Value]) {
    let numbers = numbers(frames);
    let wanted: Vec<i64> =
        numbers.first().map(|first| (*first..).take(numbers.len()).collect()).unwrap_or_default();
    assert_eq!(numbers, wanted);
}

/// The concatenated text of all tokens.
pub(crate) fn tokens(frames: &[Value]) -> String {
    let tokens = frames.iter().filter(|frame| frame["type"] == "token");
    tokens.map(|frame| frame["payload"]["token"].as_str().unwrap()).collect()
}

pub(crate) fn of_type<'a>(frames: &'a [Value], kind: &str) -> Vec<&'a Value> {
    frames.iter().filter(|frame| frame["type"] == kind).collect()
}
