//! The judgement of a request: the question to policy, built from facts that the gate establishes itself, and the
//! verdict.

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use ledger::{ArtifactRef, Redactor};
use policy::{
    Action, Flag, Grant, ModeDecision, ModeKey, Request, Risk, RunState, TableWrite, Verdict, Versions,
    apply_drift, decide, resolve_mode,
};
use proto::{RunKind, RunStatus};
use serde_json::Value;
use store::{ActionModes, Run, StoreError};

use crate::Gate;
use crate::artifacts::reference;
use crate::lock::LockUnread;
use crate::request::{ActionRequest, BreakGlass, CallRequest, Caller, EntryPoint, RunRequest, Target};
use crate::secrets::SecretsUnread;
use crate::tool::{Definition, EXPORT_TOOL, Review, SourceError, Tool, ToolScope};

/// The reason why a request cannot be judged now, so that it is not executed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undecidable {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Lock(#[from] LockUnread),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Secrets(#[from] SecretsUnread),
}

/// A request with the facts that the gate has established about it. Its run, events and artifacts are built from these.
#[derive(Clone, Debug)]
pub(crate) struct JudgedCall {
    pub(crate) request: Arc<CallRequest>,
    /// The caller's case, or that of the parent run.
    pub(crate) case: Option<String>,
    /// The active parent, or the retried run. `None` if the named run does not qualify, since it may belong to someone
    /// else.
    pub(crate) parent_run_id: Option<String>,
    /// Described from our own database where the artifact is known.
    pub(crate) input_artifacts: Vec<ArtifactRef>,
    pub(crate) writes: Option<TableWrite>,
    /// The ticket, in a break-glass lane.
    pub(crate) ticket: Option<String>,
    /// The start time of a run that had waited for approval before.
    pub(crate) started_at: Option<DateTime<Utc>>,
}

/// The decision about a request.
pub(crate) struct Judgement {
    pub(crate) call: JudgedCall,
    /// The question to policy.
    pub(crate) asked: Request,
    pub(crate) verdict: Verdict,
    pub(crate) versions: Versions,
    pub(crate) tool: Option<Arc<dyn Tool>>,
    pub(crate) root_run_id: String,
    pub(crate) retry_count: i64,
    /// Removes the secrets that the records of the call must not contain.
    pub(crate) redactor: Redactor,
}

impl JudgedCall {
    /// A request without established facts.
    pub(crate) fn unjudged(request: &Arc<CallRequest>) -> Self {
        Self {
            request: request.clone(),
            case: request.case.clone(),
            parent_run_id: None,
            input_artifacts: request.target.input_artifacts.clone(),
            writes: None,
            ticket: None,
            started_at: None,
        }
    }

    /// Rebuilds the call of a run, as far as recording its end needs it. `None` for a run that is not a call.
    pub(crate) fn of_run(run: &Run, writes: Option<TableWrite>) -> Option<Self> {
        let actor = serde_json::from_value(run.actor.clone()).ok()?;
        let request = CallRequest {
            entry_point: EntryPoint::ToolCalls,
            caller: Caller { org: run.org_id, session: run.session_id, actor, role: run.role_id.clone() },
            claimed: None,
            agent_name: None,
            target: Target {
                lane: run.lane_id.clone()?,
                tool: run.tool.clone()?,
                operation: run.operation.clone()?,
                parameters: Value::Null,
                input_artifacts: Vec::new(),
            },
            run: RunRequest {
                id: run.run_id.clone(),
                parent: run.parent_run_id.clone(),
                retry_of: None,
                correlation: run.correlation_id.clone(),
            },
            case: run.case_id.clone(),
            scope: BTreeSet::new(),
            break_glass: BreakGlass::default(),
            demanded: None,
            request_hash: run.request_hash.as_ref()?.parse().ok()?,
            action: None,
        };
        Some(Self {
            parent_run_id: run.parent_run_id.clone(),
            writes,
            ticket: (run.kind == RunKind::Override).then(String::new),
            started_at: run.started_at.filter(|at| *at > run.created_at),
            ..Self::unjudged(&Arc::new(request))
        })
    }

    pub(crate) fn kind(&self) -> RunKind {
        if self.request.full_name() == EXPORT_TOOL {
            RunKind::Export
        } else if self.writes.is_some() {
            RunKind::DbWrite
        } else if self.ticket.is_some() {
            RunKind::Override
        } else {
            RunKind::ToolGateway
        }
    }
}

/// The runs that a request refers to.
struct Ancestors {
    state: RunState,
    /// The retried run, or else the active parent.
    above: Option<Run>,
    retried: bool,
}

impl Gate {
    /// Judges a request.
    pub(crate) async fn judge(&self, request: &Arc<CallRequest>) -> Result<Judgement, Undecidable> {
        let tool = self.find_tool(request).await?;
        self.judge_use(request, tool).await
    }

    /// Judges a request by the tool's definition of this moment.
    pub(crate) async fn judge_now(&self, request: &Arc<CallRequest>) -> Result<Judgement, Undecidable> {
        let tool =
            self.sources.find_now(&self.rules.policy(), scope_of(request), &request.full_name()).await?;
        self.judge_use(request, tool).await
    }

    async fn judge_use(
        &self,
        request: &Arc<CallRequest>,
        tool: Option<Arc<dyn Tool>>,
    ) -> Result<Judgement, Undecidable> {
        let policy = self.rules.policy();
        let ancestors = self.ancestors(request).await?;
        let above = ancestors.above.as_ref();
        let case = request.case.clone().or_else(|| above?.case_id.clone());
        let mut flags = tool_flags(request, case.as_deref(), tool.as_deref());
        let input_artifacts = self.resolve_artifacts(request, case.as_deref(), &mut flags).await?;
        let asked = Request {
            actor: request.caller.actor.clone(),
            claimed: request.claimed.clone(),
            role: request.caller.role.clone(),
            lane: request.target.lane.clone(),
            action: action(request, tool.as_deref()),
            scope: scope(request, case.is_some()),
            refs: tool.as_ref().map(|tool| tool.refs(&request.target.parameters)).unwrap_or_default(),
            flags,
            run: ancestors.state.clone(),
            demanded: request.demanded.clone(),
            mode: self.mode(request, tool.as_deref()).await?,
            locked: self.lock.is_engaged()?,
            grant: self.grant(request).await?,
        };
        let verdict = decide(&policy, &asked);
        let request = &self.as_action(request, &verdict, tool.as_deref());
        Ok(Judgement {
            redactor: self.redactor(request).await?,
            asked,
            verdict,
            versions: policy.pins().versions(),
            root_run_id: above.map_or_else(|| request.run.id.clone(), |run| run.root_run_id.clone()),
            retry_count: above.filter(|_| ancestors.retried).map_or(0, |run| run.retry_count + 1),
            call: JudgedCall {
                request: with_case(request, case.as_ref()),
                parent_run_id: above.map(|run| run.run_id.clone()),
                case,
                input_artifacts,
                writes: tool.as_ref().and_then(|tool| tool.writes().cloned()),
                ticket: request.break_glass.ticket.clone().filter(|_| self.breaks_glass(request)),
                started_at: None,
            },
            tool,
        })
    }

    /// The request as the invocation of an action, if the verdict is to ask and the request is not an invocation yet.
    fn as_action(
        &self,
        request: &Arc<CallRequest>,
        verdict: &Verdict,
        tool: Option<&dyn Tool>,
    ) -> Arc<CallRequest> {
        let asks = verdict.outcome == policy::Outcome::Ask && request.action.is_none();
        let Some(key) = tool.and_then(Tool::mode_key).filter(|_| asks) else { return request.clone() };
        let (source, action) = key.parts();
        let action = ActionRequest {
            id: self.audit.new_uuid().into(),
            integration: source.to_owned(),
            action: action.to_owned(),
            key: None,
        };
        Arc::new(CallRequest { action: Some(action), ..request.as_ref().clone() })
    }

    /// What must not be in the records and the result of a call.
    pub(crate) async fn redactor(&self, request: &CallRequest) -> Result<Redactor, SecretsUnread> {
        self.secrets.redactor(scope_of(request)).await
    }

    pub(crate) async fn find_tool(
        &self,
        request: &CallRequest,
    ) -> Result<Option<Arc<dyn Tool>>, SourceError> {
        self.sources.find(&self.rules.policy(), scope_of(request), &request.full_name()).await
    }

    /// The mode decision for a tool that is governed by action modes: the mode of the automation, of the organization,
    /// or of the tool's risk.
    async fn mode(
        &self,
        request: &CallRequest,
        tool: Option<&dyn Tool>,
    ) -> Result<Option<ModeDecision>, StoreError> {
        let Some((tool, key)) = tool.and_then(|tool| Some((tool, tool.mode_key()?))) else { return Ok(None) };
        let Caller { org, session, .. } = &request.caller;
        let modes = self.store.action_modes_for(*org, *session, key.as_str()).await?;
        let arguments = Some(&request.target.parameters);
        Ok(Some(mode_of(&key, &modes, tool.risk(), tool.definition().as_ref(), arguments)))
    }

    async fn ancestors(&self, request: &CallRequest) -> Result<Ancestors, StoreError> {
        if request.run.retry_of.is_some() {
            let above = self.retried_run(request).await?;
            let state = if above.is_none() { RunState::Inactive } else { RunState::New };
            return Ok(Ancestors { state, above, retried: true });
        }
        let (state, above) = self.parent_run(request).await?;
        Ok(Ancestors { state, above, retried: false })
    }

    /// The run that a request retries: it must have ended, and have been a call of the same tool.
    async fn retried_run(&self, request: &CallRequest) -> Result<Option<Run>, StoreError> {
        let Some(retry) = &request.run.retry_of else { return Ok(None) };
        let found = self.store.run(request.caller.org, &retry.run_id).await?;
        Ok(found.filter(|run| {
            run.status.is_terminal()
                && run.tool.as_deref() == Some(&request.target.tool)
                && is_of_case(request, run)
        }))
    }

    async fn parent_run(&self, request: &CallRequest) -> Result<(RunState, Option<Run>), StoreError> {
        let Some(id) = &request.run.parent else { return Ok((RunState::New, None)) };
        let found = self.store.run(request.caller.org, id).await?;
        let found = found.filter(|run| run.status == RunStatus::Running);
        let found = found.filter(|run| run.case_id.is_none() || is_of_case(request, run));
        let state = match &found {
            // The gateway itself named the turn of a callback, and that turn has ended since. The callback is judged
            // like one between two turns.
            None if request.entry_point == EntryPoint::Callback => RunState::New,
            None => RunState::Inactive,
            Some(run) => RunState::Active(Versions {
                lanes: run.lanes_version.clone(),
                roles: run.roles_version.clone(),
            }),
        };
        Ok((state, found))
    }

    /// The artifacts that a request names, as we know them. A missing artifact and one of another case raise the same
    /// flag; otherwise the answer would reveal which ones exist.
    async fn resolve_artifacts(
        &self,
        request: &CallRequest,
        case: Option<&str>,
        flags: &mut BTreeSet<Flag>,
    ) -> Result<Vec<ArtifactRef>, StoreError> {
        let mut resolved = Vec::with_capacity(request.target.input_artifacts.len());
        for given in &request.target.input_artifacts {
            let found = self.store.artifact(request.caller.org, given.artifact_id.as_str()).await?;
            let own = found.filter(|found| {
                found.hash == given.hash_sha256.to_string()
                    && (found.case_id.is_none() || found.case_id.as_deref() == case)
            });
            let known = own.as_ref().and_then(reference);
            if known.is_none() {
                flags.insert(Flag::cross_case_lookup());
            }
            resolved.push(known.unwrap_or_else(|| given.clone()));
        }
        Ok(resolved)
    }

    fn breaks_glass(&self, request: &CallRequest) -> bool {
        let policy = self.rules.policy();
        policy.lane(&request.target.lane).is_some_and(|lane| lane.override_minutes.is_some())
    }

    /// The break-glass grant that the caller holds under the ticket it names.
    async fn grant(&self, request: &CallRequest) -> Result<Option<Grant>, StoreError> {
        let user = request.caller.actor.actor_id.parse().ok();
        let (true, Some(ticket), Some(user)) =
            (self.breaks_glass(request), &request.break_glass.ticket, user)
        else {
            return Ok(None);
        };
        let now = self.clock.now();
        let found = self.store.override_grant(request.caller.org, user, ticket, now).await?;
        Ok(found.map(|grant| Grant {
            ticket: grant.ticket,
            reason: grant.reason,
            from: grant.valid_from.timestamp(),
            until: grant.valid_until.timestamp(),
            now: now.timestamp(),
        }))
    }
}

fn scope_of(request: &CallRequest) -> ToolScope {
    ToolScope { org: request.caller.org, session: request.caller.session }
}

/// The mode of an action for these arguments: that of the automation, of the organization or of its risk, tightened if
/// its definition is not reviewed. Without arguments it is the mode of those that no rule matches.
pub fn mode_of(
    key: &ModeKey,
    modes: &ActionModes,
    risk: Risk,
    definition: Option<&Definition>,
    arguments: Option<&Value>,
) -> ModeDecision {
    let resolved = resolve_mode(key, modes.automation.as_ref(), &modes.org, risk, arguments);
    match definition {
        None => resolved,
        Some(definition) => tighten(resolved, definition),
    }
}

/// Requires approval for a definition that an admin must review and has not reviewed as it is now.
fn tighten(resolved: ModeDecision, definition: &Definition) -> ModeDecision {
    let current = definition.hash.to_string();
    match definition.review {
        Review::NotNeeded => resolved,
        Review::Missing => apply_drift(resolved, None, &current),
        Review::Pinned(reviewed) => apply_drift(resolved, Some(&reviewed.to_string()), &current),
    }
}

fn action(request: &CallRequest, tool: Option<&dyn Tool>) -> Action {
    Action::Tool {
        tool_name: request.target.tool.clone(),
        operation: request.target.operation.clone(),
        risk: tool.map_or(Risk::Danger, Tool::risk),
        registered: tool.is_some(),
        writes: tool.and_then(Tool::writes).cloned(),
    }
}

/// The request as it is executed, in the case that it was judged in.
pub(crate) fn with_case(request: &Arc<CallRequest>, case: Option<&String>) -> Arc<CallRequest> {
    if request.case.as_ref() == case {
        return request.clone();
    }
    Arc::new(CallRequest { case: case.cloned(), ..request.as_ref().clone() })
}

/// The scope fields of a request. A call below a run with a case has that case, whether it names it or not.
fn scope(request: &CallRequest, has_case: bool) -> BTreeSet<String> {
    let mut scope = request.scope.clone();
    if has_case {
        scope.insert("case_id".to_owned());
    }
    scope
}

/// The flags of what the call would do beyond its own case.
fn tool_flags(request: &CallRequest, case: Option<&str>, tool: Option<&dyn Tool>) -> BTreeSet<Flag> {
    let flags = tool.into_iter().flat_map(|tool| tool.flags().iter().map(|name| Flag::new(*name)));
    let mut flags: BTreeSet<Flag> = flags.collect();
    // The case of a sandbox is its session. Naming another case is a cross-case lookup.
    if request.caller.session.is_some_and(|own| case != Some(own.to_string().as_str())) {
        flags.insert(Flag::cross_case_lookup());
    }
    flags
}

/// Whether a request belongs to the case of the run above it. A child that names no case does.
fn is_of_case(request: &CallRequest, above: &Run) -> bool {
    request.case.is_none() || above.case_id == request.case
}
