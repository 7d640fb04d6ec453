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

/// The output of an action without secrets, whatever its tool has removed itself.
pub(crate) fn redact_output(redactor: &Redactor, output: &Output) -> Output {
    Output {
        text: redactor.text(&output.text),
        data: output.data.as_ref().map(|data| fields(redactor, data)),
    }
}

pub(crate) fn redact_failure(redactor: &Redactor, failure: Failure) -> Failure {
    match failure {
        Failure::Refused(message) => Failure::Refused(redactor.text(&message)),
        Failure::Invalid(message) => Failure::Invalid(redactor.text(&message)),
        Failure::Down(message) => Failure::Down(redactor.text(&message)),
        Failure::Timeout => Failure::Timeout,
        Failure::Late => Failure::Late,
        Failure::Described(failure, data) => {
            Failure::Described(Box::new(redact_failure(redactor, *failure)), fields(redactor, &data))
        }
    }
}

/// Each value under its own key, so that the keys that we chose ourselves, such as `response`, stay.
fn fields(redactor: &Redactor, data: &proto::JsonObject) -> proto::JsonObject {
    data.iter().map(|(key, value)| (key.clone(), redactor.value(value))).collect()
}
