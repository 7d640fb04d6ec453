//! The model behind the agents: a provider with the Messages API, or a scripted model.

mod asked;
mod bound;
mod meter;
mod spending;
mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use model::{Call, Frame, Model, Reply, Script, ScriptError};
use proto::ModelId;
use proto::http::AgentConfig;
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use crate::config::{Config, Price, Prices};

pub(crate) use asked::{Asked, Fit};
pub(crate) use meter::Meter;
pub use spending::Spending;
pub(crate) use spending::{Hold, Left, org_budget_spent, session_budget_spent};
pub use work::ModelWork;

/// The read timeout. A model may think for a long time before its first token.
const FIRST_BYTE: Duration = Duration::from_mins(10);
const CONNECT: Duration = Duration::from_secs(10);
/// The headers of an agent's request that reach the provider, and the headers of the response that reach the agent. All
/// others, above all the agent's own credential, are dropped.
const REQUEST_HEADERS: [&str; 4] = ["content-type", "accept", "anthropic-version", "anthropic-beta"];
const REPLY_HEADERS: [&str; 5] =
    ["content-type", "cache-control", "retry-after", "retry-after-ms", "request-id"];

/// The maximum size of a body that is parsed on the async worker. Larger ones are parsed on a blocking thread.
const AT_ONCE: usize = 1 << 20;

/// The target of model requests.
pub enum Llm {
    /// Answers from a script. Costs nothing and needs no account.
    Scripted(Arc<Model>),
    /// A provider, with its API key.
    Upstream { client: reqwest::Client, base: Url, key: SecretString },
}

/// Marks a response of ours that replaces the provider's: the provider received the request, but its response was lost.
#[derive(Clone, Copy)]
pub(crate) struct AnswerLost;

/// The reason why no model is available.
#[derive(Debug, thiserror::Error)]
pub enum LlmError {
    #[error("PROLIFERATE_MODEL_SCRIPT: cannot read {}: {source}", path.display())]
    NoScript { path: PathBuf, source: std::io::Error },
    #[error("PROLIFERATE_MODEL_SCRIPT: {}: {source}", path.display())]
    BadScript { path: PathBuf, source: ScriptError },
    #[error("cannot make an HTTP client for the model provider: {0}")]
    Client(reqwest::Error),
}

/// A model without a price, so that nobody can say what it would take from a budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "The model {0} has no price, and a budget holds: say in MODEL_PRICES what it costs, e.g. {0}=3/15, or *=3/15 for all"
)]
pub struct NoPrice(String);

/// The maximum length of a model's name in messages and records.
const LONGEST_NAME: usize = 100;

impl Llm {
    /// Opens the provider if there is an API key, and the scripted model otherwise.
    pub fn open(config: &Config) -> Result<Self, LlmError> {
        if let Some(key) = &config.anthropic_api_key {
            let client = reqwest::Client::builder().connect_timeout(CONNECT).read_timeout(FIRST_BYTE);
            // A redirect would send the API key to wherever it points.
            let client =
                client.redirect(reqwest::redirect::Policy::none()).build().map_err(LlmError::Client)?;
            return Ok(Self::Upstream { client, base: config.anthropic_base_url.clone(), key: key.clone() });
        }
        let script = match &config.model_script {
            None => Script::built_in(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|source| LlmError::NoScript { path: path.clone(), source })?;
                Script::parse(&text).map_err(|source| LlmError::BadScript { path: path.clone(), source })?
            }
        };
        Ok(Self::Scripted(Arc::new(Model::new(script))))
    }

    /// Whether model requests cost money.
    pub(crate) fn costs(&self) -> bool {
        matches!(self, Self::Upstream { .. })
    }

    /// The highest price that a request for this model name can cost. Where a budget applies, a model without a price
    /// is refused.
    pub(crate) fn price(&self, prices: &Prices, model: &str) -> Result<Price, NoPrice> {
        match prices.dearest(model) {
            None if self.costs() => Err(NoPrice(model.chars().take(LONGEST_NAME).collect())),
            price => Ok(price.unwrap_or_default()),
        }
    }

    /// The price of the model that an agent will use first.
    pub(crate) fn price_of(&self, prices: &Prices, agent: Option<&AgentConfig>) -> Result<Price, NoPrice> {
        let model = ModelId::parse_or_default(agent.and_then(|agent| agent.model_id.as_deref()));
        let name = model.model().opencode_id;
        self.price(prices, name.split_once('/').map_or(name, |(_, name)| name))
    }

    /// Forwards one request and streams the response back. `path` is what follows the proxy's own prefix, with the
    /// query.
    pub async fn answer(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Response<Body> {
        match self {
            Self::Scripted(model) => {
                let conversation = headers.get(model::CONVERSATION_HEADER).and_then(|v| v.to_str().ok());
                let conversation = conversation.unwrap_or_default();
                play(scripted(model, method, path, conversation, body).await).await
            }
            Self::Upstream { client, base, key } => {
                let url = format!("{}{path}", base.as_str().trim_end_matches('/'));
                let mut request = client.request(method.clone(), url).body(body);
                for name in REQUEST_HEADERS {
                    if let Some(value) = headers.get(name) {
                        request = request.header(name, value);
                    }
                }
                pass(request.header("x-api-key", key.expose_secret()).send().await)
            }
        }
    }
}

/// The scripted response to a request. A large body is parsed on a blocking thread, so that no other task waits for it.
async fn scripted(
    model: &Arc<Model>,
    method: &Method,
    path: &str,
    conversation: &str,
    body: Bytes,
) -> Option<Reply> {
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

/// Streams a provider's response to the agent.
fn pass(answer: reqwest::Result<reqwest::Response>) -> Response<Body> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let sent = !error.is_connect() && !error.is_builder();
            tracing::warn!(error = %error.without_url(), sent, "the model provider cannot be reached");
            let mut answer = failure(StatusCode::BAD_GATEWAY, "The model provider cannot be reached");
            if sent {
                answer.extensions_mut().insert(AnswerLost);
            }
            return answer;
        }
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = answer.status();
    for name in REPLY_HEADERS {
        if let Some(value) = answer.headers().get(name) {
            response.headers_mut().insert(HeaderName::from_static(name), value.clone());
        }
    }
    *response.body_mut() = Body::from_stream(answer.bytes_stream().map_err(reqwest::Error::without_url));
    response
}

/// Streams the scripted model's response, with its delays and planned disconnects.
async fn play(reply: Option<Reply>) -> Response<Body> {
    let Some(reply) = reply else {
        return failure(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error");
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

/// An error response in the format of the Messages API.
pub fn failure(status: StatusCode, message: &str) -> Response<Body> {
    let kind = match status {
        StatusCode::BAD_REQUEST => "invalid_request_error",
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::PAYMENT_REQUIRED => "billing_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        _ => "api_error",
    };
    let body = serde_json::json!({ "type": "error", "error": { "type": kind, "message": message } });
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn prompt(length: usize) -> Bytes {
        let text = "x".repeat(length);
        let body = serde_json::json!({ "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": text }] });
        body.to_string().into()
    }

    #[tokio::test]
    async fn a_large_request_is_read_where_nobody_waits_for_it() {
        let model = Arc::new(Model::new(Script::built_in()));
        let ask = |body| scripted(&model, &Method::POST, "/v1/messages", "", body);
        let small = ask(prompt(9)).now_or_never().flatten();
        assert_eq!(small.map(|reply| reply.status), Some(200));
        let mut large = Box::pin(ask(prompt(AT_ONCE)));
        assert!(large.as_mut().now_or_never().is_none(), "it was read on the thread that serves");
        assert_eq!(large.await.map(|reply| reply.status), Some(200));
    }
}
