//! The platform's own tools: one table that the callback route, the agent's files and the API's description are made of.

use std::time::Duration;

use policy::Risk;
use proto::SessionType;
use serde_json::Value;
use store::SandboxSession;

use super::{Failure, Tool, Work, save_service_commands, save_snapshot};
use crate::app::AppState;
use crate::gate::Call;

/// One tool of ours: what the agent is told, what is checked and what is done. All there is to know about it.
#[derive(Clone, Copy)]
pub(crate) struct PlatformTool {
    pub(crate) name: &'static str,
    /// What the model reads.
    pub(crate) description: &'static str,
    /// The JSON schema of its arguments, for the model.
    pub(crate) schema: fn() -> Value,
    pub(crate) only_setup: bool,
    pub(crate) timeout: Duration,
    pub(crate) check: fn(&Value) -> Result<(), String>,
    pub(super) work: fn() -> Work<'static>,
}

/// All of them. A new tool is an entry here.
pub(crate) static PLATFORM_TOOLS: [PlatformTool; 2] = [save_snapshot::TOOL, save_service_commands::TOOL];

pub(crate) fn find(name: &str) -> Option<PlatformTool> {
    PLATFORM_TOOLS.iter().find(|tool| tool.name == name).copied()
}

/// Those that a session of this kind has.
pub(crate) fn offered(kind: SessionType) -> impl Iterator<Item = &'static PlatformTool> {
    PLATFORM_TOOLS.iter().filter(move |tool| !tool.only_setup || kind == SessionType::Setup)
}

impl Tool for PlatformTool {
    fn risk(&self) -> Risk {
        Risk::Write
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn check(&self, parameters: &Value) -> Result<(), String> {
        (self.check)(parameters)
    }

    fn work(&self) -> Work<'_> {
        (self.work)()
    }
}

/// The session that a call is about: the caller's own, or the one that is the case.
pub(super) async fn session_of(app: &AppState, call: &Call) -> Result<SandboxSession, Failure> {
    if let Some(session) = call.sandbox {
        return Ok(session);
    }
    let named = || call.case.as_deref().and_then(|case| case.parse().ok());
    let gone = || Failure::Refused("There is no such session, or it has ended.".to_owned());
    let id = call.session.or_else(named).ok_or_else(gone)?;
    let found = app.store.sandbox_session(id).await;
    let found = found.map_err(|error| save_service_commands::store_failure(&error))?;
    found.filter(|session| session.org_id == call.org).ok_or_else(gone)
}
