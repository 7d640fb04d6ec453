//! What a connector's server offers now, tool by tool, beside what an admin reviewed.

use std::collections::{BTreeMap, BTreeSet};

use gate::mode_of;
use mcp::Listing;
use proto::http::{ConnectorDiagnostics, ConnectorOffer, ConnectorToolEntry, DefinitionChange, ReviewState};
use proto::{ActionMode, ModeSource, Risk};
use serde_json::Value;
use store::{ActionModes, Connector, ConnectorTool};

use crate::app::AppState;
use crate::connectors::Unavailable;
use crate::edge::ApiError;
use crate::sources::{action_mode_key, connector_definition, connector_risk, connector_source_id};

/// The maximum number of differences that are listed for one tool.
const MAX_CHANGES: usize = 50;

/// Asks the server of a stored connector for its tools.
pub(super) async fn of(
    app: &AppState,
    connector: &Connector,
    decided: &[ConnectorTool],
) -> Result<ConnectorOffer, ApiError> {
    let modes = app.store.all_action_modes(connector.org_id, None).await?;
    Ok(match app.connectors.tools_now(connector).await {
        Ok(listing) => offered_tools(connector, decided, &modes, &listing),
        Err(error) => failed_offer(&error),
    })
}

/// Asks the server of a connector that is not stored for its tools.
pub(super) async fn of_unstored(app: &AppState, connector: &Connector) -> Result<ConnectorOffer, ApiError> {
    let modes = app.store.all_action_modes(connector.org_id, None).await?;
    Ok(match app.connectors.tools_of_unstored(connector).await {
        Ok(listing) => offered_tools(connector, &[], &modes, &listing),
        Err(error) => failed_offer(&error),
    })
}

fn offered_tools(
    connector: &Connector,
    decided: &[ConnectorTool],
    modes: &ActionModes,
    listing: &Listing,
) -> ConnectorOffer {
    let by_name: BTreeMap<&str, &ConnectorTool> =
        decided.iter().map(|tool| (tool.tool.as_str(), tool)).collect();
    let tools = listing.definitions.iter();
    let tools =
        tools.filter_map(|tool| tool_offer(connector, by_name.get(tool.name()).copied(), modes, tool));
    let gone = decided.iter().filter(|tool| tool.pin.is_some() && listing.find(&tool.tool).is_none());
    ConnectorOffer {
        ok: true,
        tools: tools.collect(),
        gone: gone.map(|tool| tool.tool.clone()).collect(),
        refused: listing.refused.iter().map(ToString::to_string).collect(),
        truncated: listing.truncated,
        error: None,
        diagnostics: None,
    }
}

fn failed_offer(error: &Unavailable) -> ConnectorOffer {
    let class = match error {
        Unavailable::Server(problem) => problem.diagnosis().as_str(),
        Unavailable::NoSecret(_) | Unavailable::Vault => "auth",
        Unavailable::Late => "timeout",
        Unavailable::Stored => "unknown",
    };
    let message = error.to_string();
    ConnectorOffer {
        ok: false,
        tools: Vec::new(),
        gone: Vec::new(),
        refused: Vec::new(),
        truncated: false,
        error: Some(message.clone()),
        diagnostics: Some(ConnectorDiagnostics { class: class.to_owned(), message }),
    }
}

fn tool_offer(
    connector: &Connector,
    decided: Option<&ConnectorTool>,
    modes: &ActionModes,
    tool: &mcp::Definition,
) -> Option<ConnectorToolEntry> {
    let key = action_mode_key(&connector_source_id(connector.id), tool.name()).ok()?;
    let risk = connector_risk(connector, decided, tool);
    let mode = mode_of(&key, modes, risk, Some(&connector_definition(connector, decided, tool)), None);
    let hash = tool.hash().to_string();
    let pin = decided.and_then(|decided| decided.pin.as_ref());
    let state = match pin {
        None => ReviewState::New,
        Some(pin) if pin.hash == hash => ReviewState::Reviewed,
        Some(_) => ReviewState::Changed,
    };
    let before = pin.filter(|_| state == ReviewState::Changed).map(|pin| pin.definition.clone());
    let (changes, changes_truncated) =
        before.as_ref().map(|before| differences(before, &tool.raw())).unwrap_or_default();
    Some(ConnectorToolEntry {
        name: tool.name().to_owned(),
        description: tool.description().to_owned(),
        risk_level: Risk::try_from(risk.as_str().to_owned()).unwrap_or(Risk::Danger),
        key: key.as_str().to_owned(),
        mode: ActionMode::try_from(mode.mode.as_str().to_owned()).unwrap_or(ActionMode::Deny),
        mode_source: ModeSource::try_from(mode.source.as_str().to_owned())
            .unwrap_or(ModeSource::InferredDefault),
        state,
        hash,
        definition: tool.raw(),
        reviewed_definition: before,
        changes,
        changes_truncated,
    })
}

/// The differences between two definitions, and whether there are more than are listed.
fn differences(before: &Value, after: &Value) -> (Vec<DefinitionChange>, bool) {
    let mut changes = Vec::new();
    compare("", Some(before), Some(after), &mut changes);
    let truncated = changes.len() > MAX_CHANGES;
    changes.truncate(MAX_CHANGES);
    (changes, truncated)
}

/// Collects the differences between two values, at most one more than are listed.
fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, changes: &mut Vec<DefinitionChange>) {
    if before == after || changes.len() > MAX_CHANGES {
        return;
    }
    if let (Some(Value::Object(old)), Some(Value::Object(new))) = (before, after) {
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys {
            let escaped = key.replace('~', "~0").replace('/', "~1");
            compare(&format!("{path}/{escaped}"), old.get(key), new.get(key), changes);
        }
        return;
    }
    changes.push(DefinitionChange { path: path.to_owned(), before: before.cloned(), after: after.cloned() });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_diff_names_each_place_that_changed() {
        let before = json!({"name": "a", "description": "x", "inputSchema": {"properties": {"p/q": {"type": "string"}}}});
        let after = json!({"name": "a", "description": "y", "inputSchema": {"properties": {"p/q": {"type": "number"}}, "extra": 1}});
        let (changes, truncated) = differences(&before, &after);
        assert!(!truncated);
        let places: Vec<_> = changes.iter().map(|change| change.path.as_str()).collect();
        assert_eq!(places, ["/description", "/inputSchema/extra", "/inputSchema/properties/p~1q/type"]);
        assert_eq!((changes[1].before.clone(), changes[1].after.clone()), (None, Some(json!(1))));
    }

    #[test]
    fn a_diff_says_that_it_is_not_complete() {
        let fields = |count: usize| -> Value {
            let fields: serde_json::Map<_, _> =
                (0..count).map(|number| (number.to_string(), json!(0))).collect();
            fields.into()
        };
        for (count, truncated) in [(MAX_CHANGES, false), (MAX_CHANGES + 1, true)] {
            let (changes, said) = differences(&json!({}), &fields(count));
            assert_eq!((changes.len(), said), (MAX_CHANGES, truncated));
        }
    }
}
