//! A prompt as the agent takes it.

use serde_json::{Value, json};

use super::ApiError;
use crate::ids::PromptIds;

/// What to ask the agent.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Made once and kept with the prompt, with a part for the text and for each image.
    pub ids: &'a PromptIds,
    /// With its provider, such as `anthropic/claude-opus-4-6`. It is sent each time, because the agent remembers
    /// the last one even if there is no such model.
    pub model: &'a str,
    pub text: &'a str,
    /// Data URIs.
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
        Ok(json!({
            "messageID": self.ids.message,
            "model": { "providerID": provider, "modelID": model },
            "parts": parts,
        }))
    }
}
