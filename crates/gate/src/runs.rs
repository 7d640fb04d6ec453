//! Runs that are not calls: those that a caller starts to group its calls, and the turns of sessions.

use ledger::{ActionType, Authz, Decision, Event, Hash, Outcome, Target, TargetType, Text};
use policy::{ActorClass, Claim, Versions};
use proto::{AgentMode, ApiKeyId, OrgId, RunKind, RunStatus, SessionId};
use serde_json::json;
use store::{Change, Ended, GateWrite, JsonText, NewEvent, NewRun, Run, SessionRecord, StoreError, Written};

use shares::OverShare;

use super::Gate;
use crate::request::{Caller, TURN_RUN};

/// A request to start a run.
pub struct NewRunRequest {
    pub org: OrgId,
    pub run_id: String,
    pub kind: RunKind,
    pub actor: Claim,
    pub role: &'static str,
    pub case: Option<String>,
    pub session: Option<SessionId>,
    pub name: Option<String>,
    pub parent: Option<String>,
    /// The user whose prompt a turn answers.
    pub prompted_by: Option<String>,
}

/// The reason why a run was not started or ended.
#[derive(Debug, thiserror::Error)]
pub enum RunRefusal {
    #[error("the run_id is taken")]
    Taken,
    #[error("the parent run is not active")]
    ParentInactive,
    #[error("the run is not active")]
    NotActive,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The policy roles of callers.
pub const SERVICE: &str = "SERVICE";
pub const OPERATOR: &str = "OPERATOR";
pub const ORG_ADMIN: &str = "ORG_ADMIN";
const SETUP_AGENT: &str = "SETUP_AGENT";
const CODING_AGENT: &str = "CODING_AGENT";
const AUTOMATION_AGENT: &str = "AUTOMATION_AGENT";

/// The role of a session's agent, and the lane of the platform's own tools for it.
pub const fn agent_role(mode: AgentMode) -> (&'static str, &'static str) {
    match mode {
        AgentMode::Setup => (SETUP_AGENT, "platform.setup"),
        AgentMode::Automation => (AUTOMATION_AGENT, "platform.automation"),
        AgentMode::Coding | AgentMode::Scratch => (CODING_AGENT, "platform.coding"),
    }
}

/// The run id of a turn, derived from its prompt.
fn turn_run(prompt: &str) -> String {
    format!("{TURN_RUN}{prompt}")
}

/// The actor of a session's agent, in policy and in the ledger.
pub fn agent(session: SessionId) -> Claim {
    Claim { actor_type: ActorClass::Agent, actor_id: session.to_string() }
}

/// How the actor ids of programs with API keys begin.
pub(crate) const KEY_AGENT: &str = "key:";

/// The actor and the role of a program that calls actions with an API key: it counts as an agent without a session.
pub fn key_agent(key: ApiKeyId) -> (Claim, &'static str) {
    (Claim { actor_type: ActorClass::Agent, actor_id: format!("{KEY_AGENT}{key}") }, CODING_AGENT)
}

impl Gate {
    /// The run of a session's current turn.
    pub fn turn_of(&self, session: SessionId) -> Option<String> {
        self.calls.turns.lock().get(&session).cloned()
    }

    /// Starts the run of a turn, or continues one that an earlier owner of the session started. The session's calls
    /// belong to this run, and the ledger names who prompted.
    pub async fn begin_turn(
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
            role: agent_role(record.mode()).0,
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
        self.calls.turns.lock().insert(record.id, run_id);
        Ok(())
    }

    /// Ends the run of a turn. A run that has already ended stays as it is.
    pub async fn end_turn(
        &self,
        record: &SessionRecord,
        prompt: &str,
        status: RunStatus,
    ) -> Result<(), StoreError> {
        self.calls.turns.lock().remove(&record.id);
        let Some(run) = self.store.run(record.org_id, &turn_run(prompt)).await? else { return Ok(()) };
        match self.finish_run(&run, &agent(record.id), status, status.as_str()).await {
            Err(RunRefusal::Store(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Starts a run, which is active at once.
    pub async fn start_run(&self, new: NewRunRequest) -> Result<Run, RunRefusal> {
        let parent = match &new.parent {
            None => None,
            Some(id) => {
                let found = self.store.run(new.org, id).await?;
                // A child run belongs to its parent's case.
                let fits = |run: &Run| {
                    let same = run.case_id.is_none() || new.case.is_none() || run.case_id == new.case;
                    run.status == RunStatus::Running && same
                };
                Some(found.filter(fits).ok_or(RunRefusal::ParentInactive)?)
            }
        };
        // A child run is pinned to its parent's policy versions. Otherwise a new run below an old one would bypass the
        // pin.
        let versions = match &parent {
            Some(run) => Versions { lanes: run.lanes_version.clone(), roles: run.roles_version.clone() },
            None => self.rules.policy().pins().versions(),
        };
        let (org, run_id) = (new.org, new.run_id.clone());
        let case = new.case.clone().or_else(|| parent.as_ref().and_then(|run| run.case_id.clone()));
        let started = self.run_event(&new, case.as_deref(), &versions, "the run is running");
        let mut allowed = self.run_event(&new, case.as_deref(), &versions, "the caller may start runs");
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
            created_at: self.audit.now(),
            waits: false,
            end: None,
        };
        let change = Change::Begin(Box::new(run));
        let write = GateWrite::new(change, vec![allowed, started]);
        match self.store.gate_write(write).await? {
            Written::Done => {}
            Written::Known(_) => return Err(RunRefusal::Taken),
            _ => return Err(RunRefusal::ParentInactive),
        }
        self.store.run(org, &run_id).await?.ok_or(RunRefusal::NotActive)
    }

    /// Ends a run that is not a call.
    pub async fn finish_run(
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
        let mut event = self.audit.event(Some(run.org_id), ActionType::System, ended, actor, &versions);
        describe(&mut event, &run.run_id, run.case_id.as_deref(), run.kind, outcome);
        event.event.parent_run_id = run.parent_run_id.as_deref().and_then(|id| Text::new(id).ok());
        let ended = Ended {
            status,
            outcome: outcome.chars().take(200).collect(),
            error: None,
            answer: None,
            response_hash: None,
            outputs: JsonText::of(&json!({"artifact_refs": []})),
            started_at: None,
            at: self.audit.now(),
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

    fn run_event(
        &self,
        new: &NewRunRequest,
        case: Option<&str>,
        versions: &Versions,
        reason: &str,
    ) -> NewEvent {
        let mut event =
            self.audit.event(Some(new.org), ActionType::System, Outcome::Success, &new.actor, versions);
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

/// The reason why an attempt was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Too many attempts of the caller were refused before. This one is only counted.
    #[error(transparent)]
    OverShare(#[from] OverShare),
}

/// A failed attempt that is not a call. Its fields are what the caller claimed, and may be false.
pub struct Attempt {
    pub org: Option<OrgId>,
    pub session: Option<SessionId>,
    pub actor: Claim,
    pub role: &'static str,
    pub lane: Option<String>,
    pub tool: Option<String>,
    pub operation: Option<String>,
    pub run_id: Option<String>,
    pub case: Option<String>,
    pub correlation: Option<String>,
    pub request_hash: Option<Hash>,
}

/// A read, or attempted read, of an artifact's content.
pub struct ArtifactReading<'a> {
    pub caller: Caller,
    pub artifact_id: &'a str,
    pub case: Option<&'a str>,
    /// `None` if the caller gets nothing.
    pub found: Option<&'a store::Artifact>,
}

impl Attempt {
    fn describe(&self, event: &mut Event) {
        event.role_id = Some(Text::cut(self.role));
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
    /// Records an attempt that is not a valid call (as a failure), or a call by a caller who may make none (as a
    /// denial), in the chain of its organization or of the system.
    pub async fn record_attempt(
        &self,
        attempt: &Attempt,
        outcome: Outcome,
        problem: &str,
    ) -> Result<(), AttemptError> {
        self.refusals.take_or_count(attempt.org, attempt.session, &attempt.actor)?;
        let versions = self.rules.policy().pins().versions();
        let events = [(ActionType::AuthzDecision, Outcome::Deny), (ActionType::ToolCall, outcome)];
        let events = events.map(|(action, outcome)| {
            let mut new = self.audit.event(attempt.org, action, outcome, &attempt.actor, &versions);
            new.event.outcome_reason = Some(Text::cut(problem));
            attempt.describe(&mut new.event);
            new
        });
        let write = GateWrite::new(Change::Nothing, events.into());
        self.store.gate_write(write).await?;
        Ok(())
    }

    /// Records a read before the caller gets the content.
    pub async fn record_reading(&self, reading: &ArtifactReading<'_>) -> Result<(), AttemptError> {
        let ArtifactReading { caller, artifact_id, case, found } = reading;
        let (outcome, reason) = if found.is_some() {
            self.refusals.take_allowed(caller.org, caller.session, &caller.actor)?;
            (Outcome::Success, "the content of an artifact was read")
        } else {
            self.refusals.take_or_count(Some(caller.org), caller.session, &caller.actor)?;
            (Outcome::Deny, "not available in this case")
        };
        let versions = self.rules.policy().pins().versions();
        let mut new =
            self.audit.event(Some(caller.org), ActionType::DbRead, outcome, &caller.actor, &versions);
        let event = &mut new.event;
        event.role_id = Some(Text::cut(&caller.role));
        event.case_id = case.and_then(|case| Text::new(case).ok());
        event.outcome_reason = Some(Text::cut(reason));
        event.target = Some(Target {
            artifact_ref: found.and_then(super::reference),
            name: Text::cut(artifact_id),
            operation: Some(Text::cut("read")),
            target_type: TargetType::Artifact,
        });
        self.store.gate_write(GateWrite::new(Change::Nothing, vec![new])).await?;
        Ok(())
    }
}
