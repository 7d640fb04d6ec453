//! What a sandbox needs before its agent can work: files, and the agent's own process.

use std::path::Path;
use std::time::Duration;

use opencode::files::{Instructions, Launch as AgentLaunch, Setup, Tool};
use proto::ModelId;
use sandboxd::Sandboxd;
use sandboxd::protocol::{ExitReason, Place, Restart, ServiceInfo, ServiceSpec, ServiceState};
use secrecy::{ExposeSecret as _, SecretString};

use super::launch::LaunchError;
use super::room::{AGENT, Room};
use super::sandboxes::Sandboxes;

/// Our files inside, outside of every repository.
const FOLDER: &str = ".proliferate/agent";
pub(super) const SERVICE: &str = "agent";
/// How often it may be started again before anybody has spoken to it, and how often that is looked at.
const MOST_STARTS: u32 = 3;
const LOOK: Duration = Duration::from_millis(500);

/// Whom an agent works for, and on what.
pub(super) struct Occupant {
    pub(super) token: SecretString,
    /// Nobody's yet, in a pool.
    pub(super) session: Option<String>,
    pub(super) model: ModelId,
    pub(super) instructions: Instructions,
    pub(super) tools: Vec<Tool>,
}

/// Where the agent's things are inside one sandbox.
pub(super) struct Places {
    home: String,
    folder: String,
    workspace: String,
    model_url: String,
    program: String,
    port: u16,
}

impl Places {
    pub(super) fn of(sandboxes: &Sandboxes, room: &Room, program: &Path) -> Self {
        let home = sandboxes.home(&room.id).to_string_lossy().into_owned();
        Self {
            folder: format!("{home}/{FOLDER}"),
            workspace: format!("{home}/workspace"),
            model_url: format!("{}/llm", room.gateway_url),
            program: sandboxes.place_of(AGENT, program),
            port: room.agent_port,
            home,
        }
    }

    /// Writes all files of the agent.
    pub(super) async fn write(&self, inside: &Sandboxd, occupant: &Occupant) -> Result<(), LaunchError> {
        for entry in self.setup(occupant).entries() {
            let path = entry.path.strip_prefix(&self.home).unwrap_or(&entry.path);
            let mode = if entry.secret { 0o600 } else { 0o644 };
            let place = Place::home(path.trim_start_matches('/'));
            inside.write_file(place, entry.contents, Some(mode)).await?;
        }
        Ok(())
    }

    /// Starts the agent's process, which finds the files that were written.
    pub(super) async fn start(&self, inside: &Sandboxd, occupant: &Occupant) -> Result<(), LaunchError> {
        inside.service_start(service(&self.program, self.setup(occupant).launch())).await?;
        Ok(())
    }

    fn setup<'a>(&'a self, occupant: &'a Occupant) -> Setup<'a> {
        Setup {
            home: &self.home,
            folder: &self.folder,
            workspace: &self.workspace,
            model_url: &self.model_url,
            model_key: occupant.token.expose_secret(),
            session: occupant.session.as_deref(),
            model: occupant.model.model().opencode_id,
            instructions: occupant.instructions,
            tools: &occupant.tools,
            port: self.port,
        }
    }
}

fn service(program: &str, launch: AgentLaunch) -> ServiceSpec {
    let words = std::iter::once(program.to_owned()).chain(launch.arguments);
    ServiceSpec {
        name: SERVICE.to_owned(),
        command: format!("exec {}", words.map(|word| quoted(&word)).collect::<Vec<_>>().join(" ")),
        cwd: Some(Place::workspace("")),
        env: launch.environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        restart: Restart::OnFailure,
    }
}

/// Returns when the agent has ended too often to be waited for, and says how it ended.
pub(super) async fn falls_over(inside: &Sandboxd) -> String {
    loop {
        tokio::time::sleep(LOOK).await;
        // A supervisor that does not answer is noticed by whoever waits for the agent.
        let services = inside.service_list().await.unwrap_or_default();
        let agent = services.into_iter().find(|service| service.name == SERVICE);
        // One that runs may have ended often, and long ago.
        let down =
            |agent: &ServiceInfo| agent.restarts >= MOST_STARTS && agent.state != ServiceState::Running;
        match agent.filter(down).and_then(|agent| agent.last_exit) {
            Some(ExitReason::Exit(code)) => return format!("exit code {code}"),
            Some(ExitReason::Signal(signal)) => return format!("signal {signal}"),
            Some(ExitReason::TimedOut) | None => {}
        }
    }
}

/// One word for a shell, whatever is in it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
