//! The only door for side effects: authorize, pin, claim, audit, execute, outcome. Gives out [`Permit`]s that
//! nothing else can make.
//!
//! What a call is allowed, that it is claimed, and the event that says so are one durable transaction before the
//! effect; its outcome, its answer and the event that tells it are one after it. So a call is executed once, on
//! whichever instance it arrives, and a crash between the two is an honest `unknown`.

mod administration;
mod answers;
mod artifacts;
mod call;
mod checkpoints;
mod governance;
mod known;
mod lock;
mod permit;
mod pipeline;
mod process;
mod question;
mod record;
mod refusals;
mod rules;
mod runs;
mod scribe;
mod upkeep;
mod verify;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use clock::{Clock, Rng};
use ledger::Hash;
use proto::{OrgId, SessionId};
use store::{Store, StoreError};

use crate::config::Config;

pub use administration::{AdminChange, Subject};
use answers::Answers;

pub(crate) use artifacts::{LARGEST, is_content_of, is_named_right, reference, unknown_reference};
pub(crate) use call::{Answered, CALLBACK, Call, Door, Outcome, TURN, callback_run};
use checkpoints::Checkpoints;
pub use checkpoints::{
    CheckpointFailure, SigningKeyError, audit_public_key, read_checkpoints, sign_ledger, signs_now,
};
pub(crate) use governance::first_start_event;
pub use governance::{Governance, GovernanceError, Grant};
use known::InFlight;
use lock::SafetyLockReading;
pub(crate) use lock::follow_lock;
pub(crate) use permit::Permit;
use process::Process;
pub use refusals::CALL_RATES;
use refusals::Refusals;
use rules::Rules;
pub use rules::{RulesError, known_tool, read_policy};
pub(crate) use runs::{
    Attempt, AttemptError, NewRunRequest, OPERATOR, ORG_ADMIN, RunRefusal, SERVICE, agent, agent_role,
};
use scribe::Scribe;
pub(crate) use upkeep::keep_gate;
pub use verify::{Difference, Verified, VerifyError, verify_database};

/// An instance that was not seen for this long has died, as far as its calls are concerned. One on the same machine that has
/// died for certain is forgotten at once ([`Process`]).
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(30);

/// The gate of one instance.
pub struct Gate {
    store: Store,
    clock: Clock,
    instance: String,
    process: Option<Process>,
    rules: Rules,
    lock: SafetyLockReading,
    scribe: Scribe,
    checkpoints: Checkpoints,
    /// Calls that this instance executes now.
    at_work: Mutex<HashMap<(OrgId, String), InFlight>>,
    answers: Answers,
    refusals: Refusals,
    /// The runs of the turns that sessions of this instance are in.
    turns: Mutex<HashMap<SessionId, String>>,
}

/// The gate cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    #[error(transparent)]
    Rules(#[from] RulesError),
    #[error(transparent)]
    Key(#[from] SigningKeyError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Gate {
    pub async fn open(
        config: &Config,
        store: &Store,
        clock: &Clock,
        rng: &Rng,
        instance: &str,
    ) -> Result<Self, GateError> {
        let rules = Rules::load(config.policy_dir.as_deref()).await?;
        let checkpoints = Checkpoints::open(config, store, clock, rng).await?;
        let scribe = Scribe::new(clock.clone(), rng.clone(), checkpoints.parameters_key());
        let gate = Self {
            store: store.clone(),
            clock: clock.clone(),
            instance: instance.to_owned(),
            process: Process::own(),
            rules,
            lock: SafetyLockReading::new(),
            scribe,
            checkpoints,
            at_work: Mutex::default(),
            answers: Answers::default(),
            refusals: Refusals::new(clock),
            turns: Mutex::default(),
        };
        gate.come_alive(config).await?;
        Ok(gate)
    }

    /// Says that this instance executes nothing any more, and signs what was recorded. The last thing before the
    /// database closes.
    pub async fn close(&self) {
        if let Err(error) = self.tell_refusals(true).await {
            tracing::error!(%error, "the number of refused calls that were not recorded is lost");
        }
        if let Err(error) = self.checkpoints.write().await {
            tracing::error!(%error, "no checkpoint of the ledger could be written at the end");
        }
        if let Err(error) = self.store.forget_instance(&self.instance).await {
            tracing::warn!(%error, "this instance could not be signed off; its calls count as lost in a while");
        }
    }

    /// What the gate stands on beside the database, by name, and whether it can be read and written.
    pub(crate) fn checks(&self) -> [(&'static str, Result<(), String>); 3] {
        let or = |ok: bool, why: &str| if ok { Ok(()) } else { Err(why.to_owned()) };
        let lock = self.lock.is_engaged().map(drop).map_err(|unread| unread.to_string());
        let policy = or(self.rules.is_readable(), "PROLIFERATE_POLICY_DIR cannot be read, or hangs");
        let checkpoints =
            or(self.checkpoints.is_writable(), "AUDIT_CHECKPOINT_DIR cannot be written, or hangs");
        [("safety_lock", lock), ("policy", policy), ("checkpoints", checkpoints)]
    }

    fn parameters_hash(&self, parameters: &serde_json::Value) -> Option<Hash> {
        self.scribe.parameters_hash(parameters)
    }

    fn work(&self) -> std::sync::MutexGuard<'_, HashMap<(OrgId, String), InFlight>> {
        self.at_work.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
