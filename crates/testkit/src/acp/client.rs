//! The client: one connection for all calls and events, which a task reads.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use agent::{
    AgentClient, AgentError, AgentSession, AllowBytes, ByteStream, Dial, EventBatch, EventStream, History,
    Page, Prompt,
};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex as SyncMutex;
use proto::socket::QuestionKind;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines, ReadHalf, WriteHalf};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

type Stream = Box<dyn ByteStream>;
type Answers = Arc<SyncMutex<HashMap<u64, oneshot::Sender<Value>>>>;

/// How often a client tries to connect.
const RETRY_DELAY: Duration = Duration::from_millis(50);

pub(super) struct AcpClient {
    dial: Arc<dyn Dial>,
    link: Mutex<Option<Link>>,
}

/// An open connection.
struct Link {
    writer: WriteHalf<Stream>,
    last_id: u64,
    /// The callers that wait for an answer, by the id of their request.
    answers: Answers,
    /// The receiver, which the subscriber takes.
    events: Option<mpsc::UnboundedReceiver<Bytes>>,
    /// The ids of the prompts that were sent.
    prompts: HashSet<String>,
    _reader: AbortOnDropHandle<()>,
}

impl AcpClient {
    pub(super) fn new(dial: Arc<dyn Dial>) -> Self {
        Self { dial, link: Mutex::default() }
    }

    /// Connects and sends `initialize`, unless the connection exists already.
    async fn connect(&self) -> Result<(), AgentError> {
        let mut link = self.link.lock().await;
        if link.is_some() {
            return Ok(());
        }
        let stream = self.dial.dial().await.map_err(|error| AgentError::Other(error.into()))?;
        let mut new = Link::open(stream);
        let files = json!({ "readTextFile": false, "writeTextFile": false });
        let abilities = json!({ "fs": files, "terminal": false });
        let answer =
            new.send("initialize", &json!({ "protocolVersion": 1, "clientCapabilities": abilities })).await?;
        result(answer).await?;
        *link = Some(new);
        Ok(())
    }

    async fn call(&self, method: &'static str, params: &Value) -> Result<Value, AgentError> {
        let answer = match &mut *self.link.lock().await {
            Some(link) => link.send(method, params).await?,
            None => return Err(AgentError::Broken(method)),
        };
        result(answer).await
    }
}

impl Link {
    fn open(stream: Stream) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let (sender, events) = mpsc::unbounded_channel();
        let answers = Answers::default();
        let task = read(BufReader::new(reader).lines(), Arc::clone(&answers), sender);
        let reader = AbortOnDropHandle::new(tokio::spawn(task));
        Self { writer, last_id: 0, answers, events: Some(events), prompts: HashSet::new(), _reader: reader }
    }

    /// Sends a request, and returns what waits for its answer.
    async fn send(
        &mut self,
        method: &'static str,
        params: &Value,
    ) -> Result<oneshot::Receiver<Value>, AgentError> {
        let (sender, answer) = oneshot::channel();
        self.last_id += 1;
        self.answers.lock().insert(self.last_id, sender);
        let id = self.last_id;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let line = format!("{request}\n");
        self.writer.write_all(line.as_bytes()).await.map_err(|_| AgentError::Broken(method))?;
        Ok(answer)
    }
}

/// Passes answers to their callers, and everything else to the subscriber. The answer to a prompt has no caller: it is
/// the end of the turn, and thus an event.
async fn read(
    mut lines: Lines<BufReader<ReadHalf<Stream>>>,
    answers: Answers,
    events: mpsc::UnboundedSender<Bytes>,
) {
    while let Ok(Some(line)) = lines.next_line().await {
        let message: Value = serde_json::from_str(&line).unwrap_or_default();
        let caller = message["id"].as_u64().and_then(|id| answers.lock().remove(&id));
        match caller.filter(|caller| !caller.is_closed()) {
            Some(caller) => drop(caller.send(message)),
            None => drop(events.send(line.into())),
        }
    }
}

async fn result(answer: oneshot::Receiver<Value>) -> Result<Value, AgentError> {
    let mut answer = answer.await.map_err(|_| AgentError::Broken("answer"))?;
    if answer["error"].is_null() {
        Ok(answer["result"].take())
    } else {
        Err(AgentError::Other("the agent refused a request".into()))
    }
}

#[async_trait]
impl AgentClient for AcpClient {
    async fn check_health(&self) -> Result<(), AgentError> {
        self.connect().await
    }

    async fn wait_until_listening(&self, limit: Duration) -> Result<(), AgentError> {
        let connected = async {
            while self.connect().await.is_err() {
                sleep(RETRY_DELAY).await;
            }
        };
        timeout(limit, connected).await.map_err(|_| AgentError::TimedOut("initialize"))
    }

    async fn wait_until_ready(&self, limit: Duration) -> Result<(), AgentError> {
        self.wait_until_listening(limit).await
    }

    /// Takes any name of a model.
    async fn knows_model(&self, _: &str) -> Result<bool, AgentError> {
        Ok(true)
    }

    async fn reload(&self) -> Result<(), AgentError> {
        *self.link.lock().await = None;
        Ok(())
    }

    async fn events(&self) -> Result<Box<dyn EventStream>, AgentError> {
        self.connect().await?;
        let events = self.link.lock().await.as_mut().and_then(|link| link.events.take());
        Ok(Box::new(AcpEvents(events.ok_or(AgentError::Broken("subscribe twice"))?)))
    }

    async fn open_session(&self, _: Option<&str>, _: Option<&str>) -> Result<AgentSession, AgentError> {
        let opened = self.call("session/new", &json!({ "cwd": "/", "mcpServers": [] })).await?;
        let id = opened["sessionId"].as_str().ok_or(AgentError::Broken("open a session"))?;
        Ok(AgentSession { id: id.to_owned(), remembered: false })
    }

    async fn prompt(&self, session: &str, prompt: &Prompt<'_>) -> Result<(), AgentError> {
        let mut link = self.link.lock().await;
        let link = link.as_mut().ok_or(AgentError::Broken("prompt"))?;
        if link.prompts.insert(prompt.id.to_owned()) {
            let text = json!([{ "type": "text", "text": prompt.text }]);
            // Nobody waits for the answer, so it becomes an event.
            drop(link.send("session/prompt", &json!({ "sessionId": session, "prompt": text })).await?);
        }
        Ok(())
    }

    async fn cancel(&self, session: &str) -> Result<(), AgentError> {
        self.call("session/cancel", &json!({ "sessionId": session })).await.map(drop)
    }

    async fn answer(&self, _: &str, _: QuestionKind, _: &[Vec<String>]) -> Result<(), AgentError> {
        Err(AgentError::UnknownQuestion)
    }

    async fn reject(&self, _: &str, _: QuestionKind) -> Result<(), AgentError> {
        Err(AgentError::UnknownQuestion)
    }

    async fn history(&self, _: &str, back_to: &str, _: &mut AllowBytes<'_>) -> Result<History, AgentError> {
        let mut history = History::new(false);
        if self.link.lock().await.as_ref().is_some_and(|link| link.prompts.contains(back_to)) {
            history.add_older(Page::new(Bytes::new(), vec![(back_to.to_owned(), 0..0)]));
        }
        Ok(history)
    }
}

struct AcpEvents(mpsc::UnboundedReceiver<Bytes>);

#[async_trait]
impl EventStream for AcpEvents {
    async fn next(&mut self) -> Result<Option<EventBatch>, AgentError> {
        let events = self.0.recv().await.map(|event| vec![event]);
        Ok(events.map(|events| EventBatch { events, skipped: Vec::new() }))
    }
}
