//! The only entry point for side effects: judge, claim, execute, record. Only this crate can create [`Permit`]s.
//!
//! The decision, the claim and their event are one durable transaction before the effect. The outcome, the result and
//! their event are one transaction after it. So a call is executed once, on whichever instance it arrives, and a crash
//! in between leaves an honest `unknown`.
//!
//! The crate knows neither HTTP nor sessions nor sandboxes: entry points hand in a [`CallRequest`] and render a
//! [`CallResult`], and tools come from [`Sources`].

mod administration;
mod agent_permission;
mod approvals;
mod approved_runs;
mod approver;
mod artifacts;
mod audit_writer;
mod bound_request;
mod callers;
mod checkpoints;
mod denial;
mod existing_run;
mod governance;
mod judgement;
mod lock;
mod permit;
mod pipeline;
mod process;
mod recent_results;
mod record;
mod refusals;
mod repeated_call;
mod request;
mod result;
mod rules;
mod runs;
mod secrets;
mod settings;
mod tool;
mod upkeep;
mod verify;
mod vocabulary;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use clock::{Clock, Rng};
use parking_lot::Mutex;
use policy::Policy;
use proto::{InvocationId, OrgId, SessionId};
use store::{Store, StoreError};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use approved_runs::ApprovedRuns;
use audit_writer::AuditWriter;
use checkpoints::Checkpoints;
use lock::SafetyLockReading;
use pipeline::InFlight;
use process::Process;
use recent_results::RecentResults;
use refusals::Refusals;
use rules::Rules;

pub use administration::{AdminChange, Subject};
pub use approvals::{Approval, ApprovalError, MAX_WAITING};
pub use approver::Participants;
pub use artifacts::{
    MAX_CONTENT_BYTES, file_artifact, is_content_of, is_named_right, reference, unknown_reference,
};
pub use callers::{SYSTEM, system_caller};
pub use checkpoints::{
    CheckpointFailure, SigningKeyError, audit_public_key, read_checkpoints, sign_ledger, signs_now,
};
pub use denial::{Denial, DenialReason, InvalidDenialReason, denial_reason};
pub use governance::{Governance, GovernanceError, Grant, NewMode, first_start_event};
pub use judgement::mode_of;
pub use lock::follow_lock;
pub use permit::Permit;
pub use record::{MAX_SHOWN_BYTES, shown, shown_text};
pub use refusals::call_rates;
pub use request::{
    ActionRequest, BreakGlass, CALLBACK_RUN, CallRequest, Caller, EntryPoint, Retry, RunRequest, TURN_RUN,
    Target, callback_run,
};
pub use result::{CallOutcome, CallResult, CallShare};
pub use rules::{RulesError, read_policy};
pub use runs::{
    ArtifactReading, Attempt, AttemptError, NewRunRequest, OPERATOR, ORG_ADMIN, RunRefusal, SERVICE, agent,
    agent_role, key_agent,
};
pub use secrets::{Secrets, SecretsUnread};
pub use settings::GateSettings;
pub use tool::{
    Definition, EXPORT_TOOL, Failure, Output, Outside, Review, SourceError, Sources, Tool, ToolScope, Within,
    Work,
};
pub use upkeep::keep_gate;
pub use verify::{Difference, Verification, VerifyError, verify_database};
pub use vocabulary::{wire_mode, wire_risk, wire_source};

/// An instance that was not seen for this long counts as dead, and its calls as orphaned. An instance on the same
/// machine that has certainly died is removed at once ([`Process`]).
pub const DEAD_AFTER: Duration = Duration::from_secs(30);

/// How many calls that wait a listener may be behind. It may miss others, which are in the database.
const TOLD_WAITING: usize = 256;

/// The gate of one instance.
pub struct Gate {
    store: Store,
    clock: Clock,
    instance: Instance,
    rules: Rules,
    sources: Arc<dyn Sources>,
    secrets: Arc<dyn Secrets>,
    lock: SafetyLockReading,
    audit: AuditWriter,
    checkpoints: Checkpoints,
    calls: Calls,
    refusals: Refusals,
    /// Cancelled when the gateway stops. From then on, recording an outcome is not retried.
    closing: CancellationToken,
}

/// This instance, as other instances know it.
struct Instance {
    /// Its name in the database.
    id: String,
    process: Option<Process>,
}

/// The calls that this instance knows of without the database.
struct Calls {
    /// How long a call can be approved, and then a granted one can be repeated.
    approval_lifetime: Duration,
    /// Those that it executes now.
    in_flight: Mutex<HashMap<(OrgId, String), InFlight>>,
    approved: ApprovedRuns,
    recent: RecentResults,
    /// The runs of the current turns of this instance's sessions.
    turns: Mutex<HashMap<SessionId, String>>,
    /// Tells whoever listens that a call waits for approval.
    waiting: broadcast::Sender<(OrgId, InvocationId)>,
}

/// The reason why the gate cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    #[error(transparent)]
    Rules(#[from] RulesError),
    #[error(transparent)]
    Key(#[from] SigningKeyError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A gate without its tools, which depend on parts of the gateway that depend on the gate.
pub struct OpenGate {
    store: Store,
    clock: Clock,
    instance: String,
    rules: Rules,
    audit: AuditWriter,
    checkpoints: Checkpoints,
    approval_lifetime: Duration,
    calls_per_minute: u32,
}

impl OpenGate {
    /// Loads the policy and the signing key. The ledger names the sessions' agents by `agent_name`.
    pub async fn open(
        settings: &GateSettings,
        store: &Store,
        clock: &Clock,
        rng: &Rng,
        (instance, agent_name): (&str, &'static str),
    ) -> Result<Self, GateError> {
        let rules = Rules::load(settings.policy_dir.as_deref()).await?;
        let checkpoints = Checkpoints::open(settings, store, clock, rng).await?;
        let audit = AuditWriter::new(clock.clone(), rng.clone(), checkpoints.parameters_key(), agent_name);
        Ok(Self {
            store: store.clone(),
            clock: clock.clone(),
            instance: instance.to_owned(),
            rules,
            audit,
            checkpoints,
            approval_lifetime: settings.approval_lifetime,
            calls_per_minute: settings.calls_per_minute,
        })
    }

    pub fn with_sources(
        self,
        sources: Arc<dyn Sources>,
        secrets: Arc<dyn Secrets>,
        closing: CancellationToken,
    ) -> Gate {
        Gate {
            store: self.store,
            instance: Instance { id: self.instance, process: Process::own() },
            rules: self.rules,
            sources,
            secrets,
            lock: SafetyLockReading::new(),
            audit: self.audit,
            checkpoints: self.checkpoints,
            calls: Calls {
                approval_lifetime: self.approval_lifetime,
                in_flight: Mutex::default(),
                approved: ApprovedRuns::default(),
                recent: RecentResults::new(),
                turns: Mutex::default(),
                waiting: broadcast::Sender::new(TOLD_WAITING),
            },
            refusals: Refusals::new(&self.clock, self.calls_per_minute),
            closing,
            clock: self.clock,
        }
    }
}

impl Gate {
    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        self.rules.policy()
    }

    /// Receives every call that begins to wait for approval at this instance.
    pub fn waiting_calls(&self) -> broadcast::Receiver<(OrgId, InvocationId)> {
        self.calls.waiting.subscribe()
    }

    pub(crate) fn tell_waiting(&self, org: OrgId, id: InvocationId) {
        // Nobody may be listening.
        let _ = self.calls.waiting.send((org, id));
    }

    /// Unregisters this instance and writes the last checkpoint. This is the last step before the database closes.
    pub async fn close(&self) {
        if let Err(error) = self.record_refusals(true).await {
            tracing::error!(%error, "the number of refused calls that were not recorded is lost");
        }
        if let Err(error) = self.checkpoints.write().await {
            tracing::error!(%error, "no checkpoint of the ledger could be written at the end");
        }
        if let Err(error) = self.store.forget_instance(&self.instance.id).await {
            tracing::warn!(%error, "this instance could not be signed off; its calls count as lost in a while");
        }
    }

    /// Health checks of the gate's dependencies besides the database, by name.
    pub fn checks(&self) -> [(&'static str, Result<(), String>); 3] {
        let or = |ok: bool, why: &str| if ok { Ok(()) } else { Err(why.to_owned()) };
        let lock = self.lock.is_engaged().map(drop).map_err(|unread| unread.to_string());
        let policy = or(self.rules.is_readable(), "PROLIFERATE_POLICY_DIR cannot be read, or hangs");
        let checkpoints =
            or(self.checkpoints.is_writable(), "AUDIT_CHECKPOINT_DIR cannot be written, or hangs");
        [("safety_lock", lock), ("policy", policy), ("checkpoints", checkpoints)]
    }
}
