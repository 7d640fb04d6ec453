//! `/proliferate/{id}/services`: the services of a session's app, for people and for the command line in its sandbox.
//! Whatever changes something passes the gate.

use axum::Json;
use gate::{CallOutcome, CallRequest, RunRequest};
use proto::http::{
    ErrorBody, ExposePort, OkReply, ServiceEntry, ServiceList, ServiceLog, StartService, TestServices,
    TestServicesReply,
};
use proto::{ErrorCode, JsonObject, SessionId, text};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::auth::{Caller, SessionAccess};
use super::params::Path;
use super::{ApiError, Body};
use crate::app::AppState;
use crate::runtime::{auto_start, env_files, services};
use crate::sessions::{running_sandbox, running_supervisor};
use crate::sources::ServiceAct;

const SERVICES_LANE: &str = "services";
const MAX_NAME: usize = 100;
const MAX_COMMAND: usize = 1000;

#[utoipa::path(get, path = "/proliferate/{id}/services", tag = "services", params(("id" = SessionId, Path)),
    responses((status = 200, body = ServiceList), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn list(app: AppState, access: SessionAccess) -> Result<Json<ServiceList>, ApiError> {
    let session = &access.session;
    let inside = running_supervisor(&app.sessions, session).await?;
    let services = services::list(&inside).await.map_err(|error| unreachable(&error))?;
    let exposed_port = app.store.exposed_port(session.org_id, session.id).await?;
    Ok(Json(ServiceList { services, exposed_port }))
}

/// Starts a service, or replaces the one of the same name.
#[utoipa::path(post, path = "/proliferate/{id}/services", tag = "services", params(("id" = SessionId, Path)),
    request_body = StartService,
    responses((status = 200, body = ServiceEntry), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn start(
    app: AppState,
    access: SessionAccess,
    Body(request): Body<StartService>,
) -> Result<Json<ServiceEntry>, ApiError> {
    if !text::is_line(&request.name, MAX_NAME) {
        return Err(ApiError::bad_request("name is one line of 1 to 100 characters"));
    }
    let command = &request.command;
    if command.trim().is_empty() || command.chars().count() > MAX_COMMAND || command.contains('\0') {
        return Err(ApiError::bad_request("command has 1 to 1000 characters and no NUL"));
    }
    let directory = request.cwd.as_deref().filter(|path| !matches!(*path, "" | "."));
    if directory.is_some_and(|path| env_files::workspace_file(path).is_none()) {
        return Err(ApiError::bad_request(
            "cwd must be a path inside the workspace, of at most 500 characters",
        ));
    }
    entry(perform(&app, &access, ServiceAct::Start, json!(request)).await?)
}

/// Stops a service. Its output stays readable. Stopping an unknown one is not an error.
#[utoipa::path(delete, path = "/proliferate/{id}/services/{name}", tag = "services",
    params(("id" = SessionId, Path), ("name" = String, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn stop(
    app: AppState,
    access: SessionAccess,
    Path((_, name)): Path<(String, String)>,
) -> Result<Json<OkReply>, ApiError> {
    perform(&app, &access, ServiceAct::Stop, json!({ "name": name })).await?;
    Ok(Json(OkReply::OK))
}

#[utoipa::path(post, path = "/proliferate/{id}/services/{name}/restart", tag = "services",
    params(("id" = SessionId, Path), ("name" = String, Path)),
    responses((status = 200, body = ServiceEntry), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn restart(
    app: AppState,
    access: SessionAccess,
    Path((_, name)): Path<(String, String)>,
) -> Result<Json<ServiceEntry>, ApiError> {
    entry(perform(&app, &access, ServiceAct::Restart, json!({ "name": name })).await?)
}

/// Returns the newest output of a service.
#[utoipa::path(get, path = "/proliferate/{id}/services/{name}/logs", tag = "services",
    params(("id" = SessionId, Path), ("name" = String, Path)),
    responses((status = 200, body = ServiceLog), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn logs(
    app: AppState,
    access: SessionAccess,
    Path((_, name)): Path<(String, String)>,
) -> Result<Json<ServiceLog>, ApiError> {
    let inside = running_supervisor(&app.sessions, &access.session).await?;
    let log = services::log(&inside, &name).await.map_err(|error| unreachable(&error))?;
    Ok(Json(log))
}

/// Runs service commands for ten seconds each and reports their output. Exit code 124 means that a command was still
/// running, as a service should.
#[utoipa::path(post, path = "/proliferate/{id}/test-services", tag = "services", params(("id" = SessionId, Path)),
    request_body = TestServices,
    responses((status = 200, body = TestServicesReply), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn test(
    app: AppState,
    access: SessionAccess,
    Body(request): Body<TestServices>,
) -> Result<Json<TestServicesReply>, ApiError> {
    auto_start::check(&request.commands).map_err(ApiError::bad_request)?;
    let commands = auto_start::commands(&app.runtime, &access.session, request.commands).await;
    let commands = commands.map_err(|error| ApiError::conflict(error.to_string()))?;
    let data = perform(&app, &access, ServiceAct::Test, json!({ "commands": commands })).await?;
    TestServicesReply::deserialize(Value::Object(data)).map(Json).map_err(|_| unexpected_answer_error())
}

/// Stores which port the session's app listens on, for people to see in the list of services. There is no preview: the
/// port cannot be opened from outside of the sandbox.
#[utoipa::path(post, path = "/proliferate/{id}/expose", tag = "services", params(("id" = SessionId, Path)),
    request_body = ExposePort,
    responses((status = 200, body = OkReply), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn expose(
    app: AppState,
    access: SessionAccess,
    Body(request): Body<ExposePort>,
) -> Result<Json<OkReply>, ApiError> {
    if request.port == 0 {
        return Err(ApiError::bad_request("port must be 1 to 65535"));
    }
    app.store.expose_port(access.session.org_id, access.session.id, request.port).await?;
    Ok(Json(OkReply::OK))
}

fn entry(mut data: JsonObject) -> Result<Json<ServiceEntry>, ApiError> {
    let entry = data.remove("service").unwrap_or_default();
    ServiceEntry::deserialize(entry).map(Json).map_err(|_| unexpected_answer_error())
}

fn unexpected_answer_error() -> ApiError {
    ApiError::unavailable("The sandbox", "a supervisor's answer could not be read")
}

fn unreachable(error: &sandboxd::ClientError) -> ApiError {
    match error {
        sandboxd::ClientError::Refused(refusal) => ApiError::not_found(&refusal.message),
        _ => ApiError::conflict(format!("The sandbox cannot be reached: {error}")),
    }
}

/// Calls a service tool for the session, as this caller.
async fn perform(
    app: &AppState,
    access: &SessionAccess,
    act: ServiceAct,
    parameters: Value,
) -> Result<JsonObject, ApiError> {
    // A session that does not run is not worth a run in the ledger.
    running_sandbox(&app.sessions, access.session.id).await?;
    let result = app.gate.call(request(app, access, act, parameters).await?).await;
    match result.outcome {
        CallOutcome::Success => Ok(result.output.and_then(|output| output.data).unwrap_or_default()),
        CallOutcome::OverShare { retry_after, .. } => {
            Err(ApiError::over_limit(ErrorCode::RateLimited, result.text(), retry_after))
        }
        CallOutcome::Unavailable | CallOutcome::Conflict => {
            Err(ApiError::unavailable("The gate", "a service tool could not be called"))
        }
        CallOutcome::Failed(_) | CallOutcome::Waiting(_) => Err(ApiError::conflict(result.text().to_owned())),
    }
}

/// The call of a service tool. A sandbox's own command line calls as its agent.
async fn request(
    app: &AppState,
    access: &SessionAccess,
    act: ServiceAct,
    parameters: Value,
) -> Result<CallRequest, ApiError> {
    let session = &access.session;
    let run = RunRequest::new_call(app.rng.uuid(app.clock.now()), None);
    let (caller, parent) = match &access.caller {
        Caller::User(user) => (app.gate.member_caller(session.org_id, session.id, user.id).await?, None),
        Caller::Sandbox(_) | Caller::Service { .. } => {
            let (role, _) = gate::agent_role(session.mode());
            let (actor, role) = (gate::agent(session.id), role.to_owned());
            let agent = gate::Caller { org: session.org_id, session: Some(session.id), actor, role };
            (agent, app.gate.turn_of(session.id))
        }
    };
    let run = RunRequest { parent, ..run };
    Ok(CallRequest::of_session(caller, session.id, (SERVICES_LANE, act.tool()), parameters, run))
}
