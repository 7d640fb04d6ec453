//! OpenCode as a type of agent: the traits of the crate `agent`, implemented with the rest of this crate.

mod client;
mod translator;

use std::io;
use std::sync::Arc;

use agent::{AgentClient, AgentError, AgentType, ByteStream, ChatModel, Entry, Launch, Program, Setup};
use hyper::header::HeaderName;
use secrecy::ExposeSecret as _;

use crate::api::{ApiError, Client, Dial, Endpoint};
use crate::files::{self, Files, VERSION};
use crate::translate::Translator;

/// The type of agent that the gateway runs by default.
#[derive(Clone, Copy, Debug)]
pub struct OpenCode;

impl AgentType for OpenCode {
    fn program(&self) -> Program {
        Program { name: "opencode", version: VERSION }
    }

    fn files(&self, setup: &Setup<'_>) -> Vec<Entry> {
        Files(setup).entries()
    }

    fn model_list(&self, directory: &str, models: &[ChatModel]) -> Option<Entry> {
        Some(files::model_list(directory, models))
    }

    fn launch(&self, setup: &Setup<'_>) -> Launch {
        Files(setup).launch()
    }

    fn history_directory(&self) -> Option<&'static str> {
        Some(".local/share/opencode")
    }

    fn client(
        &self,
        dial: Arc<dyn agent::Dial>,
        endpoint: &agent::Endpoint,
    ) -> Result<Arc<dyn AgentClient>, AgentError> {
        let mut place = Endpoint::remote(&endpoint.authority, &endpoint.path)?;
        if let Some((name, secret)) = &endpoint.header {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| ApiError::BadEndpoint)?;
            place = place.with_secret(name, secret.expose_secret())?;
        }
        Ok(Arc::new(Client::new(Dialer(dial), place)))
    }

    fn translator(&self, session: &str) -> Box<dyn agent::Translator> {
        Box::new(Translator::new(session))
    }
}

/// The gateway's way of dialing, as [`Client`] needs it.
struct Dialer(Arc<dyn agent::Dial>);

impl Dial for Dialer {
    type Stream = Box<dyn ByteStream>;

    async fn dial(&self) -> io::Result<Self::Stream> {
        self.0.dial().await
    }
}

impl From<ApiError> for AgentError {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::TimedOut(operation) => Self::TimedOut(operation),
            ApiError::Broken(operation) => Self::Broken(operation),
            ApiError::NoMemory(operation) => Self::NoMemory(operation),
            other => Self::Other(Box::new(other)),
        }
    }
}
