//! Queries about sessions that do not wake them: the list, the status and the details.

mod snippet;

use std::time::Duration;

use axum::Json;
use proto::http::{
    ErrorBody, Liveness, OrgQuery, RunState, SessionInfo, SessionList, SessionQuery, SessionStatusReply,
};
use proto::{AutomationRef, OrgId, Session, SessionStatus};
use sandbox::SandboxState;
use store::{SessionCursor, SessionFilter, SessionRecord};
use tokio::time::timeout;

use super::auth::{Caller, SessionAccess};
use super::params::Query;
use super::{ApiError, contract};
use crate::app::AppState;
use snippet::snippet;

const DEFAULT_PAGE_SIZE: u32 = 50;
/// The timeout for listing the provider's sandboxes.
const LISTING_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns whether a session is running or has ended. A service may ask without naming the organization.
#[utoipa::path(get, path = "/proliferate/sessions/{id}/status", tag = "sessions",
    params(("id" = proto::SessionId, Path), OrgQuery),
    responses((status = 200, body = SessionStatusReply), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn status(
    app: AppState,
    access: SessionAccess,
    Query(query): Query<OrgQuery>,
) -> Result<Json<SessionStatusReply>, ApiError> {
    let session = access.session;
    let named = query.organization_id.filter(|_| matches!(access.caller, Caller::Service { .. }));
    if named.is_some_and(|named| named.parse() != Ok(session.org_id)) {
        return Err(ApiError::session_not_found());
    }
    let over = session.status == SessionStatus::Stopped || session.ended_at.is_some();
    let sandbox_alive = if over { None } else { liveness(&app, &session).await };
    Ok(Json(SessionStatusReply {
        state: if over { RunState::Terminated } else { RunState::Running },
        status: session.status,
        terminated_at: session.ended_at,
        reason: session.stop_reason.clone(),
        sandbox_id: session.sandbox_id.clone(),
        sandbox_alive,
    }))
}

/// Whether the sandbox of a session is alive. `None` if the session has no sandbox, or if this instance cannot find
/// out.
async fn liveness(app: &AppState, session: &SessionRecord) -> Option<Liveness> {
    let name = session.sandbox_id.as_deref()?;
    let provider = &app.runtime.sandboxes.provider;
    if !provider.capabilities().owns_processes || session.sandbox_provider != app.runtime.sandboxes.engine() {
        return None;
    }
    let Ok(Ok(all)) = timeout(LISTING_TIMEOUT, provider.list()).await else { return Some(Liveness::Unknown) };
    match all.into_iter().find(|listed| listed.id.as_str() == name).map(|listed| listed.state) {
        Some(SandboxState::Running | SandboxState::Paused) => Some(Liveness::Alive),
        Some(SandboxState::Dead | SandboxState::Incomplete) | None => Some(Liveness::Gone),
        Some(SandboxState::Unknown) => Some(Liveness::Unknown),
    }
}

/// Lists the sessions of the organization in pages.
#[utoipa::path(get, path = "/proliferate/sessions", tag = "sessions", params(SessionQuery),
    responses((status = 200, body = SessionList), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody)))]
pub(super) async fn list(
    app: AppState,
    caller: Caller,
    Query(query): Query<SessionQuery>,
) -> Result<Json<SessionList>, ApiError> {
    let org = org(&app, &caller, &query).await?;
    let after = match &query.after {
        Some(text) => {
            Some(text.parse::<SessionCursor>().map_err(|error| ApiError::bad_request(error.to_string()))?)
        }
        None => None,
    };
    let on = |switch: &Option<String>| switch.as_deref().is_some_and(|text| text == "1" || text == "true");
    let filter = SessionFilter {
        repo: query.repo_id,
        status: query.status,
        created_by: query.created_by,
        parent: query.parent_session_id,
        exclude_setup: on(&query.exclude_setup),
        exclude_cli: on(&query.exclude_cli),
        exclude_automation: on(&query.exclude_automation),
    };
    let limit = query.limit.unwrap_or(DEFAULT_PAGE_SIZE).clamp(1, DEFAULT_PAGE_SIZE);
    let found = app.store.sessions(org, filter, limit, after).await?;
    let full = found.len() == limit as usize;
    let next = found.last().filter(|_| full).map(|last| SessionCursor::after(last).to_string());
    Ok(Json(SessionList { sessions: found.into_iter().map(session_body).collect(), next }))
}

/// The organization whose sessions are listed. For a user it is always their own: old clients expect that the query
/// does not change it.
async fn org(app: &AppState, caller: &Caller, query: &SessionQuery) -> Result<OrgId, ApiError> {
    match caller {
        Caller::User(user) => Ok(user.org),
        _ => contract::identity_and_organization(app, caller, query.organization_id.as_deref())
            .await
            .map(|(_, org)| org),
    }
}

/// The answer to `GET /proliferate/{id}`.
pub(super) fn info(session: &SessionRecord) -> Json<SessionInfo> {
    Json(SessionInfo {
        session_id: session.id,
        sandbox_id: session.sandbox_id.clone(),
        status: session.status,
        preview_url: None,
        ssh_host: None,
        ssh_port: None,
        expires_at: session.sandbox_expires_at,
    })
}

fn session_body(record: SessionRecord) -> Session {
    let thread = record.client_metadata.as_ref().and_then(|metadata| {
        let text = |name: &str| metadata.get(name).and_then(serde_json::Value::as_str);
        Some(format!(
            "https://slack.com/archives/{}/p{}",
            text("channelId")?,
            text("threadTs")?.replace('.', "")
        ))
    });
    Session {
        id: record.id,
        repo_id: None,
        organization_id: record.org_id,
        created_by: record.created_by,
        session_type: record.session_type,
        status: record.status,
        sandbox_id: record.sandbox_id,
        snapshot_id: record.snapshot_id,
        configuration_id: record.configuration_id,
        configuration_name: record.configuration_name,
        branch_name: record.branch_name,
        parent_session_id: record.parent_session_id,
        title: record.title,
        title_status: None,
        model_id: record.agent_config.and_then(|config| config.model_id),
        started_at: record.started_at,
        last_activity_at: record.last_activity_at,
        ended_at: record.ended_at,
        paused_at: record.paused_at,
        pause_reason: record.pause_reason,
        prompt_snippet: record.initial_prompt.as_deref().and_then(snippet),
        initial_prompt: None,
        origin: record.origin,
        client_type: record.client_type,
        automation_id: record.automation_id,
        automation: record
            .automation_id
            .zip(record.automation_name)
            .map(|(id, name)| AutomationRef { id, name }),
        slack_thread_url: thread,
        repo: None,
        outcome: record.outcome,
        summary: record.summary,
        pr_urls: record.pr_urls,
        metrics: Some(record.metrics),
        latest_task: record.latest_task,
        stop_reason: record.stop_reason,
    }
}
