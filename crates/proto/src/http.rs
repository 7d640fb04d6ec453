//! The bodies of HTTP requests and responses. Unknown fields are ignored; unknown enum values are errors.

mod actions;
mod automation;
mod basics;
mod change;
mod connector;
mod contract;
mod create;
mod database;
mod device_login;
mod egress;
mod environment;
mod identity;
mod inbox;
mod integration;
mod media;
mod notification;
mod preference;
mod prompt;
mod question;
mod sandbox;
mod session;
mod status;
mod tools;
mod usage;
mod workspace;

pub use actions::{
    ActionCatalog, ActionGuide, ActionInfo, ActionModeEntry, ActionModeList, ActionSource, ApproveInvocation,
    AutomationModes, DenyInvocation, Invocation, InvocationDenied, InvocationList, InvocationPending,
    InvocationReply, InvokeAction, InvokeReply, ModeReply, SetActionMode, SetAutomationMode,
    UnavailableSource,
};
pub use automation::{
    AssignRun, AutomationEntry, AutomationList, AutomationRunDetail, AutomationRunEntry, AutomationRunList,
    AutomationRunQuery, ChangeAutomation, Completion, CreateAutomation, CronEntry, HookReply, ResolveRun,
    RunEventEntry, SetCron, SetWebhook, StartAutomationRun, TriggerEventEntry, TriggerEventList,
    WebhookEntry,
};
pub use basics::{ErrorBody, Health, Me, OkReply, TokenSource};
pub use change::{Change, ChangeQuery, ChangedEntry, ChangedKind};
pub use connector::{
    ChangeConnector, ConnectorAuth, ConnectorDetail, ConnectorDiagnostics, ConnectorEntry, ConnectorList,
    ConnectorOffer, ConnectorToolEntry, CreateConnector, DefinitionChange, ReviewConnector, ReviewReply,
    ReviewState, RiskPolicy,
};
pub use contract::{
    ArtifactQuery, AuditEvents, AuditQuery, FinishRun, PolicyVersionsBody, RunList, RunQuery, RunRecord,
    StartRun, ToolActor, ToolCall, ToolCallError, ToolCallReply,
};
pub use create::{
    AgentConfig, CliConfiguration, ConfigurationChoice, CreateSession, CreateSessionError, CreatedSandbox,
    CreatedSession, ManagedConfiguration, SshOptions,
};
pub use database::{
    ChangeDatabase, CreateDatabase, DatabaseActionEntry, DatabaseCheck, DatabaseDetail, DatabaseEntry,
    DatabaseLimits, DatabaseList, DatabaseQuery, DatabaseTarget, QueryParameter,
};
pub use device_login::{
    DeviceOrg, DeviceToken, DeviceUser, PollDeviceLogin, StartDeviceLogin, StartedDeviceLogin,
    WaitingDeviceLogin,
};
pub use egress::{EgressEntry, EgressList, EgressQuery, EgressRules};
pub use environment::{
    AppliedFile, EnvChangeReply, EnvFileSpec, EnvFileState, EnvKeySpec, EnvKeyState, EnvState, ExposePort,
    FinishSetup, FinishSetupReply, SecretFileItem, SecretFileList, SecretFileQuery, ServiceEntry,
    ServiceList, ServiceLog, ServiceStatus, SetSecretFile, StartService, SubmitEnv, SubmitEnvReply,
    SubmittedEntry, SubmittedSecret, SubmittedVariable, TestServices, TestServicesReply,
};
pub use identity::{
    AddMember, ApiKeyEntry, ApiKeyList, Check, CreateKey, CreateTicket, KeyScope, LoginRequest, MemberEntry,
    MemberList, NewKey, NewTicketReply, Readiness, SecretItem, SecretList, SecretOwner, SecretPurpose,
    SecretScope, SetRole, SetSecret, SetSecretReply, TicketKind,
};
pub use inbox::{Inbox, InboxEntry, InboxItem, InboxQuery, InboxQuestion, InboxRun, InboxSession};
pub use integration::{
    AddIntegration, AutomationIntegrations, ChangeIntegration, IntegrationEntry, IntegrationList,
};
pub use media::{MediaFile, MediaFiles, MediaQuery, MediaUrl};
pub use notification::{NotificationTest, Notifications, SetNotifications};
pub use preference::{ActionPreference, ActionPreferenceList};
pub use prompt::{PostMessage, PromptReply};
pub use question::{AnswerQuestion, QuestionEntry, QuestionList};
pub use sandbox::{
    DiffQuery, ExecCommand, ExecFrame, FileEntry, FileKind, FileListing, FileQuery, LogQuery, RepoDiff,
    SessionDiff,
};
pub use session::{
    MessagePage, MessageQuery, RenameSession, SessionList, SessionModel, SessionQuery, StopQuery,
};
pub use status::{Liveness, Presence, PresentUser, RunState, SessionInfo, SessionStatusReply};
pub use tools::{ToolCallback, ToolCallbackReply};
pub use usage::{UsageBy, UsageEntry, UsageQuery, UsageReport, UsageSums};
pub use workspace::{
    AddRepo, ChangeConfiguration, ChangeRepo, ConfigurationEntry, ConfigurationList, CreateConfiguration,
    OrgQuery, RepoEntry, RepoList, RepoPlace,
};
