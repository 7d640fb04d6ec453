//! The words of the system: what things are called, what they look like on the wire, and what may be said.
//!
//! Nothing here waits, listens or stores. Reading order: ids and closed vocabularies; the session, who may do
//! what to it, its actions, its network, models and errors; then the two conversations, HTTP bodies and socket messages,
//! and the texts they carry.

mod id;
mod words;

mod session;
mod workspace;

mod role;

mod action;

mod run;

mod egress;

mod model;

mod error;

pub mod http;

pub mod socket;
pub mod text;

pub mod dotenv;
pub mod iso;

pub use action::{ActionMode, InvocationStatus, ModeSource, Risk};
pub use egress::{EgressKind, EgressMode, EgressOutcome};
pub use error::{BillingCode, ErrorCode, ToolErrorCode};
pub use id::{
    ApiKeyId, AutomationId, AutomationRunId, ConfigurationId, ConnectorId, IntegrationId, InvalidId,
    InvocationId, OrgId, RepoId, SecretId, SessionId, TicketId, TriggerEventId, TriggerId, UserId,
};
pub use model::{MODELS, Model, ModelId, ModelProvider, UnknownModel};
pub use role::Role;
pub use run::{RunKind, RunStatus};
pub use session::{
    AutomationRef, ClientType, DisplayStatus, Origin, Outcome, PauseReason, RepoRef, SandboxMode, Session,
    SessionMetrics, SessionStatus, SessionType, TitleStatus,
};
pub use words::UnknownWord;
pub use workspace::{ConfigurationKind, ConfigurationStatus, PromptState, RepoSource};

/// A JSON object whose keys are somebody else's business.
pub type JsonObject = serde_json::Map<String, serde_json::Value>;
