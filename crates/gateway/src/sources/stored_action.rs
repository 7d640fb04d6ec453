//! What the database knows of an action of a connector or a database, for commands, which ask no server.

use databases::FREE_FORM;
use policy::{ModeKey, Risk};
use proto::{ConnectorId, DatabaseId, OrgId};
use store::{Store, StoreError};

use super::connector::policy_risk;
use super::source_kind::{CONNECTOR, DATABASE};

/// An action of a source that an organization has set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAction {
    pub risk: Risk,
    /// Whether nobody has reviewed its definition, so that it needs approval where its mode would allow it.
    pub unreviewed: bool,
    /// What only its server knows, for people.
    pub assumption: Option<String>,
}

/// The action with this key, or the reason why the organization does not have it. `None` if it belongs to another kind of
/// source.
pub async fn stored_action(
    store: &Store,
    org: OrgId,
    key: &ModeKey,
) -> Result<Option<Result<StoredAction, String>>, StoreError> {
    let name = key.as_str();
    if CONNECTOR.claims(name) {
        let Some((id, tool)) = CONNECTOR.parse(name) else { return Ok(Some(Err(CONNECTOR.unknown_id()))) };
        return Ok(Some(of_connector(store, org, (id, tool)).await?));
    }
    if DATABASE.claims(name) {
        let Some((id, query)) = DATABASE.parse(name) else { return Ok(Some(Err(DATABASE.unknown_id()))) };
        return Ok(Some(of_database(store, org, (id, query)).await?));
    }
    Ok(None)
}

async fn of_connector(
    store: &Store,
    org: OrgId,
    (id, tool): (ConnectorId, &str),
) -> Result<Result<StoredAction, String>, StoreError> {
    let connector = match store.connector(org, id).await? {
        Some(connector) if connector.enabled => connector,
        found => return Ok(Err(CONNECTOR.unusable(id, found.is_some()))),
    };
    let decided = store.connector_tools(org, id).await?.into_iter().find(|decided| decided.tool == tool);
    let set = decided.as_ref().and_then(|decided| decided.risk);
    let unreviewed = decided.as_ref().is_none_or(|decided| decided.pin.is_none());
    let mut assumed = vec!["that its server offers this tool"];
    if set.is_none() {
        assumed.push("with no hint that raises its risk");
    }
    if !unreviewed {
        assumed.push("with the definition that was reviewed");
    }
    let assumption =
        format!("assumes {}: `proliferate connectors show {id}` asks the server", assumed.join(", "));
    let risk = policy_risk(set.unwrap_or(connector.default_risk));
    Ok(Ok(StoredAction { risk, unreviewed, assumption: Some(assumption) }))
}

async fn of_database(
    store: &Store,
    org: OrgId,
    (id, query): (DatabaseId, &str),
) -> Result<Result<StoredAction, String>, StoreError> {
    let database = match store.database(org, id).await? {
        Some(database) if database.enabled => database,
        found => return Ok(Err(DATABASE.unusable(id, found.is_some()))),
    };
    let actions = match super::database_actions(&database) {
        Ok(actions) => actions,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let found = actions.into_iter().find(|(name, ..)| name == query);
    Ok(match found {
        Some((_, risk, _)) => Ok(StoredAction { risk, unreviewed: false, assumption: None }),
        None if query == FREE_FORM => Err(format!("The database {id} does not let agents write statements")),
        None => Err(format!("The database {id} has no query {query:?}")),
    })
}
