//! What a sandbox needs before its agent can work: repositories, files, and the agent's own process.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use opencode::files::{Instructions, Launch as AgentLaunch, Setup, Tool};
use proto::ModelId;
use sandboxd::protocol::{Code, Ended, Exec, Place, Restart, ServiceInfo, ServiceSpec, ServiceState};
use sandboxd::{ClientError, Sandboxd};
use secrecy::{ExposeSecret as _, SecretString};
use store::PlacedRepo;

use super::forge::place;
use super::launch::LaunchError;
use super::room::{AGENT, GIT_CONFIG, Room};
use super::sandboxes::Sandboxes;

/// How long a clone may take.
const CLONE_MS: u64 = 10 * 60 * 1000;
const CLONE_OUTPUT: usize = 16 * 1024;
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
            Some(Ended::Exit(code)) => return format!("exit code {code}"),
            Some(Ended::Signal(signal)) => return format!("signal {signal}"),
            Some(Ended::TimedOut) | None => {}
        }
    }
}

/// One word for a shell, whatever is in it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Repositories that are not there yet: a snapshot or an earlier sandbox may have brought them.
pub(super) async fn missing<'a>(
    inside: &Sandboxd,
    repos: &'a [PlacedRepo],
) -> Result<Vec<&'a PlacedRepo>, LaunchError> {
    let mut missing = Vec::new();
    for placed in repos {
        match inside.stat(Place::workspace(format!("{}/.git", placed.workspace_path))).await {
            Ok(_) => {}
            Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => missing.push(placed),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(missing)
}

/// Makes git ask us for the session's repositories, whoever runs it: we have their credentials, and nobody inside does.
pub(super) async fn lead_git(
    room: &Room,
    token: &SecretString,
    repos: &[PlacedRepo],
) -> Result<(), LaunchError> {
    let gateway = format!("{}/git/", room.gateway_url);
    let mut text = format!(
        "[http \"{gateway}\"]\n\textraHeader = Authorization: Bearer {}\n\tfollowRedirects = false\n",
        token.expose_secret()
    );
    for url in repos.iter().filter_map(|placed| place(&placed.repo)) {
        // A URL of ours has no quote, backslash or newline: the parser encodes them.
        if let Some((scheme, rest)) = url.as_str().split_once("://") {
            let _ = write!(text, "[url \"{gateway}{scheme}/{rest}\"]\n\tinsteadOf = \"{url}\"\n");
        }
    }
    room.inside.write_file(Place::home(GIT_CONFIG), text, Some(0o600)).await?;
    Ok(())
}

pub(super) async fn clone(inside: &Sandboxd, repos: &[&PlacedRepo]) -> Result<(), LaunchError> {
    for PlacedRepo { repo, workspace_path } in repos {
        let Some(url) = &repo.url else { continue };
        let argv =
            ["git", "clone", "--depth", "50", "--branch", &repo.default_branch, "--", url, workspace_path];
        let exec = Exec {
            argv: argv.map(str::to_owned).to_vec(),
            timeout_ms: Some(CLONE_MS),
            env: BTreeMap::from([("GIT_TERMINAL_PROMPT".to_owned(), "0".to_owned())]),
            merge: true,
            ..Exec::default()
        };
        let ran = inside.run(exec, "", CLONE_OUTPUT).await?;
        if ran.done.ended != Ended::Exit(0) {
            let said = String::from_utf8_lossy(&ran.stdout);
            let reason =
                said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason was given");
            let reason = reason.chars().filter(|c| !c.is_control()).take(300).collect();
            return Err(LaunchError::Clone { name: repo.name.clone(), reason });
        }
    }
    Ok(())
}
