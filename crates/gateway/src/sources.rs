//! The tools behind the gate: the platform's own tools, services of an app, pushes and pull requests, exports, and HTTP
//! tools from a file.
//! Each source is registered at boot and holds the dependencies of its tools.

mod arguments;
mod automation_complete;
mod credential;
mod document;
mod export;
mod git;
mod http_tool;
mod live_sandboxes;
mod modes;
mod platform;
mod problems;
mod request_env_variables;
mod save_env_files;
mod save_service_commands;
mod save_snapshot;
mod services;
mod start_services;
mod verify;

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{EXPORT, SourceError, Tool};
use policy::{Policy, Risk, ToolFacts, full_name};
use proto::OrgId;

pub use document::document;
pub(crate) use export::ExportSource;
pub(crate) use git::GitSource;
pub(crate) use http_tool::{HttpNeeds, HttpTools};
pub(crate) use live_sandboxes::LiveSandboxes;
pub(crate) use modes::{agent_files, refusal as mode_refusal, tools as agent_tools};
pub(crate) use platform::{PLATFORM_TOOLS, PlatformSource, PlatformTool};
pub(crate) use services::{ServiceAct, ServicesSource};
pub(crate) use verify::UPLOADS;

type Found<'a> = BoxFuture<'a, Result<Option<Arc<dyn Tool>>, SourceError>>;

/// A source of tools. A lookup may be slow or fail; that affects only the names that this source claims.
pub(crate) trait Source: Send + Sync {
    /// Whether a tool of this name can only be this source's, whether it exists or not.
    fn claims(&self, policy: &Policy, name: &str) -> bool;

    /// Finds the tool with this full name for callers of an organization.
    fn find<'a>(&'a self, policy: &'a Policy, org: OrgId, name: &'a str) -> Found<'a>;
}

/// All sources of a gateway. If two claim the same name, the one registered first wins. Later ones are not asked, so that
/// a source that fails does not let another one answer for its tools.
pub(crate) struct Registry(Vec<Box<dyn Source>>);

impl Registry {
    pub(crate) fn new(sources: Vec<Box<dyn Source>>) -> Self {
        Self(sources)
    }
}

impl gate::Sources for Registry {
    fn find<'a>(&'a self, policy: &'a Policy, org: OrgId, name: &'a str) -> Found<'a> {
        async move {
            match self.0.iter().find(|source| source.claims(policy, name)) {
                Some(source) => source.find(policy, org, name).await,
                None => Ok(None),
            }
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
    if name == EXPORT {
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

        fn find<'a>(&'a self, _: &'a Policy, _: OrgId, _: &'a str) -> Found<'a> {
            async { Err(SourceError { source_id: "broken", problem: "it is down".to_owned() }) }.boxed()
        }
    }

    #[tokio::test]
    async fn a_source_that_fails_affects_its_own_tools_only() {
        let tools = "- {name: a.b, method: GET, url: 'http://127.0.0.1/'}\n\
            - {name: broken.b, method: GET, url: 'http://127.0.0.1/'}\n";
        let policy = Policy::load(policy::Files { tools: Some(tools), ..policy::Files::default() }).unwrap();
        let org = OrgId::from(uuid::Uuid::nil());
        let registry = Registry::new(vec![Box::new(Broken), Box::new(HttpTools::for_tests())]);
        let find = async |name| gate::Sources::find(&registry, &policy, org, name).await;
        assert!(find("a.b").await.unwrap().is_some());
        assert!(find("a.c").await.unwrap().is_none());
        assert_eq!(find("broken.b").await.err().unwrap().source_id, "broken", "another source answered");
    }
}
