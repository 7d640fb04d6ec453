//! An operator's changes to the gate from outside: the safety lock, break-glass grants, and rotation of the signing
//! key. Each change and its event are one write, so that nothing changes unrecorded.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use chrono::TimeDelta;
use clock::{Clock, Rng};
use files::secret_file;
use ledger::{
    ActionType, Actor, ActorType, Event, KeyChange, LostKey, Outcome, PolicyVersions, PublicKey, Restore,
    Severity, Target, TargetType, Text, Tree,
};
use policy::{ModeKey, ModeSetting, Policy};
use proto::text::is_line;
use proto::{InvocationId, OrgId, UserId};
use store::{Change, GateWrite, NewEvent, OrgActionMode, OverrideGrant, SafetyLock, Store, StoreError};
use uuid::Uuid;

use super::administration::{AdminChange, Subject, setting_notes};
use super::checkpoints::{
    CheckpointFailure, SigningKeyError, grow, key_in_force, read_checkpoints, read_or_make, read_seed,
    sign_ledger, signing_key,
};
use super::rules::{RulesError, read_policy};
use crate::audit_writer;
use crate::settings::GateSettings;
use crate::vocabulary::wire_mode;

/// Changes the state that governs all instances.
pub struct Governance<'a> {
    pub settings: GateSettings,
    pub store: &'a Store,
    pub clock: &'a Clock,
    pub rng: &'a Rng,
    /// The operator's name in the ledger: `host:` and the name of the host's user.
    pub operator: &'a str,
}

/// A request for a break-glass grant.
pub struct Grant<'a> {
    pub org: OrgId,
    pub user: UserId,
    pub ticket: &'a str,
    pub reason: &'a str,
    pub minutes: u64,
}

/// The reason why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum GovernanceError {
    #[error("a reason is one line of 1 to 200 characters")]
    Reason,
    #[error("a ticket is one line of 1 to 120 characters")]
    Ticket,
    #[error("a grant lasts at least a minute, and no break-glass lane allows more than {longest}")]
    TimeBox { longest: u64 },
    #[error("the policy has no break-glass lane: nothing can be granted")]
    NoLane,
    #[error("{user} is no member of the organization {org}")]
    NoMember { user: UserId, org: OrgId },
    #[error("there is no active grant {id}: `proliferate policy grants ls --all` shows the state of each")]
    NoGrant { id: Uuid },
    #[error("there is no signing key yet: a gateway makes one when it starts first")]
    NoKey,
    #[error("{} is there: `proliferate audit rotate-key` changes a key that is not lost", path.display())]
    KeyThere { path: PathBuf },
    #[error(transparent)]
    Checkpoint(#[from] CheckpointFailure),
    #[error("another process changes the signing key now")]
    Busy,
    #[error("{} is not the key that the ledger names since the last change: put that one there first", path.display())]
    Retired { path: PathBuf },
    #[error("the next key: {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Key(#[from] SigningKeyError),
    #[error(transparent)]
    Rules(#[from] RulesError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The new mode of an action.
pub struct NewMode<'a> {
    /// The member who sets it; `None` for the operator.
    pub by: Option<UserId>,
    pub key: &'a ModeKey,
    pub setting: &'a ModeSetting,
    /// The invocation that was approved, if the mode is set so that the next ones need no approval.
    pub invocation: Option<InvocationId>,
}

impl Governance<'_> {
    /// Engages or releases the safety lock, which stops every call. It must work in an emergency, so it does not need a
    /// valid policy.
    pub async fn lock(&self, locked: bool, reason: &str) -> Result<(), GovernanceError> {
        if !is_line(reason, 200) {
            return Err(GovernanceError::Reason);
        }
        let operation = if locked { "lock" } else { "unlock" };
        let mut event =
            self.event(ActionType::PolicyChange, ("safety_lock", operation), TargetType::Policy).await?;
        event.outcome_reason = Some(Text::cut(reason));
        event.severity = Some(if locked { Severity::Critical } else { Severity::Warn });
        let lock = SafetyLock {
            locked,
            changed_by: event.actor.actor_id.as_str().to_owned(),
            reason: reason.to_owned(),
            changed_at: audit_writer::moment(&event),
        };
        self.write(Change::Lock(lock), None, event).await
    }

    /// Grants a member break-glass access under a ticket, for a time that the lanes allow.
    pub async fn grant(&self, asked: &Grant<'_>) -> Result<OverrideGrant, GovernanceError> {
        let Grant { org, user, ticket, reason, minutes } = *asked;
        if !is_line(reason, 200) {
            return Err(GovernanceError::Reason);
        }
        if !is_line(ticket, 120) {
            return Err(GovernanceError::Ticket);
        }
        let policy = read_policy(self.settings.policy_dir.as_deref())?;
        let longest = policy.lanes().filter_map(|lane| lane.override_minutes).max();
        let longest = longest.ok_or(GovernanceError::NoLane)?;
        let lasts = i64::try_from(minutes).ok().filter(|_| (1..=longest).contains(&minutes));
        let lasts = TimeDelta::minutes(lasts.ok_or(GovernanceError::TimeBox { longest })?);
        self.store.member(org, user).await?.ok_or(GovernanceError::NoMember { user, org })?;
        let mut event =
            self.event(ActionType::Override, ("override_grant", "grant"), TargetType::Policy).await?;
        let now = audit_writer::moment(&event);
        let grant = OverrideGrant {
            id: self.rng.uuid(now),
            org_id: org,
            user_id: user,
            ticket: ticket.to_owned(),
            reason: reason.to_owned(),
            granted_by: event.actor.actor_id.as_str().to_owned(),
            valid_from: now,
            valid_until: now + lasts,
            revoked_by: None,
            revoked_at: None,
        };
        event.outcome_reason = Some(Text::cut(reason));
        event.severity = Some(Severity::Warn);
        event.notes = Some(Text::cut(&grant_notes(&grant)));
        self.write(Change::Grant(grant.clone()), Some(org), event).await?;
        Ok(grant)
    }

    /// Sets the mode of an action in an organization.
    pub async fn set_mode(&self, org: OrgId, new: NewMode<'_>) -> Result<(), GovernanceError> {
        let NewMode { by, key, setting, invocation } = new;
        let mode = wire_mode(setting.otherwise());
        let mut event = self.mode_event(by, key, mode.as_str()).await?;
        event.outcome_reason =
            Some(Text::cut(&format!("the mode of an action is {} from here on", mode.as_str())));
        let set = OrgActionMode {
            org_id: org,
            key: key.as_str().to_owned(),
            mode,
            conditions: setting.conditions().cloned(),
            two_person: setting.two_person(),
            invocation,
            changed_by: event.actor.actor_id.as_str().to_owned(),
            changed_at: audit_writer::moment(&event),
        };
        event.notes = Some(Text::cut(&mode_notes(&set)));
        self.write(Change::SetMode(set), Some(org), event).await
    }

    /// Removes the mode of an action, so that it follows from the action's risk again.
    pub async fn unset_mode(
        &self,
        org: OrgId,
        by: Option<UserId>,
        key: &ModeKey,
    ) -> Result<(), GovernanceError> {
        let mut event = self.mode_event(by, key, UNSET_OPERATION).await?;
        event.outcome_reason = Some(Text::cut("the mode of an action follows from its risk from here on"));
        let store = self.store.recorded(NewEvent { org: Some(org), event });
        Ok(store.unset_action_mode(org, key.as_str()).await?)
    }

    /// The event of a changed mode, on behalf of a member or, without one, of the operator.
    async fn mode_event(&self, by: Option<UserId>, key: &ModeKey, word: &str) -> Result<Event, StoreError> {
        let mut event =
            self.event(ActionType::PolicyChange, (key.as_str(), word), TargetType::Policy).await?;
        if let Some(user) = by {
            event.actor.actor_type = ActorType::Human;
            event.actor.actor_id = Text::fit(&user.to_string());
        }
        event.severity = Some(Severity::Warn);
        Ok(event)
    }

    /// The store for an administrative change, which records the change under the operator's name.
    pub async fn administer(&self, org: OrgId, change: &AdminChange) -> Result<Store, StoreError> {
        Ok(self.store.recorded(self.admin_event(Some(org), change).await?))
    }

    /// Records a change that is made outside of the database, or that all organizations share.
    pub async fn record(&self, change: &AdminChange) -> Result<(), GovernanceError> {
        let NewEvent { org, event } = self.admin_event(None, change).await?;
        self.write(Change::Nothing, org, event).await
    }

    async fn admin_event(&self, org: Option<OrgId>, change: &AdminChange) -> Result<NewEvent, StoreError> {
        let mut event = self.event(change.action(), ("", ""), TargetType::System).await?;
        change.describe(&mut event);
        Ok(NewEvent { org, event })
    }

    /// Revokes a grant before it expires.
    pub async fn revoke_grant(&self, id: Uuid, reason: &str) -> Result<OverrideGrant, GovernanceError> {
        if !is_line(reason, 200) {
            return Err(GovernanceError::Reason);
        }
        let grants = self.store.override_grants().await?;
        let now = self.clock.now();
        let counts = |grant: &OverrideGrant| grant.revoked_at.is_none() && grant.valid_until > now;
        let found = grants.into_iter().find(|grant| grant.id == id).filter(counts);
        let grant = found.ok_or(GovernanceError::NoGrant { id })?;
        let mut event =
            self.event(ActionType::Override, ("override_grant", "revoke"), TargetType::Policy).await?;
        event.outcome_reason = Some(Text::cut(reason));
        event.severity = Some(Severity::Warn);
        event.notes = Some(Text::cut(&format!("{GRANT_PREFIX}{id}")));
        let (by, at) = (event.actor.actor_id.as_str().to_owned(), audit_writer::moment(&event));
        self.write(Change::RevokeGrant { id, by, at }, Some(grant.org_id), event).await?;
        Ok(grant)
    }

    /// Rotates the signing key. The next key is on disk before the ledger names it, and replaces the old file
    /// afterwards. If the rotation is interrupted in between, the next attempt finishes it.
    pub async fn rotate_key(&self) -> Result<(PublicKey, PublicKey), GovernanceError> {
        let path = self.settings.audit_key_file.clone();
        let next_path = next_key_path(&path);
        let failed = |source| GovernanceError::File { path: next_path.clone(), source };
        // Held until the end: two concurrent rotations would leave a ledger that nobody can verify.
        let _held = hold(&path)?;
        let old = signing_key(&read_seed(&path)?);
        if !next_path.exists() {
            let seed = hex::encode(self.rng.bytes::<32>());
            secret_file::make(&next_path, seed.as_bytes()).map_err(failed)?;
        }
        let next = signing_key(&read_seed(&next_path)?);
        let in_force = key_in_force(self.store).await?;
        if in_force.as_ref() != Some(next.public()) {
            if in_force.is_some_and(|in_force| in_force != *old.public()) {
                return Err(GovernanceError::Retired { path });
            }
            let mut event = self.event(ActionType::System, KeyChange::TARGET, TargetType::System).await?;
            event.outcome_reason = Some(Text::cut("another key signs the checkpoints from here on"));
            event.notes = Some(Text::cut(&KeyChange::sign(&old, &next)));
            self.write(Change::Nothing, None, event).await?;
        }
        secret_file::rename(&next_path, &path).map_err(failed)?;
        Ok((old.public().clone(), next.public().clone()))
    }

    /// Creates a key in place of a lost one. The ledger records the replacement as unsigned, because nobody can sign it
    /// with the lost key.
    pub async fn replace_lost_key(&self, reason: &str) -> Result<PublicKey, GovernanceError> {
        if !is_line(reason, 200) {
            return Err(GovernanceError::Reason);
        }
        let path = self.settings.audit_key_file.clone();
        if path.exists() {
            return Err(GovernanceError::KeyThere { path });
        }
        // The key has another name until the ledger records it, so that a gateway that starts meanwhile does not sign
        // with it.
        let next_path = next_key_path(&path);
        let failed = |source| GovernanceError::File { path: next_path.clone(), source };
        let key = signing_key(&read_or_make(&next_path, self.rng)?);
        if key_in_force(self.store).await?.as_ref() != Some(key.public()) {
            let mut event = self.event(ActionType::System, LostKey::TARGET, TargetType::System).await?;
            event.outcome_reason = Some(Text::cut(reason));
            event.severity = Some(Severity::Critical);
            event.notes = Some(Text::cut(&key.public().to_string()));
            self.write(Change::Nothing, None, event).await?;
        }
        secret_file::rename(&next_path, &path).map_err(failed)?;
        Ok(key.public().clone())
    }

    /// Records that the database was just restored, as the first event after those in the backup. The event is signed,
    /// so that a verifier with checkpoints of the rolled-back part knows what happened to it.
    pub async fn record_restore(&self, backup: &str) -> Result<u64, GovernanceError> {
        let newest = read_checkpoints(&self.settings)?.iter().map(|checkpoint| checkpoint.size).max();
        let mut tree = Tree::default();
        grow(self.store, &mut tree).await?;
        let mut event = self.event(ActionType::System, Restore::TARGET, TargetType::System).await?;
        event.outcome_reason = Some(Text::cut(&format!("restored to {} records from {backup}", tree.size())));
        event.severity = Some(Severity::Warn);
        let path = self.settings.audit_key_file.clone();
        if path.exists() {
            let key = signing_key(&read_seed(&path)?);
            let newest = newest.unwrap_or_default().max(tree.size());
            event.notes = Some(Text::cut(&Restore::sign(&key, tree.size(), &tree.root(), newest)));
        }
        self.write(Change::Nothing, None, event).await?;
        sign_ledger(&self.settings, self.store, self.clock).await?;
        Ok(tree.size())
    }

    async fn event(
        &self,
        action: ActionType,
        (name, operation): (&str, &str),
        target_type: TargetType,
    ) -> Result<Event, StoreError> {
        let actor = Actor {
            actor_id: Text::fit(self.operator),
            actor_type: ActorType::Human,
            agent_name: None,
            user_display: None,
        };
        let pins = self.versions().await?;
        let mut event = audit_writer::event((self.clock, self.rng), action, Outcome::Success, actor, pins);
        event.target = Some(Target {
            artifact_ref: None,
            name: Text::cut(name),
            operation: Some(Text::cut(operation)),
            target_type,
        });
        Ok(event)
    }

    /// The versions of the policy in force, according to the ledger. The files on disk may differ, and are not in force
    /// before a gateway has loaded them.
    async fn versions(&self) -> Result<PolicyVersions, StoreError> {
        let last = self.store.last_policy_change().await?;
        let known = last.and_then(|record| serde_json::from_str::<Event>(&record).ok());
        Ok(known.map_or_else(built_in_versions, |event| event.policy_versions))
    }

    async fn write(&self, change: Change, org: Option<OrgId>, event: Event) -> Result<(), GovernanceError> {
        let events = vec![NewEvent { org, event }];
        self.store.gate_write(GateWrite::new(change, events)).await?;
        Ok(())
    }
}

/// The operation of the event of a mode that is removed.
pub(super) const UNSET_OPERATION: &str = "unset";

/// What the event of a mode contains nowhere else. `audit verify` compares it with the row.
pub(super) fn mode_notes(set: &OrgActionMode) -> String {
    let invocation = set.invocation.map_or_else(|| "none".to_owned(), |id| id.to_string());
    format!("{}, invocation_id {invocation}", setting_notes(set.two_person, set.conditions.as_ref()))
}

/// The prefix of the notes of a grant's events, before its id.
pub(super) const GRANT_PREFIX: &str = "grant ";

/// The details of a grant that its event contains nowhere else. `audit verify` parses them.
fn grant_notes(grant: &OverrideGrant) -> String {
    let until = audit_writer::timestamp(grant.valid_until);
    let OverrideGrant { id, user_id, ticket, .. } = grant;
    format!("{GRANT_PREFIX}{id}: user {user_id}, ticket {ticket}, until {}", until.as_str())
}

/// The event of the organization that a gateway creates at its first start.
pub fn first_start_event(clock: &Clock, rng: &Rng, org: OrgId) -> NewEvent {
    let actor = Actor {
        actor_id: Text::fit("gateway"),
        actor_type: ActorType::System,
        agent_name: None,
        user_display: None,
    };
    let change = AdminChange::new(Subject::Organization, "create", "the first one, with its owner");
    let parts = (clock, rng);
    let mut event = audit_writer::event(parts, change.action(), Outcome::Success, actor, built_in_versions());
    change.describe(&mut event);
    NewEvent { org: Some(org), event }
}

fn built_in_versions() -> PolicyVersions {
    let pin = |text: Option<&str>| policy::Pin::from_content(text.unwrap_or_default()).git_blob;
    let files = Policy::BUILT_IN;
    PolicyVersions { lanes: Text::fit(&pin(files.lanes)), roles: Text::fit(&pin(files.roles)) }
}

fn hold(path: &Path) -> Result<File, GovernanceError> {
    let failed = |source| SigningKeyError::File { path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(GovernanceError::NoKey),
        file => file.map_err(failed)?,
    };
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(GovernanceError::Busy),
        Err(TryLockError::Error(error)) => Err(failed(error).into()),
    }
}

/// The path of the next key during a rotation.
fn next_key_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".next");
    name.into()
}
