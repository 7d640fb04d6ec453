//! Why a use case of sessions fails. `edge::error` turns each into a response.

use sandboxd::ClientError;
use store::StoreError;

use crate::access::Act;
use crate::admission::Refusal;
use crate::hub::HubError;
use crate::llm::ModelUnavailable;
use crate::runtime::EnvironmentError;

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The request is invalid, whoever sends it.
    #[error("{0}")]
    Invalid(&'static str),
    /// The access table does not allow the act.
    #[error("{}", .0.refusal())]
    Forbidden(Act),
    /// A limit is reached, a budget is spent, or the model has no price.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The field that chooses a model, and why that model cannot be used.
    #[error("{0}: {1}")]
    Model(&'static str, ModelUnavailable),
    /// The organization has no repositories for a managed configuration.
    #[error("the organization has no such repositories")]
    NoRepositories,
    #[error("Too many prompts wait: let some be answered first")]
    QueueFull,
    #[error("There is no such question in this session")]
    UnknownQuestion,
    #[error("The question is already settled")]
    QuestionSettled,
    /// The answer does not fit the question.
    #[error("{0}")]
    InvalidAnswer(String),
    /// An immediate session could not start, and was deleted if this request made it. Clients that watched it got the same reason.
    #[error("the sandbox is not available: {0}")]
    NoSandbox(String),
    /// The live session could not be reached while it started.
    #[error("the sandbox is not available: {0}")]
    SandboxUnavailable(HubError),
    /// The session was not stopped, because its files could not be saved.
    #[error("the files could not be saved: {0}")]
    NotSaved(String),
    /// The gate refused a call, or its tool failed.
    #[error("{0}")]
    CallFailed(String),
    /// The member has made more calls than its share.
    #[error("{0}")]
    TooManyCalls(String),
    /// The gate cannot decide or record now. Nothing was done.
    #[error("{0}")]
    GateUnavailable(String),
    /// The supervisor in the sandbox refused, or cannot be reached.
    #[error(transparent)]
    Supervisor(ClientError),
    /// The environment of the session's app cannot be collected, stored or written.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// A request with the same idempotency key is in flight.
    #[error("a request with this idempotency key is in progress")]
    KeyInFlight,
    /// The idempotency key was used for a request with other content.
    #[error("this idempotency key was used with another request")]
    KeyMismatch,
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Store(StoreError),
    /// A fault of the gateway, which only its log explains.
    #[error("{0}")]
    Internal(String),
}

/// The limit of sessions is checked again when a session is stored, because another one may start in between.
impl From<StoreError> for SessionError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::SessionLimit { limit } => Self::Refused(Refusal::SessionLimit { limit }),
            other => Self::Store(other),
        }
    }
}
