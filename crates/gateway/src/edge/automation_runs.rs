//! `/v1/automations/{id}/runs` and `/v1/automation-runs`: starts, lists, cancels, repeats, assigns and settles the runs of
//! automations.

use axum::Json;
use axum::http::StatusCode;
use proto::http::{
    AssignRun, AutomationRunDetail, AutomationRunEntry, AutomationRunList, AutomationRunQuery, Completion,
    ErrorBody, ResolveRun, RunEventEntry, StartAutomationRun,
};
use proto::{AutomationId, AutomationRunId, OrgId, WaitingFor};
use store::{Advanced, AutomationRun, AutomationRunEvent, AutomationRunFilter, RunStep};

use super::auth::User;
use super::automations::found as found_automation;
use super::params::{Path, Query};
use super::{ApiError, Body};
use crate::app::AppState;
use crate::automations::{FireError, MAX_PAYLOAD};

const DEFAULT_RUNS: u32 = 20;
const MAX_RUNS: u32 = 100;
const MAX_COMMENT: usize = 2000;

#[utoipa::path(get, path = "/v1/automations/{automationId}/runs", tag = "automations",
    params(("automationId" = AutomationId, Path), AutomationRunQuery),
    responses((status = 200, body = AutomationRunList), (status = 404, body = ErrorBody)))]
pub(super) async fn of_automation(
    app: AppState,
    user: User,
    Path(id): Path<AutomationId>,
    Query(query): Query<AutomationRunQuery>,
) -> Result<Json<AutomationRunList>, ApiError> {
    found_automation(&app, user.org, id).await?;
    list_runs(&app, user.org, Some(id), query).await
}

/// Starts a run by hand.
#[utoipa::path(post, path = "/v1/automations/{automationId}/runs", tag = "automations",
    params(("automationId" = AutomationId, Path)), request_body = StartAutomationRun,
    responses((status = 201, body = AutomationRunEntry), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)))]
pub(super) async fn start(
    app: AppState,
    user: User,
    Path(id): Path<AutomationId>,
    Body(request): Body<StartAutomationRun>,
) -> Result<(StatusCode, Json<AutomationRunEntry>), ApiError> {
    let automation = found_automation(&app, user.org, id).await?;
    let bytes = |context| serde_json::to_vec(context).map_or(0, |text| text.len());
    if request.context.as_ref().is_some_and(|context| bytes(context) > MAX_PAYLOAD) {
        return Err(ApiError::bad_request(format!("context is at most {} KiB", MAX_PAYLOAD / 1024)));
    }
    let run = app.automations.start_by_hand(&automation, user.id, request.context).await?;
    Ok((StatusCode::CREATED, Json(entry(find_run(&app, user.org, run).await?))))
}

#[utoipa::path(get, path = "/v1/automation-runs", tag = "automations", params(AutomationRunQuery),
    responses((status = 200, body = AutomationRunList)))]
pub(super) async fn list(
    app: AppState,
    user: User,
    Query(query): Query<AutomationRunQuery>,
) -> Result<Json<AutomationRunList>, ApiError> {
    list_runs(&app, user.org, None, query).await
}

#[utoipa::path(get, path = "/v1/automation-runs/{runId}", tag = "automations", params(("runId" = AutomationRunId, Path)),
    responses((status = 200, body = AutomationRunDetail), (status = 404, body = ErrorBody)))]
pub(super) async fn get(
    app: AppState,
    user: User,
    Path(id): Path<AutomationRunId>,
) -> Result<Json<AutomationRunDetail>, ApiError> {
    let run = find_run(&app, user.org, id).await?;
    let events = app.store.automation_run_events(user.org, id).await?;
    let events = events.into_iter().map(event_entry).collect();
    Ok(Json(AutomationRunDetail { run: entry(run), events }))
}

/// Cancels a run that has not ended, and ends its session.
#[utoipa::path(post, path = "/v1/automation-runs/{runId}/cancel", tag = "automations",
    params(("runId" = AutomationRunId, Path)),
    responses((status = 200, body = AutomationRunEntry), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn cancel(
    app: AppState,
    user: User,
    Path(id): Path<AutomationRunId>,
) -> Result<Json<AutomationRunEntry>, ApiError> {
    step(&app, &user, id, RunStep::Cancelled, None).await
}

/// Starts a run that has ended again, with the same event.
#[utoipa::path(post, path = "/v1/automation-runs/{runId}/rerun", tag = "automations",
    params(("runId" = AutomationRunId, Path)),
    responses((status = 201, body = AutomationRunEntry), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn rerun(
    app: AppState,
    user: User,
    Path(id): Path<AutomationRunId>,
) -> Result<(StatusCode, Json<AutomationRunEntry>), ApiError> {
    let run = find_run(&app, user.org, id).await?;
    let automation = found_automation(&app, user.org, run.automation_id).await?;
    let event = app.store.trigger_event(user.org, run.trigger_event_id).await?;
    let event = event.ok_or_else(|| ApiError::not_found("This run does not exist"))?;
    let again = app.automations.rerun(&automation, (&run, event), user.id).await?;
    Ok((StatusCode::CREATED, Json(entry(find_run(&app, user.org, again).await?))))
}

/// Assigns a run: to the caller, to another member, or with `null` to nobody.
#[utoipa::path(post, path = "/v1/automation-runs/{runId}/assign", tag = "automations",
    params(("runId" = AutomationRunId, Path)), request_body = AssignRun,
    responses((status = 200, body = AutomationRunEntry), (status = 404, body = ErrorBody)))]
pub(super) async fn assign(
    app: AppState,
    user: User,
    Path(id): Path<AutomationRunId>,
    Body(request): Body<AssignRun>,
) -> Result<Json<AutomationRunEntry>, ApiError> {
    let to = request.user_id.unwrap_or(Some(user.id));
    app.store.assign_run((user.org, id), to, actor(&user), app.clock.now()).await?;
    Ok(Json(entry(find_run(&app, user.org, id).await?)))
}

/// Settles a run that failed, timed out or needs a human.
#[utoipa::path(post, path = "/v1/automation-runs/{runId}/resolve", tag = "automations",
    params(("runId" = AutomationRunId, Path)), request_body = ResolveRun,
    responses((status = 200, body = AutomationRunEntry), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)))]
pub(super) async fn resolve(
    app: AppState,
    user: User,
    Path(id): Path<AutomationRunId>,
    Body(request): Body<ResolveRun>,
) -> Result<Json<AutomationRunEntry>, ApiError> {
    if request.comment.as_ref().is_some_and(|comment| comment.chars().count() > MAX_COMMENT) {
        return Err(ApiError::bad_request("comment has at most 2000 characters"));
    }
    step(&app, &user, id, RunStep::Resolved(request.outcome), request.comment).await
}

async fn list_runs(
    app: &AppState,
    org: OrgId,
    automation: Option<AutomationId>,
    query: AutomationRunQuery,
) -> Result<Json<AutomationRunList>, ApiError> {
    let limit = query.limit.unwrap_or(DEFAULT_RUNS).clamp(1, MAX_RUNS);
    let filter = AutomationRunFilter { automation, status: query.status, limit };
    let runs = app.store.automation_runs(org, filter).await?;
    Ok(Json(AutomationRunList { runs: runs.into_iter().map(entry).collect() }))
}

async fn find_run(app: &AppState, org: OrgId, id: AutomationRunId) -> Result<AutomationRun, ApiError> {
    let run = app.store.automation_run(org, id).await?;
    run.ok_or_else(|| ApiError::not_found("This run does not exist"))
}

/// Takes a step of a run in the name of a person.
async fn step(
    app: &AppState,
    user: &User,
    id: AutomationRunId,
    step: RunStep,
    reason: Option<String>,
) -> Result<Json<AutomationRunEntry>, ApiError> {
    match app.automations.advance((user.org, id), step, reason, actor(user)).await? {
        Advanced::To(_) => Ok(Json(entry(find_run(app, user.org, id).await?))),
        Advanced::Refused(status) => {
            Err(ApiError::conflict(format!("This run is {status}, so this cannot be done with it")))
        }
    }
}

fn actor(user: &User) -> String {
    format!("user {}", user.id)
}

fn entry(run: AutomationRun) -> AutomationRunEntry {
    AutomationRunEntry {
        id: run.id,
        automation_id: run.automation_id,
        automation_name: run.automation_name,
        status: run.status,
        status_reason: run.status_reason,
        waiting_for: run.waiting_since.map(|_| WaitingFor::Question),
        trigger: run.trigger,
        trigger_event_id: run.trigger_event_id,
        rerun_of: run.rerun_of,
        session_id: run.session_id,
        completion: run.completion.and_then(|json| serde_json::from_value::<Completion>(json).ok()),
        assigned_to: run.assigned_to,
        assigned_at: run.assigned_at,
        queued_at: run.queued_at,
        started_at: run.started_at,
        completed_at: run.completed_at,
        deadline_at: run.deadline_at,
    }
}

fn event_entry(event: AutomationRunEvent) -> RunEventEntry {
    let AutomationRunEvent { kind, from, to, actor, detail, at } = event;
    RunEventEntry { kind, from, to, actor, detail, at }
}

impl From<FireError> for ApiError {
    fn from(error: FireError) -> Self {
        match error {
            FireError::Full => {
                Self::too_many("This automation has too many runs that have not ended: wait, or cancel some")
            }
            FireError::OverShare(over) => over.into(),
            FireError::Store(error) => error.into(),
        }
    }
}
