//! The browser of an agent: Playwright's MCP server, which OpenCode starts as its own child and which starts Chromium.

use agent::Browser;
use serde_json::{Value, json};

/// The name of the server. OpenCode puts it before the name of each of its tools.
const SERVER_NAME: &str = "playwright";

/// How long OpenCode waits for the server's list of tools. Its default of 5 s is too short for a busy machine.
const LISTING_MS: u32 = 30_000;
/// Where the server puts files that the agent gave no name. Without this option, that is a directory in the repository.
const OUTPUT_DIR: &str = "/tmp/playwright";

/// The part `mcp` of OpenCode's configuration.
pub(super) fn mcp_servers(browser: &Browser) -> Value {
    // Chromium's own sandbox needs user namespaces, which our sandbox forbids, and the agent may do anything inside
    // anyway. A profile in memory leaves nothing in the home directory for snapshots to copy.
    let command = [
        "node",
        &browser.server,
        "--headless",
        "--browser",
        "chromium",
        "--executable-path",
        &browser.program,
        "--no-sandbox",
        "--isolated",
        "--caps",
        "vision",
        "--output-dir",
        OUTPUT_DIR,
    ];
    json!({ SERVER_NAME: {
        "type": "local",
        "command": command,
        "environment": { "NODE_PATH": browser.packages },
        "enabled": true,
        "timeout": LISTING_MS,
    } })
}
