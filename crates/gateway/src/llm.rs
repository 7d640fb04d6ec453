//! The models behind the agents: providers with the Messages API or the Chat Completions API, or the scripted model.

mod backend;
mod chat;
mod hidden_keys;
mod messages;
mod meter;
mod model_list;
mod protocol;
mod request;
mod selection;
mod spending;
mod weight;
mod work;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Response, StatusCode};
use clock::Clock;
use model::{Model, Script, ScriptError};
use proto::http::AgentConfig;

use crate::config::{Config, Price, Prices};
use backend::{Backend, ForwardedRequest, Upstream};
use hidden_keys::HiddenKeys;
use model_list::ModelList;

pub(crate) use meter::Meter;
pub use protocol::Protocol;
pub(crate) use request::{Fit, ModelRequest};
pub(crate) use selection::AgentModel;
pub use selection::ModelUnavailable;
pub use spending::Spending;
pub(crate) use spending::{Hold, Remaining, org_budget_spent, session_budget_spent};
pub use work::ModelWork;

/// The maximum size of a body that is parsed on the async worker. Larger ones are parsed on a blocking thread.
const AT_ONCE: usize = 1 << 20;
/// The maximum length of a model's name in messages and records.
const LONGEST_NAME: usize = 100;
/// The host of OpenAI's own API, which differs from those that are compatible with it.
const OPENAI_HOST: &str = "api.openai.com";

/// The backends that answer model requests, by API. An API without a provider is absent. The scripted model has both.
pub struct Llm {
    messages: Option<Backend>,
    chat: Option<Backend>,
    /// The models of the chat endpoint, if it is a provider.
    list: Option<ModelList>,
    /// The operator's choice for sessions that name no model.
    default_model: Option<String>,
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
    #[error("the key of a model provider cannot be looked for: {0}")]
    Key(#[from] ledger::RedactorError),
}

/// A model without a price, so that nobody can say what it would take from a budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "The model {0} has no price, and a budget holds: say in MODEL_PRICES what it costs, e.g. {0}=3/15, or *=3/15 for all"
)]
pub struct NoPrice(String);

impl Llm {
    /// Opens the configured providers, or the scripted model if there is none.
    pub fn open(config: &Config, clock: &Clock) -> Result<Self, LlmError> {
        let hidden = HiddenKeys::new(config.provider_keys())?;
        let open = |protocol, base, key| Upstream::open(protocol, base, key, hidden.clone());
        let messages = config
            .anthropic_api_key
            .clone()
            .map(|key| open(Protocol::Messages, config.anthropic_base_url.clone(), Some(key)));
        let chat = config.chat_url().map(|base| open(Protocol::Chat, base, config.openai_api_key.clone()));
        let (messages, chat) = (messages.transpose()?, chat.transpose()?);
        let default_model = config.default_model.clone();
        if messages.is_none() && chat.is_none() {
            let model = Arc::new(Model::new(load_script(config.model_script.as_deref())?));
            let backend = || Some(Backend::Scripted(model.clone()));
            return Ok(Self { messages: backend(), chat: backend(), list: None, default_model });
        }
        let list = chat.clone().map(|upstream| ModelList::new(upstream, clock.clone()));
        let (messages, chat) = (messages.map(Backend::Upstream), chat.map(Backend::Upstream));
        Ok(Self { messages, chat, list, default_model })
    }

    /// The addresses of the providers. Empty for the scripted model.
    pub fn providers(&self) -> Vec<String> {
        let upstream = |backend: &Backend| match backend {
            Backend::Upstream(upstream) => Some(upstream.base.to_string()),
            Backend::Scripted(_) => None,
        };
        [&self.messages, &self.chat].into_iter().flatten().filter_map(upstream).collect()
    }

    /// Whether model requests cost money.
    pub(crate) fn costs(&self) -> bool {
        !self.providers().is_empty()
    }

    /// The highest price that a request for this model name can cost. Where a budget applies, a model without a price
    /// is refused.
    pub(crate) fn price(&self, prices: &Prices, model: &str) -> Result<Price, NoPrice> {
        match prices.highest_price(model) {
            None if self.costs() => Err(NoPrice(model.chars().take(LONGEST_NAME).collect())),
            price => Ok(price.unwrap_or_default()),
        }
    }

    /// The price of the model that an agent will use first.
    pub(crate) async fn price_of(
        &self,
        prices: &Prices,
        agent: Option<&AgentConfig>,
    ) -> Result<Price, NoPrice> {
        self.price(prices, self.model_of(agent).await.price_name())
    }

    /// Changes a request to what is forwarded, before it is metered.
    pub(crate) async fn prepare(&self, protocol: Protocol, body: Bytes) -> Bytes {
        match (protocol, &self.chat) {
            (Protocol::Chat, Some(Backend::Upstream(upstream))) => {
                chat::prepare(body, upstream.base.host_str() == Some(OPENAI_HOST)).await
            }
            (Protocol::Chat, _) => chat::prepare(body, false).await,
            (Protocol::Messages, _) => body,
        }
    }

    /// Forwards one request and streams the response back. `path` is what follows the proxy's own prefix, with the
    /// query. Both APIs list their models at the same path.
    pub async fn answer(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Response<Body> {
        let mut protocol = Protocol::of_path(path.split('?').next().unwrap_or_default());
        if path.starts_with("/v1/models") && self.messages.is_none() {
            protocol = Protocol::Chat;
        }
        let (backend, setting) = match protocol {
            Protocol::Messages => (&self.messages, "Messages API is configured: set ANTHROPIC_API_KEY"),
            Protocol::Chat => (&self.chat, "Chat Completions API is configured: set OPENAI_BASE_URL"),
        };
        match backend {
            Some(backend) => backend.answer(protocol, ForwardedRequest { method, path, headers, body }).await,
            None => protocol.refusal(StatusCode::NOT_FOUND, &format!("No provider with the {setting}")),
        }
    }
}

/// The script at this path, or the built-in one.
pub fn load_script(path: Option<&Path>) -> Result<Script, LlmError> {
    let Some(path) = path else { return Ok(Script::built_in()) };
    let text = std::fs::read_to_string(path)
        .map_err(|source| LlmError::NoScript { path: path.to_owned(), source })?;
    Script::parse(&text).map_err(|source| LlmError::BadScript { path: path.to_owned(), source })
}
