//! What answers the requests of one model API: a provider with its key, or the scripted model.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use model::{Call, Frame, Model, Reply};
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use super::hidden_keys::HiddenKeys;
use super::{AT_ONCE, AnswerLost, LlmError, Protocol};

/// The read timeout. A model may think for a long time before its first token.
const FIRST_BYTE: Duration = Duration::from_mins(10);
/// The maximum size of an error. Clients get ours instead of a longer one.
const MAX_ERROR: usize = 256 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The headers of the provider's response that reach the agent.
const REPLY_HEADERS: [&str; 6] =
    ["content-type", "cache-control", "retry-after", "retry-after-ms", "request-id", "x-request-id"];

pub(super) enum Backend {
    /// Answers from a script. Costs nothing and needs no account.
    Scripted(Arc<Model>),
    Upstream(Upstream),
}

/// A provider's endpoint. Servers on one's own machine need no key.
#[derive(Clone)]
pub(super) struct Upstream {
    pub(super) protocol: Protocol,
    pub(super) client: reqwest::Client,
    pub(super) base: Url,
    key: Option<SecretString>,
    pub(super) hidden: HiddenKeys,
}

/// One request to a model API. `path` begins with `/v1` and has the query.
pub(super) struct ForwardedRequest<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: Bytes,
}

impl Backend {
    /// Forwards one request and streams the response back.
    pub(super) async fn answer(&self, protocol: Protocol, request: ForwardedRequest<'_>) -> Response<Body> {
        match self {
            Self::Scripted(model) => play_script(protocol, ask_scripted_model(model, request).await).await,
            Self::Upstream(upstream) => {
                let mut sent = upstream.request(request.method.clone(), request.path).body(request.body);
                for name in protocol.request_headers() {
                    if let Some(value) = request.headers.get(*name) {
                        sent = sent.header(*name, value);
                    }
                }
                forward_response(protocol, &upstream.hidden, sent.send().await).await
            }
        }
    }
}

impl Upstream {
    pub(super) fn open(
        protocol: Protocol,
        base: Url,
        key: Option<SecretString>,
        hidden: HiddenKeys,
    ) -> Result<Self, LlmError> {
        let client = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).read_timeout(FIRST_BYTE);
        // A redirect would send the API key to wherever it points.
        let client = client.redirect(reqwest::redirect::Policy::none()).build().map_err(LlmError::Client)?;
        Ok(Self { protocol, client, base, key, hidden })
    }

    /// A request with the provider's key. The base URL of the Chat Completions API includes `/v1` by convention, that
    /// of the Messages API does not.
    pub(super) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let path = match self.protocol {
            Protocol::Messages => path,
            Protocol::Chat => path.strip_prefix("/v1").unwrap_or(path),
        };
        let request =
            self.client.request(method, format!("{}{path}", self.base.as_str().trim_end_matches('/')));
        match (&self.key, self.protocol) {
            (None, _) => request,
            (Some(key), Protocol::Messages) => request.header("x-api-key", key.expose_secret()),
            (Some(key), Protocol::Chat) => request.bearer_auth(key.expose_secret()),
        }
    }
}

/// The scripted response to a request. A large body is parsed on a blocking thread, so that no other task waits for it.
async fn ask_scripted_model(model: &Arc<Model>, request: ForwardedRequest<'_>) -> Option<Reply> {
    let ForwardedRequest { method, path, headers, body } = request;
    let conversation = headers.get(model::CONVERSATION_HEADER).and_then(|value| value.to_str().ok());
    let conversation = conversation.unwrap_or_default();
    if body.len() <= AT_ONCE {
        return Some(model.answer(&Call { method: method.as_str(), path, conversation, body: &body }));
    }
    let model = Arc::clone(model);
    let (method, path, conversation) = (method.clone(), path.to_owned(), conversation.to_owned());
    let work = move || {
        model.answer(&Call { method: method.as_str(), path: &path, conversation: &conversation, body: &body })
    };
    let reply = tokio::task::spawn_blocking(work).await;
    reply.inspect_err(|error| tracing::error!(%error, "the scripted model failed")).ok()
}

/// Streams a provider's response to the agent, without the providers' keys. An error is read first, because it is where
/// they are repeated.
async fn forward_response(
    protocol: Protocol,
    hidden: &HiddenKeys,
    answer: reqwest::Result<reqwest::Response>,
) -> Response<Body> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let sent = !error.is_connect() && !error.is_builder();
            tracing::warn!(error = %error.without_url(), sent, "the model provider cannot be reached");
            let mut answer =
                protocol.refusal(StatusCode::BAD_GATEWAY, "The model provider cannot be reached");
            if sent {
                answer.extensions_mut().insert(AnswerLost);
            }
            return answer;
        }
    };
    let (status, headers) = (answer.status(), answer.headers().clone());
    let mut response = if status.is_success() {
        let chunks = answer.bytes_stream().map_err(reqwest::Error::without_url);
        Response::new(Body::from_stream(hidden.removed_from_stream(chunks)))
    } else {
        match read_error(answer).await {
            Some(error) => Response::new(Body::from(hidden.removed_from(&error))),
            None => {
                protocol.refusal(status, "The model provider refused the request for an unreadable reason")
            }
        }
    };
    *response.status_mut() = status;
    for name in REPLY_HEADERS {
        let is_ours = response.headers().contains_key(name);
        let value = headers.get(name).filter(|value| !value.to_str().is_ok_and(|text| hidden.is_in(text)));
        if let Some(value) = value.filter(|_| !is_ours) {
            response.headers_mut().insert(HeaderName::from_static(name), value.clone());
        }
    }
    response
}

/// Reads the body of an error. `None` if it breaks off or is too large.
async fn read_error(mut answer: reqwest::Response) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.ok()? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ERROR {
            return None;
        }
    }
    Some(body)
}

/// Streams the scripted model's response, with its delays and planned disconnects.
async fn play_script(protocol: Protocol, reply: Option<Reply>) -> Response<Body> {
    let Some(reply) = reply else {
        return protocol.refusal(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error");
    };
    tokio::time::sleep(reply.delay).await;
    let frames = stream::iter(reply.frames).then(|frame| async {
        match frame {
            Frame::Send { delay, bytes } => {
                tokio::time::sleep(delay).await;
                Ok(Bytes::from(bytes))
            }
            Frame::Cut => {
                // Yield first: the server flushes its buffer only when the body is pending.
                tokio::task::yield_now().await;
                Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))
            }
        }
    });
    let mut response = Response::new(Body::from_stream(frames));
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in reply.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use model::Script;

    use super::*;

    fn prompt(length: usize) -> Bytes {
        let text = "x".repeat(length);
        let body = serde_json::json!({ "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": text }] });
        body.to_string().into()
    }

    #[tokio::test]
    async fn a_large_request_is_parsed_on_a_blocking_thread() {
        let model = Arc::new(Model::new(Script::built_in()));
        let headers = HeaderMap::new();
        let ask = |body| {
            let request =
                ForwardedRequest { method: &Method::POST, path: "/v1/messages", headers: &headers, body };
            ask_scripted_model(&model, request)
        };
        let small = ask(prompt(9)).now_or_never().flatten();
        assert_eq!(small.map(|reply| reply.status), Some(200));
        let mut large = Box::pin(ask(prompt(AT_ONCE)));
        assert!(large.as_mut().now_or_never().is_none(), "it was parsed on the thread that serves");
        assert_eq!(large.await.map(|reply| reply.status), Some(200));
    }
}
