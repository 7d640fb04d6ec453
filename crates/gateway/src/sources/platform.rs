//! The platform's own tools. Each tool is described once, in its own file; the agent's module, the validation, the
//! callback route, the API description and `docs/agent-tools.md` are generated from that.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use agent::Tool as AgentTool;
use clock::Clock;
use futures_util::FutureExt as _;
use gate::{CallRequest, Failure, ORG_ADMIN, Outside, Tool, ToolScope, Within, Work};
use policy::{ActorClass, Policy, Risk};
use proto::{AgentMode, JsonObject};
use schemas::Compiled;
use serde_json::Value;
use store::{SandboxSession, Store, StoreError};
use tokio::sync::Semaphore;

use super::live_sandboxes::LiveSandboxes;
use super::sandbox_tools::{SandboxTool, is_sandbox_tool};
use super::{
    Found, Source, arguments, automation_complete, modes, request_env_variables, save_env_files,
    save_service_commands, save_snapshot, verify,
};
use crate::access::{self, Act, CallerKind};

/// The risk of every platform tool.
pub(super) const RISK: Risk = Risk::Write;

/// One platform tool.
pub(crate) struct PlatformTool {
    /// The name that the model uses: letters, digits and `_`.
    pub(crate) name: &'static str,
    /// Other names under which callbacks may call it. Records contain `name` only.
    pub(crate) aliases: &'static [&'static str],
    /// Other names under which callbacks may send an argument, with the name that the schema has.
    pub(crate) argument_aliases: &'static [(&'static str, &'static str)],
    /// Must rise with every change of the schema; a test compares. A sandbox that was started with another version is
    /// told so instead of being misunderstood.
    pub(crate) version: u32,
    /// The description for the model.
    pub(crate) description: &'static str,
    /// When to use the tool, as a sentence of the instructions.
    pub(crate) guidance: fn(AgentMode) -> &'static str,
    /// The JSON Schema of the arguments.
    pub(crate) schema: fn() -> Value,
    pub(crate) place: ToolHost,
}

/// The place where a tool runs.
pub(crate) enum ToolHost {
    Gateway {
        timeout: Duration,
        implement: fn(&PlatformSource) -> Implementation,
    },
    /// The module itself does the work: the JavaScript of a function that gets valid arguments and returns the answer.
    Sandbox {
        execute: &'static str,
    },
}

/// How a platform tool does its work.
pub(crate) enum Implementation {
    Within(Box<dyn Within>),
    Outside(Box<dyn Outside>),
}

/// All platform tools. A new tool is added here, to the modes that have it in `modes`, and to their lanes in
/// `policy/lanes.yaml`.
pub(crate) static PLATFORM_TOOLS: [&PlatformTool; 6] = [
    &save_snapshot::TOOL,
    &verify::TOOL,
    &request_env_variables::TOOL,
    &save_service_commands::TOOL,
    &save_env_files::TOOL,
    &automation_complete::TOOL,
];

/// Whether the gateway executes a tool of this name or alias.
pub(super) fn is_gateway_tool(name: &str) -> bool {
    PlatformTool::find(name).is_some() || is_sandbox_tool(name)
}

/// The compiled schemas. A test compiles them all, so none is missing.
static COMPILED_SCHEMAS: LazyLock<HashMap<&str, Compiled>> = LazyLock::new(|| {
    let compiled = |tool: &&PlatformTool| Some((tool.name, arguments::validator((tool.schema)()).ok()?));
    PLATFORM_TOOLS.iter().filter_map(compiled).collect()
});

impl PlatformTool {
    /// Renames arguments to what the schema calls them. An argument that has both names keeps both, which the schema
    /// refuses.
    pub(crate) fn rename_arguments(&self, arguments: &mut JsonObject) {
        for (alias, name) in self.argument_aliases {
            if !arguments.contains_key(*name)
                && let Some(value) = arguments.remove(*alias)
            {
                arguments.insert((*name).to_owned(), value);
            }
        }
    }

    /// The tool with this name or alias that the gateway executes.
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        let named = |tool: &&&Self| tool.name == name || tool.aliases.contains(&name);
        let found = PLATFORM_TOOLS.iter().find(named)?;
        matches!(found.place, ToolHost::Gateway { .. }).then_some(*found)
    }

    /// The tool as the type of agent gets it, which makes a file of it.
    pub(super) fn for_agent(&self) -> AgentTool {
        let Self { name, version, description, .. } = *self;
        let execute = match self.place {
            ToolHost::Gateway { .. } => None,
            ToolHost::Sandbox { execute } => Some(execute),
        };
        AgentTool {
            name,
            version,
            description,
            schema: arguments::schema_for_models(&(self.schema)()),
            execute,
        }
    }

    fn check(&self, arguments: &Value) -> Result<(), String> {
        let compiled = COMPILED_SCHEMAS.get(self.name).ok_or("the schema of this tool is not valid")?;
        arguments::check(compiled, arguments)
    }
}

/// The dependencies of the platform tools.
pub(crate) struct PlatformSource {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) sandboxes: Arc<dyn LiveSandboxes>,
    /// Limits the uploads that are read at a time.
    pub(crate) upload_slots: Arc<Semaphore>,
}

impl Source for PlatformSource {
    fn claims(&self, _: &Policy, name: &str) -> bool {
        is_gateway_tool(name)
    }

    fn find<'a>(&'a self, _: &'a Policy, _: ToolScope, name: &'a str) -> Found<'a> {
        let bind = |tool: &'static PlatformTool| match tool.place {
            ToolHost::Sandbox { .. } => None,
            ToolHost::Gateway { timeout, implement } => {
                let bound = BoundTool { tool, timeout, implementation: implement(self) };
                Some(Arc::new(bound) as Arc<dyn Tool>)
            }
        };
        let sandbox_tool = || is_sandbox_tool(name).then(|| Arc::new(SandboxTool) as Arc<dyn Tool>);
        let tool = PlatformTool::find(name).and_then(bind).or_else(sandbox_tool);
        async { Ok(tool) }.boxed()
    }
}

/// A platform tool together with the services that its implementation needs.
struct BoundTool {
    tool: &'static PlatformTool,
    timeout: Duration,
    implementation: Implementation,
}

impl Tool for BoundTool {
    fn risk(&self) -> Risk {
        RISK
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn check(&self, parameters: &Value) -> Result<(), String> {
        self.tool.check(parameters)
    }

    fn work(&self) -> Work<'_> {
        match &self.implementation {
            Implementation::Within(within) => Work::Within(within.as_ref()),
            Implementation::Outside(outside) => Work::Outside(outside.as_ref()),
        }
    }
}

/// The session that a call of a platform tool concerns. Its mode must have the tool, whatever the lanes say.
pub(super) async fn session_with(
    store: &Store,
    call: &CallRequest,
    tool: &PlatformTool,
) -> Result<SandboxSession, Failure> {
    let session = session_of(store, call).await?;
    match modes::refusal(session.mode(), tool) {
        None => Ok(session),
        Some(refusal) => Err(Failure::Refused(refusal)),
    }
}

/// The session that a call concerns: the caller's own, or the one that the case names. A member who names one must be
/// allowed to change it.
pub(super) async fn session_of(store: &Store, call: &CallRequest) -> Result<SandboxSession, Failure> {
    let named = || call.case.as_deref().and_then(|case| case.parse().ok());
    let gone = || Failure::Refused("There is no such session, or it has ended.".to_owned());
    let id = call.caller.session.or_else(named).ok_or_else(gone)?;
    let found = store.sandbox_session(id).await.map_err(|error| store_failure(&error))?;
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

/// The failure for a store error. The database's own message goes to the log only.
pub(super) fn store_failure(error: &StoreError) -> Failure {
    if let StoreError::Missing(what) = error {
        return Failure::Refused(format!("{what} does not exist"));
    }
    tracing::error!(%error, "a tool could not write");
    Failure::Down("the gateway's database is not available".to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The violations of a tool's schema by these arguments.
    pub(in crate::sources) fn problems(tool: &PlatformTool, arguments: &Value) -> String {
        tool.check(arguments).err().unwrap_or_default()
    }

    /// Each schema with the version that has it. If one changes, raise the version of its tool and correct the hash.
    #[test]
    fn the_version_of_a_tool_rises_with_its_schema() {
        let schema = |tool: &&PlatformTool| {
            let text = ledger::canonical(&(tool.schema)()).unwrap();
            format!("{} {} {}", tool.name, tool.version, &ledger::sha256(text.as_bytes()).to_string()[..8])
        };
        let now: Vec<String> = PLATFORM_TOOLS.iter().map(schema).collect();
        let pinned = [
            "save_snapshot 1 b4faae25",
            "verify 2 1bfa2671",
            "request_env_variables 2 1588f52c",
            "save_service_commands 2 890e51f9",
            "save_env_files 2 ccc4c188",
            "automation_complete 1 dcea0d0a",
        ];
        assert_eq!(now, pinned);
    }

    #[test]
    fn every_tool_can_be_named_by_a_model_and_has_a_valid_schema_for_an_object() {
        for tool in PLATFORM_TOOLS {
            let plain = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            assert!(plain(tool.name) && tool.name.len() <= 64, "{}", tool.name);
            let schema = (tool.schema)();
            assert!(
                schema["type"] == "object" && arguments::validator(schema.clone()).is_ok(),
                "{}",
                tool.name
            );
            assert_eq!(schema["additionalProperties"], false, "{}", tool.name);
            assert!(arguments::validator(tool.for_agent().schema).is_ok(), "{}", tool.name);
        }
    }
}
