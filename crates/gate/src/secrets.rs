//! What the gate needs of the vault, which it does not know: the secrets that nothing may show, and the encryption of
//! calls that wait.

use futures_util::future::BoxFuture;
use ledger::Redactor;
use proto::{InvocationId, OrgId};
use secrecy::SecretString;
use serde_json::Value;

use crate::{Failure, Output, ToolScope};

/// The secrets of organizations and sessions.
pub trait Secrets: Send + Sync {
    /// Everything that must not be in what is stored or shown of a call of this scope.
    fn redactor(&self, scope: ToolScope) -> BoxFuture<'_, Result<Redactor, SecretsUnread>>;

    /// Encrypts the request of a call that waits. Only the same invocation of the same organization can decrypt it.
    fn seal(&self, org: OrgId, id: InvocationId, request: &str) -> Option<Value>;

    fn unseal(&self, org: OrgId, id: InvocationId, sealed: &Value) -> Option<SecretString>;
}

/// The secrets of a scope cannot be read. What a tool answers could not be redacted, so the tool is not called.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the secrets that an answer must not contain cannot be read: {0}")]
pub struct SecretsUnread(pub String);

/// How deeply the values of an answer may be nested. They are stored inside of further values, and no parser of ours reads
/// JSON of more than 128 levels.
const MAX_DEPTH: usize = 64;

/// The output of an action as it can be stored, without secrets, whatever its tool has removed itself.
pub(crate) fn redact_output(redactor: &Redactor, output: &Output) -> Output {
    Output {
        text: storable(redactor.text(&output.text)),
        data: output.data.as_ref().map(|data| fields(redactor, data)),
    }
}

pub(crate) fn redact_failure(redactor: &Redactor, failure: Failure) -> Failure {
    let text = |message: String| storable(redactor.text(&message));
    match failure {
        Failure::Refused(message) => Failure::Refused(text(message)),
        Failure::Invalid(message) => Failure::Invalid(text(message)),
        Failure::Down(message) => Failure::Down(text(message)),
        Failure::Timeout => Failure::Timeout,
        Failure::Late => Failure::Late,
        Failure::Described(failure, data) => {
            Failure::Described(Box::new(redact_failure(redactor, *failure)), fields(redactor, &data))
        }
    }
}

/// Redacts the values only. The gateway chose the keys, such as `response`, and readers look them up by name.
fn fields(redactor: &Redactor, data: &proto::JsonObject) -> proto::JsonObject {
    data.iter().map(|(key, value)| (key.clone(), storable_value(redactor.value(value), MAX_DEPTH))).collect()
}

/// Removes U+0000, which PostgreSQL cannot store: the hash of an answer must be that of the stored text.
fn storable(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

/// A value of which what is nested more deeply has become text.
fn storable_value(value: Value, depth: usize) -> Value {
    match value {
        Value::String(text) => Value::String(storable(text)),
        Value::Array(_) | Value::Object(_) if depth == 0 => Value::String(storable(value.to_string())),
        Value::Array(items) => items.into_iter().map(|item| storable_value(item, depth - 1)).collect(),
        Value::Object(entries) => {
            let entries = entries.into_iter();
            Value::Object(
                entries.map(|(key, item)| (storable(key), storable_value(item, depth - 1))).collect(),
            )
        }
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_have_no_nul_and_a_limited_depth() {
        let nested = (0..120).fold(json!("in"), |inner, _| json!([inner]));
        let mut data = proto::JsonObject::new();
        data.insert("response".to_owned(), json!({"a\0b": "c\0d", "nested": nested}));
        let answer =
            redact_output(&Redactor::default(), &Output { text: "e\0f".to_owned(), data: Some(data) });
        assert_eq!(answer.text, "e\u{fffd}f");
        let response = &answer.data.unwrap()["response"];
        assert_eq!(response["a\u{fffd}b"], "c\u{fffd}d");
        let (mut inner, mut depth) = (&response["nested"], 1);
        while let Some(item) = inner.get(0) {
            (inner, depth) = (item, depth + 1);
        }
        assert_eq!(depth, MAX_DEPTH);
        assert!(inner.as_str().is_some_and(|text| text.starts_with("[[") && text.contains("in")), "{inner}");
    }
}
