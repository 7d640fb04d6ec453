//! A prompt in the format of the agent's API.

use serde_json::{Value, json};

use super::ApiError;
use crate::ids::PromptIds;

/// A prompt for the agent.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Generated once and stored with the prompt; one part id for the text and one for each image.
    pub ids: &'a PromptIds,
    /// The model with its provider, such as `anthropic/claude-opus-4-6`. It is sent with every prompt,
    /// because the agent remembers the last one, even if no such model exists.
    pub model: &'a str,
    /// How much the model thinks: one of OpenCode's variants of it. OpenCode ignores one that a model does not have.
    pub variant: Option<&'static str>,
    pub text: &'a str,
    /// The images as data URIs.
    pub images: &'a [String],
}

impl Prompt<'_> {
    pub(super) fn body(&self) -> Result<Value, ApiError> {
        let (provider, model) = self.model.split_once('/').ok_or(ApiError::BadPrompt)?;
        if self.ids.parts.len() != 1 + self.images.len() {
            return Err(ApiError::BadPrompt);
        }
        let mut ids = self.ids.parts.iter();
        let mut parts = vec![json!({ "id": ids.next(), "type": "text", "text": self.text })];
        for (image, id) in self.images.iter().zip(ids) {
            let mime = image.strip_prefix("data:").and_then(|rest| rest.split([';', ',']).next());
            let mime = mime.filter(|mime| mime.starts_with("image/")).ok_or(ApiError::BadPrompt)?;
            parts.push(json!({ "id": id, "type": "file", "mime": mime, "filename": "image", "url": image }));
        }
        let mut body = json!({
            "messageID": self.ids.message,
            "model": { "providerID": provider, "modelID": model },
            "parts": parts,
        });
        if let Some(variant) = self.variant {
            body["variant"] = json!(variant);
        }
        Ok(body)
    }
}
