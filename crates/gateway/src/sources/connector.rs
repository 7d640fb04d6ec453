//! The tools of an organization's connectors as actions: `connector:<uuid>:<tool>`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use gate::{
    CallRequest, Definition, Failure, Output, Outside, Permit, Review, SourceError, Tool, ToolScope, Work,
};
use policy::{ModeKey, Policy, Risk, derive_risk};
use proto::ConnectorId;
use serde_json::{Value, json};
use store::{Connector, ConnectorTool, Store, StoreError};

use super::arguments::check_schema;
use super::catalog::{Guide, definition_hash};
use super::source_kind::CONNECTOR;
use super::{CatalogAction, CatalogSource, Described, Found, Missing, Source, action_mode_key};
use crate::connectors::Connectors;

/// How long a catalog, or a change of a mode, waits for the list of a connector. A later one has it.
pub(super) const LISTED_WITHIN: Duration = Duration::from_secs(3);
/// The timeout of a call as the gate enforces it: a little longer than that of the client, which tells more.
const CALL_TIMEOUT: Duration = Duration::from_secs(32);

/// The id of a connector as a source of actions.
pub(crate) fn source_id(id: ConnectorId) -> String {
    CONNECTOR.source_id(id)
}

/// The risk of a tool: what an admin set, else the connector's default, raised by the tool's own hints.
pub(crate) fn risk_of(
    connector: &Connector,
    decided: Option<&ConnectorTool>,
    tool: &mcp::Definition,
) -> Risk {
    let set = decided.and_then(|decided| decided.risk).map(policy_risk);
    derive_risk(set, tool.hints(), Some(policy_risk(connector.default_risk)))
}

/// The same risk in the vocabulary of the policy.
pub(super) const fn policy_risk(risk: proto::Risk) -> Risk {
    match risk {
        proto::Risk::Read => Risk::Read,
        proto::Risk::Write => Risk::Write,
        proto::Risk::Danger => Risk::Danger,
    }
}

/// The definition as the gate compares it with what an admin reviewed, and with what somebody approves: the server and its
/// credential belong to it, so that no approval of a call sends it to another server.
pub(crate) fn definition_of(
    Connector { url, auth, .. }: &Connector,
    decided: Option<&ConnectorTool>,
    tool: &mcp::Definition,
) -> Definition {
    let hash = definition_hash(&json!({"auth": auth, "tool": tool.hash().to_string(), "url": url}));
    let pin = decided.and_then(|decided| decided.pin.as_ref());
    // A pin belongs to the server that it was reviewed at: a change of its address removes it.
    let review = match pin.map(|pin| pin.hash.parse()) {
        Some(Ok(reviewed)) if reviewed == tool.hash() => Review::Pinned(hash),
        Some(Ok(reviewed)) => Review::Pinned(reviewed),
        Some(Err(_)) | None => Review::Missing,
    };
    Definition { hash, review }
}

/// Which list of a server's tools is used.
#[derive(Clone, Copy)]
enum Listed {
    /// That of the last minutes.
    Lately,
    /// A new one.
    Now,
}

/// The source of all connectors.
pub(crate) struct ConnectorSource {
    pub(crate) store: Store,
    pub(crate) connectors: Arc<Connectors>,
}

impl ConnectorSource {
    async fn describe_one(&self, connector: Connector) -> Result<CatalogSource, SourceError> {
        let id = source_id(connector.id);
        let unusable = |problem: String| SourceError { source_id: id.clone(), problem };
        let listing = self.connectors.list_tools_within(&connector, LISTED_WITHIN).await;
        let listing = listing.map_err(|error| unusable(error.to_string()))?;
        let decided = self.decided(&connector).await.map_err(|error| unusable(storage(&error)))?;
        let action = |tool: &mcp::Definition| CatalogAction {
            name: tool.name().to_owned(),
            description: tool.description().to_owned(),
            params: tool.input_schema().clone(),
            risk: risk_of(&connector, decided.get(tool.name()), tool),
            definition: definition_of(&connector, decided.get(tool.name()), tool),
        };
        let actions: Vec<_> = listing.definitions.iter().map(action).collect();
        Ok(CatalogSource {
            guide: Guide::Generated {
                title: format!("{} (MCP Connector)", connector.name),
                note: String::new(),
            },
            integration_id: None,
            display_name: Some(connector.name),
            actions,
            id,
        })
    }

    async fn decided(&self, connector: &Connector) -> Result<HashMap<String, ConnectorTool>, StoreError> {
        let decided = self.store.connector_tools(connector.org_id, connector.id).await?;
        Ok(decided.into_iter().map(|tool| (tool.tool.clone(), tool)).collect())
    }

    async fn find_tool(
        &self,
        scope: ToolScope,
        name: &str,
        listed: Listed,
    ) -> Result<Option<Arc<dyn Tool>>, SourceError> {
        let Some((id, action)) = CONNECTOR.parse::<ConnectorId>(name) else { return Ok(None) };
        let unusable = |problem: String| SourceError { source_id: source_id(id), problem };
        let found = self.store.connector(scope.org, id).await.map_err(|error| unusable(storage(&error)))?;
        let Some(connector) = found.filter(|connector| connector.enabled) else { return Ok(None) };
        let listing = match listed {
            Listed::Lately => self.connectors.tools(&connector).await,
            Listed::Now => self.connectors.tools_now(&connector).await,
        };
        let listing = listing.map_err(|error| unusable(error.to_string()))?;
        let key = action_mode_key(&source_id(id), action).ok();
        let Some((tool, key)) = listing.find(action).cloned().zip(key) else { return Ok(None) };
        let decided = self.decided(&connector).await.map_err(|error| unusable(storage(&error)))?;
        let decided = decided.get(action);
        Ok(Some(Arc::new(BoundTool {
            risk: risk_of(&connector, decided, &tool),
            definition: definition_of(&connector, decided, &tool),
            key,
            connectors: self.connectors.clone(),
            connector,
            tool,
        })))
    }
}

fn storage(error: &StoreError) -> String {
    tracing::error!(%error, "connectors cannot be read");
    "the database does not answer".to_owned()
}

impl Source for ConnectorSource {
    fn claims(&self, _: &Policy, name: &str) -> bool {
        CONNECTOR.claims(name)
    }

    fn find<'a>(&'a self, _: &'a Policy, scope: ToolScope, name: &'a str) -> Found<'a> {
        self.find_tool(scope, name, Listed::Lately).boxed()
    }

    fn find_now<'a>(&'a self, _: &'a Policy, scope: ToolScope, name: &'a str) -> Found<'a> {
        self.find_tool(scope, name, Listed::Now).boxed()
    }

    fn explain_missing<'a>(&'a self, scope: ToolScope, name: &'a str) -> Missing<'a> {
        async move {
            let Some((id, _)) = CONNECTOR.parse::<ConnectorId>(name) else {
                return Some(CONNECTOR.unknown_id());
            };
            match self.store.connector(scope.org, id).await.ok()? {
                Some(connector) if connector.enabled => None,
                found => Some(CONNECTOR.unusable(id, found.is_some())),
            }
        }
        .boxed()
    }

    fn describe<'a>(&'a self, _: &'a Policy, scope: ToolScope) -> Described<'a> {
        async move {
            let all = match self.store.connectors(scope.org).await {
                Ok(all) => all,
                Err(error) => {
                    let source_id = CONNECTOR.name.to_owned();
                    return vec![Err(SourceError { source_id, problem: storage(&error) })];
                }
            };
            let enabled = all.into_iter().filter(|connector| connector.enabled);
            join_all(enabled.map(|connector| self.describe_one(connector))).await
        }
        .boxed()
    }
}

/// One tool of a connector.
struct BoundTool {
    connectors: Arc<Connectors>,
    connector: Connector,
    tool: mcp::Definition,
    risk: Risk,
    definition: Definition,
    key: ModeKey,
}

impl Tool for BoundTool {
    fn risk(&self) -> Risk {
        self.risk
    }

    fn timeout(&self) -> Duration {
        CALL_TIMEOUT
    }

    fn mode_key(&self) -> Option<ModeKey> {
        Some(self.key.clone())
    }

    fn definition(&self) -> Option<Definition> {
        Some(self.definition)
    }

    fn check(&self, parameters: &Value) -> Result<(), String> {
        if !parameters.is_object() {
            return Err("Invalid params: they must be an object".to_owned());
        }
        check_schema(self.tool.input_schema(), parameters)
    }

    fn work(&self) -> Work<'_> {
        Work::Outside(self)
    }
}

impl Outside for BoundTool {
    /// A server's claim that a tool can be repeated is only a claim.
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        call: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        let arguments = call.target.parameters.as_object().cloned().unwrap_or_default();
        async move { self.connectors.call(permit, &self.connector, &self.tool, arguments).await }.boxed()
    }
}
