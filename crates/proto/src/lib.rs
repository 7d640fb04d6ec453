//! The shared vocabulary: ids, enums, HTTP bodies and WebSocket messages.
//!
//! This crate does no I/O. Reading order: ids and string enums; sessions, roles, actions, runs, egress,
//! models and errors; then HTTP bodies, WebSocket messages and the text formats they contain.

mod id;
mod string_enums;

mod session;
mod workspace;

mod automation;

mod role;

mod action;

mod run;

mod egress;
mod integration;
mod notification;

mod model;

mod error;

pub mod http;

pub mod socket;
pub mod text;

pub mod dotenv;
pub mod iso;

pub use action::{ActionMode, FreeForm, InvocationStatus, ModeSource, Risk};
pub use automation::{
    AutomationRunStatus, CompletionOutcome, Resolution, RunEventKind, TriggerEventStatus, TriggerKind,
    WaitingFor, WebhookScheme,
};
pub use egress::{EgressKind, EgressMode, EgressOutcome};
pub use error::{BillingCode, ErrorCode, ToolErrorCode};
pub use id::{
    ApiKeyId, AutomationId, AutomationRunId, ConfigurationId, ConnectorId, DatabaseId, IntegrationId,
    InvalidId, InvocationId, OrgId, RepoId, SecretId, SessionId, TicketId, TriggerEventId, TriggerId, UserId,
};
pub use integration::{IntegrationProvider, IntegrationStatus};
pub use model::{MODELS, Model, ModelId, ModelProvider, ReasoningEffort, UnknownModel};
pub use notification::{NotificationKind, NotificationState};
pub use role::Role;
pub use run::{RunKind, RunStatus, WorkflowState};
pub use session::{
    AgentMode, AutomationRef, ClientType, DisplayStatus, Origin, Outcome, PauseReason, RepoRef, SandboxMode,
    Session, SessionMetrics, SessionStatus, SessionType, TitleSource, TitleStatus,
};
pub use string_enums::UnknownWord;
pub use workspace::{ConfigurationKind, ConfigurationStatus, PromptState, RepoSource};

/// A JSON object whose keys we do not interpret.
pub type JsonObject = serde_json::Map<String, serde_json::Value>;
