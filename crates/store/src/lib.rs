//! All SQL of the system, for SQLite and PostgreSQL.
//!
//! No other crate knows a table's name. A query is one text that runs on both databases; a real difference of dialect is
//! an explicit `match`. The directories `sqlite/` and `postgres/` show what is special to each database; everything else is
//! shared. Reads go to a pool. Every write is one transaction.

mod db;
mod dialect;
mod error;
mod inbox;
mod incarnation;
mod migrate;
mod postgres;
mod row;
mod sqlite;

// Identity.
mod device_login;
mod key;
mod login;
mod login_session;
mod member;
mod org;
// Sessions and their credentials.
mod idempotency;
mod owner;
mod sandbox_session;
mod sandbox_token;
mod session;
mod session_list;
mod session_record;
mod session_state;
mod snapshot;
mod standing;
mod telemetry;
mod ticket;
mod usage;
// Workspaces.
mod configuration;
mod connector;
mod database_source;
mod found_configuration;
mod repo;
// Automations.
mod automation;
mod automation_machine;
mod automation_outbox;
mod automation_run;
mod automation_trigger;
// Conversations.
mod event;
mod evidence;
mod message;
mod prompt;
mod question;
mod transcript;
// The network of sandboxes.
mod egress;
mod environment;
// The gate and the ledger.
mod action_mode;
mod artifact;
mod audit;
mod change;
mod disabled_action;
mod gate;
mod invocation;
mod ledger_event;
mod notification;
mod row_hash;
mod run;
mod safety;
// The vault.
mod integration;
mod secret;

pub use action_mode::{ActionModes, OrgActionMode};
pub use artifact::{Artifact, NewArtifact};
pub use audit::{ArtifactRow, AuditReader, EventRow, HeadRow, RunRow};
pub use automation::{Automation, AutomationSettings, CronTrigger, NewAutomation, WebhookTrigger};
pub use automation_machine::{RunStep, next_status};
pub use automation_outbox::{OutboxEntry, OutboxStep};
pub use automation_run::{Advanced, AutomationRun, AutomationRunEvent, AutomationRunFilter, RunAdvance};
pub use automation_trigger::{CronFiring, FiringOutcome, MAX_OPEN_RUNS, NewTriggerEvent, TriggerEvent};
pub use change::{ChangeMarks, InboxKey, InboxKind, SessionMark};
pub use configuration::{Configuration, ConfigurationChange, NewConfiguration, Placement};
pub use connector::{Connector, ConnectorChange, ConnectorTool, ToolPin};
pub use database_source::{DatabaseChange, DatabaseSource};
pub use db::{Durability, Store};
pub use device_login::{DeviceLogin, NewDeviceLogin};
pub use disabled_action::{Chooser, DisabledAction};
pub use egress::{EgressPolicy, EgressRecord, NewEgressRecord};
pub use environment::EnvironmentMark;
pub use error::StoreError;
pub use event::{EventBatch, NewBatch};
pub use evidence::{EvidenceFile, NewEvidence, NewEvidenceFile};
pub use found_configuration::{FoundConfiguration, WantedCli, WantedManaged};
pub use gate::{
    Change, ConfigurationEffect, Effect, GateWrite, NewEvent, OpenTranscript, RequestEdit, RunCompletion,
    RunDecision, RunVerdict, SeenRequest, Written,
};
pub use idempotency::{Begin, KeyedRequest, Reservation};
pub use inbox::{InboxCursor, InboxEntry, InboxFilter, InboxItem, InboxSession, InvalidInboxCursor};
pub use integration::Integration;
pub use invocation::{Invocation, InvocationRun, NewInvocation, Waiting};
pub use key::{ApiKey, KeyOwner, NewApiKey};
pub use ledger_event::{EventFilter, KeptCheckpoint, ListedEvent};
pub use login::NewLoginCode;
pub use login_session::NewLoginSession;
pub use member::{Member, NewMember};
pub use message::{PartBody, StoredMessage, StoredPart, StoredTool};
pub use migrate::{Migration, Schema};
pub use notification::{Notification, NotificationCounts, NotificationSettings, NotificationSubject};
pub use org::{FirstOwner, NewOrg, Org};
pub use owner::{Owned, Owner};
pub use postgres::{EMPTY_POSTGRES, InstanceLock, describe_url, probe_postgres};
pub use prompt::{NewPrompt, Prompt, QueuedPrompt};
pub use question::{NewQuestion, Settlement, StoredQuestion};
pub use repo::{NewRepo, PlacedRepo, RemoteSource, Repo};
pub use row::JsonText;
pub use row_hash::{RunColumns, run_hash};
pub use run::{CallDetails, Ended, NewRun, RecordedDecision, Run, RunFilter};
pub use safety::{OverrideGrant, SafetyLock};
pub use sandbox_session::SandboxSession;
pub use sandbox_token::NewSandboxToken;
pub use secret::{NewSecret, Scope, Sealed, SealedSecret, SecretEntry, SecretsMark};
pub use session::{NewSession, Starts};
pub use session_list::{InvalidCursor, SessionCursor, SessionFilter};
pub use session_record::SessionRecord;
pub use session_state::SessionEnd;
pub use snapshot::{NewSnapshot, Snapshot};
pub use sqlite::{backup_sqlite, check_backup, probe_sqlite, restore};
pub use standing::{Standing, UserCredential};
pub use telemetry::{LatestTask, Telemetry};
pub use ticket::{NewTicket, TicketKind, TicketOwner};
pub use transcript::{Transcript, TranscriptExtent, TranscriptWrite};
pub use usage::{OrgBudget, Usage, UsageFilter, UsageGroup, UsageKey};

/// SHA-256 of a credential, which is stored instead of the credential.
pub type TokenHash = [u8; 32];
