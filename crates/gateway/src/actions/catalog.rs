//! The catalog of a session: every source that answers, with the mode that each action has there now.

use gate::{SourceError, ToolScope, mode_of, wire_mode, wire_risk, wire_source};
use policy::{ModeDecision, deciding_setting};
use proto::http::{ActionCatalog, ActionInfo, ActionSource, UnavailableSource};
use store::{ActionModes, Chooser, DisabledAction, StoreError};

use super::Actions;
use crate::sources::{CatalogAction, CatalogSource, action_mode_key};

impl Actions {
    /// All actions that agents of a scope can use now, without those that a user has disabled. A source that does not
    /// answer is not among the integrations; the list of those is for operators.
    pub(crate) async fn available(
        &self,
        scope: ToolScope,
        chooser: Chooser,
    ) -> Result<ActionCatalog, StoreError> {
        let modes = self.store.all_action_modes(scope.org, scope.session).await?;
        let disabled = self.store.disabled_actions(scope.org, chooser).await?;
        let catalog = self.sources.catalog(&self.gate.policy(), scope).await;
        let shown =
            catalog.sources.into_iter().filter_map(|source| visible_source(source, &modes, &disabled));
        let unavailable =
            |SourceError { source_id, problem }| UnavailableSource { integration: source_id, problem };
        Ok(ActionCatalog {
            integrations: shown.collect(),
            unavailable: catalog.failed.into_iter().map(unavailable).collect(),
        })
    }

    /// The guide of a source in Markdown, or `None` if no such source can be used here.
    pub(crate) async fn guide(
        &self,
        scope: ToolScope,
        chooser: Chooser,
        source: &str,
    ) -> Result<Option<String>, StoreError> {
        let disabled = self.store.disabled_actions(scope.org, chooser).await?;
        let catalog = self.sources.catalog(&self.gate.policy(), scope).await;
        let found = catalog.sources.into_iter().find(|found| found.id == source);
        let used = found
            .filter(|found| found.actions.iter().any(|action| !is_disabled(&disabled, source, &action.name)));
        Ok(used.map(|found| found.guide))
    }
}

/// A source without the actions that are disabled; `None` if nothing is left.
fn visible_source(
    source: CatalogSource,
    modes: &ActionModes,
    disabled: &[DisabledAction],
) -> Option<ActionSource> {
    let CatalogSource { id, integration_id, display_name, actions, .. } = source;
    let enabled = actions.into_iter().filter(|action| !is_disabled(disabled, &id, &action.name));
    let actions: Vec<_> = enabled.filter_map(|action| shown_action(&id, action, modes)).collect();
    let integration_id = integration_id.map(Into::into);
    (!actions.is_empty()).then_some(ActionSource { integration_id, display_name, actions, integration: id })
}

fn is_disabled(disabled: &[DisabledAction], source: &str, action: &str) -> bool {
    let key = format!("{source}:{action}");
    disabled.iter().any(|disabled| disabled.disables(&key))
}

/// An action whose name makes no key has no mode, so nobody can invoke it and it is not shown.
fn shown_action(source: &str, action: CatalogAction, modes: &ActionModes) -> Option<ActionInfo> {
    let CatalogAction { name, description, params, risk, definition } = action;
    let key = action_mode_key(source, &name).ok()?;
    // Nobody knows the arguments yet, so a mode with conditions is shown with them.
    let ModeDecision { mode, source, .. } = mode_of(&key, modes, risk, Some(&definition), None);
    let conditions = deciding_setting(&key, modes.automation.as_ref(), &modes.org)
        .and_then(|setting| setting.conditions()?.get("rules").cloned());
    Some(ActionInfo {
        name,
        description,
        risk_level: wire_risk(risk),
        params,
        mode: wire_mode(mode),
        mode_source: wire_source(source),
        conditions,
    })
}
