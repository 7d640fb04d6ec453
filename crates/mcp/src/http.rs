//! The SDK's HTTP backend over a client that was handed to us: it counts bytes, follows no redirect, offers no standing
//! stream, and keeps the raw definitions, because the SDK's types drop fields that they do not know.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
use parking_lot::Mutex;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use serde_json::Value;
use sse_stream::{Sse, SseStream};
use tokio::sync::Notify;

use crate::auth::Credential;
use crate::listing::Page;
use crate::problem::Problem;

const SESSION_ID: &str = "mcp-session-id";
const LAST_EVENT_ID: &str = "last-event-id";
const EVENT_STREAM: &str = "text/event-stream";
const JSON: &str = "application/json";

type Failure = StreamableHttpError<Problem>;
type Events = BoxStream<'static, Result<Sse, SseError>>;

/// The HTTP side of one operation.
#[derive(Clone)]
pub(crate) struct Http(Arc<Operation>);

struct Operation {
    client: Client,
    credential: Credential,
    max_bytes: usize,
    state: Mutex<State>,
    /// Wakes whoever waits for the operation when it has failed for good.
    aborted: Notify,
}

#[derive(Default)]
struct State {
    bytes: usize,
    problem: Option<Problem>,
    page: Option<Page>,
    call_sent: bool,
}

impl Http {
    pub(crate) fn new(client: Client, credential: Credential, max_bytes: usize) -> Self {
        let (state, aborted) = (Mutex::default(), Notify::new());
        Self(Arc::new(Operation { client, credential, max_bytes, state, aborted }))
    }

    /// The credentials that this operation sends.
    pub(crate) fn secrets(&self) -> &[String] {
        &self.0.credential.secrets
    }

    /// The newest page of tools, as the server sent it.
    pub(crate) fn take_page(&self) -> Option<Page> {
        self.0.state.lock().page.take()
    }

    /// The last failure of a request. The SDK's own errors do not tell a refused connection from a broken one.
    pub(crate) fn problem(&self) -> Option<Problem> {
        self.0.state.lock().problem.clone()
    }

    /// Whether the server may have received the call of a tool.
    pub(crate) fn call_sent(&self) -> bool {
        self.0.state.lock().call_sent
    }

    /// Completes when the operation has received more bytes than it may.
    pub(crate) async fn aborted(&self) {
        self.0.aborted.notified().await;
    }

    fn fail(&self, problem: Problem) -> Failure {
        self.0.state.lock().problem = Some(problem.clone());
        StreamableHttpError::Client(problem)
    }

    fn request(
        &self,
        method: Method,
        uri: &str,
        session: Option<Arc<str>>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> RequestBuilder {
        let mut request = self.0.client.request(method, uri);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(session) = session {
            request = request.header(SESSION_ID, session.as_ref());
        }
        match self.0.credential.header.clone() {
            Some((name, value)) => request.header(name, value),
            None => request,
        }
    }

    /// Sends a request. A redirect or a refused credential is a failure whatever the request was.
    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| self.fail(problem_of(&error)))?;
        match response.status().as_u16() {
            300..=399 => Err(self.fail(Problem::Redirect)),
            status @ (401 | 403) => Err(self.fail(Problem::Credential(status))),
            _ => Ok(response),
        }
    }

    async fn post(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let (calls, in_session) = (is_call(message), session.is_some());
        let request = self.request(Method::POST, uri, session, headers);
        let request = request.header(ACCEPT, format!("{EVENT_STREAM}, {JSON}")).json(message);
        if calls {
            self.0.state.lock().call_sent = true;
        }
        let response = self.send(request).await.inspect_err(|error| {
            let untouched =
                |problem: &Problem| matches!(problem, Problem::Unreachable | Problem::Credential(_));
            if calls && matches!(error, StreamableHttpError::Client(problem) if untouched(problem)) {
                self.0.state.lock().call_sent = false;
            }
        })?;
        let status = response.status();
        if calls && status.is_client_error() {
            self.0.state.lock().call_sent = false;
        }
        match status {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(StreamableHttpPostResponse::Accepted),
            StatusCode::NOT_FOUND if in_session => {
                self.0.state.lock().problem = Some(Problem::Status(404));
                Err(StreamableHttpError::SessionExpired)
            }
            _ if status.is_success() => self.accept(message, response).await,
            _ => self.refuse(message, status, response, in_session).await,
        }
    }

    /// Reads the response to a message that the server accepted.
    async fn accept(
        &self,
        message: &ClientJsonRpcMessage,
        response: Response,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let session = header(&response, SESSION_ID);
        let kind = header(&response, CONTENT_TYPE.as_str()).unwrap_or_default();
        if kind.starts_with(EVENT_STREAM) {
            return Ok(StreamableHttpPostResponse::Sse(self.events(response), session));
        }
        let body = self.body(response).await?;
        if !matches!(message, JsonRpcMessage::Request(_)) {
            // Nobody waits for an answer to a notification, and some servers send 200 with any body.
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if !kind.starts_with(JSON) {
            return Err(self.fail(Problem::Protocol("the answer is neither JSON nor an event stream")));
        }
        self.observe(&body);
        match serde_json::from_slice(&body) {
            Ok(parsed) => Ok(StreamableHttpPostResponse::Json(parsed, session)),
            Err(_) => Err(self.fail(Problem::Protocol("the answer is not a message of the protocol"))),
        }
    }

    /// Reads the response to a message that the server refused.
    async fn refuse(
        &self,
        message: &ClientJsonRpcMessage,
        status: StatusCode,
        response: Response,
        in_session: bool,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let body = self.body(response).await?;
        let error = match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
            Ok(JsonRpcMessage::Error(error)) => Some(error.error),
            _ => None,
        };
        let problem = self.fail(Problem::Status(status.as_u16()));
        let JsonRpcMessage::Request(request) = message else { return Err(problem) };
        let probe = !in_session && matches!(request.request, ClientRequest::DiscoverRequest(_));
        // Servers of older protocols refuse the probe in many ways. Any refusal must reach the SDK as an answer to the
        // probe, so that it initializes a session instead.
        let error = match error {
            None if probe => ErrorData::invalid_request("server/discover was refused", None),
            None => return Err(problem),
            Some(error) => error,
        };
        Ok(StreamableHttpPostResponse::Json(error_message(error, request.id.clone()), None))
    }

    /// The events of a response.
    fn events(&self, response: Response) -> Events {
        let observer = self.clone();
        let events = SseStream::from_bytes_stream(self.chunks(response));
        let observe = move |event: &Result<Sse, SseError>| {
            let data = event.as_ref().ok().and_then(|event| event.data.as_deref());
            if let Some(data) = data {
                observer.observe(data.as_bytes());
            }
        };
        events.inspect(observe).boxed()
    }

    async fn body(&self, response: Response) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        let mut chunks = Box::pin(self.chunks(response));
        while let Some(chunk) = chunks.next().await {
            body.extend_from_slice(&chunk.map_err(|problem| self.fail(problem))?);
        }
        Ok(body)
    }

    /// The chunks of a response, counted against what the operation may receive in all.
    fn chunks(&self, response: Response) -> impl Stream<Item = Result<Bytes, Problem>> + Send + use<> {
        let operation = self.0.clone();
        response.bytes_stream().map(move |chunk| {
            let mut state = operation.state.lock();
            let Ok(chunk) = chunk else {
                state.problem = Some(Problem::Broken);
                return Err(Problem::Broken);
            };
            state.bytes = state.bytes.saturating_add(chunk.len());
            if state.bytes <= operation.max_bytes {
                return Ok(chunk);
            }
            let problem = Problem::TooLarge(operation.max_bytes);
            state.problem = Some(problem.clone());
            operation.aborted.notify_one();
            Err(problem)
        })
    }

    /// Keeps a page of tools, if the message is one.
    fn observe(&self, message: &[u8]) {
        let message = serde_json::from_slice::<Value>(message).ok();
        if let Some(page) = message.and_then(Page::of) {
            self.0.state.lock().page = Some(page);
        }
    }

    /// Continues an interrupted response. A standing stream for the server's own messages is not opened.
    async fn resume(
        &self,
        uri: &str,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, Failure> {
        let Some(last_event) = last_event else { return Err(StreamableHttpError::ServerDoesNotSupportSse) };
        let request = self.request(Method::GET, uri, session, headers);
        let request = request.header(ACCEPT, EVENT_STREAM).header(LAST_EVENT_ID, last_event);
        let response = match self.send(request).await {
            Ok(response) => response,
            Err(StreamableHttpError::Client(Problem::Credential(_) | Problem::Redirect)) => {
                return Err(StreamableHttpError::ServerDoesNotSupportSse);
            }
            Err(error) => return Err(error),
        };
        let status = response.status();
        let kind = header(&response, CONTENT_TYPE.as_str()).unwrap_or_default();
        match status {
            _ if status.is_success() && kind.starts_with(EVENT_STREAM) => Ok(self.events(response)),
            // A retry would not help, because the server does not know the stream any more.
            _ if status.is_success() || status.is_client_error() => {
                Err(StreamableHttpError::ServerDoesNotSupportSse)
            }
            _ => Err(self.fail(Problem::Status(status.as_u16()))),
        }
    }
}

fn error_message(error: ErrorData, id: RequestId) -> ServerJsonRpcMessage {
    ServerJsonRpcMessage::error(error, Some(id))
}

fn is_call(message: &ClientJsonRpcMessage) -> bool {
    matches!(message, JsonRpcMessage::Request(request) if matches!(request.request, ClientRequest::CallToolRequest(_)))
}

fn header(response: &Response, name: &str) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

fn problem_of(error: &reqwest::Error) -> Problem {
    match (error.is_connect() || error.is_builder(), error.is_timeout()) {
        (true, _) => Problem::Unreachable,
        (_, true) => Problem::Timeout,
        (false, false) => Problem::Broken,
    }
}

impl StreamableHttpClient for Http {
    type Error = Problem;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        self.post(&uri, &message, session_id, headers).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        // Servers may refuse; the session then ends when the server forgets it.
        self.send(self.request(Method::DELETE, &uri, Some(session_id), headers)).await.map(drop)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, Failure> {
        self.resume(&uri, session_id, last_event_id, headers).await
    }
}
