//! An agent that speaks the Agent Client Protocol (ACP): JSON-RPC, one object per line. [`AcpServer`] replays a session
//! that was recorded from `opencode acp`, on a socket instead of standard input and output. [`Acp`] implements the traits
//! of the crate `agent` for it, which shows that the gateway needs nothing else for a second type of agent. In a sandbox,
//! a script for Node does what `AcpServer` does.
//!
//! It does what the recording has: prompt, text, tool and the end of a turn. ACP has no ids for prompts, so the client
//! itself refuses to send one twice.

mod client;
mod server;
mod translator;

use std::sync::Arc;

use agent::{
    AgentClient, AgentError, AgentType, ChatModel, Dial, Endpoint, Entry, Launch, Program, Setup,
    TOOL_DIRECTORY, Translator,
};

pub use server::AcpServer;
use server::RECORDING;

/// Agents that speak ACP.
#[derive(Clone, Copy, Debug)]
pub struct Acp;

impl AgentType for Acp {
    fn program(&self) -> Program {
        Program { name: "node", version: "20" }
    }

    fn files(&self, setup: &Setup<'_>) -> Vec<Entry> {
        let entry = |name: &str, contents: &str| Entry {
            path: format!("{}/{name}", setup.directory),
            contents: contents.to_owned(),
            secret: false,
        };
        let tools = setup
            .tools
            .iter()
            .map(|tool| entry(&format!("{TOOL_DIRECTORY}/{}.json", tool.name), &tool.schema.to_string()));
        [
            entry("server.mjs", include_str!("../fixtures/acp_server.mjs")),
            entry("recording.jsonl", RECORDING),
            entry("instructions.md", setup.instructions),
            Entry { secret: true, ..entry("model-key", setup.model_key) },
        ]
        .into_iter()
        .chain(tools)
        .collect()
    }

    fn launch(&self, setup: &Setup<'_>) -> Launch {
        let arguments = vec![format!("{}/server.mjs", setup.directory), setup.port.to_string()];
        Launch { arguments, environment: vec![("HOME", setup.home.to_owned())] }
    }

    fn model_list(&self, _: &str, _: &[ChatModel]) -> Option<Entry> {
        None
    }

    fn history_directory(&self) -> Option<&'static str> {
        None
    }

    fn client(&self, dial: Arc<dyn Dial>, _: &Endpoint) -> Result<Arc<dyn AgentClient>, AgentError> {
        Ok(Arc::new(client::AcpClient::new(dial)))
    }

    fn translator(&self, session: &str) -> Box<dyn Translator> {
        Box::new(translator::AcpTranslator::new(session))
    }
}
