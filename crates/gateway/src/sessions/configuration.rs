//! The configuration that a new session starts from.

use gate::{AdminChange, Subject};
use proto::{ConfigurationKind, ConfigurationStatus, OrgId};
use store::{Configuration, FoundConfiguration, Store, StoreError, WantedCli, WantedManaged};

use super::{ConfigurationSource, Requester, SessionError, SessionServices};

/// Finds or creates the configuration of a session; `None` for a scratch session.
pub(super) async fn find_or_create(
    services: &SessionServices,
    org: OrgId,
    requester: &Requester,
    source: &ConfigurationSource,
) -> Result<Option<FoundConfiguration>, SessionError> {
    let (now, user) = (services.clock.now(), requester.user());
    let id = services.rng.uuid(now).into();
    let found = match source {
        ConfigurationSource::Scratch => return Ok(None),
        ConfigurationSource::Existing(id) => {
            let configuration = services.store.configuration(org, *id).await?;
            let configuration = configuration.ok_or(StoreError::Missing("this configuration"))?;
            FoundConfiguration { configuration, is_new: false }
        }
        ConfigurationSource::Managed(repo_ids) => {
            let wanted = WantedManaged {
                org_id: org,
                repo_ids: repo_ids.clone(),
                id,
                sandbox_provider: services.runtime.sandboxes.engine().to_owned(),
                created_by: user,
                at: now,
            };
            let store = recording_store(services, org, requester);
            store.find_or_create_managed(wanted).await?.ok_or(SessionError::NoRepositories)?
        }
        ConfigurationSource::Cli { local_path_hash, display_name } => {
            let user_id = user.ok_or(SessionError::Invalid("A cliConfiguration needs a user's token"))?;
            let wanted = WantedCli {
                org_id: org,
                user_id,
                local_path_hash: local_path_hash.clone(),
                display_name: display_name.clone(),
                id,
                repo_id: services.rng.uuid(now).into(),
                sandbox_provider: services.runtime.sandboxes.engine().to_owned(),
                at: now,
            };
            recording_store(services, org, requester).find_or_create_cli(wanted).await?
        }
    };
    Ok(Some(found))
}

/// The store through which a configuration is created, so that the ledger records it under the requester's name.
fn recording_store(services: &SessionServices, org: OrgId, requester: &Requester) -> Store {
    let change = AdminChange::new(Subject::Configuration, "create", "for a session");
    services.store.recorded(services.gate.admin_event(org, &requester.actor(), &change))
}

/// Whether a managed configuration still has to be set up by an agent.
pub(super) fn is_unfinished(configuration: &Configuration) -> bool {
    configuration.kind == ConfigurationKind::Managed && configuration.status == ConfigurationStatus::Building
}
