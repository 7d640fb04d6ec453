//! The table of language models that a session can use, and the parser for their various names.
//!
//! A model has three ids: ours, the one in OpenCode's configuration, and the one that its provider's API
//! expects.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::string_enums::string_enums;

string_enums! {
    /// The provider of a model.
    ModelProvider as "model provider" {
        Anthropic = "anthropic",
        OpenAi = "openai",
        Google = "google",
        DeepSeek = "deepseek",
        Xai = "xai",
        Mistral = "mistral",
    }
}

string_enums! {
    /// How much a model thinks before it answers.
    ReasoningEffort as "reasoning effort" {
        Quick = "quick",
        Normal = "normal",
        Deep = "deep",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Our own id, which is stored.
    pub id: &'static str,
    /// The id in OpenCode's configuration; the part before the slash is the route.
    pub opencode_id: &'static str,
    /// The id that the provider's API expects.
    pub api_id: &'static str,
    /// The display name.
    pub name: &'static str,
    pub provider: ModelProvider,
    /// Whether this model is used if none was chosen; true for exactly one.
    pub is_default: bool,
}

/// All known models; the default is the first.
pub static MODELS: [Model; 12] = {
    use ModelProvider::{Anthropic, DeepSeek, Google, Mistral, OpenAi, Xai};
    let sonnet = row(
        "claude-sonnet-4.6",
        "anthropic/claude-sonnet-4-6",
        "claude-sonnet-4-6",
        "Claude Sonnet 4.6",
        Anthropic,
    );
    [
        Model { is_default: true, ..sonnet },
        row("claude-opus-4.6", "anthropic/claude-opus-4-6", "claude-opus-4-6", "Claude Opus 4.6", Anthropic),
        row(
            "claude-opus-4.5",
            "anthropic/claude-opus-4-5",
            "claude-opus-4-5-20251101",
            "Claude Opus 4.5",
            Anthropic,
        ),
        row(
            "claude-sonnet-4",
            "anthropic/claude-sonnet-4-5",
            "claude-sonnet-4-20250514",
            "Claude Sonnet 4",
            Anthropic,
        ),
        row("gpt-5.2", "litellm/gpt-5.2", "gpt-5.2", "GPT-5.2", OpenAi),
        row("gemini-3-pro", "litellm/gemini-3-pro-preview", "gemini-3-pro-preview", "Gemini 3 Pro", Google),
        row(
            "gemini-3-flash",
            "litellm/gemini-3-flash-preview",
            "gemini-3-flash-preview",
            "Gemini 3 Flash",
            Google,
        ),
        row("deepseek-v3", "litellm/deepseek-v3", "deepseek-chat", "DeepSeek V3", DeepSeek),
        row("deepseek-r1", "litellm/deepseek-r1", "deepseek-reasoner", "DeepSeek R1", DeepSeek),
        row("grok-4.1", "litellm/grok-4.1", "grok-4.1", "Grok 4.1", Xai),
        row("grok-4.1-fast", "litellm/grok-4.1-fast", "grok-4.1-fast", "Grok 4.1 Fast", Xai),
        row("codestral", "litellm/codestral", "codestral-latest", "Codestral", Mistral),
    ]
};

/// The text does not name a known model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown model: expected one of {}", known_ids())]
pub struct UnknownModel;

/// A model from the table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ModelId(&'static Model);

impl ModelId {
    /// Parses our id, OpenCode's id or the API's id, with dots or hyphens in the version.
    ///
    /// Only complete ids match, never a prefix: `claude-sonnet-4-5` is OpenCode's name for a different model
    /// than `claude-sonnet-4-6`, and without its route it is not a known id.
    pub fn parse(text: &str) -> Result<Self, UnknownModel> {
        MODELS
            .iter()
            .find(|model| [model.id, model.opencode_id, model.api_id].iter().any(|id| ids_equal(id, text)))
            .map(Self)
            .ok_or(UnknownModel)
    }

    pub const fn model(self) -> &'static Model {
        self.0
    }

    /// Our own id of the model.
    pub const fn as_str(self) -> &'static str {
        self.0.id
    }
}

impl Default for ModelId {
    fn default() -> Self {
        Self(&MODELS[0])
    }
}

impl FromStr for ModelId {
    type Err = UnknownModel;

    fn from_str(text: &str) -> Result<Self, UnknownModel> {
        Self::parse(text)
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ModelId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ModelId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl PartialSchema for ModelId {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some(MODELS.iter().map(|model| model.id)))
            .into()
    }
}

impl ToSchema for ModelId {}

const fn row(
    id: &'static str,
    opencode_id: &'static str,
    api_id: &'static str,
    name: &'static str,
    provider: ModelProvider,
) -> Model {
    Model { id, opencode_id, api_id, name, provider, is_default: false }
}

fn ids_equal(id: &str, text: &str) -> bool {
    let hyphenated = |byte: u8| if byte == b'.' { b'-' } else { byte };
    id.bytes().map(hyphenated).eq(text.bytes().map(hyphenated))
}

fn known_ids() -> String {
    MODELS.map(|model| model.id).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every spelling that programs are known to send, written by hand, and the model it refers to.
    const MODEL_SPELLINGS: [(&str, &[&str]); 12] = [
        ("claude-sonnet-4.6", &["claude-sonnet-4.6", "claude-sonnet-4-6", "anthropic/claude-sonnet-4-6"]),
        ("claude-opus-4.6", &["claude-opus-4.6", "claude-opus-4-6", "anthropic/claude-opus-4-6"]),
        (
            "claude-opus-4.5",
            &["claude-opus-4.5", "claude-opus-4-5", "anthropic/claude-opus-4-5", "claude-opus-4-5-20251101"],
        ),
        ("claude-sonnet-4", &["claude-sonnet-4", "anthropic/claude-sonnet-4-5", "claude-sonnet-4-20250514"]),
        ("gpt-5.2", &["gpt-5.2", "gpt-5-2", "litellm/gpt-5.2", "litellm/gpt-5-2"]),
        ("gemini-3-pro", &["gemini-3-pro", "litellm/gemini-3-pro-preview", "gemini-3-pro-preview"]),
        ("gemini-3-flash", &["gemini-3-flash", "litellm/gemini-3-flash-preview", "gemini-3-flash-preview"]),
        ("deepseek-v3", &["deepseek-v3", "litellm/deepseek-v3", "deepseek-chat"]),
        ("deepseek-r1", &["deepseek-r1", "litellm/deepseek-r1", "deepseek-reasoner"]),
        ("grok-4.1", &["grok-4.1", "grok-4-1", "litellm/grok-4.1", "litellm/grok-4-1"]),
        (
            "grok-4.1-fast",
            &["grok-4.1-fast", "grok-4-1-fast", "litellm/grok-4.1-fast", "litellm/grok-4-1-fast"],
        ),
        ("codestral", &["codestral", "litellm/codestral", "codestral-latest"]),
    ];

    #[test]
    fn every_spelling_parses_to_its_model() {
        for (id, spellings) in MODEL_SPELLINGS {
            for spelling in spellings {
                assert_eq!(ModelId::parse(spelling).map(ModelId::as_str), Ok(id), "{spelling}");
            }
        }
        let ids: Vec<&str> = MODEL_SPELLINGS.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, MODELS.map(|model| model.id));
    }

    #[test]
    fn no_two_models_share_an_id() {
        let forms = |m: &Model| [m.id, m.opencode_id, m.api_id].map(|form| form.replace('.', "-"));
        for a in &MODELS {
            for form in forms(a) {
                for b in MODELS.iter().filter(|b| b.id != a.id) {
                    assert!(!forms(b).contains(&form), "{form} is {} and {}", a.id, b.id);
                }
                assert_eq!(ModelId::parse(&form).map(ModelId::as_str), Ok(a.id));
            }
        }
    }

    #[test]
    fn partial_ids_and_other_routes_are_rejected() {
        let strangers = [
            "",
            "claude-sonnet",
            "claude-sonnet-4-5",
            "claude-sonnet-4.5",
            "anthropic/claude-sonnet-4",
            "openai/claude-opus-4-6",
            "claude-opus-4",
            "claude-opus-4.61",
            "grok-4.1-",
            "CLAUDE-OPUS-4.6",
            " codestral",
        ];
        for text in strangers {
            assert_eq!(ModelId::parse(text), Err(UnknownModel), "{text:?}");
        }
        let message = UnknownModel.to_string();
        assert!(MODELS.iter().all(|model| message.contains(model.id)), "{message}");
    }

    #[test]
    fn exactly_one_model_is_the_default() {
        let defaults: Vec<&str> = MODELS.iter().filter(|m| m.is_default).map(|m| m.id).collect();
        assert_eq!(defaults, ["claude-sonnet-4.6"]);
        assert_eq!(ModelId::default().as_str(), "claude-sonnet-4.6");
    }
}
