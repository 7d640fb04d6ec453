//! The catalog of a session: every source that answers, without what lanes prohibit for its agent and what a user has
//! disabled, with the mode that each action has there now.

use gate::{SourceError, mode_of, wire_mode, wire_risk, wire_source};
use policy::{ModeDecision, deciding_setting};
use proto::http::{ActionCatalog, ActionInfo, ActionSource, UnavailableSource};
use store::{ActionModes, DisabledAction, StoreError};

use super::Actions;
use super::audience::{Audience, Lanes};
use crate::sources::{CatalogAction, CatalogSource, action_mode_key};

/// How many actions that lanes prohibit are named.
const MAX_NAMED: usize = 20;

/// A source as an audience sees it.
pub(super) struct VisibleSource {
    pub(super) source: CatalogSource,
    /// The names of the actions that lanes prohibit, which `source` does not have.
    pub(super) prohibited: Vec<String>,
}

impl Actions {
    /// All actions that an agent can use now, without those that a user has disabled. A source that does not answer is
    /// not among the integrations; the list of those, and of what lanes prohibit, is for operators.
    pub(crate) async fn available(&self, audience: &Audience) -> Result<ActionCatalog, StoreError> {
        let modes = self.store.all_action_modes(audience.org(), audience.session()).await?;
        let (visible, failed) = self.visible_sources(audience).await?;
        let unavailable =
            |SourceError { source_id, problem }| UnavailableSource { integration: source_id, problem };
        let prohibited = visible.iter().filter_map(prohibited_actions);
        Ok(ActionCatalog {
            unavailable: failed.into_iter().map(unavailable).chain(prohibited).collect(),
            integrations: visible.into_iter().filter_map(|visible| shown(visible.source, &modes)).collect(),
        })
    }

    /// The guide of a source in Markdown, with the actions of the catalog, or `None` if it has none there.
    pub(crate) async fn guide(
        &self,
        audience: &Audience,
        source: &str,
    ) -> Result<Option<String>, StoreError> {
        let (visible, _) = self.visible_sources(audience).await?;
        let mut visible = visible.into_iter().map(|visible| visible.source);
        let found = visible.find(|found| found.id == source && !found.actions.is_empty());
        Ok(found.map(|found| found.guide_text()))
    }

    /// The sources that answer, with the actions that an agent can use, and those that do not answer.
    pub(super) async fn visible_sources(
        &self,
        audience: &Audience,
    ) -> Result<(Vec<VisibleSource>, Vec<SourceError>), StoreError> {
        let policy = self.gate.policy();
        let disabled = self.store.disabled_actions(audience.org(), audience.chooser).await?;
        let catalog = self.sources.catalog(&policy, audience.scope).await;
        let mut lanes = Lanes::new(&policy, audience);
        let visible = catalog.sources.into_iter().map(|source| visible_source(source, &disabled, &mut lanes));
        Ok((visible.collect(), catalog.failed))
    }
}

fn visible_source(
    mut source: CatalogSource,
    disabled: &[DisabledAction],
    lanes: &mut Lanes<'_>,
) -> VisibleSource {
    let id = &source.id;
    // An action whose name makes no key has no mode, so nobody can invoke it.
    let is_usable = |action: &CatalogAction| {
        action_mode_key(id, &action.name)
            .is_ok_and(|key| !disabled.iter().any(|disabled| disabled.disables(key.as_str())))
    };
    let (prohibited, actions): (Vec<_>, Vec<_>) = source
        .actions
        .into_iter()
        .filter(is_usable)
        .partition(|action| lanes.prohibit(id, &action.name, action.risk));
    source.actions = actions;
    VisibleSource { source, prohibited: prohibited.into_iter().map(|action| action.name).collect() }
}

/// What operators are told about the actions that lanes prohibit.
fn prohibited_actions(visible: &VisibleSource) -> Option<UnavailableSource> {
    let (named, more) = visible.prohibited.split_at(visible.prohibited.len().min(MAX_NAMED));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    let problem = format!(
        "the lanes of the policy prohibit these actions for the session's agent: {}{more}; `proliferate policy explain` \
         says why",
        named.join(", ")
    );
    (!named.is_empty()).then(|| UnavailableSource { integration: visible.source.id.clone(), problem })
}

/// A source with the modes of its actions; `None` if it has none.
pub(super) fn shown(source: CatalogSource, modes: &ActionModes) -> Option<ActionSource> {
    let CatalogSource { id, integration_id, display_name, actions, .. } = source;
    let actions: Vec<_> = actions.into_iter().filter_map(|action| shown_action(&id, action, modes)).collect();
    let integration_id = integration_id.map(Into::into);
    (!actions.is_empty()).then_some(ActionSource { integration_id, display_name, actions, integration: id })
}

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
