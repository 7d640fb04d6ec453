//! The model behind the agents: a provider that speaks the Messages API, or the scripted one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use model::{Call, Frame, Model, Reply, Script, ScriptError};
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use crate::config::Config;

/// A model may think for long before its first word.
const FIRST_BYTE: Duration = Duration::from_mins(10);
const CONNECT: Duration = Duration::from_secs(10);
/// What of an agent's request reaches the provider, and what of the answer reaches the agent. All else, above all
/// the agent's own credential, stays here.
const REQUEST_HEADERS: [&str; 4] = ["content-type", "accept", "anthropic-version", "anthropic-beta"];
const REPLY_HEADERS: [&str; 5] =
    ["content-type", "cache-control", "retry-after", "retry-after-ms", "request-id"];

/// Where requests to the model go.
pub enum Llm {
    /// Answers from a script; costs nothing and needs no account.
    Scripted(Arc<Model>),
    /// A provider, with its key.
    Upstream { client: reqwest::Client, base: Url, key: SecretString },
}

/// There is no model to be had.
#[derive(Debug, thiserror::Error)]
pub enum LlmError {
    #[error("PROLIFERATE_MODEL_SCRIPT: cannot read {}: {source}", path.display())]
    NoScript { path: PathBuf, source: std::io::Error },
    #[error("PROLIFERATE_MODEL_SCRIPT: {}: {source}", path.display())]
    BadScript { path: PathBuf, source: ScriptError },
    #[error("cannot make an HTTP client for the model provider: {0}")]
    Client(reqwest::Error),
}

impl Llm {
    /// The provider when there is a key, else the script.
    pub fn open(config: &Config) -> Result<Self, LlmError> {
        if let Some(key) = &config.anthropic_api_key {
            let client = reqwest::Client::builder().connect_timeout(CONNECT).read_timeout(FIRST_BYTE);
            // A redirect would carry the key to wherever it points.
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

    /// Passes one request on and streams the answer back. `path` is what follows the proxy's own prefix,
    /// with the query.
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
                let call = Call {
                    method: method.as_str(),
                    path,
                    conversation: conversation.unwrap_or_default(),
                    body: &body,
                };
                play(model.answer(&call)).await
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

/// A provider's answer, as it comes.
fn pass(answer: reqwest::Result<reqwest::Response>) -> Response<Body> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            tracing::warn!(error = %error.without_url(), "the model provider cannot be reached");
            return failure(StatusCode::BAD_GATEWAY, "The model provider cannot be reached");
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

/// The scripted model's answer, with its pauses and its planned breaks.
async fn play(reply: Reply) -> Response<Body> {
    tokio::time::sleep(reply.delay).await;
    let frames = stream::iter(reply.frames).then(|frame| async {
        match frame {
            Frame::Send { delay, bytes } => {
                tokio::time::sleep(delay).await;
                Ok(Bytes::from(bytes))
            }
            Frame::Cut => Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
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

/// An error in the form that clients of the Messages API expect.
pub fn failure(status: StatusCode, message: &str) -> Response<Body> {
    let kind = match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        _ => "api_error",
    };
    let body = serde_json::json!({ "type": "error", "error": { "type": kind, "message": message } });
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
