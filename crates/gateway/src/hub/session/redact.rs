//! Removes the values of secrets that a session may use from what its agent says, asks and does, before it is stored or
//! broadcast. Only known values are removed: a text that looks like a secret is often the code that the agent works on. The
//! pieces of a text that is still being written stay as they are, because a value may be split between any two of them;
//! the complete text replaces them.

use agent::SecretFinder;
use gate::ToolScope;
use ledger::Redactor;
use proto::socket::{MessageRole, OpenQuestion, ServerMessage};
use store::{PartBody, StoredMessage, TranscriptWrite};

use super::{End, Session};

/// The maximum number of characters of what a question asks, and of its other texts.
const MAX_QUESTION: usize = 32_000;
const MAX_LABEL: usize = 4_000;

impl Session {
    pub(super) async fn redactor(&self) -> Result<Redactor, End> {
        let scope = ToolScope { org: self.record.org_id, session: Some(self.record.id) };
        self.services.vault.redactor(scope).await.map_err(|error| {
            tracing::error!(session = %self.record.id, %error, "what the agent says and does cannot be shown");
            End::Secrets
        })
    }

    /// Makes the translator cut no text of the agent's in the middle of a secret: half of one would not be found afterwards.
    pub(super) async fn keep_secrets_whole(&mut self) -> Result<(), End> {
        let redactor = self.redactor().await?;
        if let Some(translator) = self.sandbox.translator() {
            translator.set_secrets(SecretFinder::new(move |text| redactor.find_known(text)));
        }
        Ok(())
    }

    /// The redactor for a broadcast, if one of its messages can show or complete something of the agent's.
    pub(super) async fn redactor_for(&self, messages: &[ServerMessage]) -> Result<Option<Redactor>, End> {
        if messages.iter().any(is_of_agent) { self.redactor().await.map(Some) } else { Ok(None) }
    }
}

fn is_of_agent(message: &ServerMessage) -> bool {
    if let ServerMessage::Status { message, .. } = message {
        return !message.is_empty();
    }
    matches!(
        message,
        ServerMessage::Error { .. }
            | ServerMessage::TextPartComplete { .. }
            | ServerMessage::MessageComplete { .. }
            | ServerMessage::MessageCancelled { .. }
            | ServerMessage::ToolStart { .. }
            | ServerMessage::ToolMetadata { .. }
            | ServerMessage::ToolEnd { .. }
    )
}

pub(super) fn message(redactor: &Redactor, mut message: ServerMessage) -> ServerMessage {
    match &mut message {
        ServerMessage::Error { message: text }
        | ServerMessage::Status { message: text, .. }
        | ServerMessage::TextPartComplete { text, .. } => {
            *text = redactor.known_in_text(text);
        }
        ServerMessage::ToolStart { args, .. } => *args = redactor.known_in_value(args),
        ServerMessage::ToolEnd { result, .. } => *result = redactor.known_in_text(result),
        ServerMessage::ToolMetadata { title, metadata, .. } => {
            *title = title.as_deref().map(|title| redactor.known_in_text(title));
            for value in metadata.iter_mut().flat_map(|fields| fields.values_mut()) {
                *value = redactor.known_in_value(value);
            }
        }
        _ => {}
    }
    message
}

pub(super) fn write(redactor: &Redactor, write: TranscriptWrite) -> TranscriptWrite {
    match write {
        TranscriptWrite::Message(message) => TranscriptWrite::Message(stored(redactor, message)),
        // The reason was broadcast as an error before.
        failed @ TranscriptWrite::Failed { .. } => failed,
    }
}

/// The texts of a message, which may have ended before they were complete. Its tool calls were redacted as they came, and
/// what people wrote is theirs.
pub(super) fn stored(redactor: &Redactor, mut message: StoredMessage) -> StoredMessage {
    if message.role == MessageRole::Assistant {
        message.content = redactor.known_in_text(&message.content);
        for part in &mut message.parts {
            if let PartBody::Text(text) = &mut part.body {
                *text = redactor.known_in_text(text);
            }
        }
    }
    message
}

/// The texts of a question, cut after they are redacted, because half a secret is not found.
pub(super) fn question(redactor: &Redactor, mut question: OpenQuestion) -> OpenQuestion {
    let show = |text: &mut String, limit| {
        *text = redactor.known_in_text(text);
        if let Some((end, _)) = text.char_indices().nth(limit) {
            text.replace_range(end.., "…");
        }
    };
    for item in &mut question.questions {
        show(&mut item.question, MAX_QUESTION);
        show(&mut item.header, MAX_LABEL);
        for option in &mut item.options {
            show(&mut option.label, MAX_LABEL);
            show(&mut option.description, MAX_LABEL);
        }
    }
    question
}

#[cfg(test)]
mod tests {
    use proto::socket::{QuestionItem, QuestionKind, QuestionOption};

    use super::*;

    #[test]
    fn a_question_is_redacted_and_then_cut() {
        let long = |limit: usize| format!("{}canary-4711{}", "é".repeat(limit - 4), "é".repeat(limit));
        let option = QuestionOption { label: "canary-4711".to_owned(), description: long(MAX_LABEL) };
        let item = QuestionItem {
            question: long(MAX_QUESTION),
            header: "h".to_owned(),
            options: vec![option],
            multiple: false,
            custom: true,
        };
        let asked = OpenQuestion {
            question_id: "que_1".to_owned(),
            kind: QuestionKind::Question,
            questions: vec![item],
        };
        let redactor = Redactor::new(["canary-4711"]).unwrap();
        let shown = question(&redactor, asked).questions.remove(0);
        assert_eq!((shown.header.as_str(), shown.options[0].label.as_str()), ("h", "[REDACTED]"));
        for (text, limit) in [(&shown.question, MAX_QUESTION), (&shown.options[0].description, MAX_LABEL)] {
            assert_eq!(text.chars().count(), limit + 1);
            assert!(text.ends_with("é[RED…"), "no part of the secret is left before the cut");
        }
    }
}
