//! From a session's record to an agent that listens: sandbox, workspace, files, agent, session, events. Every stage is
//! told to whoever waits and counted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::HeaderName;
use opencode::api::{ApiError, Client, Place as AgentPlace};
use opencode::files::{Entry, Instructions, Launch as AgentLaunch, Setup};
use proto::{ModelId, SessionId};
use sandbox::{SandboxError, SandboxId, SnapshotId};
use sandboxd::protocol::{Code, Ended, Exec, Place, Restart, ServiceSpec};
use sandboxd::{ClientError, Sandboxd};
use secrecy::{ExposeSecret as _, SecretString};
use store::{NewSandboxToken, Owner, PlacedRepo, SessionRecord, StoreError};
use tokio::sync::mpsc;

use super::agent::{Agent, Door};
use super::network::Network;
use super::room::{AGENT, Room, Wanted};
use crate::app::AppState;
use crate::config::Engine;
use crate::edge;
use crate::identity::{Credential, CredentialKind};

/// From a started agent to one that answers.
const READY: Duration = Duration::from_secs(30);
/// How long a clone may take.
const CLONE_MS: u64 = 10 * 60 * 1000;
const CLONE_OUTPUT: usize = 16 * 1024;
/// Our files inside, outside of every repository.
const FOLDER: &str = ".proliferate/agent";
const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-proliferate-sandbox-token");
const SERVICE: &str = "agent";

/// Why there is no agent. Each is one sentence for the people who wait.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error("the sandbox's supervisor: {0}")]
    Inside(#[from] ClientError),
    #[error("the agent: {0}")]
    Agent(#[from] ApiError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "opencode {0} is not installed on this machine: run `make up`, or install it and put it on the PATH"
    )]
    NoAgent(&'static str),
    #[error("cloning {name} failed: {reason}")]
    Clone { name: String, reason: String },
    #[error("the snapshot that this session starts from is not there: make a session without it")]
    NoSnapshot,
    #[error("the boot broke off: {0}")]
    Broken(String),
    #[error("attached agents are reached over http only, for now: put a TLS proxy on this machine")]
    Tls,
}

/// What to launch.
pub struct Launch {
    app: AppState,
    owner: Owner,
    record: SessionRecord,
    /// Told the name of each stage as it begins.
    stages: mpsc::Sender<&'static str>,
    /// The stage that runs, and since when.
    running: Mutex<Option<(&'static str, Duration)>>,
}

impl Launch {
    pub fn new(
        app: AppState,
        owner: Owner,
        record: SessionRecord,
        stages: mpsc::Sender<&'static str>,
    ) -> Self {
        Self { app, owner, record, stages, running: Mutex::default() }
    }

    pub async fn run(self) -> Result<Agent, LaunchError> {
        let agent = match &self.app.config.sandboxes.engine {
            Engine::Attach(url) => {
                let url = url.replace("{sessionId}", &self.record.id.to_string());
                self.attach(&url).await
            }
            Engine::Local | Engine::Process => self.local().await,
        };
        self.stage_over(None);
        agent
    }

    async fn attach(&self, url: &str) -> Result<Agent, LaunchError> {
        let url = url::Url::parse(url).map_err(|_| SandboxError::BadSpec("the attach URL is no URL"))?;
        if url.scheme() != "http" {
            return Err(LaunchError::Tls);
        }
        let id = sandbox_id(self.record.id)?;
        let spec = sandbox::Spec::new(id.clone(), Vec::new());
        self.app.sandboxes.provider.ensure(&spec).await?;
        if self.record.sandbox_id.is_none() {
            self.app.store.new_sandbox_generation(&self.owner).await?;
        }
        let token = self.token().await?;
        let place = AgentPlace::remote(url.authority(), url.path())?
            .with_secret(TOKEN_HEADER, token.expose_secret())?;
        let client = Client::new(self.door(&id, 0), place);
        self.stage("Waiting for the agent").await;
        client.wait_until_listening(READY).await?;
        self.app.store.set_running(&self.owner, id.as_str(), None).await?;
        self.converse(client, None).await
    }

    async fn local(&self) -> Result<Agent, LaunchError> {
        let id = sandbox_id(self.record.id)?;
        let program = self.agent_program()?;
        self.stage("Starting the sandbox").await;
        let (room, token) = self.room(&id, &program).await?;
        let client = Client::new(self.door(&id, room.agent_port), AgentPlace::local());
        if !room.recovered || client.health().await.is_err() {
            self.prepare(&room, token.as_ref(), &program).await?;
        }
        self.stage("Waiting for the agent").await;
        client.wait_until_ready(READY).await?;
        self.app.store.set_running(&self.owner, id.as_str(), None).await?;
        self.converse(client, Some(room)).await
    }

    fn agent_program(&self) -> Result<PathBuf, LaunchError> {
        let found = self.app.config.program("opencode").and_then(|path| path.canonicalize().ok());
        found.ok_or(LaunchError::NoAgent(opencode::files::VERSION))
    }

    /// The session's sandbox, found again or new; a new one has a token of its own.
    async fn room(
        &self,
        id: &SandboxId,
        program: &std::path::Path,
    ) -> Result<(Room, Option<SecretString>), LaunchError> {
        let app = &self.app;
        let network = Network { org: self.record.org_id, session: Some(self.record.id), sandbox: id.clone() };
        let proxy = app.networks.proxy(network).await?;
        let running = app.sandboxes.provider.list().await?.into_iter().any(|listed| {
            listed.id == *id
                && matches!(listed.state, sandbox::SandboxState::Running | sandbox::SandboxState::Paused)
        });
        let snapshot = if running { None } else { self.snapshot().await? };
        let token = if running {
            None
        } else {
            app.store.new_sandbox_generation(&self.owner).await?;
            Some(self.token().await?)
        };
        let mut env = BTreeMap::from([("PROLIFERATE_SESSION_ID".to_owned(), self.record.id.to_string())]);
        if let Some(token) = &token {
            env.insert("SANDBOX_MCP_AUTH_TOKEN".to_owned(), token.expose_secret().to_owned());
        }
        let wanted = Wanted {
            id: id.clone(),
            env,
            snapshot,
            proxy,
            gateway: Some(edge::router(app.clone())),
            agent: Some(program.to_owned()),
        };
        Ok((app.sandboxes.start(wanted).await?, token))
    }

    /// What the sandbox starts from. Whoever wrote the name into the session, it counts only with a record that it is
    /// of this organisation and of this engine.
    async fn snapshot(&self) -> Result<Option<SnapshotId>, LaunchError> {
        let (store, org) = (&self.app.store, self.record.org_id);
        // One may have been made since the record was read.
        let record = store.session(org, self.record.id).await?.ok_or(StoreError::Missing("this session"))?;
        let Some(id) = record.snapshot_id else { return Ok(None) };
        let known = store.snapshot(org, &id).await?;
        match known.filter(|known| known.sandbox_provider == self.app.sandboxes.engine()) {
            Some(known) => Ok(Some(SnapshotId::new(known.id)?)),
            None => Err(LaunchError::NoSnapshot),
        }
    }

    async fn token(&self) -> Result<SecretString, LaunchError> {
        let app = &self.app;
        let token = Credential::new(CredentialKind::Sandbox, &app.rng);
        let new = NewSandboxToken { token_hash: token.hash, session_id: self.record.id, at: app.clock.now() };
        app.store.create_sandbox_token(new).await?;
        Ok(token.text)
    }

    /// Everything that a new sandbox needs before its agent can work.
    async fn prepare(
        &self,
        room: &Room,
        token: Option<&SecretString>,
        program: &std::path::Path,
    ) -> Result<(), LaunchError> {
        let repos = self.app.store.session_repos(self.record.id).await?;
        let missing = missing(&room.inside, &repos).await?;
        if !missing.is_empty() {
            self.stage("Cloning").await;
            clone(&room.inside, &missing).await?;
        }
        self.stage("Starting the agent").await;
        let token = match token {
            Some(token) => token.clone(),
            None => self.token().await?,
        };
        let home = self.app.sandboxes.home(&room.id).to_string_lossy().into_owned();
        let gateway = room.gateway_url.clone();
        let model = ModelId::parse_or_default(
            self.record.agent_config.as_ref().and_then(|config| config.model_id.as_deref()),
        );
        let setup = Setup {
            home: &home,
            folder: &format!("{home}/{FOLDER}"),
            workspace: &format!("{home}/workspace"),
            model_url: &format!("{gateway}/llm"),
            model_key: token.expose_secret(),
            session: Some(&self.record.id.to_string()),
            model: model.model().opencode_id,
            instructions: if repos.is_empty() { Instructions::Scratch } else { Instructions::Coding },
            tools: &[],
            port: room.agent_port,
        };
        write(&room.inside, &home, setup.entries()).await?;
        let program = self.app.sandboxes.place_of(AGENT, program);
        room.inside.service_start(service(&program, setup.launch())).await?;
        Ok(())
    }

    /// The agent's own session, and everything that happens in it from now on.
    async fn converse(&self, client: Client<Door>, room: Option<Room>) -> Result<Agent, LaunchError> {
        // Listened to first, so that nothing that follows is missed.
        let events = client.events().await?;
        let known = match &self.record.agent_session_id {
            Some(session) if client.has_session(session).await? => Some(session.clone()),
            _ => None,
        };
        let remembers = known.is_some();
        let session = if let Some(session) = known {
            session
        } else {
            let title = self.record.title.as_deref().unwrap_or("Session");
            let session = client.create_session(title).await?;
            self.app.store.set_agent_session(&self.owner, Some(&session)).await?;
            session
        };
        Ok(Agent { client, session, events, remembers, room })
    }

    fn door(&self, id: &SandboxId, port: u16) -> Door {
        Door { provider: self.app.sandboxes.provider.clone(), id: id.clone(), port }
    }

    /// Begins a stage, which ends the one before. Nobody has to listen.
    async fn stage(&self, name: &'static str) {
        self.stage_over(Some(name));
        let _ = self.stages.send(name).await;
    }

    /// Notes how long the stage took that is over.
    fn stage_over(&self, next: Option<&'static str>) {
        let now = self.app.clock.elapsed();
        let mut stage = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((name, since)) = std::mem::replace(&mut *stage, next.map(|next| (next, now))) {
            let took = now.saturating_sub(since);
            metrics::histogram!("proliferate_boot_stage_seconds", "stage" => name).record(took.as_secs_f64());
            tracing::info!(session = %self.record.id, stage = name, millis = took.as_millis(), "boot");
        }
    }
}

/// A sandbox is called as its session is.
pub(crate) fn sandbox_id(session: SessionId) -> Result<SandboxId, SandboxError> {
    SandboxId::new(session.to_string())
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

/// One word for a shell, whatever is in it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

async fn write(inside: &Sandboxd, home: &str, entries: Vec<Entry>) -> Result<(), LaunchError> {
    for entry in entries {
        let path = entry.path.strip_prefix(home).unwrap_or(&entry.path).trim_start_matches('/').to_owned();
        let mode = if entry.secret { 0o600 } else { 0o644 };
        inside.write_file(Place::home(path), entry.contents, Some(mode)).await?;
    }
    Ok(())
}

/// Repositories that are not there yet: a snapshot or an earlier sandbox may have brought them.
async fn missing<'a>(inside: &Sandboxd, repos: &'a [PlacedRepo]) -> Result<Vec<&'a PlacedRepo>, LaunchError> {
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

async fn clone(inside: &Sandboxd, repos: &[&PlacedRepo]) -> Result<(), LaunchError> {
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
