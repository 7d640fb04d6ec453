//! What the agent is given before it starts: files, environment and command line, all of it data. It is laid out so
//! that OpenCode starts with no network, asks nobody for permission, and leaves the user's repository as it is.

use std::borrow::Cow;

use serde_json::{Value, json};

/// The version that everything here was tried with; no other one is started.
pub const VERSION: &str = include_str!("../../../scripts/opencode.version").trim_ascii();

/// Names the file with the session's id and token. Without it, the environment says both.
pub const SESSION_FILE: &str = "PROLIFERATE_SESSION_FILE";

const PLUGIN: &str = include_str!("files/plugin.mjs");
/// What an honest catalogue says of most models; the agent uses it to decide when to compress a conversation.
const CONTEXT: u32 = 200_000;
const OUTPUT: u32 = 32_000;

/// Where and for whom an agent is started.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// The agent's home inside the sandbox.
    pub home: &'a str,
    /// A folder of ours inside the sandbox, outside of the user's repository.
    pub folder: &'a str,
    /// Where the agent works, and where its process is started.
    pub workspace: &'a str,
    /// Where the model is, without `/v1`.
    pub model_url: &'a str,
    /// What the model proxy knows the session by.
    pub model_key: &'a str,
    /// Whose agent it is; nobody's while it waits in a pool.
    pub session: Option<&'a str>,
    /// The model for whoever does not name one, with its provider.
    pub model: &'a str,
    pub instructions: Instructions,
    pub tools: &'a [Tool],
    pub port: u16,
}

/// What the agent is told of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// There is a repository.
    Coding,
    /// There is an empty folder.
    Scratch,
}

impl Instructions {
    pub const fn text(self) -> &'static str {
        match self {
            Self::Coding => include_str!("files/coding.md"),
            Self::Scratch => include_str!("files/scratch.md"),
        }
    }
}

/// A tool of ours that the agent can call. One file that cannot be loaded takes all tools away.
#[derive(Clone, Debug)]
pub struct Tool {
    /// How the model calls it; letters, digits and `_`.
    pub name: &'static str,
    /// A module without imports whose default export has `description`, `args` and `execute`.
    pub source: Cow<'static, str>,
}

impl Tool {
    /// A tool whose work the gateway does.
    pub fn of_gateway(name: &'static str, description: &str, schema: &Value) -> Self {
        let source = include_str!("files/tool.js")
            .replace("\"@NAME@\"", &json!(name).to_string())
            .replace("\"@DESCRIPTION@\"", &json!(description).to_string())
            .replace("\"@SCHEMA@\"", &schema.to_string());
        Self { name, source: Cow::Owned(source) }
    }
}

/// A file to be written before the agent starts.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Absolute, inside the sandbox.
    pub path: String,
    pub contents: String,
    /// Nobody but the agent may read it.
    pub secret: bool,
}

/// The process to be started, in the folder where the agent works.
#[derive(Clone, PartialEq, Eq)]
pub struct Launch {
    /// After the name of the program.
    pub arguments: Vec<String>,
    /// Beside `PATH` and whatever the user's own programs need.
    pub environment: Vec<(&'static str, String)>,
}

impl Setup<'_> {
    /// All files. Later tools only add to them.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        // OpenCode installs packages into its folders at the first request unless it looks as if that had been done;
        // with no network that takes more than a minute.
        for folder in [self.home_config(), self.folder.to_owned()] {
            let plugin = json!({ "@opencode-ai/plugin": VERSION });
            let lock = json!({ "lockfileVersion": 3, "packages": { "": { "dependencies": plugin } } });
            entries.push(plain(&folder, "package.json", json!({ "dependencies": plugin }).to_string()));
            entries.push(plain(&folder, "package-lock.json", lock.to_string()));
            entries.push(plain(&folder, "node_modules/.keep", String::new()));
        }
        // Without a file of its own it would write one.
        entries.push(plain(&self.home_config(), "opencode.json", global_config().to_string()));
        entries.push(Entry { secret: true, ..self.entry("model-key", self.model_key) });
        entries.extend(self.session_file());
        entries.push(self.entry("models.json", &catalogue().to_string()));
        entries.push(self.entry("proliferate.mjs", PLUGIN));
        entries.push(self.entry("instructions.md", self.instructions.text()));
        entries.extend(
            self.tools.iter().map(|tool| self.entry(&format!("tool/{}.js", tool.name), &tool.source)),
        );
        entries
    }

    pub fn launch(&self) -> Launch {
        let arguments = ["serve", "--hostname", "127.0.0.1", "--port"].map(str::to_owned);
        let mut environment = vec![
            ("HOME", self.home.to_owned()),
            ("OPENCODE_CONFIG_CONTENT", self.config().to_string()),
            ("OPENCODE_CONFIG_DIR", self.folder.to_owned()),
            ("OPENCODE_MODELS_PATH", format!("{}/models.json", self.folder)),
            (SESSION_FILE, format!("{}/session.json", self.folder)),
        ];
        let off = [
            "OPENCODE_DISABLE_AUTOUPDATE",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS",
            "OPENCODE_DISABLE_LSP_DOWNLOAD",
            "OPENCODE_DISABLE_MODELS_FETCH",
            // A repository's own configuration could say where the model is and run code in the agent; and OpenCode
            // would rewrite it and install packages beside it.
            "OPENCODE_DISABLE_PROJECT_CONFIG",
            "OPENCODE_DISABLE_SHARE",
        ];
        environment.extend(off.map(|name| (name, "1".to_owned())));
        Launch { arguments: arguments.into_iter().chain([self.port.to_string()]).collect(), environment }
    }

    /// Where tools learn whose they are. A pooled agent's environment was made before anybody knew.
    fn session_file(&self) -> Option<Entry> {
        let session = json!({ "sessionId": self.session?, "token": self.model_key });
        Some(Entry { secret: true, ..self.entry("session.json", &session.to_string()) })
    }

    /// Ours, and those of the repository, which OpenCode no longer looks for by itself.
    fn instruction_files(&self) -> [String; 3] {
        let theirs = |name| format!("{}/{name}", self.workspace);
        [format!("{}/instructions.md", self.folder), theirs("AGENTS.md"), theirs("CLAUDE.md")]
    }

    /// It is given in the environment, because that outweighs every file that the agent may write later.
    fn config(&self) -> Value {
        let key = format!("{{file:{}/model-key}}", self.folder);
        let base = format!("{}/v1", self.model_url.trim_end_matches('/'));
        json!({
            "$schema": SCHEMA,
            "model": self.model,
            "provider": { "anthropic": { "options": { "baseURL": base, "apiKey": key } } },
            "plugin": [format!("{}/proliferate.mjs", self.folder)],
            "instructions": self.instruction_files(),
            // The sandbox is the boundary, and there is nobody to ask. The order counts: the last match wins.
            "permission": { "*": "allow", "question": "deny" },
            "agent": { "title": { "disable": true } },
            "autoupdate": false,
            "share": "disabled",
            "snapshot": false,
        })
    }

    fn home_config(&self) -> String {
        format!("{}/.config/opencode", self.home)
    }

    fn entry(&self, name: &str, contents: &str) -> Entry {
        plain(self.folder, name, contents.to_owned())
    }
}

const SCHEMA: &str = "https://opencode.ai/config.json";

/// A file without a schema would be rewritten to have one.
fn global_config() -> Value {
    json!({ "$schema": SCHEMA })
}

/// The models that go through our proxy, and no others: a small catalogue makes the first turn several times quicker.
fn catalogue() -> Value {
    let ours =
        proto::MODELS.iter().filter_map(|model| Some((model.opencode_id.strip_prefix("anthropic/")?, model)));
    let models: serde_json::Map<String, Value> =
        ours.map(|(id, model)| (id.to_owned(), described(model))).collect();
    json!({ "anthropic": {
        "id": "anthropic", "name": "Anthropic", "env": ["ANTHROPIC_API_KEY"], "npm": "@ai-sdk/anthropic",
        "models": models,
    } })
}

fn described(model: &proto::Model) -> Value {
    json!({
        "id": model.api_id, "name": model.name, "release_date": "2026-01-01",
        "attachment": true, "reasoning": true, "temperature": true, "tool_call": true,
        "cost": { "input": 0, "output": 0, "cache_read": 0, "cache_write": 0 },
        "limit": { "context": CONTEXT, "output": OUTPUT },
        "modalities": { "input": ["text", "image", "pdf"], "output": ["text"] },
    })
}

fn plain(folder: &str, name: &str, contents: String) -> Entry {
    Entry { path: format!("{folder}/{name}"), contents, secret: false }
}
