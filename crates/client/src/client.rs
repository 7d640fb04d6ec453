//! The API calls, one function each.

use std::time::Duration;

use proto::SessionId;
use proto::http::{
    AnswerQuestion, CreateSession, CreatedSession, FinishSetup, FinishSetupReply, Inbox, InboxQuery,
    MessagePage, MessageQuery, OkReply, PostMessage, PromptReply, QuestionList, RenameSession, SessionInfo,
    SessionList, SessionModel, SessionQuery, SessionStatusReply,
};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, RequestBuilder, Response};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::Url;

use crate::error::{Error, cause};
use crate::stream::{Stream, Watch};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Creating a session that waits for its sandbox takes by far the longest.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(2);
/// How long saving the files of a large session may take.
const STOP_TIMEOUT: Duration = Duration::from_mins(30);
const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

/// A client of one gateway, with its token.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) http: reqwest::Client,
    base: Url,
}

impl Client {
    /// A client of the gateway at `base`. Sends nothing yet.
    pub fn new(base: Url, token: &SecretString) -> Result<Self, Error> {
        let mut bearer = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()))
            .map_err(|_| Error::BadToken)?;
        bearer.set_sensitive(true);
        Self::with_headers(base, HeaderMap::from_iter([(AUTHORIZATION, bearer)]))
    }

    /// A client that sends no token, for logging in.
    pub fn without_token(base: Url) -> Result<Self, Error> {
        Self::with_headers(base, HeaderMap::new())
    }

    fn with_headers(base: Url, headers: HeaderMap) -> Result<Self, Error> {
        let http = reqwest::Client::builder()
            .default_headers(headers)
            .connect_timeout(CONNECT_TIMEOUT)
            // The stream needs a protocol upgrade, which only HTTP/1.1 has.
            .http1_only()
            // A redirect would send the token to wherever it points.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| Error::HttpClient(cause(&error)))?;
        Ok(Self { http, base })
    }

    /// Creates a session. With an idempotency key, a repeated call does not create another one.
    pub async fn create(&self, new: &CreateSession, key: Option<&str>) -> Result<CreatedSession, Error> {
        read(self.post(&["proliferate", "sessions"], key).json(new)).await
    }

    /// One page of the organization's sessions; pass `next` of the answer as `after` to get the next page.
    pub async fn list(&self, query: &SessionQuery) -> Result<SessionList, Error> {
        let mut url = self.url(&["proliferate", "sessions"]);
        append_query(&mut url, query);
        read(self.get(url)).await
    }

    /// The state of a session and how to reach its sandbox. Does not resume the session.
    pub async fn info(&self, session: SessionId) -> Result<SessionInfo, Error> {
        read(self.get(self.session(session, None))).await
    }

    /// Returns whether a session has ended.
    pub async fn status(&self, session: SessionId) -> Result<SessionStatusReply, Error> {
        read(self.get(self.url(&["proliferate", "sessions", &session.to_string(), "status"]))).await
    }

    /// The most recent messages, or those before a given message. Does not resume the session.
    pub async fn messages(&self, session: SessionId, before: Option<&str>) -> Result<MessagePage, Error> {
        let mut url = self.url(&["proliferate", &session.to_string(), "messages"]);
        append_query(&mut url, &MessageQuery { before: before.map(str::to_owned) });
        read(self.get(url)).await
    }

    /// Sends a prompt and returns the id of its message. With an idempotency key, a repeated call does not
    /// send it again.
    pub async fn message(
        &self,
        session: SessionId,
        message: &PostMessage,
        key: Option<&str>,
    ) -> Result<PromptReply, Error> {
        read(self.post(&["proliferate", &session.to_string(), "message"], key).json(message)).await
    }

    /// A page of what waits for a human.
    pub async fn inbox(&self, query: &InboxQuery) -> Result<Inbox, Error> {
        let mut url = self.url(&["v1", "inbox"]);
        append_query(&mut url, query);
        read(self.get(url)).await
    }

    /// The open questions of the organization's agents.
    pub async fn questions(&self) -> Result<QuestionList, Error> {
        read(self.get(self.url(&["v1", "questions"]))).await
    }

    /// Answers a question of a session's agent.
    pub async fn answer(
        &self,
        session: SessionId,
        question: &str,
        answer: &AnswerQuestion,
    ) -> Result<(), Error> {
        let path = ["proliferate", &session.to_string(), "questions", question, "answer"];
        ok(self.post(&path, None).json(answer)).await
    }

    /// Cancels the current turn.
    pub async fn cancel(&self, session: SessionId) -> Result<(), Error> {
        ok(self.post(&["proliferate", &session.to_string(), "cancel"], None)).await
    }

    /// Boots a session in the background and sends its initial prompt. Meant for services; for other clients,
    /// connecting to a session boots it.
    pub async fn eager_start(&self, session: SessionId) -> Result<(), Error> {
        ok(self.post(&["proliferate", &session.to_string(), "eager-start"], None)).await
    }

    /// Reports that somebody is still using a live session.
    pub async fn heartbeat(&self, session: SessionId) -> Result<(), Error> {
        ok(self.post(&["proliferate", &session.to_string(), "heartbeat"], None)).await
    }

    pub async fn rename(&self, session: SessionId, title: &str) -> Result<(), Error> {
        let body = RenameSession { title: title.to_owned() };
        ok(self.http.request(Method::PATCH, self.session(session, None)).json(&body)).await
    }

    /// Changes a session's model from its next prompt on, and returns the id under which it is stored.
    pub async fn set_model(&self, session: SessionId, model: &str) -> Result<String, Error> {
        let body = SessionModel { model_id: model.to_owned() };
        let url = self.url(&["proliferate", &session.to_string(), "model"]);
        Ok(read::<SessionModel>(self.http.request(Method::PUT, url).json(&body)).await?.model_id)
    }

    /// Saves a session's files and stops its sandbox; with `discard`, unsaved changes are lost.
    pub async fn stop(&self, session: SessionId, discard: bool) -> Result<(), Error> {
        let mut url = self.url(&["proliferate", &session.to_string(), "stop"]);
        url.set_query(discard.then_some("discard=true"));
        read_within::<OkReply>(self.http.request(Method::POST, url), STOP_TIMEOUT).await.map(drop)
    }

    /// Saves what a setup session prepared for its configuration, whose later sessions start from it.
    pub async fn finish_setup(
        &self,
        session: SessionId,
        finish: &FinishSetup,
    ) -> Result<FinishSetupReply, Error> {
        let url = self.url(&["proliferate", &session.to_string(), "finish-setup"]);
        read_within(self.http.request(Method::POST, url).json(finish), STOP_TIMEOUT).await
    }

    /// Deletes a session with its sandbox and conversation.
    pub async fn delete(&self, session: SessionId) -> Result<(), Error> {
        ok(self.http.request(Method::DELETE, self.session(session, None))).await
    }

    /// Watches a session. Connects immediately, so that a wrong address or token is reported here; reconnects
    /// later if necessary.
    pub async fn connect(&self, session: SessionId, watch: Watch) -> Result<Stream, Error> {
        Stream::open(self.clone(), session, watch).await
    }

    /// The URL of a session, with a query.
    pub(crate) fn session(&self, session: SessionId, query: Option<&str>) -> Url {
        let mut url = self.url(&["proliferate", &session.to_string()]);
        url.set_query(query);
        url
    }

    pub(crate) fn url(&self, path: &[&str]) -> Url {
        let mut url = self.base.clone();
        // Fails only for URLs that cannot have a path, which are not HTTP URLs; the request then fails with a
        // clear error.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    pub(crate) fn get(&self, url: Url) -> RequestBuilder {
        self.http.request(Method::GET, url)
    }

    pub(crate) fn post(&self, path: &[&str], key: Option<&str>) -> RequestBuilder {
        let request = self.http.request(Method::POST, self.url(path));
        match key {
            Some(key) => request.header(IDEMPOTENCY_KEY, key),
            None => request,
        }
    }
}

pub(crate) async fn ok(request: RequestBuilder) -> Result<(), Error> {
    read::<OkReply>(request).await.map(drop)
}

pub(crate) async fn read<T: DeserializeOwned>(request: RequestBuilder) -> Result<T, Error> {
    read_within(request, RESPONSE_TIMEOUT).await
}

async fn read_within<T: DeserializeOwned>(request: RequestBuilder, limit: Duration) -> Result<T, Error> {
    let answer = send(request.timeout(limit)).await?;
    let (url, status) = (display_origin(answer.url()), answer.status());
    let body = answer.text().await.map_err(|error| Error::Unreachable {
        url: url.clone(),
        cause: cause(&error),
        sent: true,
    })?;
    if !status.is_success() {
        return Err(Error::from_response(status.as_u16(), &body));
    }
    serde_json::from_str(&body).map_err(|error| Error::UnexpectedResponse { url, problem: error.to_string() })
}

pub(crate) async fn send(request: RequestBuilder) -> Result<Response, Error> {
    request.send().await.map_err(|error| {
        let url = error.url().map(display_origin).unwrap_or_default();
        let sent = !error.is_connect();
        Error::Unreachable { url, cause: cause(&error.without_url()), sent }
    })
}

/// The origin of a URL for messages, without path and query.
pub(crate) fn display_origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

pub(crate) fn append_query<T: Serialize>(url: &mut Url, query: &T) {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(query) else { return };
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        url.query_pairs_mut().append_pair(name, &text);
    }
}
