//! The page `docs/agent-tools.md`, generated from the tables of modes and tools.

use std::fmt::Write as _;

use proto::AgentMode;

use super::modes;
use super::platform::{PLATFORM_TOOLS, PlatformTool, ToolPlace};

/// Renders the page.
pub fn document() -> String {
    let mut page = String::from(
        "# Tools and instructions of agents\n\n\
         Generated from `crates/gateway/src/sources`; a test fails when this page differs, and says how to write it \
         anew.\n\n\
         A session's agent has a mode, which follows from what the session is for: `setup` for sessions of that type, \
         `automation` for those that an automation starts, `scratch` without a configuration, otherwise `coding`. The \
         mode decides the instructions, the tools and the policy role. `agentConfig.tools` of a session can leave \
         tools out, but not add any. `systemPrompt` of a session, automation or configuration replaces the first part of the \
         instructions; the sentences about tools and the rules always follow.\n\n",
    );
    modes_table(&mut page);
    page.push_str(
        "\n## Callbacks\n\n\
         A tool that runs in the gateway is called by `POST /proliferate/{id}/tools/{tool}` with the sandbox's token and \
         `{tool_call_id, args, version}`. The answer is 200 with `{success, result, data?}` also if the tool fails, is \
         not one of the session's, has invalid arguments (each is named with its limit), or has another `version` than \
         the sandbox's file. The same `tool_call_id` is executed once; the agent's files send the id of the message and \
         the id of the call, with a colon in between. A `tool_call_id` with other arguments is 409, an unknown tool 404, \
         another session's token 403, a body that is too large 413.\n",
    );
    for tool in PLATFORM_TOOLS {
        describe(&mut page, tool);
    }
    page
}

fn modes_table(page: &mut String) {
    let heads: Vec<_> = AgentMode::ALL.iter().map(|mode| format!(" {mode} |")).collect();
    let _ = writeln!(page, "| tool | runs in |{}", heads.concat());
    let _ = writeln!(page, "|---|---|{}", "---|".repeat(AgentMode::ALL.len()));
    for tool in PLATFORM_TOOLS {
        let has = |mode: &AgentMode| if modes::refusal(*mode, tool).is_none() { " yes |" } else { " no |" };
        let cells: Vec<_> = AgentMode::ALL.iter().map(has).collect();
        let place = match tool.place {
            ToolPlace::Gateway { .. } => "gateway",
            ToolPlace::Sandbox { .. } => "sandbox",
        };
        let _ = writeln!(page, "| `{}` | {place} |{}", tool.name, cells.concat());
    }
}

fn describe(page: &mut String, tool: &PlatformTool) {
    let _ = write!(page, "\n## `{}`, version {}\n\n{}\n", tool.name, tool.version, tool.description);
    for alias in tool.aliases {
        let _ = write!(page, "\nCallbacks may also call it `{alias}`.\n");
    }
    let schema = serde_json::to_string_pretty(&(tool.schema)()).unwrap_or_default();
    let _ = write!(page, "\n```json\n{schema}\n```\n");
}
