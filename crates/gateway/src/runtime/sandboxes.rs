//! The configured sandbox engine, which starts, finds and ends sandboxes.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use clock::Rng;
use sandbox::attach::{AttachProvider, PlainHttp};
use sandbox::local::{LimitsReport, LocalConfig, LocalProvider, Usage};
use sandbox::process::{self, ProcessProvider};
use sandbox::{Limits, Provider, SandboxError, SandboxId};
use tokio::sync::Semaphore;
use url::Url;

use super::environment_locks::EnvironmentLocks;
use super::environment_refresh::OutdatedEnvironments;
use super::key::RootKey;
use super::sandbox_handle::ProxiedConnections;
use crate::config::{Config, Engine};
use crate::data_dir::{DataDir, DataDirError};

/// The maximum number of sandboxes that are copied and retired at the same time.
const MAX_RETIRING: usize = 4;

/// Whether the command line allows an engine without isolation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insecure {
    Allowed,
    Refused,
}

/// The reason why the sandbox engine cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SandboxesError {
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error("cannot use {}: {source}", path.display())]
    Key { path: PathBuf, source: io::Error },
    #[error("cannot find the program that this is: {0}")]
    Program(io::Error),
    #[error(
        "SANDBOX_PROVIDER=process gives no isolation: agents can read and change all that the gateway can. \
         Use local, or say --insecure-sandbox if this machine has nothing to lose"
    )]
    Insecure,
}

/// Sandboxes of the configured engine.
pub struct Sandboxes {
    pub provider: Arc<dyn Provider>,
    pub(super) limits: Limits,
    pub(super) rootfs: Option<PathBuf>,
    /// The path of this program, which is also the supervisor inside.
    pub(super) program: PathBuf,
    pub(super) keys: RootKey,
    pub(super) rng: Rng,
    /// Limits how many sandboxes are copied and retired at the same time.
    pub(super) retiring: Semaphore,
    pub(super) environment_locks: EnvironmentLocks,
    pub(crate) outdated_environments: OutdatedEnvironments,
    pub(super) proxied: ProxiedConnections,
    engine: Kind,
    directory: PathBuf,
}

/// The engine, with what only this engine has.
enum Kind {
    Local { provider: LocalProvider, bwrap: PathBuf },
    Attach,
    Process,
}

impl Sandboxes {
    pub fn open(config: &Config, insecure: Insecure, rng: &Rng) -> Result<Self, SandboxesError> {
        let settings = &config.sandboxes;
        DataDir::prepare(&config.data_dir)?;
        let directory = config.data_dir.join("sandboxes");
        let path = config.data_dir.join("sandboxes.key");
        let keys =
            RootKey::open(&path, rng).map_err(|source| SandboxesError::Key { path: path.clone(), source })?;
        let program = std::env::current_exe().map_err(SandboxesError::Program)?;
        let (engine, provider): (Kind, Arc<dyn Provider>) = match &settings.engine {
            Engine::Local => {
                let local = local_config(config, directory.clone(), &program, rng);
                let bwrap = local.bwrap.clone();
                let provider = LocalProvider::open(local)?;
                (Kind::Local { provider: provider.clone(), bwrap }, Arc::new(provider))
            }
            Engine::Attach(url) => {
                let plain = plain_http(url, &config.allowed_hosts);
                (Kind::Attach, Arc::new(AttachProvider::new(url, plain)?))
            }
            Engine::Process if insecure == Insecure::Refused => return Err(SandboxesError::Insecure),
            Engine::Process => {
                (Kind::Process, Arc::new(ProcessProvider::new(directory.clone(), process::Insecure)?))
            }
        };
        Ok(Self {
            provider,
            limits: settings.limits.clone(),
            rootfs: settings.rootfs.clone(),
            program,
            keys,
            rng: rng.clone(),
            retiring: Semaphore::new(MAX_RETIRING),
            environment_locks: EnvironmentLocks::default(),
            outdated_environments: OutdatedEnvironments::default(),
            proxied: ProxiedConnections::default(),
            engine,
            directory,
        })
    }

    /// How well this machine enforces resource limits. `None` if the engine enforces none.
    pub fn limits_report(&self) -> Option<LimitsReport> {
        match &self.engine {
            Kind::Local { provider, .. } => Some(provider.limits_report()),
            Kind::Attach | Kind::Process => None,
        }
    }

    /// The resources that all sandboxes on this machine use together.
    pub(crate) fn usage(&self) -> Option<Usage> {
        match &self.engine {
            Kind::Local { provider, .. } => Some(provider.usage()),
            Kind::Attach | Kind::Process => None,
        }
    }

    /// Closes every proxied connection of sandboxes and waits until all have ended. Requests from inside to the gateway
    /// continue.
    pub async fn close_ways_out(&self) {
        self.proxied.close().await;
    }

    /// Checks the engine for the readiness probe.
    pub async fn check(&self) -> Result<(), SandboxError> {
        match &self.engine {
            Kind::Local { bwrap, .. } if !bwrap.is_file() => return Err(SandboxError::BubblewrapMissing),
            _ => {}
        }
        self.provider.list().await.map(drop)
    }

    /// The engine's name in the database.
    pub fn engine(&self) -> &'static str {
        match &self.engine {
            Kind::Local { .. } => "local",
            Kind::Attach => "attach",
            Kind::Process => "process",
        }
    }

    /// The engine's name for people.
    pub fn name(&self) -> &'static str {
        match &self.engine {
            Kind::Local { .. } => "local (bubblewrap)",
            Kind::Attach => "attach",
            Kind::Process => "process (no isolation)",
        }
    }

    /// The home directory as programs inside see it. Without isolation, that is the directory on the host.
    pub(super) fn home(&self, id: &SandboxId) -> PathBuf {
        match &self.engine {
            Kind::Process => self.directory.join(id.as_str()),
            Kind::Local { .. } | Kind::Attach => PathBuf::from("/home/user"),
        }
    }

    /// Whether a supervisor can be reached by the name of its sandbox, because it listens on a fixed port.
    pub(super) fn can_reach(&self) -> bool {
        matches!(self.engine, Kind::Local { .. })
    }

    /// Whether sandboxes have their own network namespace, and thus their own ports.
    pub(super) fn has_own_network(&self) -> bool {
        !matches!(self.engine, Kind::Process)
    }
}

fn local_config(config: &Config, root: PathBuf, program: &std::path::Path, rng: &Rng) -> LocalConfig {
    let mut local = LocalConfig::new(root, program.to_owned());
    // No file has an empty name, so starting a sandbox fails with an error that says what to install.
    local.bwrap = config.program("bwrap").unwrap_or_default();
    local.uids = config.sandboxes.uids.clone();
    local.rng = rng.clone();
    local
}

/// Whether plain HTTP to this URL is allowed. Off this machine, it is allowed only to hosts that the operator has
/// listed.
fn plain_http(url: &str, allowed: &[String]) -> PlainHttp {
    let authority = Url::parse(url)
        .ok()
        .and_then(|url| Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?)));
    if authority.is_some_and(|authority| allowed.contains(&authority)) {
        PlainHttp::Anywhere
    } else {
        PlainHttp::LoopbackOnly
    }
}

#[cfg(test)]
impl Sandboxes {
    /// Builds sandboxes on a provider made by a test.
    pub(super) fn of(provider: Arc<dyn Provider>, directory: &std::path::Path) -> Self {
        let rng = Rng::system();
        Self {
            provider,
            limits: Limits::default(),
            rootfs: None,
            program: PathBuf::from("/bin/true"),
            keys: RootKey::open(&directory.join("key"), &rng).unwrap(),
            rng,
            retiring: Semaphore::new(MAX_RETIRING),
            environment_locks: EnvironmentLocks::default(),
            outdated_environments: OutdatedEnvironments::default(),
            proxied: ProxiedConnections::default(),
            engine: Kind::Attach,
            directory: directory.to_owned(),
        }
    }
}
