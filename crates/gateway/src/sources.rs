//! The tools behind the gate: the platform's own tools, services of an app, pushes and pull requests, exports, and HTTP
//! tools from a file.
//! Each source is registered at boot and holds the dependencies of its tools.

mod action_keys;
mod arguments;
mod automation_complete;
mod catalog;
mod connector;
mod credential;
mod database;
mod document;
mod export;
mod git;
mod http_tool;
mod integrations;
mod live_sandboxes;
mod modes;
mod needed_lanes;
mod platform;
mod problems;
mod request_env_variables;
mod sandbox_tools;
mod save_env_files;
mod save_service_commands;
mod save_snapshot;
mod services;
mod source_kind;
mod stored_action;
mod verify;

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{EXPORT_TOOL, SourceError, Tool, ToolScope};
use policy::{ModeKey, Policy, Risk, ToolFacts, full_name};
use store::{Chooser, Store};

pub use action_keys::{ActionKeyError, ActionKeys};
pub(crate) use arguments::compile_schema;
pub(crate) use catalog::{
    CatalogAction, CatalogSource, Described, HTTP_TOOLS, mode_key as action_mode_key, tool_name,
};
pub(crate) use connector::{
    ConnectorSource, definition_of as connector_definition, risk_of as connector_risk,
    source_id as connector_source_id,
};
pub(crate) use database::{DatabaseTools, action_list as database_actions};
pub use document::document;
pub(crate) use export::ExportSource;
pub(crate) use git::GitSource;
pub(crate) use http_tool::{HttpNeeds, HttpTools};
pub(crate) use integrations::Integrations;
pub(crate) use live_sandboxes::LiveSandboxes;
pub(crate) use modes::{agent_contents, refusal as mode_refusal, tools as agent_tools};
pub use needed_lanes::missing_lanes;
pub(crate) use platform::{PLATFORM_TOOLS, PlatformSource, PlatformTool};
pub(crate) use services::{ServiceAct, ServicesSource};
pub use source_kind::is_of_organization;
pub use stored_action::{StoredAction, stored_action};
pub(crate) use verify::MAX_CONCURRENT_UPLOADS;

type Found<'a> = BoxFuture<'a, Result<Option<Arc<dyn Tool>>, SourceError>>;
type Missing<'a> = BoxFuture<'a, Option<String>>;

/// A source of tools. A lookup may be slow or fail; that affects only the names that this source claims.
///
/// The tools of a source of *actions* are in the catalog of every agent that may use them. Such a source has an id such
/// as `linear`, `connector:<uuid>` or `db:<uuid>`, which may be one of many that one `Source` serves, and
///
/// - claims every name that starts with its id and a colon, whether such an action exists or not;
/// - describes its actions ([`Source::describe`]);
/// - finds an action by the name `sourceId:actionId`. The tool returns the same text as its [`Tool::mode_key`],
///   so that modes and approvals govern it, and the risk and definition of the catalog. It checks parameters against the
///   schema of the catalog with [`arguments::check_schema`], which names all violations at once;
/// - finds a tool only if this scope may use it: if the organization has not enabled it, or the session is not connected
///   to it, the result is `None`, as for a tool that does not exist.
///
/// The gate decides, asks for approval, and records. The tool acts only in `Outside::execute`, where it gets a `Permit`.
pub(crate) trait Source: Send + Sync {
    /// Whether a tool of this name can only be this source's, whether it exists or not.
    fn claims(&self, policy: &Policy, name: &str) -> bool;

    /// Finds the tool with this full name for callers of this scope. `Err` means that the source failed to answer; the
    /// call is then not executed, and may be retried.
    fn find<'a>(&'a self, policy: &'a Policy, scope: ToolScope, name: &'a str) -> Found<'a>;

    /// The same, by what the source itself says now. Only a source that keeps definitions of others implements it.
    fn find_now<'a>(&'a self, policy: &'a Policy, scope: ToolScope, name: &'a str) -> Found<'a> {
        self.find(policy, scope, name)
    }

    /// Why `find` found nothing, if it is not only the action that is missing.
    fn explain_missing<'a>(&'a self, _scope: ToolScope, _name: &'a str) -> Missing<'a> {
        async { None }.boxed()
    }

    /// Describes the actions that agents of this scope can use now, without a permit and without any effect. A source
    /// that cannot be reached returns an error in its place in the list; agents do not see it, and operators see why.
    fn describe<'a>(&'a self, _policy: &'a Policy, _scope: ToolScope) -> Described<'a> {
        async { Vec::new() }.boxed()
    }
}

/// All sources of a gateway. If two claim the same name, the one registered first wins. Later ones are not asked, so that
/// a source that fails does not let another one answer for its tools.
///
/// A session does not have the actions that its creator has disabled.
#[derive(Default)]
pub(crate) struct Registry {
    sources: Vec<Box<dyn Source>>,
    /// Where users have disabled actions.
    preferences: Option<Store>,
}

impl Registry {
    pub(crate) fn new(sources: Vec<Box<dyn Source>>, preferences: Option<Store>) -> Self {
        Self { sources, preferences }
    }

    /// Why there is no action of this name, in words for its caller, who finds out with `actions list` what there is.
    pub(crate) async fn explain_missing(
        &self,
        policy: &Policy,
        scope: ToolScope,
        (source, action): (&str, &str),
    ) -> String {
        let name = tool_name(source, action);
        let problem = match self.claiming(policy, &name) {
            Some(claiming) => claiming.explain_missing(scope, &name).await,
            None if source == HTTP_TOOLS => None,
            None => Some(format!("Unknown integration: {source}")),
        };
        let problem = problem.unwrap_or_else(|| format!("Unknown action: {source}/{action}"));
        format!("{problem}; `proliferate actions list` shows what there is")
    }

    fn claiming(&self, policy: &Policy, name: &str) -> Option<&dyn Source> {
        self.sources.iter().find(|source| source.claims(policy, name)).map(AsRef::as_ref)
    }

    /// The tool that a source found, unless the creator of the session has disabled it.
    async fn enabled(
        &self,
        scope: ToolScope,
        found: Option<Arc<dyn Tool>>,
    ) -> Result<Option<Arc<dyn Tool>>, SourceError> {
        let disabled = match found.as_ref().and_then(|tool| tool.mode_key()) {
            Some(key) => self.is_disabled(scope, &key).await?,
            None => false,
        };
        Ok(found.filter(|_| !disabled))
    }

    /// Whether the creator of a session has disabled this action.
    async fn is_disabled(&self, scope: ToolScope, key: &ModeKey) -> Result<bool, SourceError> {
        let (Some(session), Some(store)) = (scope.session, &self.preferences) else { return Ok(false) };
        let disabled = store.disabled_action(scope.org, Chooser::CreatorOf(session), key.as_str()).await;
        disabled.map(|disabled| disabled.is_some()).map_err(|error| {
            tracing::warn!(%error, "the preferences of a user cannot be read");
            let problem = "the preferences of the session's creator cannot be read".to_owned();
            SourceError { source_id: key.parts().0.to_owned(), problem }
        })
    }
}

impl gate::Sources for Registry {
    fn find<'a>(&'a self, policy: &'a Policy, scope: ToolScope, name: &'a str) -> Found<'a> {
        async move {
            let Some(source) = self.claiming(policy, name) else { return Ok(None) };
            self.enabled(scope, source.find(policy, scope, name).await?).await
        }
        .boxed()
    }

    fn find_now<'a>(&'a self, policy: &'a Policy, scope: ToolScope, name: &'a str) -> Found<'a> {
        async move {
            let Some(source) = self.claiming(policy, name) else { return Ok(None) };
            self.enabled(scope, source.find_now(policy, scope, name).await?).await
        }
        .boxed()
    }
}

/// Whether a platform tool has this name, wherever it runs.
pub(crate) fn is_platform_tool(name: &str) -> bool {
    PLATFORM_TOOLS.iter().any(|tool| tool.name == name || tool.aliases.contains(&name))
}

/// The facts about a tool that policy needs, without a running gateway. Names are resolved as for a call, so that a
/// policy replay judges the tool that would be executed.
pub fn known_tool(policy: &Policy, name: &str, operation: &str) -> Option<ToolFacts> {
    let name = full_name(name, operation);
    let plain = |risk| ToolFacts { risk, writes: None, mode_key: None };
    if platform::is_gateway_tool(&name) {
        return Some(plain(platform::RISK));
    }
    if services::find(&name).is_some() {
        return Some(plain(services::RISK));
    }
    if let Some(known) = git::known(&name) {
        return Some(known);
    }
    if let Some(known) = integrations::known(&name) {
        return Some(known);
    }
    if name == EXPORT_TOOL {
        return Some(plain(Risk::Danger));
    }
    let tool = policy.tool(&name)?;
    Some(ToolFacts { risk: tool.risk, writes: tool.writes.clone(), mode_key: Some(tool.mode_key()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken;

    impl Source for Broken {
        fn claims(&self, _: &Policy, name: &str) -> bool {
            name.starts_with("broken.")
        }

        fn find<'a>(&'a self, _: &'a Policy, _: ToolScope, _: &'a str) -> Found<'a> {
            async { Err(down()) }.boxed()
        }

        fn describe<'a>(&'a self, _: &'a Policy, _: ToolScope) -> Described<'a> {
            async { vec![Err(down())] }.boxed()
        }
    }

    fn down() -> SourceError {
        SourceError { source_id: "broken".to_owned(), problem: "it is down".to_owned() }
    }

    #[tokio::test]
    async fn a_source_that_fails_affects_its_own_tools_only() {
        let tools = "- {name: a.b, method: GET, url: 'http://127.0.0.1/'}\n\
            - {name: broken.b, method: GET, url: 'http://127.0.0.1/'}\n";
        let policy = Policy::load(policy::Files { tools: Some(tools), ..policy::Files::default() }).unwrap();
        let scope = ToolScope { org: uuid::Uuid::nil().into(), session: None };
        let registry = Registry::new(vec![Box::new(Broken), Box::new(HttpTools::for_tests())], None);
        let find = async |name| gate::Sources::find(&registry, &policy, scope, name).await;
        assert!(find("a.b").await.unwrap().is_some());
        assert!(find("a.c").await.unwrap().is_none());
        assert_eq!(find("broken.b").await.err().unwrap().source_id, "broken", "another source answered");
        let catalog = registry.catalog(&policy, scope).await;
        assert_eq!(catalog.failed, [down()]);
        let names: Vec<_> = catalog.sources[0].actions.iter().map(|action| action.name.as_str()).collect();
        assert_eq!((catalog.sources[0].id.as_str(), names), ("tools", vec!["a.b", "broken.b"]));
    }
}
