//! The page `docs/agent-tools.md`, generated from the tables of modes and tools.

use std::fmt::Write as _;

use proto::AgentMode;
use sandboxd::protocol::{Place, Root};

use super::modes;
use super::platform::{PLATFORM_TOOLS, PlatformTool, ToolHost};
use crate::runtime::AgentFile;

/// Renders the page.
pub fn document() -> String {
    let mut page = String::from(
        "# Tools and instructions of agents\n\n\
         Generated from `crates/gateway/src/sources`; a test fails when this page differs, and says how to write it \
         anew.\n\n\
         A session's agent has a mode, which follows from what the session is for: `setup` for sessions of that type, \
         `automation` for those that an automation starts, `scratch` without a configuration, otherwise `coding`. The \
         mode decides the instructions, the tools, the files and the policy role. `agentConfig.tools` of a session can leave \
         tools out, but not add any. `systemPrompt` of a session, automation or configuration replaces the first part of the \
         instructions; the sentences about tools and the rules always follow.\n\n",
    );
    tools_table(&mut page);
    page.push('\n');
    files_table(&mut page);
    page.push_str(
        "\nThe guide stays as it is where the repository has a file of its own at that path. The event is there if one \
         started the session. Where a sandbox has a browser, agents of every mode have the tools `playwright_browser_…`, and \
         a section about them in their instructions. Once the run of an automation has ended, a later prompt in its session \
         gets an agent as in a session of a person: `coding`, or `scratch` without a configuration. \
         Its policy role stays that of automations.\n",
    );
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

/// The head of a table with a column for each mode.
fn table_head(page: &mut String, columns: &[&str]) {
    let modes = AgentMode::ALL.iter().map(|mode| mode.as_str());
    let columns: Vec<_> = columns.iter().copied().chain(modes).collect();
    let _ = writeln!(page, "| {} |", columns.join(" | "));
    let _ = writeln!(page, "|{}", "---|".repeat(columns.len()));
}

fn cells(has: impl Fn(AgentMode) -> bool) -> String {
    AgentMode::ALL.iter().map(|mode| if has(*mode) { " yes |" } else { " no |" }).collect()
}

fn files_table(page: &mut String) {
    table_head(page, &["file", "content"]);
    for file in AgentFile::ALL {
        let content = match file {
            AgentFile::TriggerContext => "the event that started the session",
            AgentFile::ActionsGuide => "how to use actions",
        };
        let Place { root, path } = file.place();
        let directory = if root == Root::Home { "~/" } else { "" };
        let cells = cells(|mode| modes::has_file(mode, file));
        let _ = writeln!(page, "| `{directory}{path}` | {content} |{cells}");
    }
}

fn tools_table(page: &mut String) {
    table_head(page, &["tool", "runs in"]);
    for tool in PLATFORM_TOOLS {
        let cells = cells(|mode| modes::refusal(mode, tool).is_none());
        let place = match tool.place {
            ToolHost::Gateway { .. } => "gateway",
            ToolHost::Sandbox { .. } => "sandbox",
        };
        let _ = writeln!(page, "| `{}` | {place} |{cells}", tool.name);
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
