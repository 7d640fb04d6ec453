//! A session that somebody wants to create.

use proto::http::AgentConfig;
use proto::{
    AutomationId, ClientType, ConfigurationId, IntegrationId, JsonObject, RepoId, SandboxMode, SessionType,
    text,
};
use serde::Serialize;

use super::SessionError;

/// The most bytes of the initial prompt.
const MAX_PROMPT: usize = 512 * 1024;
/// The most bytes of the trigger context.
const MAX_CONTEXT: usize = 512 * 1024;
/// The most integrations that a session may name.
const MAX_INTEGRATIONS: usize = 100;
/// The most characters of a title.
const MAX_TITLE: usize = 200;

/// The content of a request to create a session. It is serialized to recognize a repeated request.
#[derive(Clone, Debug, Serialize)]
pub struct SessionDraft {
    pub session_type: SessionType,
    pub client_type: ClientType,
    /// Stored unchanged, so that the client can find its session again.
    pub client_metadata: Option<JsonObject>,
    pub configuration: ConfigurationSource,
    /// The snapshot to start from, instead of the configuration's.
    pub snapshot_id: Option<String>,
    /// Whether to wait for the sandbox, or to start it when somebody uses the session.
    pub sandbox_mode: SandboxMode,
    pub title: Option<Title>,
    /// Sent by itself when the sandbox runs, if a user or an automation creates the session.
    pub initial_prompt: Option<String>,
    pub agent_config: Option<AgentConfig>,
    /// Replaces the first part of the agent's instructions.
    pub system_prompt: Option<String>,
    pub automation_id: Option<AutomationId>,
    /// The event that started the session. It is written into the sandbox.
    pub trigger_context: Option<JsonObject>,
    /// The integrations that the session may use; `None` means those of its automation, or all that are active.
    pub integrations: Option<Vec<IntegrationId>>,
}

/// The starting point of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum ConfigurationSource {
    /// An empty workspace.
    Scratch,
    Existing(ConfigurationId),
    /// A configuration of these repositories, or of all repositories of the organization. It is found or created.
    Managed(Option<Vec<RepoId>>),
    /// A configuration of one directory of one user. It is found or created.
    Cli {
        local_path_hash: String,
        display_name: Option<String>,
    },
}

impl SessionDraft {
    /// A session with the required fields only.
    pub fn new(
        session_type: SessionType,
        client_type: ClientType,
        configuration: ConfigurationSource,
    ) -> Self {
        Self {
            session_type,
            client_type,
            client_metadata: None,
            configuration,
            snapshot_id: None,
            sandbox_mode: SandboxMode::Deferred,
            title: None,
            initial_prompt: None,
            agent_config: None,
            system_prompt: None,
            automation_id: None,
            trigger_context: None,
            integrations: None,
        }
    }

    /// Refuses invalid requests before anything is created.
    pub(super) fn check(&self) -> Result<(), SessionError> {
        let invalid = |problem| Err(SessionError::Invalid(problem));
        let bytes = |context| serde_json::to_vec(context).map_or(0, |text| text.len());
        match &self.configuration {
            ConfigurationSource::Scratch if self.session_type == SessionType::Setup => {
                invalid("A setup session needs a configuration")
            }
            _ if self.initial_prompt.as_ref().is_some_and(|prompt| prompt.len() > MAX_PROMPT) => {
                invalid("initialPrompt is at most 512 KiB")
            }
            _ if self.trigger_context.as_ref().is_some_and(|context| bytes(context) > MAX_CONTEXT) => {
                invalid("triggerContext is at most 512 KiB")
            }
            _ if self.integrations.as_ref().is_some_and(|chosen| chosen.len() > MAX_INTEGRATIONS) => {
                invalid("integrationIds has at most 100 entries")
            }
            _ => Ok(()),
        }
    }
}

/// The title of a session: one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Title(String);

impl Title {
    /// Trims and checks a title.
    pub fn parse(given: &str) -> Result<Self, SessionError> {
        let title = given.trim();
        if text::is_line(title, MAX_TITLE) {
            Ok(Self(title.to_owned()))
        } else {
            Err(SessionError::Invalid("A title is one line of 1 to 200 characters"))
        }
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }
}
