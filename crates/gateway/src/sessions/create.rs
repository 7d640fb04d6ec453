//! Creates a session, after checking its configuration, the organization's limits and its budget.

use std::sync::Arc;

use clock::crash_point;
use futures_util::FutureExt as _;
use proto::{
    ClientType, ConfigurationId, OrgId, Origin, SandboxMode, SessionId, SessionStatus, SessionType,
    TitleSource,
};
use serde::{Deserialize, Serialize};
use store::{Configuration, FoundConfiguration, NewSession, Starts, StoreError};

use super::configuration::{find_or_create, is_unfinished};
use super::control::{delete, running};
use super::idempotency::{KeyedWork, once};
use super::model::check_model;
use super::{
    ConfigurationSource, RequestContext, Requester, SessionDraft, SessionError, SessionServices, setup,
};
use crate::access::Act;
use crate::hub::{HubError, first_sentence};

/// A session that was created. Stored under the idempotency key of its request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CreatedSession {
    pub id: SessionId,
    /// `None` for a session that starts from nothing.
    pub configuration_id: Option<ConfigurationId>,
    pub is_new_configuration: bool,
    pub status: SessionStatus,
    pub has_snapshot: bool,
    /// The name of the running sandbox, if the session is immediate.
    pub sandbox_id: Option<String>,
}

/// Creates a session. Its sandbox starts when somebody uses the session; an immediate session is running when this
/// returns.
pub async fn create(
    services: &Arc<SessionServices>,
    context: RequestContext,
    draft: SessionDraft,
) -> Result<CreatedSession, SessionError> {
    draft.check()?;
    let work = |keyed| {
        let (services, context, draft) = (services.clone(), context.clone(), draft.clone());
        async move { create_now(&services, context.org, &context.requester, draft, keyed).await }.boxed()
    };
    once(services, &context, "create session".to_owned(), &draft, work).await
}

/// The row of a new session, and the configuration that it starts from.
struct Inserted {
    id: SessionId,
    has_snapshot: bool,
    configuration: Option<FoundConfiguration>,
}

async fn create_now(
    services: &SessionServices,
    org: OrgId,
    requester: &Requester,
    draft: SessionDraft,
    keyed: Option<KeyedWork>,
) -> Result<CreatedSession, SessionError> {
    let immediate = draft.sandbox_mode == SandboxMode::Immediate;
    // A request for a setup session does not start a second one.
    let wants_setup = draft.session_type != SessionType::Setup;
    let agent_config = draft.agent_config.clone();
    let inserted = match keyed {
        Some(keyed) => find_inserted(services, org, keyed).await?,
        None => None,
    };
    let is_continued = inserted.is_some();
    let Inserted { id, has_snapshot, configuration: found } = match inserted {
        Some(inserted) => inserted,
        None => insert(services, org, requester, draft, keyed).await?,
    };
    crash_point("session-inserted");
    if let Some(found) = found.as_ref().filter(|found| wants_setup && is_unfinished(&found.configuration)) {
        setup::start(services, &found.configuration, agent_config).await;
    }
    let sandbox_id =
        if immediate { Some(boot(services, (org, id), requester, is_continued).await?) } else { None };
    Ok(CreatedSession {
        id,
        configuration_id: found.as_ref().map(|found| found.configuration.id),
        is_new_configuration: found.is_some_and(|found| found.is_new),
        status: if immediate { SessionStatus::Running } else { SessionStatus::Pending },
        has_snapshot,
        sandbox_id,
    })
}

/// The session that an earlier attempt of this request has made, if it was cut off afterwards.
async fn find_inserted(
    services: &SessionServices,
    org: OrgId,
    keyed: KeyedWork,
) -> Result<Option<Inserted>, SessionError> {
    let Some(made) = services.store.session(org, keyed.id.into()).await? else { return Ok(None) };
    let configuration = match made.configuration_id {
        Some(id) => services.store.configuration(org, id).await?,
        None => None,
    };
    let is_new = |configuration: &Configuration| configuration.created_at >= keyed.begun_at;
    let configuration = configuration
        .map(|configuration| FoundConfiguration { is_new: is_new(&configuration), configuration });
    Ok(Some(Inserted { id: made.id, has_snapshot: made.snapshot_id.is_some(), configuration }))
}

/// Checks a draft and inserts the session, and its configuration if that is new.
async fn insert(
    services: &SessionServices,
    org: OrgId,
    requester: &Requester,
    mut draft: SessionDraft,
    keyed: Option<KeyedWork>,
) -> Result<Inserted, SessionError> {
    if let Some(model) = draft.agent_config.as_mut().and_then(|config| config.model_id.as_mut()) {
        *model = check_model(services, "agentConfig.modelId", model).await?;
    }
    services.admission.check_creation(org, draft.agent_config.as_ref()).await??;
    if let Some(id) = &draft.snapshot_id {
        services.store.snapshot(org, id).await?.ok_or(StoreError::Missing("this snapshot"))?;
    }
    let configuration = find_or_create(services, org, requester, &draft.configuration).await?;
    if let Some(found) = configuration.as_ref().filter(|_| draft.session_type == SessionType::Setup) {
        check_setup(requester, found)?;
    }
    let now = services.clock.now();
    let id = keyed.map_or_else(|| services.rng.uuid(now), |keyed| keyed.id).into();
    let new = new_session(services, (org, id), requester, draft, configuration.as_ref());
    let has_snapshot = new.snapshot_id.is_some();
    services.store.create_session(new).await?;
    Ok(Inserted { id, has_snapshot, configuration })
}

/// All later sessions of a configuration start from the snapshot of its setup session, so creating one is a change of
/// the configuration.
fn check_setup(requester: &Requester, found: &FoundConfiguration) -> Result<(), SessionError> {
    let act = Act::ChangeConfiguration;
    let created = requester.user().is_some_and(|user| found.configuration.created_by == Some(user));
    if requester.may(act, found.is_new || created) { Ok(()) } else { Err(SessionError::Forbidden(act)) }
}

fn new_session(
    services: &SessionServices,
    (org, id): (OrgId, SessionId),
    requester: &Requester,
    draft: SessionDraft,
    found: Option<&FoundConfiguration>,
) -> NewSession {
    let now = services.clock.now();
    let local_path_hash = match draft.configuration {
        ConfigurationSource::Cli { local_path_hash, .. } => Some(local_path_hash),
        _ => None,
    };
    let (title, title_source) = match draft.title {
        Some(title) => (Some(title.into_text()), TitleSource::Person),
        None => (draft.initial_prompt.as_deref().and_then(first_sentence), TitleSource::Prompt),
    };
    let is_cli = draft.client_type == ClientType::Cli || local_path_hash.is_some();
    NewSession {
        created_by: requester.user(),
        configuration_id: found.map(|found| found.configuration.id),
        client_type: Some(draft.client_type),
        client_metadata: draft.client_metadata,
        origin: if is_cli { Origin::Cli } else { Origin::Web },
        starts: match draft.sandbox_mode {
            SandboxMode::Immediate => Starts::Now,
            SandboxMode::Deferred => Starts::Later,
        },
        title,
        title_source,
        initial_prompt: draft.initial_prompt,
        agent_config: draft.agent_config,
        system_prompt: draft.system_prompt,
        automation_id: draft.automation_id,
        trigger_context: draft.trigger_context,
        integrations: draft.integrations,
        local_path_hash,
        snapshot_id: draft.snapshot_id.or_else(|| found?.configuration.snapshot_id.clone()),
        ..NewSession::new(id, org, draft.session_type, services.runtime.sandboxes.engine(), now)
    }
}

/// Starts the sandbox of a session, waits for it and returns its name. If that fails, the session is deleted, unless an
/// earlier attempt of the request has made it: somebody may work in it since.
async fn boot(
    services: &SessionServices,
    (org, id): (OrgId, SessionId),
    requester: &Requester,
    is_continued: bool,
) -> Result<String, SessionError> {
    let unavailable = |error: HubError| SessionError::SandboxUnavailable(error);
    let hub = services.hubs.open(id).await.map_err(unavailable)?;
    let refusal = match running(&hub).await {
        Ok(Ok(())) => {
            let record = services.store.session_any(id).await?.ok_or(HubError::Deleted)?;
            return Ok(record.sandbox_id.unwrap_or_else(|| id.to_string()));
        }
        Ok(Err(reason)) => SessionError::NoSandbox(reason),
        Err(error) => unavailable(error),
    };
    if !is_continued {
        delete(services, org, id, requester).await?;
    }
    Err(refusal)
}
