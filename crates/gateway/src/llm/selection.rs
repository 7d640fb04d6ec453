//! Which model a session's agent uses: the one that was chosen, if somebody serves it, or the default.

use agent::ChatModel;
use proto::http::AgentConfig;
use proto::{MODELS, Model, ModelId, ModelProvider};

use super::backend::Backend;
use super::model_list::is_name;
use super::{LONGEST_NAME, Llm, Protocol};

/// The names of the two providers for agents.
const MESSAGES_ROUTE: &str = "anthropic";
const CHAT_ROUTE: &str = "litellm";

/// A model as the agent names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentModel {
    protocol: Protocol,
    name: String,
}

/// The reason why a model cannot be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelUnavailable {
    #[error("{name} needs {setting}, which is not set")]
    NotConfigured { name: &'static str, setting: &'static str },
    #[error("No configured provider serves the model {0}")]
    Unknown(String),
    #[error("The list of models cannot be read: {0}")]
    ListUnreadable(String),
}

impl AgentModel {
    /// The name with its provider, by which agents know the model.
    pub(crate) fn qualified_id(&self) -> String {
        match self.protocol {
            Protocol::Messages => format!("{MESSAGES_ROUTE}/{}", self.name),
            Protocol::Chat => format!("{CHAT_ROUTE}/{}", self.name),
        }
    }

    /// Whether agents know the model from the list of its provider, not from our table.
    pub(crate) fn is_listed_by_provider(&self) -> bool {
        self.protocol == Protocol::Chat
    }

    /// The name by which the model has a price.
    pub(crate) fn price_name(&self) -> &str {
        &self.name
    }

    /// The id that is stored with a session: our own for models of our table.
    pub(crate) fn stored_id(&self) -> String {
        match (self.protocol, ModelId::parse(&self.qualified_id())) {
            (_, Ok(known)) => known.as_str().to_owned(),
            // Without its route, this name would mean the provider's own model.
            (Protocol::Chat, Err(_)) if ModelId::parse(&self.name).is_ok() => self.qualified_id(),
            (_, Err(_)) => self.name.clone(),
        }
    }

    fn of_table(model: &Model) -> Self {
        let (route, name) = model.opencode_id.split_once('/').unwrap_or((CHAT_ROUTE, model.opencode_id));
        let protocol = if route == MESSAGES_ROUTE { Protocol::Messages } else { Protocol::Chat };
        Self { protocol, name: name.to_owned() }
    }

    fn chat(name: &str) -> Self {
        Self { protocol: Protocol::Chat, name: name.to_owned() }
    }
}

impl Llm {
    /// The model of a session. The choice was checked when it was made, so a model that is not listed now is used as it
    /// was stored: the provider reports whether it still exists.
    pub(crate) async fn model_of(&self, agent: Option<&AgentConfig>) -> AgentModel {
        match agent.and_then(|agent| agent.model_id.as_deref()) {
            None => self.default_model().await,
            Some(text) => self.choose(text).await.unwrap_or_else(|_| self.guess(text)),
        }
    }

    /// The models of the Chat Completions API that an agent gets to know at its start, its own one among them.
    pub(crate) async fn chat_models(&self, own: &AgentModel) -> Vec<ChatModel> {
        let plain = |name: &str| ChatModel { name: name.to_owned(), context: None, output: None };
        let mut models = match &self.list {
            Some(list) => list.models().await.map(|models| models.to_vec()).unwrap_or_default(),
            None if self.is_scripted() => {
                let routed = MODELS.iter().map(AgentModel::of_table);
                routed
                    .filter(|model| model.protocol == Protocol::Chat)
                    .map(|model| plain(&model.name))
                    .collect()
            }
            None => Vec::new(),
        };
        if own.protocol == Protocol::Chat && !models.iter().any(|model| model.name == own.name) {
            models.push(plain(&own.name));
        }
        models
    }

    /// The operator's default; else our own if its provider is configured; else the first one that the endpoint lists.
    async fn default_model(&self) -> AgentModel {
        if let Some(text) = &self.default_model {
            return self.choose(text).await.unwrap_or_else(|_| self.guess(text));
        }
        let ours = AgentModel::of_table(ModelId::default().model());
        match &self.list {
            Some(list) if self.messages.is_none() => {
                let first = list.models().await.ok().and_then(|models| models.first().cloned());
                first.map_or(ours, |first| AgentModel::chat(&first.name))
            }
            _ => ours,
        }
    }

    /// The model that this text names. Fails if nobody serves it.
    pub(crate) async fn choose(&self, text: &str) -> Result<AgentModel, ModelUnavailable> {
        let known = ModelId::parse(text).ok().map(ModelId::model);
        if let Some(model) = known
            && (self.messages.is_some() && model.provider == ModelProvider::Anthropic || self.is_scripted())
        {
            return Ok(AgentModel::of_table(model));
        }
        let unavailable = || match known {
            Some(Model { name, provider: ModelProvider::Anthropic, .. }) => {
                ModelUnavailable::NotConfigured { name, setting: "ANTHROPIC_API_KEY" }
            }
            Some(Model { name, .. }) if self.chat.is_none() => {
                ModelUnavailable::NotConfigured { name, setting: "OPENAI_BASE_URL" }
            }
            _ => ModelUnavailable::Unknown(text.chars().take(LONGEST_NAME).collect()),
        };
        let Some(list) = self.list.as_ref().filter(|_| is_name(text)) else { return Err(unavailable()) };
        let name = text.strip_prefix(CHAT_ROUTE).and_then(|rest| rest.strip_prefix('/')).unwrap_or(text);
        let found = list.find(|listed| listed.name == name).await;
        let found = match (found, known) {
            (Ok(None), Some(model)) => list.find(|listed| serves(listed, model)).await,
            (found, _) => found,
        };
        match found {
            Ok(Some(listed)) => Ok(AgentModel::chat(&listed.name)),
            Ok(None) => Err(unavailable()),
            // The operator vouches for the default model, also at an endpoint without a list.
            Err(_) if self.default_model.as_deref() == Some(text) => Ok(AgentModel::chat(name)),
            Err(reason) => Err(ModelUnavailable::ListUnreadable(reason)),
        }
    }

    /// The model that a text most likely means, for a session that has stored it.
    fn guess(&self, text: &str) -> AgentModel {
        match ModelId::parse(text) {
            Ok(known) if self.chat.is_none() || known.model().provider == ModelProvider::Anthropic => {
                AgentModel::of_table(known.model())
            }
            _ => AgentModel::chat(text.strip_prefix("litellm/").unwrap_or(text)),
        }
    }

    fn is_scripted(&self) -> bool {
        matches!(self.chat, Some(Backend::Scripted(_)))
    }
}

/// Whether an endpoint lists a model of our table. Proxies prefix names with the provider and differ in punctuation.
fn serves(listed: &ChatModel, model: &Model) -> bool {
    let name = listed.name.rsplit('/').next().unwrap_or_default();
    let listed = ModelId::parse(name).map(ModelId::as_str);
    let by_route = ModelId::parse(&format!("{CHAT_ROUTE}/{name}")).map(ModelId::as_str);
    [listed, by_route].contains(&Ok(model.id))
}
