//! Prepares a sandbox for its agent: writes the agent's files and starts its process.

use std::sync::Arc;
use std::time::Duration;

use agent::{AgentType, Browser, ChatModel, Launch as AgentLaunch, Setup, TOOL_DIRECTORY, Tool, Urls};
use sandboxd::protocol::{Code, ExitReason, Place, Restart, ServiceInfo, ServiceSpec, ServiceState};
use sandboxd::{ClientError, Sandboxd};
use secrecy::{ExposeSecret as _, SecretString};

use super::Runtime;
use super::agent_programs::AgentPrograms;
use super::launch::LaunchError;
use super::sandbox_handle::SandboxHandle;

/// The directory of the agent's files in the home directory, outside of every repository.
pub(super) const AGENT_DIR: &str = ".proliferate/agent";
pub(crate) const AGENT_SERVICE: &str = "agent";
/// The number of restarts after which a booting agent is given up, and how often we check.
const MOST_STARTS: u32 = 3;
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The session that an agent works for, and its settings.
pub(super) struct AgentSettings {
    pub(super) token: SecretString,
    /// `None` in the pool, before a session takes the sandbox.
    pub(super) session: Option<String>,
    /// The model with its provider, and the models of the Chat Completions API that it has to know.
    pub(super) model: String,
    pub(super) chat_models: Vec<ChatModel>,
    pub(super) instructions: String,
    pub(super) tools: Vec<Tool>,
}

/// The paths and the port of the agent inside one sandbox.
pub(super) struct AgentPaths {
    home: String,
    directory: String,
    workspace: String,
    model_url: String,
    mcp_url: String,
    program: String,
    browser: Option<Browser>,
    port: u16,
    agent_type: Arc<dyn AgentType>,
}

impl AgentPaths {
    pub(super) fn of(runtime: &Runtime, handle: &SandboxHandle, programs: &AgentPrograms) -> Self {
        let sandboxes = &runtime.sandboxes;
        let home = sandboxes.home(&handle.id).to_string_lossy().into_owned();
        Self {
            directory: format!("{home}/{AGENT_DIR}"),
            workspace: format!("{home}/workspace"),
            model_url: format!("{}/llm", handle.gateway_url),
            mcp_url: format!("{}/mcp", handle.gateway_url),
            program: programs.agent(sandboxes),
            browser: programs.browser(sandboxes),
            port: handle.agent_port,
            agent_type: runtime.settings.agent_type.clone(),
            home,
        }
    }

    /// Writes the agent's files. Tool files from an earlier start are removed first: the mode may not have them any
    /// more, and the agent would load them.
    pub(super) async fn write(&self, inside: &Sandboxd, settings: &AgentSettings) -> Result<(), LaunchError> {
        match inside.remove(Place::home(format!("{AGENT_DIR}/{TOOL_DIRECTORY}")), true).await {
            Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => {}
            removed => removed?,
        }
        for entry in self.agent_type.files(&self.setup(settings)) {
            let path = entry.path.strip_prefix(&self.home).unwrap_or(&entry.path);
            let mode = if entry.secret { 0o600 } else { 0o644 };
            let place = Place::home(path.trim_start_matches('/'));
            inside.write_file(place, entry.contents, Some(mode)).await?;
        }
        Ok(())
    }

    /// Starts the agent's process, which reads the files written before.
    pub(super) async fn start(&self, inside: &Sandboxd, settings: &AgentSettings) -> Result<(), LaunchError> {
        inside.service_start(service(&self.program, self.agent_type.launch(&self.setup(settings)))).await?;
        Ok(())
    }

    fn setup<'a>(&'a self, settings: &'a AgentSettings) -> Setup<'a> {
        Setup {
            home: &self.home,
            directory: &self.directory,
            workspace: &self.workspace,
            urls: Urls { model: &self.model_url, mcp: &self.mcp_url },
            model_key: settings.token.expose_secret(),
            session: settings.session.as_deref(),
            model: &settings.model,
            chat_models: &settings.chat_models,
            instructions: &settings.instructions,
            tools: &settings.tools,
            browser: self.browser.as_ref(),
            port: self.port,
        }
    }
}

fn service(program: &str, launch: AgentLaunch) -> ServiceSpec {
    let words = std::iter::once(program.to_owned()).chain(launch.arguments);
    ServiceSpec {
        name: AGENT_SERVICE.to_owned(),
        command: format!("exec {}", words.map(|word| quote_for_shell(&word)).collect::<Vec<_>>().join(" ")),
        cwd: Some(Place::workspace("")),
        env: launch.environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        restart: Restart::OnFailure,
    }
}

/// Returns once the agent has crashed too often to wait for it, with how it exited.
pub(super) async fn wait_for_crash_loop(inside: &Sandboxd) -> String {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        // If the supervisor does not answer, the code that waits for the agent notices.
        let services = inside.service_list().await.unwrap_or_default();
        let agent = services.into_iter().find(|service| service.name == AGENT_SERVICE);
        // A running agent may have crashed often, but long ago.
        let down =
            |agent: &ServiceInfo| agent.restarts >= MOST_STARTS && agent.state != ServiceState::Running;
        match agent.filter(down).and_then(|agent| agent.last_exit) {
            Some(ExitReason::Exit(code)) => return format!("exit code {code}"),
            Some(ExitReason::Signal(signal)) => return format!("signal {signal}"),
            Some(ExitReason::TimedOut) | None => {}
        }
    }
}

/// Quotes a word for the shell.
fn quote_for_shell(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
