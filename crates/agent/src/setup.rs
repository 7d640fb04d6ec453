//! What an agent starts from: the values that the gateway knows, and the files and the process that a type of agent makes
//! of them.

use crate::Tool;

/// The directory of tool files, in our own directory. The gateway removes it before it writes an agent's files, because the
/// mode may have lost a tool since the last start.
pub const TOOL_DIRECTORY: &str = "tool";

/// Everything that an agent's files and launch command depend on.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// The agent's home directory inside the sandbox.
    pub home: &'a str,
    /// Our own directory inside the sandbox, outside the user's repository.
    pub directory: &'a str,
    /// The agent's working directory.
    pub workspace: &'a str,
    pub urls: Urls<'a>,
    /// The key by which the gateway identifies the session.
    pub model_key: &'a str,
    /// The session, or `None` while the agent waits in the pool.
    pub session: Option<&'a str>,
    /// The default model, with its provider.
    pub model: &'a str,
    /// The models that are used with the Chat Completions API, besides those of the table.
    pub chat_models: &'a [ChatModel],
    /// See [`instructions`](crate::instructions).
    pub instructions: &'a str,
    pub tools: &'a [Tool],
    /// Absent where the sandbox has none.
    pub browser: Option<&'a Browser>,
    /// The port of 127.0.0.1 on which the gateway reaches the agent.
    pub port: u16,
}

/// What an agent reaches the gateway at.
#[derive(Clone, Copy)]
pub struct Urls<'a> {
    /// The base URL of the model API, without `/v1`.
    pub model: &'a str,
    /// The MCP server with the actions of the session.
    pub mcp: &'a str,
}

/// A model of the Chat Completions API, with its limits in tokens where they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatModel {
    pub name: String,
    pub context: Option<u64>,
    pub output: Option<u64>,
}

/// The browser of a sandbox: the paths inside of Playwright's MCP server and of Chromium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Browser {
    /// The module that is the server.
    pub server: String,
    /// The directory in which Node finds the packages that the server requires.
    pub packages: String,
    /// Chromium.
    pub program: String,
}

/// The program of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its file name on the PATH. The ledger names the agent by it.
    pub name: &'static str,
    /// The version that the integration is tested with.
    pub version: &'static str,
}

/// A file to write before the agent starts.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The absolute path inside the sandbox.
    pub path: String,
    pub contents: String,
    /// Whether only the agent may read the file.
    pub secret: bool,
}

/// The process to start in the agent's working directory.
#[derive(Clone, PartialEq, Eq)]
pub struct Launch {
    /// The arguments after the name of the program.
    pub arguments: Vec<String>,
    /// The variables in addition to `PATH` and those that the user's programs need.
    pub environment: Vec<(&'static str, String)>,
}
