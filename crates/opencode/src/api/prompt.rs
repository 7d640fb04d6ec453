//! A prompt in the format of the agent's API.

use agent::Prompt;
use proto::ReasoningEffort;
use serde_json::{Value, json};

use super::ApiError;

/// The body of the request. It names the model every time, because the agent remembers the last one, even if no such
/// model exists.
pub(super) fn body(prompt: &Prompt<'_>) -> Result<Value, ApiError> {
    let (provider, model) = prompt.model.split_once('/').ok_or(ApiError::BadPrompt)?;
    let mut parts = vec![json!({ "id": part_id(prompt.id, 0), "type": "text", "text": prompt.text })];
    for (number, image) in (1..).zip(prompt.images) {
        let mime = image.strip_prefix("data:").and_then(|rest| rest.split([';', ',']).next());
        let mime = mime.filter(|mime| mime.starts_with("image/")).ok_or(ApiError::BadPrompt)?;
        let id = part_id(prompt.id, number);
        parts.push(json!({ "id": id, "type": "file", "mime": mime, "filename": "image", "url": image }));
    }
    let mut body = json!({
        "messageID": prompt.id,
        "model": { "providerID": provider, "modelID": model },
        "parts": parts,
    });
    if let Some(variant) = prompt.effort.and_then(variant) {
        body["variant"] = json!(variant);
    }
    Ok(body)
}

/// The id of a part, derived from the id of the prompt, so that every attempt sends the same one.
fn part_id(prompt: &str, number: usize) -> String {
    format!("prt_{}{number:02}", prompt.trim_start_matches("msg_"))
}

/// OpenCode's variant of a model. It ignores one that a model does not have. Without one, a model thinks as it does by
/// default.
pub(crate) const fn variant(effort: ReasoningEffort) -> Option<&'static str> {
    match effort {
        ReasoningEffort::Quick => Some("low"),
        ReasoningEffort::Normal => None,
        ReasoningEffort::Deep => Some("high"),
    }
}
