//! The actions of a session as tools of OpenCode: the gateway's MCP server.

use serde_json::{Value, json};

/// The name of the server. OpenCode puts it before the name of each of its tools.
const SERVER_NAME: &str = "proliferate";
/// How long OpenCode waits for an answer. An action of a remote server may take half a minute.
const TIMEOUT_MS: u32 = 60_000;

/// The part `mcp` of OpenCode's configuration.
pub(super) fn mcp_servers(url: &str, key: &str) -> Value {
    json!({ SERVER_NAME: {
        "type": "remote",
        "url": url,
        "headers": { "Authorization": format!("Bearer {key}") },
        // Otherwise OpenCode would answer a refusal with a login that does not exist.
        "oauth": false,
        "enabled": true,
        "timeout": TIMEOUT_MS,
    } })
}
