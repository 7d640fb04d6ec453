//! The platform's own tools: one table from which the callback route, the agent's files and the API description are
//! generated.

use std::sync::Arc;
use std::time::Duration;

use clock::Clock;
use futures_util::FutureExt as _;
use gate::{CallRequest, Failure, ORG_ADMIN, Outside, Tool, Within, Work};
use opencode::files::Tool as AgentTool;
use policy::{ActorClass, Policy, Risk};
use proto::{OrgId, SessionType};
use serde_json::Value;
use store::{SandboxSession, Store};

use super::save_snapshot::SnapshotSaver;
use super::start_services::{self, StartServicesTool};
use super::{Found, Source, save_service_commands, save_snapshot};
use crate::access::{self, Act, CallerKind};

/// The risk of every platform tool.
pub(super) const RISK: Risk = Risk::Write;

/// One platform tool: its description for the agent, its validation and its implementation.
pub(crate) struct PlatformTool {
    pub(crate) name: &'static str,
    /// The description for the model.
    pub(crate) description: &'static str,
    /// The JSON schema of its arguments, for the model.
    pub(crate) schema: fn() -> Value,
    pub(crate) only_setup: bool,
    pub(crate) timeout: Duration,
    pub(crate) check: fn(&Value) -> Result<(), String>,
    pub(super) implement: fn(&PlatformSource) -> Implementation,
}

/// How a platform tool does its work.
pub(super) enum Implementation {
    Within(Box<dyn Within>),
    Outside(Box<dyn Outside>),
}

/// All platform tools. To add a tool, add an entry here.
pub(crate) static PLATFORM_TOOLS: [PlatformTool; 2] = [save_snapshot::TOOL, save_service_commands::TOOL];

fn find(name: &str) -> Option<&'static PlatformTool> {
    PLATFORM_TOOLS.iter().find(|tool| tool.name == name)
}

/// Whether the platform has a tool of this name.
pub(super) fn is_platform_tool(name: &str) -> bool {
    find(name).is_some() || name == start_services::NAME
}

/// The tools that a session of this type has.
pub(crate) fn offered(kind: SessionType) -> impl Iterator<Item = &'static PlatformTool> {
    PLATFORM_TOOLS.iter().filter(move |tool| !tool.only_setup || kind == SessionType::Setup)
}

/// The agent's tool files for a session of this type.
pub(crate) fn agent_tools(kind: SessionType) -> Vec<AgentTool> {
    let module = |tool: &PlatformTool| AgentTool::gateway_tool(tool.name, tool.description, &(tool.schema)());
    offered(kind).map(module).collect()
}

/// The dependencies of the platform tools.
pub(crate) struct PlatformSource {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) snapshots: Arc<dyn SnapshotSaver>,
}

impl Source for PlatformSource {
    fn claims(&self, _: &Policy, name: &str) -> bool {
        is_platform_tool(name)
    }

    fn find<'a>(&'a self, _: &'a Policy, _: OrgId, name: &'a str) -> Found<'a> {
        let bind = |tool: &'static PlatformTool| {
            Arc::new(BoundTool { tool, implementation: (tool.implement)(self) }) as Arc<dyn Tool>
        };
        let start_services = || Arc::new(StartServicesTool) as Arc<dyn Tool>;
        let tool = find(name).map(bind).or_else(|| (name == start_services::NAME).then(start_services));
        async { Ok(tool) }.boxed()
    }
}

/// A tool of the table with its dependencies.
struct BoundTool {
    tool: &'static PlatformTool,
    implementation: Implementation,
}

impl Tool for BoundTool {
    fn risk(&self) -> Risk {
        RISK
    }

    fn timeout(&self) -> Duration {
        self.tool.timeout
    }

    fn check(&self, parameters: &Value) -> Result<(), String> {
        (self.tool.check)(parameters)
    }

    fn work(&self) -> Work<'_> {
        match &self.implementation {
            Implementation::Within(within) => Work::Within(within.as_ref()),
            Implementation::Outside(outside) => Work::Outside(outside.as_ref()),
        }
    }
}

/// The session that a call concerns: the caller's own, or the one that the case names. A member who names one must be
/// allowed to change it.
pub(super) async fn session_of(store: &Store, call: &CallRequest) -> Result<SandboxSession, Failure> {
    let named = || call.case.as_deref().and_then(|case| case.parse().ok());
    let gone = || Failure::Refused("There is no such session, or it has ended.".to_owned());
    let id = call.caller.session.or_else(named).ok_or_else(gone)?;
    let found = store.sandbox_session(id).await;
    let found = found.map_err(|error| save_service_commands::store_failure(&error))?;
    let found = found.filter(|session| session.org_id == call.caller.org).ok_or_else(gone)?;
    if call.caller.actor.actor_type == ActorClass::Human && !may_change(&call.caller, &found) {
        return Err(Failure::Refused(Act::ChangeSession.refusal()));
    }
    Ok(found)
}

/// Whether the access table allows a member to change a session.
fn may_change(caller: &gate::Caller, session: &SandboxSession) -> bool {
    let kind = if caller.role == ORG_ADMIN { CallerKind::Admin } else { CallerKind::Member };
    let user = caller.actor.actor_id.parse().ok();
    access::may(Act::ChangeSession, kind, session.created_by.is_none() || session.created_by == user)
}
