//! Whether an action key names an action that can exist: a mode for a mistyped key would protect nothing.

use std::sync::Arc;
use std::time::Duration;

use databases::FREE_FORM;
use policy::{ModeKey, Policy};
use proto::{ConnectorId, DatabaseId, OrgId};
use store::{Store, StoreError};

use super::catalog::HTTP_TOOLS;
use crate::connectors::Connectors;
use crate::git::Operation;

/// The sources that are not vendors.
const GIT: &str = "git";
const CONNECTOR: &str = "connector";
const DATABASE: &str = "db";
/// How long a change of a mode waits for the list of a connector.
const LISTED_WITHIN: Duration = Duration::from_secs(3);

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
        let (source, action) = key.parts();
        match source {
            GIT => {
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
            CONNECTOR => self.check_connector(org, key, action).await,
            DATABASE => self.check_database(org, key, action).await,
            _ => check_vendor(key, source),
        }
    }

    async fn check_connector(
        &self,
        org: OrgId,
        key: &ModeKey,
        rest: &str,
    ) -> Result<Option<String>, ActionKeyError> {
        let (id, tool) = id_and_action::<ConnectorId>(rest, "connector:ID:TOOL")?;
        let found = self.store.connector(org, id).await?;
        let connector = found.ok_or_else(|| absent(CONNECTOR, &id, "proliferate connectors ls"))?;
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
                let key_of = |tool: &mcp::Definition| format!("{CONNECTOR}:{id}:{}", tool.name());
                let keys: Vec<_> = listing.definitions.iter().map(key_of).collect();
                one_of(key, keys.iter().map(String::as_str))
            }
            Err(error) => {
                Ok(Some(unchecked(key, &format!("the connector's server cannot be asked ({error})"))))
            }
        }
    }

    async fn check_database(
        &self,
        org: OrgId,
        key: &ModeKey,
        rest: &str,
    ) -> Result<Option<String>, ActionKeyError> {
        let (id, _) = id_and_action::<DatabaseId>(rest, "db:ID:QUERY")?;
        let found = self.store.database(org, id).await?;
        let database = found.ok_or_else(|| absent("database", &id, "proliferate databases ls"))?;
        // The action for statements of agents may be protected before anybody enables it.
        let free = format!("{DATABASE}:{id}:{FREE_FORM}");
        let actions = super::database_actions(&database);
        let actions = actions.map_err(|error| ActionKeyError::Unknown(error.to_string()))?;
        one_of(key, actions.iter().map(|(.., key)| key.as_str()).chain([free.as_str()]))
    }
}

fn check_vendor(key: &ModeKey, source: &str) -> Result<Option<String>, ActionKeyError> {
    let Some(provider) = providers::find(source) else {
        let vendors = providers::PROVIDERS.iter().map(|provider| provider.id);
        let sources: Vec<_> = vendors.chain([GIT, HTTP_TOOLS, CONNECTOR, DATABASE]).collect();
        let sources = sources.join(", ");
        return Err(ActionKeyError::Unknown(format!(
            "there is no source of actions {source:?}: the sources are {sources}"
        )));
    };
    let keys: Vec<_> = provider.actions.iter().map(|action| format!("{source}:{}", action.name)).collect();
    one_of(key, keys.iter().map(String::as_str))
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
    rest: &'a str,
    form: &str,
) -> Result<(T, &'a str), ActionKeyError> {
    let parts = rest.split_once(':').and_then(|(id, action)| Some((id.parse().ok()?, action)));
    parts.ok_or_else(|| ActionKeyError::Unknown(format!("expected {form}, where ID is a complete id")))
}

fn absent(what: &str, id: &dyn std::fmt::Display, list: &str) -> ActionKeyError {
    ActionKeyError::Unknown(format!("the organization has no {what} {id}: `{list}` shows those that it has"))
}
