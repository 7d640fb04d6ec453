//! Launches the agent of a session: sandbox, workspace, files, agent process, agent session, event stream. Each stage
//! is reported to the session and timed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent::{AgentClient, AgentError, Endpoint, Program};
use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use proto::{AgentMode, SessionType, TitleSource};
use sandbox::{SandboxError, SandboxId, SandboxState, SnapshotId};
use sandboxd::ClientError;
use secrecy::{ExposeSecret as _, SecretString};
use store::{NewSandboxToken, Owner, SessionRecord, Snapshot, StoreError, TokenHash};
use tokio::sync::mpsc;

use super::Runtime;
use super::actions_guide;
use super::agent::Agent;
use super::agent_file::{AgentContents, AgentFile};
use super::agent_programs::AgentPrograms;
use super::auto_start;
use super::environment::Environment;
use super::network::Network;
use super::pool::PooledSandbox;
use super::prepare::{self, AgentPaths, AgentSettings};
use super::repositories::{Checkout, Repositories};
use super::sandbox_handle::{SandboxHandle, SandboxRequest};
use super::system;
use crate::config::Engine;
use crate::identity::{Credential, CredentialKind};
use crate::telemetry::millis;

/// How long a started agent may take to answer.
pub(super) const AGENT_READY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a pooled agent may take to answer a health check.
const STILL_THERE: Duration = Duration::from_secs(2);
const TOKEN_HEADER: &str = "x-proliferate-sandbox-token";

/// The reason why a launch failed. Each is one sentence for the waiting users.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error("the sandbox's supervisor: {0}")]
    Supervisor(#[from] ClientError),
    #[error("the agent: {0}")]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "{} {} is not installed on this machine: run `make up`, or install it and put it on the PATH",
        .0.name, .0.version
    )]
    NoAgent(Program),
    #[error("the agent ends as soon as it is started ({how}): is {name} intact, and made for this machine?")]
    CrashLoop { name: &'static str, how: String },
    #[error("cloning {name} failed: {reason}")]
    Clone { name: String, reason: String },
    #[error("the snapshot that this session starts from is not there: make a session without it")]
    NoSnapshot,
    #[error("the boot broke off: {0}")]
    Broken(String),
}

/// One launch of a session's agent.
pub struct Launch {
    runtime: Arc<Runtime>,
    repositories: Arc<dyn Repositories>,
    owner: Owner,
    record: SessionRecord,
    /// Receives the name of each stage as it starts.
    stages: mpsc::Sender<&'static str>,
    /// The current stage, and when it started.
    running: Mutex<Option<(&'static str, Duration)>>,
}

impl Launch {
    pub(crate) fn new(
        runtime: Arc<Runtime>,
        repositories: Arc<dyn Repositories>,
        owner: Owner,
        record: SessionRecord,
        stages: mpsc::Sender<&'static str>,
    ) -> Self {
        Self { runtime, repositories, owner, record, stages, running: Mutex::default() }
    }

    pub async fn run(self) -> Result<Agent, LaunchError> {
        let _boot = self.runtime.sandboxes.outdated_environments.hold(self.record.id);
        let agent = match &self.runtime.settings.sandboxes.engine {
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
        let url =
            url::Url::parse(url).map_err(|_| SandboxError::BadSpec("the attach URL is not a valid URL"))?;
        let id = SandboxId::new(self.record.id.to_string())?;
        let spec = sandbox::Spec::new(id.clone(), Vec::new());
        self.runtime.sandboxes.provider.ensure(&spec).await?;
        if self.record.sandbox_id.is_none() {
            self.runtime.store.new_sandbox_generation(&self.owner, None).await?;
        }
        let endpoint = Endpoint {
            authority: url.authority().to_owned(),
            path: url.path().to_owned(),
            header: Some((TOKEN_HEADER, self.issue_token().await?)),
        };
        let client = self.runtime.agent_client(&id, 0, &endpoint)?;
        self.stage("Waiting for the agent").await;
        // A refused connection may only be too early, so we wait for it below. A TLS failure is final.
        if let Err(error @ SandboxError::Tls(_)) = self.runtime.sandboxes.provider.dial(&id, 0).await {
            return Err(error.into());
        }
        client.wait_until_listening(AGENT_READY_TIMEOUT).await?;
        // If the old lifetime is over, this connection starts a new one.
        let goes_on = self.record.sandbox_expires_at.is_some_and(|at| at > self.runtime.clock.now());
        let expires_at = self.expires_at(goes_on);
        self.open_agent_session(client, id, None, expires_at).await
    }

    async fn local(&self) -> Result<Agent, LaunchError> {
        let programs = self.runtime.agent_programs()?;
        let id = sandbox_of(&self.record)?;
        let found = self.runtime.sandboxes.provider.list().await?.into_iter().find(|listed| listed.id == id);
        // A sandbox with files continues with them. An interrupted start has made none.
        let has_files = found.as_ref().is_some_and(|found| found.state != SandboxState::Incomplete);
        let snapshot = if has_files { None } else { self.snapshot().await? };
        let is_copy = snapshot.as_ref().is_some_and(|snapshot| snapshot.session_id != self.record.id);
        let has_dependencies = snapshot.is_some() || self.record.snapshot_id.is_some();
        let snapshot = snapshot.map(|snapshot| SnapshotId::new(snapshot.id)).transpose()?;
        if found.is_none()
            && snapshot.is_none()
            && let Some(agent) = self.adopt_pooled_agent().await?
        {
            return Ok(agent);
        }
        let runs =
            found.is_some_and(|found| matches!(found.state, SandboxState::Running | SandboxState::Paused));
        self.stage("Starting the sandbox").await;
        let (handle, token) = self.start_sandbox(&id, &programs, snapshot, runs).await?;
        let client = self.runtime.agent_client(&id, handle.agent_port, &Endpoint::local())?;
        if !handle.recovered || client.check_health().await.is_err() {
            self.prepare(&handle, token, &programs, is_copy).await?;
            self.start_services(&handle, has_dependencies);
        } else {
            self.apply_environment(&handle).await;
        }
        self.stage("Waiting for the agent").await;
        tokio::select! {
            ready = client.wait_until_ready(AGENT_READY_TIMEOUT) => ready?,
            how = prepare::wait_for_crash_loop(&handle.inside) => {
                return Err(LaunchError::CrashLoop { name: self.runtime.settings.agent_type.program().name, how });
            }
        };
        let expires_at = self.expires_at(handle.recovered);
        self.open_agent_session(client, id, Some(handle), expires_at).await
    }

    /// Adopts an agent from the pool. A pooled agent that turns out to be dead only means a cold start.
    async fn adopt_pooled_agent(&self) -> Result<Option<Agent>, LaunchError> {
        let Some(pooled) = self.runtime.pool.take() else { return Ok(None) };
        let sandbox = pooled.handle.id.clone();
        let (outcome, agent) = match self.adopt(pooled).await {
            Ok(agent) => ("used", Ok(Some(agent))),
            Err(error @ (LaunchError::Store(_) | LaunchError::Clone { .. })) => ("failed", Err(error)),
            Err(error) => {
                tracing::warn!(session = %self.record.id, %sandbox, %error, "cannot use a pooled sandbox");
                ("dead", Ok(None))
            }
        };
        metrics::counter!("proliferate_pool_taken_total", "outcome" => outcome).increment(1);
        agent
    }

    /// Makes a pooled sandbox this session's own. The sandbox's name is written to the session last: a crash before
    /// that leaves a sandbox without a session, which the next start of the gateway ends.
    async fn adopt(&self, pooled: PooledSandbox) -> Result<Agent, LaunchError> {
        let PooledSandbox { handle, client, token, token_hash, paths, end_on_drop } = pooled;
        let there = tokio::time::timeout(STILL_THERE, client.check_health()).await;
        there.map_err(|_| AgentError::TimedOut("say that it is there"))??;
        self.stage("Taking a sandbox from the pool").await;
        self.runtime.store.new_sandbox_generation(&self.owner, None).await?;
        self.bind(token_hash).await?;
        handle.set_proxy(self.runtime.networks.proxy(self.network(&handle.id)).await?);
        let settings = self.agent_settings(&handle, token, false).await?;
        self.apply_environment(&handle).await;
        paths.write(&handle.inside, &settings).await?;
        self.stage("Waiting for the agent").await;
        client.reload().await?;
        client.wait_until_ready(AGENT_READY_TIMEOUT).await?;
        let id = handle.id.clone();
        let agent = self.open_agent_session(client, id, Some(handle), self.expires_at(false)).await?;
        end_on_drop.disarm();
        Ok(agent)
    }

    fn network(&self, sandbox: &SandboxId) -> Network {
        Network { org: self.record.org_id, session: Some(self.record.id), sandbox: sandbox.clone() }
    }

    /// Starts the session's sandbox or finds it running. A new one gets a token of its own.
    async fn start_sandbox(
        &self,
        id: &SandboxId,
        programs: &AgentPrograms,
        snapshot: Option<SnapshotId>,
        runs: bool,
    ) -> Result<(SandboxHandle, Option<SecretString>), LaunchError> {
        let runtime = &self.runtime;
        let token = if runs {
            None
        } else {
            // A sandbox from the pool keeps its name. Otherwise a crash would orphan its files.
            let own = self.record.id.to_string();
            let name = self.record.sandbox_id.as_deref().filter(|name| *name != own);
            runtime.store.new_sandbox_generation(&self.owner, name).await?;
            Some(self.issue_token().await?)
        };
        let mut env = BTreeMap::from([("PROLIFERATE_SESSION_ID".to_owned(), self.record.id.to_string())]);
        if let Some(token) = &token {
            env.insert("SANDBOX_MCP_AUTH_TOKEN".to_owned(), token.expose_secret().to_owned());
        }
        let request = SandboxRequest {
            id: id.clone(),
            env,
            snapshot,
            proxy: runtime.networks.proxy(self.network(id)).await?,
            gateway: Some(runtime.router()?),
            programs: programs.mounts(),
        };
        Ok((runtime.sandboxes.start(request).await?, token))
    }

    /// The snapshot that the sandbox starts from. The snapshot id in the session counts only if the database records
    /// that it belongs to this organization and this engine.
    async fn snapshot(&self) -> Result<Option<Snapshot>, LaunchError> {
        let (store, org) = (&self.runtime.store, self.record.org_id);
        // A snapshot may have been made since the session's record was read.
        let record = store.session(org, self.record.id).await?.ok_or(StoreError::Missing("this session"))?;
        let Some(id) = record.snapshot_id else { return Ok(None) };
        let known = store.snapshot(org, &id).await?;
        let known = known.filter(|known| known.sandbox_provider == self.runtime.sandboxes.engine());
        known.map(Some).ok_or(LaunchError::NoSnapshot)
    }

    async fn issue_token(&self) -> Result<SecretString, LaunchError> {
        let token = Credential::new(CredentialKind::Sandbox, &self.runtime.rng);
        self.bind(token.hash).await?;
        Ok(token.text)
    }

    /// Binds a token to this session, for as long as the session has its current sandbox.
    async fn bind(&self, token_hash: TokenHash) -> Result<(), LaunchError> {
        let new = NewSandboxToken { token_hash, session_id: self.record.id };
        Ok(self.runtime.store.create_sandbox_token(new).await?)
    }

    /// Sets up what a new sandbox needs before its agent can work.
    async fn prepare(
        &self,
        handle: &SandboxHandle,
        token: Option<SecretString>,
        programs: &AgentPrograms,
        is_copy: bool,
    ) -> Result<(), LaunchError> {
        let token = match token {
            Some(token) => token,
            None => self.issue_token().await?,
        };
        let settings = self.agent_settings(handle, token, is_copy).await?;
        self.apply_environment(handle).await;
        self.stage("Starting the agent").await;
        let paths = AgentPaths::of(&self.runtime, handle, programs);
        paths.write(&handle.inside, &settings).await?;
        paths.start(&handle.inside, &settings).await
    }

    /// Checks out the repositories and collects the agent's settings. `is_copy` means that the files are a copy of
    /// another session's work and may be outdated.
    async fn agent_settings(
        &self,
        handle: &SandboxHandle,
        token: SecretString,
        is_copy: bool,
    ) -> Result<AgentSettings, LaunchError> {
        let stage = |name| self.stage(name).boxed();
        let checkout = Checkout {
            sandbox: handle.owned_by(self.owner).connect(&self.runtime.sandboxes).await?,
            session: &self.record,
            token: &token,
            is_copy,
            stage: &stage,
        };
        self.repositories.clone().check_out(checkout).await?;
        let mode = self.agent_mode().await?;
        let AgentContents { instructions, tools, files } =
            (self.runtime.inward.agent_contents)(&self.record, mode);
        for file in files {
            match file {
                AgentFile::TriggerContext => self.write_trigger_context(handle).await?,
                AgentFile::ActionsGuide => self.write_actions_guide(handle).await,
            }
        }
        let (model, chat_models) = self.runtime.agent_models(self.record.agent_config.as_ref()).await;
        Ok(AgentSettings {
            token,
            session: Some(self.record.id.to_string()),
            model,
            chat_models,
            instructions,
            tools,
        })
    }

    /// The mode of the agent's instructions and tools. Once its run has ended, the agent of an automation has nothing to
    /// report any more: whoever prompts it then gets one as in a session of a person.
    async fn agent_mode(&self) -> Result<AgentMode, LaunchError> {
        let SessionRecord { id, org_id, session_type, configuration_id, .. } = self.record;
        let mode = self.record.mode();
        if mode == AgentMode::Automation && self.runtime.store.run_has_ended(org_id, id).await? {
            return Ok(AgentMode::of(session_type, None, configuration_id.is_some()));
        }
        Ok(mode)
    }

    /// Writes the event that started the session where the agent can read it. The directory is in no snapshot, so every
    /// sandbox of the session gets the file anew.
    async fn write_trigger_context(&self, handle: &SandboxHandle) -> Result<(), LaunchError> {
        let context = self.runtime.store.trigger_context(self.record.org_id, self.record.id).await?;
        let Some(context) = context else { return Ok(()) };
        let text = serde_json::Value::Object(context).to_string();
        handle.inside.write_file(AgentFile::TriggerContext.place(), text.into_bytes(), Some(0o644)).await?;
        Ok(())
    }

    /// Writes the guide to actions. The agent starts without it, because the command line explains itself.
    async fn write_actions_guide(&self, handle: &SandboxHandle) {
        if let Err(error) = actions_guide::write(&handle.inside).await {
            tracing::warn!(session = %self.record.id, %error, "the guide to actions was not written");
        }
    }

    /// Writes the environment of the session's app. What the agent removed from a sandbox that runs on stays removed. A
    /// failure does not keep the agent from starting, and is tried again: people see what is missing, and the agent can ask
    /// for it.
    async fn apply_environment(&self, handle: &SandboxHandle) {
        let (runtime, session) = (&self.runtime, self.record.id);
        let written = if handle.recovered {
            Environment::update(runtime, &self.record, &handle.inside).await
        } else {
            Environment::write(runtime, &self.record, &handle.inside).await.map(Some)
        };
        match written {
            Ok(None) => {}
            Ok(Some(applied)) if applied.missing.is_empty() => {}
            Ok(Some(applied)) => {
                let missing = applied.missing.join(", ");
                tracing::warn!(%session, missing, "no environment file was written: required variables have no value");
            }
            Err(error) => {
                tracing::error!(%session, %error, "the environment of a session was not applied");
                runtime.sandboxes.outdated_environments.add(session);
            }
        }
    }

    /// Starts the services of the session's app in the background, in a sandbox that has their dependencies. A setup
    /// session finds out first which there are.
    fn start_services(&self, handle: &SandboxHandle, has_dependencies: bool) {
        if !has_dependencies || self.record.session_type == SessionType::Setup {
            return;
        }
        let (runtime, record, inside) = (self.runtime.clone(), self.record.clone(), handle.inside.clone());
        tokio::spawn(async move {
            let session = record.id;
            let commands = match auto_start::commands(&runtime, &record, Vec::new()).await {
                Ok(commands) if commands.is_empty() => return,
                Ok(commands) => commands,
                Err(error) => {
                    tracing::error!(%session, %error, "the services of a session were not started");
                    return;
                }
            };
            if let Err(reason) = system::start_services(&runtime, &record, inside, commands).await {
                tracing::error!(%session, reason, "the services of a session were not started");
            }
        });
    }

    /// The time at which the sandbox's lifetime ends. A sandbox that was already running keeps its expiry.
    fn expires_at(&self, ran: bool) -> Option<DateTime<Utc>> {
        let had = self.record.sandbox_expires_at.filter(|_| ran);
        had.or_else(|| Some(self.runtime.clock.now() + self.runtime.settings.sandboxes.lifetime?))
    }

    /// Opens the event stream and the agent's own session, once the sandbox is running.
    async fn open_agent_session(
        &self,
        client: Arc<dyn AgentClient>,
        sandbox: SandboxId,
        handle: Option<SandboxHandle>,
        expires_at: Option<DateTime<Utc>>,
    ) -> Result<Agent, LaunchError> {
        self.runtime.store.set_running(&self.owner, sandbox.as_str(), expires_at).await?;
        // Subscribe first, so that no later event is missed.
        let events = client.events().await?;
        // Without a title, the agent asks its model for one.
        let is_final = !matches!(self.record.title_source, None | Some(TitleSource::Prompt));
        let title = self.record.title.as_deref().filter(|_| is_final);
        let session = client.open_session(self.record.agent_session_id.as_deref(), title).await?;
        if !session.remembered {
            self.runtime.store.set_agent_session(&self.owner, Some(&session.id)).await?;
        }
        Ok(Agent { client, session, events, sandbox, handle, expires_at })
    }

    /// Starts a stage, which ends the previous one. A missing receiver is ignored.
    async fn stage(&self, name: &'static str) {
        self.stage_over(Some(name));
        let _ = self.stages.send(name).await;
    }

    /// Records how long the finished stage took.
    fn stage_over(&self, next: Option<&'static str>) {
        let now = self.runtime.clock.elapsed();
        let mut stage = self.running.lock();
        if let Some((name, since)) = std::mem::replace(&mut *stage, next.map(|next| (next, now))) {
            let took = now.saturating_sub(since);
            metrics::histogram!("proliferate_boot_stage_seconds", "stage" => name).record(took.as_secs_f64());
            tracing::info!(session = %self.record.id, stage = name, millis = millis(took), "boot");
        }
    }
}

/// The name of a session's sandbox: the recorded one, for example from the pool, or else the session's id.
pub(crate) fn sandbox_of(record: &SessionRecord) -> Result<SandboxId, SandboxError> {
    match &record.sandbox_id {
        Some(name) => SandboxId::new(name.as_str()),
        None => SandboxId::new(record.id.to_string()),
    }
}
