//! The files, environment and command line that the agent is started with, as plain data. With them OpenCode
//! starts without network access, never asks for permission, and does not touch the user's repository.

pub mod browser;
pub mod prompt;

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::api::variant;
use browser::Browser;
use prompt::Part;

/// The only OpenCode version that is started; everything here is tested with it.
pub const VERSION: &str = include_str!("../../../scripts/opencode.version").trim_ascii();

/// The environment variable with the path of the file that contains the session's id and token. If it is not
/// set, both are in the environment.
pub const SESSION_FILE: &str = "PROLIFERATE_SESSION_FILE";

/// The folder of the tool files, in our own folder.
pub const TOOLS: &str = "tool";

const PLUGIN: &str = include_str!("files/plugin.mjs");
/// Typical limits of current models; the agent uses them to decide when to compact a conversation.
const CONTEXT: u32 = 200_000;
const OUTPUT: u32 = 32_000;
/// Limits of a model of the Chat Completions API whose own are unknown. More output than a model supports is an error.
const CHAT_CONTEXT: u64 = 128_000;
const CHAT_OUTPUT: u64 = 16_000;

/// Everything that an agent's files and launch command depend on.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// The agent's home directory inside the sandbox.
    pub home: &'a str,
    /// Our own directory inside the sandbox, outside the user's repository.
    pub folder: &'a str,
    /// The agent's working directory.
    pub workspace: &'a str,
    /// The base URL of the model API, without `/v1`.
    pub model_url: &'a str,
    /// The key by which the model proxy identifies the session.
    pub model_key: &'a str,
    /// The session, or `None` while the agent waits in the pool.
    pub session: Option<&'a str>,
    /// The default model, with its provider.
    pub model: &'a str,
    /// The models that are used with the Chat Completions API, besides those of the table.
    pub chat_models: &'a [ChatModel],
    /// See [`prompt::Prompt`].
    pub instructions: &'a str,
    pub tools: &'a [Tool],
    /// Absent where the sandbox has none.
    pub browser: Option<&'a Browser>,
    pub port: u16,
}

/// A model of the Chat Completions API, with its limits in tokens where they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatModel {
    pub name: String,
    pub context: Option<u64>,
    pub output: Option<u64>,
}

/// A tool that the agent can call. If one tool file cannot be loaded, the agent has no tools at all.
#[derive(Clone, Debug)]
pub struct Tool {
    /// The name that the model uses: letters, digits and `_`.
    pub name: &'static str,
    /// A module without imports whose default export has `description`, `args` and `execute`.
    pub source: Cow<'static, str>,
}

impl Tool {
    /// A tool that the gateway executes.
    pub fn gateway_tool(name: &'static str, version: u32, description: &str, schema: &Value) -> Self {
        Self::fill(include_str!("files/tool.js"), name, version, (description, schema))
    }

    /// A tool that runs inside the sandbox. `execute` is the JavaScript method of that name.
    pub fn sandbox_tool(
        name: &'static str,
        version: u32,
        (description, schema): (&str, &Value),
        execute: &str,
    ) -> Self {
        let template = include_str!("files/sandbox_tool.js").replace("\"@EXECUTE@\"", execute.trim());
        Self::fill(&template, name, version, (description, schema))
    }

    fn fill(template: &str, name: &'static str, version: u32, (description, schema): (&str, &Value)) -> Self {
        let source = template
            .replace("\"@NAME@\"", &json!(name).to_string())
            .replace("\"@VERSION@\"", &version.to_string())
            .replace("\"@DESCRIPTION@\"", &json!(description).to_string())
            .replace("\"@SCHEMA@\"", &schema.to_string());
        Self { name, source: Cow::Owned(source) }
    }
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
    /// In addition to `PATH` and whatever the user's programs need.
    pub environment: Vec<(&'static str, String)>,
}

impl Setup<'_> {
    /// All files to write before the agent starts.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        // At the first request OpenCode installs packages into its directories unless they look installed
        // already; without network access that takes more than a minute.
        for folder in [self.home_config(), self.folder.to_owned()] {
            let plugin = json!({ "@opencode-ai/plugin": VERSION });
            let lock = json!({ "lockfileVersion": 3, "packages": { "": { "dependencies": plugin } } });
            entries.push(plain_entry(&folder, "package.json", json!({ "dependencies": plugin }).to_string()));
            entries.push(plain_entry(&folder, "package-lock.json", lock.to_string()));
            entries.push(plain_entry(&folder, "node_modules/.keep", String::new()));
        }
        // Without this file OpenCode would write one itself.
        entries.push(plain_entry(&self.home_config(), "opencode.json", global_config().to_string()));
        entries.push(Entry { secret: true, ..self.entry("model-key", self.model_key) });
        entries.extend(self.session_file());
        entries.push(self.entry("models.json", &catalogue().to_string()));
        entries.push(self.entry("opencode.json", &self.chat_catalogue().to_string()));
        entries.push(self.entry("proliferate.mjs", PLUGIN));
        entries.push(self.entry("instructions.md", &self.all_instructions()));
        entries.extend(
            self.tools.iter().map(|tool| self.entry(&format!("{TOOLS}/{}.js", tool.name), &tool.source)),
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
            // A repository's own configuration could redirect the model and run code in the agent, and
            // OpenCode would rewrite it and install packages next to it.
            "OPENCODE_DISABLE_PROJECT_CONFIG",
            "OPENCODE_DISABLE_SHARE",
        ];
        environment.extend(off.map(|name| (name, "1".to_owned())));
        Launch { arguments: arguments.into_iter().chain([self.port.to_string()]).collect(), environment }
    }

    /// The file from which tools read their session. A pooled agent's environment was fixed before its
    /// session was known.
    fn session_file(&self) -> Option<Entry> {
        let session = json!({ "sessionId": self.session?, "token": self.model_key });
        Some(Entry { secret: true, ..self.entry("session.json", &session.to_string()) })
    }

    /// What the mode of the session says, and what the sandbox has.
    fn all_instructions(&self) -> String {
        match self.browser {
            Some(_) => format!("{}\n{}", self.instructions, Part::Browser.text()),
            None => self.instructions.to_owned(),
        }
    }

    /// Our instructions and those of the repository, which OpenCode does not find by itself with project
    /// configuration disabled.
    fn instruction_files(&self) -> [String; 3] {
        let in_workspace = |name| format!("{}/{name}", self.workspace);
        [format!("{}/instructions.md", self.folder), in_workspace("AGENTS.md"), in_workspace("CLAUDE.md")]
    }

    /// Passed in the environment, because that takes precedence over every file that the agent may write
    /// later.
    fn config(&self) -> Value {
        let key = format!("{{file:{}/model-key}}", self.folder);
        let base = format!("{}/v1", self.model_url.trim_end_matches('/'));
        let mut config = json!({
            "$schema": SCHEMA,
            "model": self.model,
            "provider": {
                "anthropic": { "options": { "baseURL": base, "apiKey": key } },
                "litellm": {
                    "name": "Chat Completions", "npm": "@ai-sdk/openai-compatible",
                    "options": { "baseURL": base, "apiKey": key },
                },
            },
            "plugin": [format!("{}/proliferate.mjs", self.folder)],
            "instructions": self.instruction_files(),
            // The sandbox is the security boundary, so nobody is asked for permissions.
            "permission": { "*": "allow" },
            "autoupdate": false,
            "share": "disabled",
            "snapshot": false,
        });
        if let Some(browser) = self.browser {
            config["mcp"] = browser.mcp_servers();
        }
        config
    }

    /// In a file of its own, because OpenCode reads it again for a session that takes a pooled agent, but not
    /// `models.json`.
    fn chat_catalogue(&self) -> Value {
        let models: serde_json::Map<String, Value> =
            self.chat_models.iter().map(|model| (model.name.clone(), chat_entry(model))).collect();
        json!({ "$schema": SCHEMA, "provider": { "litellm": { "models": models } } })
    }

    fn home_config(&self) -> String {
        format!("{}/.config/opencode", self.home)
    }

    fn entry(&self, name: &str, contents: &str) -> Entry {
        plain_entry(self.folder, name, contents.to_owned())
    }
}

const SCHEMA: &str = "https://opencode.ai/config.json";

/// OpenCode would rewrite a file without a schema.
fn global_config() -> Value {
    json!({ "$schema": SCHEMA })
}

/// The models that go through our proxy, and no others: a small catalogue makes the first turn several times
/// faster.
fn catalogue() -> Value {
    let ours =
        proto::MODELS.iter().filter_map(|model| Some((model.opencode_id.strip_prefix("anthropic/")?, model)));
    let models: serde_json::Map<String, Value> =
        ours.map(|(id, model)| (id.to_owned(), catalogue_entry(model))).collect();
    json!({ "anthropic": {
        "id": "anthropic", "name": "Anthropic", "env": ["ANTHROPIC_API_KEY"], "npm": "@ai-sdk/anthropic",
        "models": models,
    } })
}

fn catalogue_entry(model: &proto::Model) -> Value {
    json!({
        "id": model.api_id, "name": model.name, "release_date": "2026-01-01",
        "attachment": true, "reasoning": true, "temperature": true, "tool_call": true,
        "cost": { "input": 0, "output": 0, "cache_read": 0, "cache_write": 0 },
        "limit": { "context": CONTEXT, "output": OUTPUT },
        "modalities": { "input": ["text", "image", "pdf"], "output": ["text"] },
    })
}

fn chat_entry(model: &ChatModel) -> Value {
    let context = model.context.unwrap_or(CHAT_CONTEXT);
    let output = model.output.unwrap_or(CHAT_OUTPUT).min(u64::from(OUTPUT)).min(context / 4).max(1);
    // OpenCode knows the variants of some models by their names. A session's reasoning effort applies to every model.
    let variants: serde_json::Map<String, Value> = proto::ReasoningEffort::ALL
        .iter()
        .filter_map(|effort| variant(*effort))
        .map(|variant| (variant.to_owned(), json!({ "reasoningEffort": variant })))
        .collect();
    json!({
        "name": model.name, "attachment": true, "reasoning": true, "temperature": true, "tool_call": true,
        "cost": { "input": 0, "output": 0 },
        "limit": { "context": context, "output": output },
        "variants": variants,
        "modalities": { "input": ["text", "image"], "output": ["text"] },
    })
}

fn plain_entry(folder: &str, name: &str, contents: String) -> Entry {
    Entry { path: format!("{folder}/{name}"), contents, secret: false }
}
