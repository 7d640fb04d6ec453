//! `POST /proliferate/sessions`: creates a session, after checking its owner, its configuration and the organization's
//! limits.

mod setup;

use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use policy::{ActorClass, Claim};
use proto::http::{ConfigurationChoice, CreateSession, CreatedSandbox, CreatedSession, ErrorBody};
use proto::socket::WireStatus;
use proto::{
    BillingCode, ClientType, ConfigurationKind, ConfigurationStatus, OrgId, Origin, SandboxMode, SessionId,
    SessionStatus, SessionType, UserId, text,
};
use store::{
    Configuration, FoundConfiguration, NewSession, Starts, Store, StoreError, WantedCli, WantedManaged,
};

use super::auth::Caller;
use super::idempotent::Keyed;
use super::{ApiError, Body, idempotent, steer};
use crate::access::Act;
use crate::app::AppState;
use crate::hub::{Hub, HubError};
use crate::llm::org_budget_spent;
use gate::{AdminChange, Subject};

const ROUTE: &str = "POST /proliferate/sessions";
/// The most bytes of the initial prompt.
const MAX_PROMPT: usize = 512 * 1024;
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
) -> Result<Response, ApiError> {
    let (org, user) = whose(&app, &caller, &request).await?;
    check(&request)?;
    let body = request.clone();
    let title = request.title.as_deref().map(steer::title).transpose()?;
    let request = CreateSession { title, ..request };
    let ours = app.clone();
    let keyed = Keyed { org, caller: caller.identity(), route: ROUTE };
    let work = Box::pin(async move { make(&ours, &caller, (org, user), request).await });
    idempotent::once(&app, keyed, &headers, &body, StatusCode::CREATED, work).await
}

/// The organization of the new session, and the member who creates it; `None` if a service does.
async fn whose(
    app: &AppState,
    caller: &Caller,
    request: &CreateSession,
) -> Result<(OrgId, Option<UserId>), ApiError> {
    match caller {
        Caller::User(user) => Ok((user.org, Some(user.id))),
        Caller::Sandbox(_) => Err(ApiError::forbidden("Sandboxes may not do this")),
        Caller::Service { org: Some(org), .. } => Ok((*org, None)),
        Caller::Service { org: None, .. } => {
            let named = request.organization_id.as_deref().ok_or_else(ApiError::organization_required)?;
            let org = named.parse().ok();
            let known = app.store.orgs().await?.into_iter().find(|known| Some(known.id) == org);
            Ok((known.ok_or_else(|| ApiError::not_found("This organization does not exist"))?.id, None))
        }
    }
}

/// Refuses invalid requests before anything is created.
fn check(request: &CreateSession) -> Result<(), ApiError> {
    let choice = request.configuration_choice().map_err(|error| ApiError::bad_request(error.to_string()))?;
    if request.ssh().map_err(|error| ApiError::bad_request(error.to_string()))?.is_some() {
        return Err(ApiError::bad_request("sshOptions: not supported by this provider"));
    }
    if request.trigger_id.is_some() || request.trigger_event_id.is_some() || request.trigger_context.is_some()
    {
        return Err(ApiError::bad_request("triggerId, triggerEventId, triggerContext: not supported yet"));
    }
    if request.session_type == SessionType::Setup && choice == ConfigurationChoice::Scratch {
        return Err(ApiError::bad_request("A setup session needs a configuration"));
    }
    if request.initial_prompt.as_ref().is_some_and(|prompt| prompt.len() > MAX_PROMPT) {
        return Err(ApiError::bad_request("initialPrompt is at most 512 KiB"));
    }
    if let ConfigurationChoice::Cli(cli) = choice {
        let named = cli.display_name.as_deref().is_none_or(|name| text::is_line(name, MAX_NAME));
        if !named || !text::is_line(&cli.local_path_hash, MAX_HASH) {
            return Err(ApiError::bad_request(format!(
                "displayName is one line of 1 to {MAX_NAME} characters, localPathHash one of 1 to {MAX_HASH}"
            )));
        }
    }
    Ok(())
}

async fn make(
    app: &AppState,
    caller: &Caller,
    (org, user): (OrgId, Option<UserId>),
    request: CreateSession,
) -> Result<CreatedSession, ApiError> {
    check_limits(app, org, &request).await?;
    let found = configuration(app, org, user, &request).await?;
    if let Some(found) = found.as_ref().filter(|_| request.session_type == SessionType::Setup) {
        // All later sessions of the configuration start from the snapshot of a setup session, so creating one is a
        // change of the configuration.
        let owns = found.is_new || user.is_some_and(|user| found.configuration.created_by == Some(user));
        caller.must(Act::ChangeConfiguration, owns)?;
    }
    let immediate = request.effective_sandbox_mode() == SandboxMode::Immediate;
    let id: SessionId = app.rng.uuid(app.clock.now()).into();
    let snapshot_id =
        request.snapshot_id.clone().or_else(|| found.as_ref()?.configuration.snapshot_id.clone());
    let has_snapshot = snapshot_id.is_some();
    let configuration_id = found.as_ref().map(|found| found.configuration.id);
    let is_new = found.as_ref().is_some_and(|found| found.is_new);
    // A request for a setup session does not start a second one.
    let unfinished = found.as_ref().is_some_and(|found| is_unfinished(&found.configuration));
    let wants_setup = unfinished && request.session_type != SessionType::Setup;
    let agent_config = request.agent_config.clone();
    let cli = request.cli_configuration.as_ref().map(|cli| cli.local_path_hash.clone());
    app.store
        .create_session(NewSession {
            created_by: user,
            configuration_id,
            client_type: Some(request.client_type),
            client_metadata: request.client_metadata,
            origin: if request.client_type == ClientType::Cli || cli.is_some() {
                Origin::Cli
            } else {
                Origin::Web
            },
            starts: if immediate { Starts::Now } else { Starts::Later },
            title: request.title,
            initial_prompt: request.initial_prompt,
            agent_config: request.agent_config,
            automation_id: request.automation_id,
            local_path_hash: cli,
            snapshot_id,
            ..NewSession::new(id, org, request.session_type, app.runtime.sandboxes.engine(), app.clock.now())
        })
        .await?;
    if let Some(found) = found.filter(|_| wants_setup) {
        // The setup session belongs to the configuration's creator: other members may use the configuration but not
        // change it.
        let whose = (org, found.configuration.created_by);
        setup::start(app, whose, found.configuration.id, agent_config).await;
    }
    let sandbox = if immediate { Some(boot(app, id).await?) } else { None };
    Ok(CreatedSession {
        session_id: id,
        configuration_id,
        status: if immediate { SessionStatus::Running } else { SessionStatus::Pending },
        gateway_url: app.public_url.as_str().trim_end_matches('/').to_owned(),
        has_snapshot,
        is_new_configuration: is_new,
        sandbox,
    })
}

/// Checks the organization's budget and session limit, and that it owns the requested snapshot.
async fn check_limits(app: &AppState, org: OrgId, request: &CreateSession) -> Result<(), ApiError> {
    let budget = app.store.org_budget(org).await?;
    if let Some(budget) = budget.budget_micros.filter(|_| budget.is_exhausted()) {
        return Err(ApiError::billing(BillingCode::NoCredits, &org_budget_spent(budget)));
    }
    if budget.budget_micros.is_some() {
        let price = app.llm.price_of(&app.config.model_prices, request.agent_config.as_ref());
        price.map_err(|error| ApiError::billing(BillingCode::BillingNotConfigured, &error.to_string()))?;
    }
    // Checked here so that a refused request leaves no new configuration behind. `create_session` checks it again,
    // because another session may start in between.
    if let Some(limit) = budget.session_limit
        && app.store.live_sessions(org, app.clock.now()).await? >= limit
    {
        return Err(StoreError::SessionLimit { limit }.into());
    }
    if let Some(id) = &request.snapshot_id {
        let known = app.store.snapshot(org, id).await?;
        known.ok_or_else(|| ApiError::not_found("This snapshot does not exist"))?;
    }
    Ok(())
}

/// Whether a managed configuration still has to be set up by an agent.
fn is_unfinished(configuration: &Configuration) -> bool {
    configuration.kind == ConfigurationKind::Managed && configuration.status == ConfigurationStatus::Building
}

/// Finds or creates the configuration of a session; `None` for a scratch session.
async fn configuration(
    app: &AppState,
    org: OrgId,
    user: Option<UserId>,
    request: &CreateSession,
) -> Result<Option<FoundConfiguration>, ApiError> {
    let choice = request.configuration_choice().map_err(|error| ApiError::bad_request(error.to_string()))?;
    let (now, provider) = (app.clock.now(), app.runtime.sandboxes.engine().to_owned());
    let found = match choice {
        ConfigurationChoice::Scratch => return Ok(None),
        ConfigurationChoice::Existing(id) => {
            let configuration: Option<Configuration> = match id.parse() {
                Ok(id) => app.store.configuration(org, id).await?,
                Err(_) => None,
            };
            let configuration =
                configuration.ok_or_else(|| ApiError::not_found("This configuration does not exist"))?;
            FoundConfiguration { configuration, is_new: false }
        }
        ConfigurationChoice::Managed(managed) => {
            let wanted = WantedManaged {
                org_id: org,
                repo_ids: managed.repo_ids.clone(),
                id: app.rng.uuid(now).into(),
                sandbox_provider: provider,
                created_by: user,
                at: now,
            };
            made_by(app, org, user).find_or_create_managed(wanted).await?.ok_or_else(ApiError::no_repos)?
        }
        ConfigurationChoice::Cli(cli) => {
            let user =
                user.ok_or_else(|| ApiError::bad_request("A cliConfiguration needs a user's token"))?;
            let wanted = WantedCli {
                org_id: org,
                user_id: user,
                local_path_hash: cli.local_path_hash.clone(),
                display_name: cli.display_name.clone(),
                id: app.rng.uuid(now).into(),
                repo_id: app.rng.uuid(now).into(),
                sandbox_provider: provider,
                at: now,
            };
            made_by(app, org, Some(user)).find_or_create_cli(wanted).await?
        }
    };
    Ok(Some(found))
}

/// The store through which a configuration is created, so that the ledger records it under the user's name, or as a
/// service's if there is no user.
fn made_by(app: &AppState, org: OrgId, user: Option<UserId>) -> Store {
    let change = AdminChange::new(Subject::Configuration, "create", "for a session");
    let actor = match user {
        Some(user) => Claim { actor_type: ActorClass::Human, actor_id: user.to_string() },
        None => Claim { actor_type: ActorClass::System, actor_id: "service".to_owned() },
    };
    app.store.recorded(app.gate.admin_event(org, &actor, &change))
}

/// Starts the sandbox of a new session and waits for it. If that fails, the session is deleted.
async fn boot(app: &AppState, id: SessionId) -> Result<CreatedSandbox, ApiError> {
    let unavailable = |error: HubError| ApiError::unavailable("The sandbox", error.to_string());
    let hub = app.hubs.open(id).await.map_err(unavailable)?;
    let refusal = match booted(&hub).await {
        Ok(Ok(())) => {
            let record = app.store.session_any(id).await?.ok_or_else(ApiError::session_not_found)?;
            let sandbox_id = record.sandbox_id.unwrap_or_else(|| id.to_string());
            return Ok(CreatedSandbox { sandbox_id, preview_url: None, ssh_host: None, ssh_port: None });
        }
        Ok(Err(reason)) => ApiError::no_sandbox(&reason),
        Err(error) => unavailable(error),
    };
    hub.delete("a failed start".to_owned()).await.map_err(unavailable)?;
    Err(refusal)
}

/// Waits until the agent is running. The inner error is the reason why it does not start, which clients that watch the
/// session also get.
async fn booted(hub: &Hub) -> Result<Result<(), String>, HubError> {
    hub.wake().await?;
    let mut said = hub.feed.listen();
    loop {
        match hub.state().await? {
            (WireStatus::Running, _) => return Ok(Ok(())),
            (WireStatus::Stopped, reason) if !reason.is_empty() => return Ok(Err(reason)),
            // Somebody stopped or paused the session before its sandbox was running, and it does not start by itself
            // again.
            (WireStatus::Stopped, _) => return Ok(Err("the session was stopped meanwhile".to_owned())),
            (WireStatus::Paused, _) => return Ok(Err("the session was paused meanwhile".to_owned())),
            _ => said.changed().await.map_err(|_| HubError::Gone)?,
        }
    }
}
