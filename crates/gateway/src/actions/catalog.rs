//! The catalog of a session: every source that answers, with the mode that each action has there now.

use gate::{ToolScope, mode_of, wire_mode, wire_risk, wire_source};
use policy::ModeDecision;
use proto::http::{ActionInfo, ActionSource};
use store::{ActionModes, StoreError};

use super::Actions;
use crate::sources::{CatalogAction, CatalogSource, action_mode_key};

impl Actions {
    /// All actions that agents of a scope can use now. A source that does not answer is left out; the log says why.
    pub(crate) async fn available(&self, scope: ToolScope) -> Result<Vec<ActionSource>, StoreError> {
        let modes = self.store.all_action_modes(scope.org, scope.session).await?;
        let catalog = self.sources.catalog(&self.gate.policy(), scope).await;
        Ok(catalog.sources.into_iter().map(|source| shown(source, &modes)).collect())
    }

    /// The guide of a source in Markdown, or `None` if no such source can be used here.
    pub(crate) async fn guide(&self, scope: ToolScope, source: &str) -> Option<String> {
        let catalog = self.sources.catalog(&self.gate.policy(), scope).await;
        catalog.sources.into_iter().find(|found| found.id == source).map(|found| found.guide)
    }
}

fn shown(source: CatalogSource, modes: &ActionModes) -> ActionSource {
    let CatalogSource { id, integration_id, display_name, actions, .. } = source;
    let actions = actions.into_iter().filter_map(|action| shown_action(&id, action, modes)).collect();
    ActionSource { integration_id: integration_id.map(Into::into), display_name, actions, integration: id }
}

/// An action whose name makes no key has no mode, so nobody can invoke it and it is not shown.
fn shown_action(source: &str, action: CatalogAction, modes: &ActionModes) -> Option<ActionInfo> {
    let CatalogAction { name, description, params, risk, definition } = action;
    let key = action_mode_key(source, &name).ok()?;
    let ModeDecision { mode, source, .. } = mode_of(&key, modes, risk, Some(&definition));
    Some(ActionInfo {
        name,
        description,
        risk_level: wire_risk(risk),
        params,
        mode: wire_mode(mode),
        mode_source: wire_source(source),
    })
}
