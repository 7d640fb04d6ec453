//! `POST /proliferate/sessions`: creates a session.

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use proto::http::{ConfigurationChoice, CreateSession, CreatedSandbox, CreatedSession, ErrorBody};
use proto::{OrgId, text};

use super::auth::Caller;
use super::params::idempotency_key;
use super::{ApiError, Body, workspaces};
use crate::app::AppState;
use crate::sessions::{self, ConfigurationSource, RequestContext, SessionDraft, Title};
use crate::sources::is_platform_tool;

/// The most characters of a CLI configuration's display name.
const MAX_NAME: usize = 100;
/// The most characters of the hash of a local path.
const MAX_HASH: usize = 200;

/// Creates a session. Its sandbox starts when somebody uses the session, or at once with `sandboxMode: immediate`.
#[utoipa::path(post, path = "/proliferate/sessions", tag = "sessions", request_body = CreateSession,
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255)),
    responses((status = 201, body = CreatedSession), (status = 400, body = ErrorBody), (status = 402, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(super) async fn create(
    app: AppState,
    caller: Caller,
    headers: HeaderMap,
    Body(request): Body<CreateSession>,
) -> Result<(StatusCode, Json<CreatedSession>), ApiError> {
    let context = RequestContext {
        org: organization(&app, &caller, &request).await?,
        requester: caller.requester()?,
        idempotency_key: idempotency_key(&headers)?,
    };
    let created = sessions::create(&app.sessions, context, draft(request)?).await?;
    let sandbox = created.sandbox_id.map(|sandbox_id| CreatedSandbox {
        sandbox_id,
        preview_url: None,
        ssh_host: None,
        ssh_port: None,
    });
    let body = CreatedSession {
        session_id: created.id,
        configuration_id: created.configuration_id,
        status: created.status,
        gateway_url: app.site.url.as_str().trim_end_matches('/').to_owned(),
        has_snapshot: created.has_snapshot,
        is_new_configuration: created.is_new_configuration,
        sandbox,
    };
    Ok((StatusCode::CREATED, Json(body)))
}

/// The organization of the new session.
async fn organization(app: &AppState, caller: &Caller, request: &CreateSession) -> Result<OrgId, ApiError> {
    match caller {
        Caller::User(user) => Ok(user.org),
        Caller::Sandbox(session) => Ok(session.org_id),
        Caller::Service { org: Some(org), .. } => Ok(*org),
        Caller::Service { org: None, .. } => {
            let named = request.organization_id.as_deref().ok_or_else(ApiError::organization_required)?;
            let org = named.parse().ok();
            let known = app.store.orgs().await?.into_iter().find(|known| Some(known.id) == org);
            Ok(known.ok_or_else(|| ApiError::not_found("This organization does not exist"))?.id)
        }
    }
}

/// Parses the content of a request.
fn draft(request: CreateSession) -> Result<SessionDraft, ApiError> {
    if request.ssh().map_err(|error| ApiError::bad_request(error.to_string()))?.is_some() {
        return Err(ApiError::bad_request("sshOptions: not supported by this provider"));
    }
    if request.trigger_id.is_some() || request.trigger_event_id.is_some() {
        return Err(ApiError::bad_request("triggerId, triggerEventId: not supported yet"));
    }
    let tools = request.agent_config.iter().filter_map(|config| config.tools.as_ref()).flatten();
    if let Some(unknown) = tools.into_iter().find(|name| !is_platform_tool(name)) {
        let shown: String = unknown.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect();
        return Err(ApiError::bad_request(format!("agentConfig.tools: there is no tool `{shown}`")));
    }
    let configuration = configuration(&request)?;
    let title = request.title.as_deref().map(Title::parse).transpose()?;
    let sandbox_mode = request.effective_sandbox_mode();
    Ok(SessionDraft {
        client_metadata: request.client_metadata,
        snapshot_id: request.snapshot_id,
        sandbox_mode,
        title,
        initial_prompt: request.initial_prompt,
        agent_config: request.agent_config,
        system_prompt: workspaces::system_prompt(request.system_prompt)?,
        automation_id: request.automation_id,
        trigger_context: request.trigger_context,
        integrations: request.integration_ids,
        ..SessionDraft::new(request.session_type, request.client_type, configuration)
    })
}

fn configuration(request: &CreateSession) -> Result<ConfigurationSource, ApiError> {
    let choice = request.configuration_choice().map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(match choice {
        ConfigurationChoice::Scratch => ConfigurationSource::Scratch,
        ConfigurationChoice::Existing(id) => {
            let unknown = |_| ApiError::not_found("This configuration does not exist");
            ConfigurationSource::Existing(id.parse().map_err(unknown)?)
        }
        ConfigurationChoice::Managed(managed) => ConfigurationSource::Managed(managed.repo_ids.clone()),
        ConfigurationChoice::Cli(cli) => {
            let named = cli.display_name.as_deref().is_none_or(|name| text::is_line(name, MAX_NAME));
            if !named || !text::is_line(&cli.local_path_hash, MAX_HASH) {
                return Err(ApiError::bad_request(format!(
                    "displayName is one line of 1 to {MAX_NAME} characters, localPathHash one of 1 to {MAX_HASH}"
                )));
            }
            ConfigurationSource::Cli {
                local_path_hash: cli.local_path_hash.clone(),
                display_name: cli.display_name.clone(),
            }
        }
    })
}
