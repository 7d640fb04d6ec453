//! Runs, audit events and artifacts of the Tool Gateway Contract, and the identity under which a caller uses it.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use chrono::{DateTime, Datelike as _, SecondsFormat, Utc};
use gate::{ArtifactReading, Attempt, NewRunRequest, OPERATOR, ORG_ADMIN, RunRefusal, SERVICE, TURN_RUN};
use policy::{ActorClass, Claim};
use proto::http::{
    ArtifactQuery, AuditEvents, AuditQuery, ErrorBody, FinishRun, PolicyVersionsBody, RunList, RunQuery,
    RunRecord, StartRun,
};
use proto::{InvocationStatus, OrgId, Role, RunKind, RunStatus, SessionId, WorkflowState};
use serde_json::{Value, json};
use store::{Artifact, EventFilter, ListedEvent, Run, RunFilter};

use super::auth::Caller;
use super::params::{Path, Query};
use super::{ApiError, Body};
use crate::access::Act;
use crate::app::AppState;

const DEFAULT_RUNS: u32 = 50;
const MOST_RUNS: u32 = 200;
const DEFAULT_EVENTS: u32 = 100;
const MOST_EVENTS: u32 = 1000;

/// A caller as policy judges it and the ledger records it.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) actor: Claim,
    pub(super) role: &'static str,
    /// `None`: a service that is bound to no organization.
    pub(super) org: Option<OrgId>,
    /// The session of a sandbox.
    pub(super) session: Option<SessionId>,
}

impl Identity {
    /// The only case that a sandbox may use: its session. `None` for other callers.
    fn case(&self) -> Option<String> {
        self.session.map(|session| session.to_string())
    }
}

impl Identity {
    /// An attempt to call a tool, as far as it is known before the request is parsed.
    pub(super) fn attempt(&self) -> Attempt {
        Attempt {
            org: self.org,
            session: self.session,
            actor: self.actor.clone(),
            role: self.role,
            lane: None,
            tool: None,
            operation: None,
            run_id: None,
            case: self.case(),
            correlation: None,
            request_hash: None,
        }
    }

    pub(super) fn caller(self, org: OrgId) -> gate::Caller {
        gate::Caller { org, session: self.session, actor: self.actor, role: self.role.to_owned() }
    }
}

pub(super) fn identity(caller: &Caller) -> Identity {
    let claim = |actor_type, actor_id| Claim { actor_type, actor_id };
    match caller {
        Caller::User(user) => Identity {
            actor: claim(ActorClass::Human, user.id.to_string()),
            role: if user.role >= Role::Admin { ORG_ADMIN } else { OPERATOR },
            org: Some(user.org),
            session: None,
        },
        Caller::Service { name, org } => Identity {
            actor: claim(ActorClass::System, name.clone()),
            role: SERVICE,
            org: *org,
            session: None,
        },
        Caller::Sandbox(session) => {
            let (role, _) = gate::agent_role(session.mode());
            Identity {
                actor: gate::agent(session.id),
                role,
                org: Some(session.org_id),
                session: Some(session.id),
            }
        }
    }
}

/// The organization that a request is about: the caller's own, or for a service that is bound to none, the one that it
/// names. `None` if the request names none, an unknown one, or another one than the caller's.
pub(super) async fn organization(
    app: &AppState,
    identity: &Identity,
    named: Option<&str>,
) -> Result<Option<OrgId>, ApiError> {
    if let Some(org) = identity.org {
        // A caller that names another organization gets no access to it, and does not learn whether it exists.
        return Ok(named.is_none_or(|named| named.parse() == Ok(org)).then_some(org));
    }
    let Some(named) = named.and_then(|named| named.parse::<OrgId>().ok()) else { return Ok(None) };
    Ok(app.store.orgs().await?.into_iter().map(|org| org.id).find(|org| *org == named))
}

pub(super) async fn identity_and_organization(
    app: &AppState,
    caller: &Caller,
    named: Option<&str>,
) -> Result<(Identity, OrgId), ApiError> {
    let identity = identity(caller);
    let unknown = || match named {
        None => ApiError::organization_required(),
        Some(_) => ApiError::not_found("This organization does not exist"),
    };
    let org = organization(app, &identity, named).await?.ok_or_else(unknown)?;
    Ok((identity, org))
}

/// Starts a run that tool calls can name as their parent. It is active at once.
#[utoipa::path(post, path = "/v1/runs", tag = "contract", request_body = StartRun,
    responses((status = 201, body = RunRecord), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn start_run(
    app: AppState,
    caller: Caller,
    Body(request): Body<StartRun>,
) -> Result<(StatusCode, Json<RunRecord>), ApiError> {
    let (identity, org) =
        identity_and_organization(&app, &caller, request.organization_id.as_deref()).await?;
    let long = |text: &Option<String>, least: usize, most: usize| {
        text.as_deref().is_some_and(|text| !(least..=most).contains(&text.chars().count()) || !is_name(text))
    };
    if long(&request.case_id, 4, 120)
        || long(&request.run_name, 0, 200)
        || long(&request.parent_run_id, 8, 120)
    {
        return Err(ApiError::bad_request(
            "case_id has 4 to 120, run_name up to 200, parent_run_id 8 to 120 characters",
        ));
    }
    caller.must(act_of(request.run_kind), true)?;
    let case = match (identity.session, request.case_id) {
        (Some(session), Some(case)) if case != session.to_string() => {
            return Err(ApiError::forbidden("A sandbox starts runs of its own session only"));
        }
        (Some(session), _) => Some(session.to_string()),
        (None, case) => case,
    };
    app.gate.take_run(org, identity.session, &identity.actor)?;
    let new = NewRunRequest {
        org,
        run_id: format!("run_{}", app.rng.uuid(app.clock.now()).simple()),
        kind: request.run_kind,
        actor: identity.actor,
        role: identity.role,
        case,
        session: identity.session,
        name: request.run_name,
        parent: request.parent_run_id,
        prompted_by: None,
    };
    let run = app.gate.start_run(new).await.map_err(run_error)?;
    Ok((StatusCode::CREATED, Json(run_record(&app, run).await?)))
}

/// The act that a caller must be allowed to do in order to start a run of this kind.
fn act_of(kind: RunKind) -> Act {
    match kind {
        RunKind::Agent | RunKind::Orchestrator => Act::StartAgentRun,
        RunKind::ToolGateway | RunKind::WriteBroker | RunKind::DbRead | RunKind::DbWrite => Act::StartToolRun,
        RunKind::Override
        | RunKind::Export
        | RunKind::PolicyChange
        | RunKind::Promotion
        | RunKind::System => Act::StartGateRun,
    }
}

/// Ends a run. A run that has already ended stays unchanged, and the answer is 409.
#[utoipa::path(post, path = "/v1/runs/{runId}/finish", tag = "contract", request_body = FinishRun,
    params(("runId" = String, Path)),
    responses((status = 200, body = RunRecord), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)))]
pub(super) async fn finish_run(
    app: AppState,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<ArtifactQuery>,
    Body(request): Body<FinishRun>,
) -> Result<Json<RunRecord>, ApiError> {
    let (identity, org) = identity_and_organization(&app, &caller, query.organization_id.as_deref()).await?;
    let found = visible_run(&app, &identity, org, &id).await?;
    // The gateway itself starts and ends the run of a turn, in the agent's name, so the agent does not own that run.
    let owns = found.actor == json!(identity.actor) && !found.run_id.starts_with(TURN_RUN);
    caller.must(Act::FinishRun, owns)?;
    let outcome = request.outcome.unwrap_or_else(|| request.status.as_str().to_owned());
    if !is_name(&outcome) {
        return Err(ApiError::bad_request(
            "outcome has at most 200 characters, none of them a control character",
        ));
    }
    app.gate.finish_run(&found, &identity.actor, request.status, &outcome).await.map_err(run_error)?;
    Ok(Json(run_record(&app, visible_run(&app, &identity, org, &id).await?).await?))
}

#[utoipa::path(get, path = "/v1/runs/{runId}", tag = "contract", params(("runId" = String, Path), ArtifactQuery),
    responses((status = 200, body = RunRecord), (status = 404, body = ErrorBody)))]
pub(super) async fn run(
    app: AppState,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<ArtifactQuery>,
) -> Result<Json<RunRecord>, ApiError> {
    let (identity, org) = identity_and_organization(&app, &caller, query.organization_id.as_deref()).await?;
    Ok(Json(run_record(&app, visible_run(&app, &identity, org, &id).await?).await?))
}

/// Finds a run of the organization. A sandbox sees only the runs of its own session.
async fn visible_run(app: &AppState, identity: &Identity, org: OrgId, id: &str) -> Result<Run, ApiError> {
    let found = if is_name(id) { app.store.run(org, id).await? } else { None };
    let own = |run: &Run| identity.session.is_none() || run.session_id == identity.session;
    found.filter(own).ok_or_else(|| ApiError::not_found("This run does not exist"))
}

/// Lists runs of the organization, newest first.
#[utoipa::path(get, path = "/v1/runs", tag = "contract", params(RunQuery),
    responses((status = 200, body = RunList), (status = 400, body = ErrorBody)))]
pub(super) async fn runs(
    app: AppState,
    caller: Caller,
    Query(query): Query<RunQuery>,
) -> Result<Json<RunList>, ApiError> {
    check_names([&query.case_id, &query.parent_run_id, &query.before])?;
    let (identity, org) = identity_and_organization(&app, &caller, query.organization_id.as_deref()).await?;
    let limit = query.limit.unwrap_or(DEFAULT_RUNS).clamp(1, MOST_RUNS);
    let before = match query.before.as_deref().map(cursor) {
        Some(None) => return Err(ApiError::bad_request("before is not a cursor of this list")),
        before => before.flatten(),
    };
    let filter = RunFilter {
        case_id: identity.case().or(query.case_id),
        parent_run_id: query.parent_run_id,
        status: query.status,
        kind: query.run_kind,
        before,
        limit: i64::from(limit) + 1,
    };
    let mut found = app.store.runs(org, &filter).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next = found.last().filter(|_| more);
    let next = next.map(|run| format!("{}_{}", run.created_at.timestamp_micros(), run.run_id));
    let mut runs = Vec::with_capacity(found.len());
    for run in found {
        runs.push(run_record(&app, run).await?);
    }
    Ok(Json(RunList { runs, next }))
}

fn cursor(text: &str) -> Option<(DateTime<Utc>, String)> {
    let (micros, id) = text.split_once('_')?;
    // No run is older than 1970, and PostgreSQL cannot represent times long before that.
    let micros: i64 = micros.parse().ok().filter(|micros| *micros >= 0)?;
    let at = DateTime::from_timestamp_micros(micros).filter(|at| at.year() < 10_000)?;
    Some((at, id.to_owned()))
}

/// Lists events of the organization's ledger, oldest first.
#[utoipa::path(get, path = "/v1/audit/events", tag = "contract", params(AuditQuery),
    responses((status = 200, body = AuditEvents), (status = 400, body = ErrorBody)))]
pub(super) async fn audit_events(
    app: AppState,
    caller: Caller,
    Query(query): Query<AuditQuery>,
) -> Result<Json<AuditEvents>, ApiError> {
    check_names([&query.case_id, &query.run_id])?;
    let (_, org) = identity_and_organization(&app, &caller, query.organization_id.as_deref()).await?;
    let limit = query.limit.unwrap_or(DEFAULT_EVENTS).clamp(1, MOST_EVENTS);
    let filter = EventFilter {
        run_id: query.run_id,
        case_id: query.case_id,
        after: query.after.unwrap_or(-1),
        limit: i64::from(limit) + 1,
    };
    let mut found = app.store.ledger_events(org, &filter).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next = found.last().filter(|_| more).map(|event| event.sequence);
    Ok(Json(AuditEvents { events: found.iter().map(event_json).collect(), next }))
}

fn event_json(event: &ListedEvent) -> Value {
    let mut told: Value = serde_json::from_str(&event.record).unwrap_or_default();
    told["sequence"] = json!(event.sequence);
    told
}

/// Returns the metadata of an artifact. If the artifact belongs to a case, the caller must name that case.
#[utoipa::path(get, path = "/v1/artifacts/{artifactId}", tag = "contract",
    params(("artifactId" = String, Path), ArtifactQuery),
    responses((status = 200, body = Object), (status = 404, body = ErrorBody)))]
pub(super) async fn artifact(
    app: AppState,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<ArtifactQuery>,
) -> Result<Json<Value>, ApiError> {
    let (identity, org) = identity_and_organization(&app, &caller, query.organization_id.as_deref()).await?;
    let found = visible_artifact(&app, &identity, org, &id, query.case_id.as_deref()).await?;
    Ok(Json(json!(gate::reference(&found))))
}

/// Returns the content of an artifact. Every read is recorded in the ledger before the content is sent.
#[utoipa::path(get, path = "/v1/artifacts/{artifactId}/content", tag = "contract",
    params(("artifactId" = String, Path), ArtifactQuery),
    responses((status = 200, description = "The bytes"), (status = 404, body = ErrorBody)))]
pub(super) async fn artifact_content(
    app: AppState,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<ArtifactQuery>,
) -> Result<Response, ApiError> {
    let (identity, org) = identity_and_organization(&app, &caller, query.organization_id.as_deref()).await?;
    check_names([&query.case_id])?;
    let case = identity.case().or(query.case_id);
    let found = visible_artifact(&app, &identity, org, &id, case.as_deref()).await;
    let reading = ArtifactReading {
        caller: identity.caller(org),
        artifact_id: &id,
        case: case.as_deref(),
        found: found.as_ref().ok(),
    };
    app.gate.record_reading(&reading).await?;
    let found = found?;
    let content = app.store.artifact_content(org, &id).await?;
    let content = content.ok_or_else(|| ApiError::not_found("This artifact does not exist"))?;
    if !gate::is_content_of(&found, &content) {
        return Err(ApiError::changed_artifact(&id));
    }
    // The content is untrusted, so a browser must not render it as a page of ours.
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    Ok((headers, content).into_response())
}

/// Finds an artifact that the caller may see. An artifact of another case gives the same answer as one that does not
/// exist.
async fn visible_artifact(
    app: &AppState,
    identity: &Identity,
    org: OrgId,
    id: &str,
    case: Option<&str>,
) -> Result<Artifact, ApiError> {
    let own = identity.case();
    let case = own.as_deref().or(case);
    let found = if is_name(id) { app.store.artifact(org, id).await? } else { None };
    let found = found
        .filter(|found| found.case_id.is_none() || found.case_id.as_deref() == case)
        .ok_or_else(|| ApiError::not_found("This artifact does not exist"))?;
    if gate::is_named_right(org, &found) { Ok(found) } else { Err(ApiError::changed_artifact(id)) }
}

/// Whether a text can be a name or an id: at most 200 characters, none of them a control character. The database is not
/// asked for any other text.
pub(super) fn is_name(text: &str) -> bool {
    text.chars().count() <= 200 && !text.chars().any(char::is_control)
}

/// Refuses a query with a name that cannot exist; see [`is_name`].
fn check_names<const N: usize>(names: [&Option<String>; N]) -> Result<(), ApiError> {
    if names.into_iter().flatten().all(|name| is_name(name)) {
        Ok(())
    } else {
        Err(ApiError::bad_request("The query is not of the expected shape"))
    }
}

fn run_error(refusal: RunRefusal) -> ApiError {
    match refusal {
        RunRefusal::Store(error) => error.into(),
        other => ApiError::conflict(other.to_string()),
    }
}

/// What a run waits for. Few runs have not started, because few requests of each session may wait.
async fn workflow_state(app: &AppState, run: &Run) -> Result<Option<WorkflowState>, ApiError> {
    if run.status != RunStatus::Created {
        return Ok(None);
    }
    let found = app.store.invocation_of_run(run.org_id, &run.run_id).await?;
    Ok(found.and_then(|found| match found.status(app.clock.now()) {
        InvocationStatus::Pending => Some(WorkflowState::WaitingForApproval),
        InvocationStatus::Approved => Some(WorkflowState::Approved),
        _ => None,
    }))
}

async fn run_record(app: &AppState, run: Run) -> Result<RunRecord, ApiError> {
    let workflow_state = workflow_state(app, &run).await?;
    let time = |at: DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::Millis, true);
    let duration = run.completed_at.zip(run.started_at).map(|(end, start)| (end - start).num_milliseconds());
    let mut actor = run.actor;
    actor["role_id"] = json!(run.role_id);
    actor["lane_id"] = json!(run.lane_id);
    Ok(RunRecord {
        run_id: run.run_id,
        run_kind: run.kind,
        contract_version: "v1".to_owned(),
        policy_versions: PolicyVersionsBody { lanes: run.lanes_version, roles: run.roles_version },
        status: run.status,
        created_at_utc: run.created_at,
        parent_run_id: run.parent_run_id,
        root_run_id: Some(run.root_run_id),
        run_name: run.run_name,
        case_id: run.case_id,
        client_session_id: run.session_id.map(|id| id.to_string()),
        correlation_id: run.correlation_id,
        workflow_state,
        actor,
        tool_versions: json!({"tool": run.tool, "operation": run.operation}),
        started_at_utc: run.started_at.map(time),
        completed_at_utc: run.completed_at.map(time),
        duration_ms: duration,
        outcome: run.outcome,
        error: run.error,
        inputs: run.inputs,
        outputs: run.outputs,
        retry_count: run.retry_count,
        retry_reason: run.retry_reason,
    })
}
