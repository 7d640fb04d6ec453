//! All SQL of the system, once, for SQLite and PostgreSQL.
//!
//! Nothing else knows a table's name. A query is one text that runs on both databases; a real difference of
//! dialect is an explicit `match`. Reads go to a pool; every write is one transaction, and on SQLite all writes
//! pass one writer that commits whatever waits together (`writer.rs`).

mod appender;
mod backup;
mod db;
mod dialect;
mod error;
mod existing;
mod life;
mod migrate;
mod near;
mod postgres;
mod probe;
mod row;
mod together;
mod writer;

// Who there is.
mod key;
mod login;
mod login_session;
mod member;
mod org;
// What a session is and which credentials it gave out.
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
// What it works on.
mod configuration;
mod found_configuration;
mod repo;
// What is said in it.
mod event;
mod message;
mod prompt;
mod transcript;
// What sandboxes may reach.
mod egress;
// What passes the gate, and what is behind it.
mod action_mode;
mod artifact;
mod audit;
mod gate;
mod ledger_event;
mod row_hash;
mod run;
mod safety;
// What must stay secret.
mod secret;

pub use action_mode::{ActionModes, OrgActionMode};
pub use artifact::{Artifact, NewArtifact};
pub use audit::{ArtifactRow, AuditReader, EventRow, HeadRow, RunRow};
pub use backup::{backup_sqlite, check_backup, restore};
pub use configuration::{Configuration, ConfigurationChange, NewConfiguration, Placement};
pub use db::{Durability, Store};
pub use egress::{EgressPolicy, EgressRecord, NewEgressRecord};
pub use error::StoreError;
pub use event::{EventBatch, NewBatch};
pub use found_configuration::{FoundConfiguration, WantedCli, WantedManaged};
pub use gate::{Change, Effect, GateWrite, NewEvent, Written};
pub use idempotency::{Begin, KeyedRequest, Reservation};
pub use key::{ApiKey, NewApiKey};
pub use ledger_event::{EventFilter, KeptCheckpoint, ListedEvent};
pub use login::NewLoginCode;
pub use login_session::NewLoginSession;
pub use member::{Member, NewMember};
pub use message::{PartBody, StoredMessage, StoredPart, StoredTool};
pub use migrate::Migration;
pub use org::{FirstOwner, NewOrg, Org};
pub use owner::{Owned, Owner};
pub use postgres::{InstanceLock, describe_url};
pub use probe::{Schema, probe_postgres, probe_sqlite};
pub use prompt::{NewPrompt, Prompt, QueuedPrompt};
pub use repo::{NewRepo, PlacedRepo, RemoteSource, Repo};
pub use row::JsonText;
pub use row_hash::{RunColumns, run_hash};
pub use run::{Called, Ended, NewRun, RecordedDecision, Run, RunFilter};
pub use safety::{OverrideGrant, SafetyLock};
pub use sandbox_session::SandboxSession;
pub use sandbox_token::NewSandboxToken;
pub use secret::{NewSecret, Scope, Sealed, SecretEntry};
pub use session::{NewSession, Starts};
pub use session_list::{InvalidCursor, SessionCursor, SessionFilter};
pub use session_record::SessionRecord;
pub use session_state::Ending;
pub use snapshot::{NewSnapshot, Snapshot};
pub use standing::{Standing, UserCredential};
pub use telemetry::{LatestTask, Telemetry};
pub use ticket::{NewTicket, TicketKind, TicketOwner};
pub use transcript::{Reach, Transcript, TranscriptWrite};
pub use usage::{OrgBudget, Usage};

/// SHA-256 of a credential: what is stored instead of it.
pub type TokenHash = [u8; 32];
