//! Whether an action key names an action that can exist: a mode for a mistyped key would protect nothing.

use std::sync::Arc;

use databases::FREE_FORM;
use policy::{ModeKey, Policy};
use proto::{ConnectorId, DatabaseId, OrgId};
use store::{Store, StoreError};

use super::catalog::HTTP_TOOLS;
use super::connector::LISTED_WITHIN;
use super::source_kind::{CONNECTOR, DATABASE, SourceKind};
use crate::connectors::Connectors;
use crate::git::{GIT_SOURCE, Operation};

/// Checks action keys against everything that can have actions.
pub struct ActionKeys<'a> {
    store: &'a Store,
    policy: Option<&'a Policy>,
    connectors: Option<&'a Arc<Connectors>>,
}

#[derive(Debug, thiserror::Error)]
pub enum ActionKeyError {
    #[error("{0}")]
    Unknown(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<'a> ActionKeys<'a> {
    /// Without the servers of connectors, which only a running gateway asks. Without a policy, nobody knows its tools.
    pub const fn new(store: &'a Store, policy: Option<&'a Policy>) -> Self {
        Self { store, policy, connectors: None }
    }

    pub(crate) const fn asking(self, connectors: &'a Arc<Connectors>) -> Self {
        Self { connectors: Some(connectors), ..self }
    }

    /// Refuses a key that no action of the organization can have. Returns a warning if nobody can tell now.
    pub async fn check(&self, org: OrgId, key: &ModeKey) -> Result<Option<String>, ActionKeyError> {
        let (source, _) = key.parts();
        match source {
            GIT_SOURCE => {
                let keys: Vec<_> = Operation::ALL.into_iter().filter_map(Operation::mode_key).collect();
                one_of(key, keys.iter().map(ModeKey::as_str))
            }
            HTTP_TOOLS => {
                let Some(policy) = self.policy else {
                    let why = "PROLIFERATE_POLICY_DIR is not set here, so its tools.yaml is unknown";
                    return Ok(Some(unchecked(key, why)));
                };
                let keys: Vec<_> = policy.tools().map(policy::HttpTool::mode_key).collect();
                one_of(key, keys.iter().map(ModeKey::as_str))
            }
            _ if source == CONNECTOR.name => self.check_connector(org, key).await,
            _ if source == DATABASE.name => self.check_database(org, key).await,
            _ => check_vendor(key, source),
        }
    }

    /// Refuses a source of actions that the organization cannot have.
    pub(crate) async fn check_source(&self, org: OrgId, source: &ModeKey) -> Result<(), ActionKeyError> {
        match source.parts().0 {
            GIT_SOURCE | HTTP_TOOLS => Ok(()),
            name if name == CONNECTOR.name => {
                let (id, _) = id_and_action::<ConnectorId>(&CONNECTOR, source)?;
                self.store.connector(org, id).await?.map(|_| ()).ok_or_else(|| absent(&CONNECTOR, &id))
            }
            name if name == DATABASE.name => {
                let (id, _) = id_and_action::<DatabaseId>(&DATABASE, source)?;
                self.store.database(org, id).await?.map(|_| ()).ok_or_else(|| absent(&DATABASE, &id))
            }
            name => find_vendor(name).map(|_| ()),
        }
    }

    async fn check_connector(&self, org: OrgId, key: &ModeKey) -> Result<Option<String>, ActionKeyError> {
        let (id, tool) = id_and_action::<ConnectorId>(&CONNECTOR, key)?;
        let found = self.store.connector(org, id).await?;
        let connector = found.ok_or_else(|| absent(&CONNECTOR, &id))?;
        // A tool that was reviewed may be offered again at any time.
        let reviewed = self.store.connector_tools(org, id).await?;
        if reviewed.iter().any(|known| known.tool == tool) {
            return Ok(None);
        }
        let Some(connectors) = self.connectors.filter(|_| connector.enabled) else {
            let why = if connector.enabled {
                "only a running gateway asks"
            } else {
                "it is disabled, so nobody asks"
            };
            let way = format!("`proliferate connectors show {id}` lists its tools");
            return Ok(Some(unchecked(key, &format!("{why} the connector's server; {way}"))));
        };
        match connectors.list_tools_within(&connector, LISTED_WITHIN).await {
            Ok(listing) => {
                let key_of = |tool: &mcp::Definition| format!("{}:{}", CONNECTOR.source_id(id), tool.name());
                let keys: Vec<_> = listing.definitions.iter().map(key_of).collect();
                one_of(key, keys.iter().map(String::as_str))
            }
            Err(error) => {
                Ok(Some(unchecked(key, &format!("the connector's server cannot be asked ({error})"))))
            }
        }
    }

    async fn check_database(&self, org: OrgId, key: &ModeKey) -> Result<Option<String>, ActionKeyError> {
        let (id, _) = id_and_action::<DatabaseId>(&DATABASE, key)?;
        let found = self.store.database(org, id).await?;
        let database = found.ok_or_else(|| absent(&DATABASE, &id))?;
        // The action for statements of agents may be protected before anybody enables it.
        let free = format!("{}:{FREE_FORM}", DATABASE.source_id(id));
        let actions = super::database_actions(&database);
        let actions = actions.map_err(|error| ActionKeyError::Unknown(error.to_string()))?;
        one_of(key, actions.iter().map(|(.., key)| key.as_str()).chain([free.as_str()]))
    }
}

fn check_vendor(key: &ModeKey, source: &str) -> Result<Option<String>, ActionKeyError> {
    let provider = find_vendor(source)?;
    let keys: Vec<_> = provider.actions.iter().map(|action| format!("{source}:{}", action.name)).collect();
    one_of(key, keys.iter().map(String::as_str))
}

fn find_vendor(source: &str) -> Result<&'static providers::Provider, ActionKeyError> {
    providers::find(source).ok_or_else(|| {
        let vendors = providers::PROVIDERS.iter().map(|provider| provider.id);
        let sources: Vec<_> =
            vendors.chain([GIT_SOURCE, HTTP_TOOLS, CONNECTOR.name, DATABASE.name]).collect();
        let sources = sources.join(", ");
        let sources = format!("there is no source of actions {source:?}: the sources are {sources}");
        ActionKeyError::Unknown(sources)
    })
}

fn unchecked(key: &ModeKey, why: &str) -> String {
    format!("nobody checked that {} exists: {why}", key.as_str())
}

/// Refuses a key that is not among the known ones, and names the nearest.
fn one_of<'a>(key: &ModeKey, known: impl Iterator<Item = &'a str>) -> Result<Option<String>, ActionKeyError> {
    let mut nearest = None;
    for known in known {
        let distance = strsim::levenshtein(key.as_str(), known);
        if distance == 0 {
            return Ok(None);
        }
        if nearest.is_none_or(|(least, _)| distance < least) {
            nearest = Some((distance, known));
        }
    }
    let advice = nearest.map_or_else(
        || "its source has no actions".to_owned(),
        |(_, known)| format!("did you mean {known}?"),
    );
    Err(ActionKeyError::Unknown(format!("there is no action {:?}: {advice}", key.as_str())))
}

fn id_and_action<'a, T: std::str::FromStr>(
    kind: &SourceKind,
    key: &'a ModeKey,
) -> Result<(T, &'a str), ActionKeyError> {
    let SourceKind { form, list, .. } = kind;
    let expected = || format!("expected {form}, where ID is a complete id: `{list}` shows them");
    kind.parse(key.as_str()).ok_or_else(|| ActionKeyError::Unknown(expected()))
}

fn absent(SourceKind { noun, list, .. }: &SourceKind, id: &dyn std::fmt::Display) -> ActionKeyError {
    let problem = format!("the organization has no {noun} {id}: `{list}` shows those that it has");
    ActionKeyError::Unknown(problem)
}
