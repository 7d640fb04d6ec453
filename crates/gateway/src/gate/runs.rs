//! Runs that are not calls: what a caller starts to group its calls, and the turns of sessions.

use ledger::{ActionType, Authz, Decision, Event, Hash, Outcome, Target, TargetType, Text};
use policy::{ActorClass, Claim, Versions};
use proto::{OrgId, RunKind, RunStatus, SessionId, SessionType};
use serde_json::json;
use store::{Change, Ended, GateWrite, JsonText, NewEvent, NewRun, Run, SessionRecord, StoreError, Written};

use super::Gate;
use super::call::TURN;
use crate::shares::OverShare;

/// A run to be started.
pub(crate) struct NewRunRequest {
    pub(crate) org: OrgId,
    pub(crate) run_id: String,
    pub(crate) kind: RunKind,
    pub(crate) actor: Claim,
    pub(crate) role: &'static str,
    pub(crate) case: Option<String>,
    pub(crate) session: Option<SessionId>,
    pub(crate) name: Option<String>,
    pub(crate) parent: Option<String>,
    /// Whose prompt a turn answers.
    pub(crate) prompted_by: Option<String>,
}

/// Why a run was not started or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunRefusal {
    #[error("the run_id is taken")]
    Taken,
    #[error("the parent run is not active")]
    ParentInactive,
    #[error("the run is not active")]
    NotActive,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The roles of policy, by who calls.
pub(crate) const SERVICE: &str = "SERVICE";
pub(crate) const OPERATOR: &str = "OPERATOR";
pub(crate) const ORG_ADMIN: &str = "ORG_ADMIN";
const SETUP_AGENT: &str = "SETUP_AGENT";
const CODING_AGENT: &str = "CODING_AGENT";
const AUTOMATION_AGENT: &str = "AUTOMATION_AGENT";

/// The role of the agent of a session, and the lane of the platform's own tools for it.
pub(crate) fn agent_role(kind: SessionType, automation: bool) -> (&'static str, &'static str) {
    match kind {
        SessionType::Setup => (SETUP_AGENT, "platform.setup"),
        _ if automation => (AUTOMATION_AGENT, "platform.automation"),
        _ => (CODING_AGENT, "platform.coding"),
    }
}

pub(super) fn role_named(name: &str) -> &'static str {
    [OPERATOR, ORG_ADMIN, SETUP_AGENT, CODING_AGENT, AUTOMATION_AGENT]
        .into_iter()
        .find(|known| *known == name)
        .unwrap_or(SERVICE)
}

/// The run of a turn: one for each prompt.
fn turn_run(prompt: &str) -> String {
    format!("{TURN}{prompt}")
}

/// Who the agent of a session is, to policy and in the ledger.
pub(crate) fn agent(session: SessionId) -> Claim {
    Claim { actor_type: ActorClass::Agent, actor_id: session.to_string() }
}

impl Gate {
    /// The run of the turn that a session is in.
    pub(crate) fn turn_of(&self, session: SessionId) -> Option<String> {
        self.turns().get(&session).cloned()
    }

    /// A session begins a turn, or goes on with one that an earlier owner began: the run that its calls belong to.
    /// The ledger names who prompted.
    pub(crate) async fn begin_turn(
        &self,
        record: &SessionRecord,
        prompt: &str,
        sender: Option<&str>,
    ) -> Result<(), StoreError> {
        let run_id = turn_run(prompt);
        let new = NewRunRequest {
            org: record.org_id,
            run_id: run_id.clone(),
            kind: RunKind::Agent,
            actor: agent(record.id),
            role: agent_role(record.session_type, record.automation_id.is_some()).0,
            case: Some(record.id.to_string()),
            session: Some(record.id),
            name: None,
            parent: None,
            prompted_by: Some(sender.unwrap_or("nobody who is named").to_owned()),
        };
        match self.start_run(new).await {
            Ok(_) | Err(RunRefusal::Taken) => {}
            Err(RunRefusal::Store(error)) => return Err(error),
            Err(RunRefusal::ParentInactive | RunRefusal::NotActive) => return Ok(()),
        }
        self.turns().insert(record.id, run_id);
        Ok(())
    }

    /// The turn is over. One that was ended before stays as it ended.
    pub(crate) async fn end_turn(
        &self,
        record: &SessionRecord,
        prompt: &str,
        status: RunStatus,
    ) -> Result<(), StoreError> {
        self.turns().remove(&record.id);
        let Some(run) = self.store.run(record.org_id, &turn_run(prompt)).await? else { return Ok(()) };
        match self.finish_run(&run, &agent(record.id), status, status.as_str()).await {
            Err(RunRefusal::Store(error)) => Err(error),
            _ => Ok(()),
        }
    }

    fn turns(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<SessionId, String>> {
        self.turns.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Starts a run: active at once.
    pub(crate) async fn start_run(&self, new: NewRunRequest) -> Result<Run, RunRefusal> {
        let parent = match &new.parent {
            None => None,
            Some(id) => {
                let found = self.store.run(new.org, id).await?;
                // A child belongs to its parent's case.
                let fits = |run: &Run| {
                    let same = run.case_id.is_none() || new.case.is_none() || run.case_id == new.case;
                    run.status == RunStatus::Running && same
                };
                Some(found.filter(fits).ok_or(RunRefusal::ParentInactive)?)
            }
        };
        // A child is pinned as its parent is, or a new run below an old one would be a way around the pin.
        let versions = match &parent {
            Some(run) => Versions { lanes: run.lanes_version.clone(), roles: run.roles_version.clone() },
            None => self.rules.policy().pins().versions(),
        };
        let (org, run_id) = (new.org, new.run_id.clone());
        let case = new.case.clone().or_else(|| parent.as_ref().and_then(|run| run.case_id.clone()));
        let started = self.tell(&new, case.as_deref(), &versions, "the run is running");
        let mut allowed = self.tell(&new, case.as_deref(), &versions, "the caller may start runs");
        allowed.event.action_type = ActionType::AuthzDecision;
        allowed.event.outcome = Outcome::Allow;
        allowed.event.authz = Some(Authz {
            decision: Decision::Allow,
            policy_ref: Some(Text::cut(&format!("roles@{}", versions.roles))),
            rule_id: Some(Text::cut("runs.start")),
        });
        let run = NewRun {
            org_id: new.org,
            run_id: new.run_id.clone(),
            kind: new.kind,
            lanes_version: versions.lanes,
            roles_version: versions.roles,
            parent_run_id: new.parent.clone(),
            root_run_id: parent.map_or_else(|| new.run_id.clone(), |run| run.root_run_id),
            run_name: new.name,
            case_id: case,
            session_id: new.session,
            correlation_id: None,
            actor: JsonText::of(&new.actor),
            role_id: new.role.to_owned(),
            lane_id: None,
            call: None,
            inputs: JsonText::of(&json!({"artifact_refs": []})),
            retry_count: 0,
            retry_reason: None,
            created_at: self.scribe.now(),
            end: None,
        };
        let change = Change::Begin(Box::new(run));
        let write = GateWrite::new(change, vec![allowed, started]);
        match self.store.gate_write(write).await? {
            Written::Done => {}
            Written::Known(_) => return Err(RunRefusal::Taken),
            Written::ParentInactive | Written::NotYours | Written::Gone => {
                return Err(RunRefusal::ParentInactive);
            }
        }
        self.store.run(org, &run_id).await?.ok_or(RunRefusal::NotActive)
    }

    /// Ends a run that is not a call.
    pub(crate) async fn finish_run(
        &self,
        run: &Run,
        actor: &Claim,
        status: RunStatus,
        outcome: &str,
    ) -> Result<(), RunRefusal> {
        if run.tool.is_some() || !run.status.can_transition_to(status) {
            return Err(RunRefusal::NotActive);
        }
        let versions = Versions { lanes: run.lanes_version.clone(), roles: run.roles_version.clone() };
        let ended = match status {
            RunStatus::Completed => Outcome::Success,
            RunStatus::Denied => Outcome::Deny,
            _ => Outcome::Failure,
        };
        let mut event = self.scribe.event(Some(run.org_id), ActionType::System, ended, actor, &versions);
        describe(&mut event, &run.run_id, run.case_id.as_deref(), run.kind, outcome);
        event.event.parent_run_id = run.parent_run_id.as_deref().and_then(|id| Text::new(id).ok());
        let ended = Ended {
            status,
            outcome: outcome.chars().take(200).collect(),
            error: None,
            answer: None,
            response_hash: None,
            outputs: JsonText::of(&json!({"artifact_refs": []})),
            at: self.scribe.now(),
        };
        let change = Change::End {
            org: run.org_id,
            run_id: run.run_id.clone(),
            instance: None,
            ended: Box::new(ended),
        };
        match self.store.gate_write(GateWrite::new(change, vec![event])).await? {
            Written::Done => Ok(()),
            _ => Err(RunRefusal::NotActive),
        }
    }

    fn tell(&self, new: &NewRunRequest, case: Option<&str>, versions: &Versions, reason: &str) -> NewEvent {
        let mut event =
            self.scribe.event(Some(new.org), ActionType::System, Outcome::Success, &new.actor, versions);
        describe(&mut event, &new.run_id, case, new.kind, reason);
        event.event.role_id = Some(Text::cut(new.role));
        event.event.notes = new.prompted_by.as_ref().map(|by| Text::cut(&format!("prompted by {by}")));
        event.event.parent_run_id = new.parent.as_deref().and_then(|id| Text::new(id).ok());
        event
    }
}

fn describe(new: &mut NewEvent, run_id: &str, case: Option<&str>, kind: RunKind, reason: &str) {
    let event = &mut new.event;
    event.run_id = Text::new(run_id).ok();
    event.case_id = case.and_then(|case| Text::new(case).ok());
    event.outcome_reason = Some(Text::cut(reason));
    event.target = Some(Target {
        artifact_ref: None,
        name: Text::cut("run"),
        operation: Some(Text::cut(kind.as_str())),
        target_type: TargetType::System,
    });
}

/// An attempt was not recorded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttemptError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Too many of the caller's were refused before; it is counted.
    #[error(transparent)]
    OverShare(#[from] OverShare),
}

/// What an attempt that is no call says of itself. It need not be true: it is what was asked.
#[derive(Default)]
pub(crate) struct Attempt {
    pub(crate) role: Option<&'static str>,
    pub(crate) lane: Option<String>,
    pub(crate) tool: Option<String>,
    pub(crate) operation: Option<String>,
    pub(crate) run_id: Option<String>,
    pub(crate) case: Option<String>,
    pub(crate) correlation: Option<String>,
    pub(crate) request_hash: Option<Hash>,
}

impl Attempt {
    fn describe(&self, event: &mut Event) {
        event.role_id = self.role.map(Text::cut);
        event.lane_id = self.lane.as_deref().map(Text::cut);
        event.run_id = self.run_id.as_deref().and_then(|id| Text::new(id).ok());
        event.case_id = self.case.as_deref().and_then(|id| Text::new(id).ok());
        event.correlation_id = self.correlation.as_deref().map(Text::cut);
        event.request_hash_sha256 = self.request_hash;
        event.target = self.tool.as_deref().map(|tool| Target {
            artifact_ref: None,
            name: Text::cut(tool),
            operation: self.operation.as_deref().map(Text::cut),
            target_type: TargetType::Tool,
        });
    }
}

impl Gate {
    /// Records that somebody sent something that is no call (a failure), or a call where they may make none (denied): in
    /// their organisation's chain, or in the system's.
    pub(crate) async fn refuse_unreadable(
        &self,
        (org, session, actor): (Option<OrgId>, Option<SessionId>, Claim),
        attempt: &Attempt,
        came_to: Outcome,
        problem: &str,
    ) -> Result<(), AttemptError> {
        self.refusals.take_or_count(org, session, &actor)?;
        let versions = self.rules.policy().pins().versions();
        let events = [(ActionType::AuthzDecision, Outcome::Deny), (ActionType::ToolCall, came_to)];
        let events = events.map(|(action, outcome)| {
            let mut new = self.scribe.event(org, action, outcome, &actor, &versions);
            new.event.outcome_reason = Some(Text::cut(problem));
            attempt.describe(&mut new.event);
            new
        });
        let write = GateWrite::new(Change::Nothing, events.into());
        self.store.gate_write(write).await?;
        Ok(())
    }

    /// Records that somebody reads the content of an artifact, or tried to.
    pub(crate) async fn record_reading(
        &self,
        (org, session, actor): (OrgId, Option<SessionId>, Claim),
        (role, id, case): (&'static str, String, Option<String>),
        found: Option<&store::Artifact>,
    ) -> Result<(), AttemptError> {
        if found.is_none() {
            self.refusals.take_or_count(Some(org), session, &actor)?;
        }
        let versions = self.rules.policy().pins().versions();
        let outcome = if found.is_some() { Outcome::Success } else { Outcome::Deny };
        let mut new = self.scribe.event(Some(org), ActionType::DbRead, outcome, &actor, &versions);
        let event = &mut new.event;
        event.role_id = Some(Text::cut(role));
        event.case_id = case.and_then(|case| Text::new(case).ok());
        event.outcome_reason = Some(Text::cut(if found.is_some() {
            "the content of an artifact was read"
        } else {
            "not available in this case"
        }));
        event.target = Some(Target {
            artifact_ref: found.and_then(super::reference),
            name: Text::cut(&id),
            operation: Some(Text::cut("read")),
            target_type: TargetType::Artifact,
        });
        let write = GateWrite::new(Change::Nothing, vec![new]);
        self.store.gate_write(write).await?;
        Ok(())
    }
}
