//! An agent that speaks the Agent Client Protocol (ACP): JSON-RPC, one object per line. [`AcpServer`] replays a session
//! that was recorded from `opencode acp`, on a socket instead of standard input and output. [`Acp`] implements the traits
//! of the crate `agent` for it, which shows that the gateway needs nothing else for a second type of agent.
//!
//! It does what the recording has: prompt, text, tool and the end of a turn. ACP has no ids for prompts, so the client
//! itself refuses to send one twice.

mod client;
mod server;
mod translator;

use std::sync::Arc;

use agent::{AgentClient, AgentError, AgentType, Dial, Endpoint, Translator};

pub use server::AcpServer;

/// Agents that speak ACP.
#[derive(Clone, Copy, Debug)]
pub struct Acp;

impl AgentType for Acp {
    fn client(&self, dial: Arc<dyn Dial>, _: &Endpoint) -> Result<Arc<dyn AgentClient>, AgentError> {
        Ok(Arc::new(client::AcpClient::new(dial)))
    }

    fn translator(&self, session: &str) -> Box<dyn Translator> {
        Box::new(translator::AcpTranslator::new(session))
    }
}
