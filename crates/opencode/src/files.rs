//! The files, environment and command line that the agent is started with, as plain data. With them OpenCode
//! starts without network access, never asks for permission, and does not touch the user's repository.

mod actions;
mod browser;

use agent::{ChatModel, Entry, Launch, Setup, TOOL_DIRECTORY, Tool};
use serde_json::{Value, json};

use crate::api::variant;

/// The only OpenCode version that is started; everything here is tested with it.
pub const VERSION: &str = include_str!("../../../scripts/opencode.version").trim_ascii();

/// The environment variable with the path of the file that contains the session's id and token. If it is not
/// set, both are in the environment.
pub const SESSION_FILE: &str = "PROLIFERATE_SESSION_FILE";

const PLUGIN_SOURCE: &str = include_str!("files/plugin.mjs");
/// Typical limits of current models; the agent uses them to decide when to compact a conversation.
const CONTEXT_TOKENS: u32 = 200_000;
const OUTPUT_TOKENS: u32 = 32_000;
/// Limits of a model of the Chat Completions API whose own are unknown. More output than a model supports is an error.
const CHAT_CONTEXT: u64 = 128_000;
const CHAT_OUTPUT: u64 = 16_000;

/// The module that OpenCode loads for a tool. It has no imports, and its default export has `description`, `args` and
/// `execute`. If one module cannot be loaded, the agent has no tools at all.
pub fn tool_module(tool: &Tool) -> String {
    let template = match tool.execute {
        None => include_str!("files/tool.js").to_owned(),
        Some(execute) => include_str!("files/sandbox_tool.js").replace("\"@EXECUTE@\"", execute.trim()),
    };
    template
        .replace("\"@NAME@\"", &json!(tool.name).to_string())
        .replace("\"@VERSION@\"", &tool.version.to_string())
        .replace("\"@DESCRIPTION@\"", &json!(tool.description).to_string())
        .replace("\"@SCHEMA@\"", &tool.schema.to_string())
}

/// One agent's files and launch command.
#[derive(Clone, Copy)]
pub(crate) struct Files<'a>(pub(crate) &'a Setup<'a>);

impl Files<'_> {
    /// All files to write before the agent starts.
    pub(crate) fn entries(self) -> Vec<Entry> {
        let mut entries = Vec::new();
        // At the first request OpenCode installs packages into its directories unless they look installed
        // already; without network access that takes more than a minute.
        for directory in [self.home_config(), self.0.directory.to_owned()] {
            let plugin = json!({ "@opencode-ai/plugin": VERSION });
            let lock = json!({ "lockfileVersion": 3, "packages": { "": { "dependencies": plugin } } });
            entries.push(plain_entry(
                &directory,
                "package.json",
                json!({ "dependencies": plugin }).to_string(),
            ));
            entries.push(plain_entry(&directory, "package-lock.json", lock.to_string()));
            entries.push(plain_entry(&directory, "node_modules/.keep", String::new()));
        }
        // Without this file OpenCode would write one itself.
        entries.push(plain_entry(&self.home_config(), "opencode.json", global_config().to_string()));
        entries.push(Entry { secret: true, ..self.entry("model-key", self.0.model_key) });
        entries.extend(self.session_file());
        entries.push(self.entry("models.json", &catalogue().to_string()));
        entries.push(self.entry("opencode.json", &self.session_config().to_string()));
        entries.push(model_list(self.0.directory, self.0.chat_models));
        entries.push(self.entry("proliferate.mjs", PLUGIN_SOURCE));
        entries.push(self.entry("instructions.md", &self.all_instructions()));
        entries.extend(
            self.0
                .tools
                .iter()
                .map(|tool| self.entry(&format!("{TOOL_DIRECTORY}/{}.js", tool.name), &tool_module(tool))),
        );
        entries
    }

    pub(crate) fn launch(self) -> Launch {
        let arguments = ["serve", "--hostname", "127.0.0.1", "--port"].map(str::to_owned);
        let mut environment = vec![
            ("HOME", self.0.home.to_owned()),
            ("OPENCODE_CONFIG_CONTENT", self.config().to_string()),
            ("OPENCODE_CONFIG_DIR", self.0.directory.to_owned()),
            ("OPENCODE_MODELS_PATH", format!("{}/models.json", self.0.directory)),
            (SESSION_FILE, format!("{}/session.json", self.0.directory)),
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
        Launch { arguments: arguments.into_iter().chain([self.0.port.to_string()]).collect(), environment }
    }

    /// The file from which tools read their session. A pooled agent's environment was fixed before its
    /// session was known.
    fn session_file(self) -> Option<Entry> {
        let session = json!({ "sessionId": self.0.session?, "token": self.0.model_key });
        Some(Entry { secret: true, ..self.entry("session.json", &session.to_string()) })
    }

    /// The instructions of the session's mode and, if the sandbox has a browser, those for it.
    fn all_instructions(self) -> String {
        match self.0.browser {
            Some(_) => format!("{}\n{}", self.0.instructions, include_str!("files/browser.md")),
            None => self.0.instructions.to_owned(),
        }
    }

    /// Our instructions and those of the repository, which OpenCode does not find by itself with project
    /// configuration disabled.
    fn instruction_files(self) -> [String; 3] {
        let in_workspace = |name| format!("{}/{name}", self.0.workspace);
        [
            format!("{}/instructions.md", self.0.directory),
            in_workspace("AGENTS.md"),
            in_workspace("CLAUDE.md"),
        ]
    }

    /// Passed in the environment, because that takes precedence over every file that the agent may write
    /// later.
    fn config(self) -> Value {
        let key = self.key();
        let base = format!("{}/v1", self.0.urls.model.trim_end_matches('/'));
        let mut config = json!({
            "$schema": SCHEMA,
            "model": self.0.model,
            "provider": {
                "anthropic": { "options": { "baseURL": base, "apiKey": key } },
                "litellm": {
                    "name": "Chat Completions", "npm": "@ai-sdk/openai-compatible",
                    "options": { "baseURL": base, "apiKey": key },
                },
            },
            "plugin": [format!("{}/proliferate.mjs", self.0.directory)],
            "instructions": self.instruction_files(),
            // The sandbox is the security boundary, so nobody is asked for permissions.
            "permission": { "*": "allow" },
            "autoupdate": false,
            "share": "disabled",
            "snapshot": false,
        });
        if let Some(browser) = self.0.browser {
            config["mcp"] = browser::mcp_servers(browser);
        }
        config
    }

    /// In a file of its own, because OpenCode reads it again for a session that takes a pooled agent. In the pool nothing
    /// answers for the actions of a session.
    fn session_config(self) -> Value {
        let mut config = json!({ "$schema": SCHEMA });
        if self.0.session.is_some() {
            config["mcp"] = actions::mcp_servers(self.0.urls.mcp, &self.key());
        }
        config
    }

    /// OpenCode replaces this by the session's key, which is in a secret file.
    fn key(self) -> String {
        format!("{{file:{}/model-key}}", self.0.directory)
    }

    fn home_config(self) -> String {
        format!("{}/.config/opencode", self.0.home)
    }

    fn entry(self, name: &str, contents: &str) -> Entry {
        plain_entry(self.0.directory, name, contents.to_owned())
    }
}

/// The models of the Chat Completions API. OpenCode reads this file beside `opencode.json`, and again when it is reloaded,
/// but not `models.json`.
pub(crate) fn model_list(directory: &str, models: &[ChatModel]) -> Entry {
    let models: serde_json::Map<String, Value> =
        models.iter().map(|model| (model.name.clone(), chat_entry(model))).collect();
    let config = json!({ "$schema": SCHEMA, "provider": { "litellm": { "models": models } } });
    plain_entry(directory, "opencode.jsonc", config.to_string())
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
        "limit": { "context": CONTEXT_TOKENS, "output": OUTPUT_TOKENS },
        "modalities": { "input": ["text", "image", "pdf"], "output": ["text"] },
    })
}

fn chat_entry(model: &ChatModel) -> Value {
    let context = model.context.unwrap_or(CHAT_CONTEXT);
    let output = model.output.unwrap_or(CHAT_OUTPUT).min(u64::from(OUTPUT_TOKENS)).min(context / 4).max(1);
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

fn plain_entry(directory: &str, name: &str, contents: String) -> Entry {
    Entry { path: format!("{directory}/{name}"), contents, secret: false }
}
