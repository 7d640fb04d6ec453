//! Assembles the gateway, in the order in which a failure costs least: nothing is created before the port is bound.

mod session_sandboxes;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use agent::AgentType;
use clock::{Clock, Rng};
use gate::{Gate, GateError, OpenGate, follow_lock, keep_gate};
use opencode::OpenCode;
use secrecy::ExposeSecret as _;
use store::{InstanceLock, Member, Store, StoreError};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::actions::Actions;
use crate::admission::Admission;
use crate::app::{App, AppState, Credentials, ModelServices, Process, Site};
use crate::automations::{Automations, Runner, keep_running, keep_scheduling};
use crate::changes::Changes;
use crate::config::{Config, Database, Origin};
use crate::connectors::Connectors;
use crate::data_dir::{DataDir, DataDirError, Space};
use crate::databases::Databases;
use crate::edge;
use crate::edge::auth::LiveCredentials;
use crate::git::{ForgeReads, GitService, GitSettings, PushGrants, PushSlots};
use crate::hub::{HubServices, Hubs};
use crate::identity::{self, Issuer};
use crate::keyring::{Keyring, KeyringError};
use crate::lifecycle::Lifecycle;
use crate::llm::{Llm, LlmError, ModelWork, Spending};
use crate::notifications::{Notifications, Webhook, keep_notifying};
use crate::outbound::Outbound;
use crate::runtime::{
    Insecure, Inward, Networks, Pool, Runtime, RuntimeSettings, Sandboxes, SandboxesError, keep_environments,
    maintain_pool,
};
use crate::server::{self, Limits};
use crate::sessions::SessionServices;
use crate::shares::Shares;
use crate::sources::{
    ConnectorSource, DatabaseTools, ExportSource, GitSource, HttpNeeds, HttpTools, Integrations,
    MAX_CONCURRENT_UPLOADS, PlatformSource, Registry, ServicesSource, Source, agent_contents,
};
use crate::sweep::{SweepServices, keep_sweeping};
use crate::telemetry;
use crate::vault::{Vault, VaultError};
use session_sandboxes::SessionSandboxes;

/// How long closing the database may take. A server that is gone must not delay our own exit; a database file only has
/// to be written.
const CLOSING_SERVER: Duration = Duration::from_secs(5);
const CLOSING_FILE: Duration = Duration::from_mins(1);
/// How long ending the pooled sandboxes may take. The next start ends those that are left.
const CLOSING_POOL: Duration = Duration::from_secs(10);

/// How long a start waits for another gateway on the same database to finish stopping, and how often it checks.
const WAIT_FOR_PREDECESSOR: Duration = Duration::from_secs(8);
const PREDECESSOR_CHECK: Duration = Duration::from_millis(100);

/// A gateway that is ready to serve.
pub struct Gateway {
    pub app: AppState,
    /// Set if this start created the first organization and its owner.
    pub first_owner: Option<Member>,
    listener: TcpListener,
    _data_dir: DataDir,
    /// Held with PostgreSQL only. For SQLite, the lock of the data directory is enough.
    instance_lock: Option<InstanceLock>,
}

/// The reason why a gateway does not start. Each is one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "cannot listen on {address}: {source}. Choose another address with --listen, or stop what uses it."
    )]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Vault(#[from] VaultError),
    #[error(transparent)]
    Llm(#[from] LlmError),
    #[error(transparent)]
    Sandboxes(#[from] SandboxesError),
    #[error(transparent)]
    Gate(#[from] GateError),
}

impl Gateway {
    pub async fn start(
        config: Config,
        insecure: Insecure,
        clock: Clock,
        rng: Rng,
    ) -> Result<Self, StartError> {
        Self::start_with_agent(Arc::new(OpenCode), config, insecure, (clock, rng)).await
    }

    /// Starts a gateway whose sessions have another type of agent.
    pub async fn start_with_agent(
        agent_type: Arc<dyn AgentType>,
        config: Config,
        insecure: Insecure,
        (clock, rng): (Clock, Rng),
    ) -> Result<Self, StartError> {
        let (listener, address) = bind(config.listen)?;
        let llm = Arc::new(Llm::open(&config, &clock)?);
        let Storage { data_dir, keyring, store, instance_lock } =
            Storage::open(&config, &clock, &rng).await?;
        data_dir.announce(&url_of(address));
        let vault = Vault::new(store.clone(), &keyring, clock.clone(), rng.clone())?;
        let vault = vault.hiding(config.provider_keys())?;
        vault.check_keys().await?;
        let sandboxes = Sandboxes::open(&config, insecure, &rng)?;
        let pool = Pool::of(&config.sandboxes);
        let first_owner = identity::create_first_owner(&store, &clock, &rng).await?;
        let public_url = config.public_url.clone().unwrap_or_else(|| url_of(address));
        // Our own pages have this origin, whatever else is allowed.
        let origins = config.allowed_origins.iter().cloned().chain([Origin::of(&public_url)]).collect();
        let (issuer, instance) = (Issuer::new(&keyring.jwt, &keyring.service), hex::encode(rng.bytes::<8>()));
        let settings = config.gate_settings();
        let names = (instance.as_str(), agent_type.program().name);
        let gate = OpenGate::open(&settings, &store, &clock, &rng, names).await?;
        let (service_secret, metrics) = (keyring.service, telemetry::start_metrics());
        let (shares, space) = (Shares::new(&config, &clock), Space::of(&config.data_dir));
        let parts = Parts::new(&config, (store, clock, rng), vault);
        let (connectors, databases) = outside(&config, &parts);
        let app = Arc::new_cyclic(|app: &Weak<App>| {
            let (git, sources) = connect(app, gate, &config, (&parts, &connectors, &databases));
            let runtime = runtime(app, (&config, &parts), (&git.gate, &llm), (sandboxes, pool, agent_type));
            let admission = admission(&config, &parts, &llm);
            let hubs = hubs(&config, &parts, (&git, &runtime, &connectors), (&admission, &shares), &instance);
            let sessions = sessions(&parts, &hubs, admission, (&git, &runtime), &instance);
            let notifications = Arc::new(notifications(&config, &parts, &public_url));
            let Parts { store, clock, rng, vault, closing, .. } = parts;
            App {
                actions: Arc::new(Actions::new(&git, sources, hubs.clone(), config.calls_per_minute)),
                automations: Arc::new(Automations::new(store.clone(), clock.clone(), rng.clone())),
                changes: Arc::new(Changes::new(store.clone(), clock.clone(), closing.clone())),
                config,
                site: Site { url: public_url, origins },
                clock,
                rng,
                store,
                vault,
                credentials: Credentials { issuer, service_secret, live: LiveCredentials::default() },
                process: Process { instance, space, closing, metrics },
                hubs,
                sessions: Arc::new(sessions),
                connectors: connectors.clone(),
                databases: databases.clone(),
                notifications,
                runtime,
                model: ModelServices { llm, spending: Spending::default(), work: ModelWork::default() },
                gate: git.gate.clone(),
                git,
                shares,
            }
        });
        app.gate.come_alive(&settings).await?;
        tokio::spawn(follow_lock(Arc::downgrade(&app.gate)));
        Ok(Self { app: AppState::from(app), first_owner, listener, _data_dir: data_dir, instance_lock })
    }

    /// The address that the gateway listens on, with the actual port if the setting left it open.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves until the lifecycle says stop. Returns `true` if all work was finished.
    pub async fn run(self, life: &Lifecycle) -> bool {
        let lost = self.instance_lock.as_ref().map(InstanceLock::lost);
        let config = &self.app.config;
        let limits = Limits {
            connections: config.max_connections,
            per_address: config.max_connections_per_address,
            client_timeout: config.client_timeout,
        };
        let (closing, soft) = (self.app.process.closing.clone(), life.soft.clone());
        tokio::spawn(async move {
            soft.cancelled().await;
            closing.cancel();
        });
        let successor =
            lost.map(|lost| tokio::spawn(stop_when_replaced(lost, life.clone(), config.stop_after)));
        let pool = tokio::spawn(maintain_pool(self.app.runtime.clone()));
        let environments = tokio::spawn(keep_environments(self.app.runtime.clone()));
        let gate = tokio::spawn(keep_gate(self.app.gate.clone()));
        let app = self.app.clone();
        tokio::spawn(async move { app.actions.announce_waiting(&app.process.closing).await });
        let mut sweep = tokio::spawn(keep_sweeping(sweep_services(&self.app)));
        let credentials = tokio::spawn(edge::keep_checking(self.app.clone()));
        let schedules =
            tokio::spawn(keep_scheduling(self.app.automations.clone(), self.app.process.closing.clone()));
        let runner = Arc::new(Runner::new(self.app.automations.clone(), self.app.sessions.clone()));
        let runs = tokio::spawn(keep_running(runner, self.app.process.closing.clone()));
        let notifications =
            tokio::spawn(keep_notifying(self.app.notifications.clone(), self.app.process.closing.clone()));
        server::serve(self.listener, edge::router(self.app.clone()), limits, life).await;
        self.app.process.closing.cancel();
        // Agents reach the model from inside their sandboxes, over connections that the server's drain does not wait
        // for.
        let model = self.app.model.work.finish(&life.hard, CLOSING_SERVER);
        let (drained, answered) = tokio::join!(life.drained(), model);
        let _ = tokio::time::timeout(CLOSING_SERVER, self.app.hubs.flush()).await;
        let _ = tokio::time::timeout(CLOSING_POOL, pool).await;
        let _ = tokio::time::timeout(CLOSING_SERVER, environments).await;
        let _ = tokio::time::timeout(CLOSING_SERVER, credentials).await;
        let _ = tokio::time::timeout(CLOSING_SERVER, schedules).await;
        let _ = tokio::time::timeout(CLOSING_SERVER, runs).await;
        let _ = tokio::time::timeout(CLOSING_SERVER, notifications).await;
        // The sweep stops by itself. Aborting it while it connects to the database would leak that connection.
        if tokio::time::timeout(CLOSING_SERVER, &mut sweep).await.is_err() {
            sweep.abort();
        }
        let closing = async {
            let _ = gate.await;
            self.app.gate.close().await;
        };
        let _ = tokio::time::timeout(CLOSING_SERVER, closing).await;
        let recorded = async {
            self.app.runtime.sandboxes.close_ways_out().await;
            self.app.runtime.networks.close().await;
        };
        if tokio::time::timeout(CLOSING_SERVER, recorded).await.is_err() {
            tracing::warn!("some egress records could not be written");
        }
        let patience = match self.app.config.database {
            Database::Sqlite => CLOSING_FILE,
            Database::Postgres(_) => CLOSING_SERVER,
        };
        let _ = tokio::time::timeout(patience, self.app.store.clone().close()).await;
        if let Some(successor) = successor {
            successor.abort();
        }
        drained && answered
    }
}

/// The parts that several components need.
struct Parts {
    store: Store,
    clock: Clock,
    rng: Rng,
    vault: Vault,
    networks: Arc<Networks>,
    outbound: Arc<Outbound>,
    closing: CancellationToken,
}

impl Parts {
    fn new(config: &Config, (store, clock, rng): (Store, Clock, Rng), vault: Vault) -> Self {
        let allowed = config.egress_allowed_hosts.clone();
        Self {
            networks: Networks::start(store.clone(), allowed, clock.clone(), rng.clone()),
            store,
            clock,
            rng,
            vault,
            outbound: Arc::default(),
            closing: CancellationToken::new(),
        }
    }
}

/// Connects git and the gate with its tools. The gate calls tools, and tools call git and live sessions, which call the
/// gate; the references back are weak.
fn connect(
    app: &Weak<App>,
    gate: OpenGate,
    config: &Config,
    (parts, connectors, databases): (&Parts, &Arc<Connectors>, &Arc<Databases>),
) -> (Arc<GitService>, Arc<Registry>) {
    let Parts { store, clock, rng, vault, networks, outbound, closing } = parts;
    let mut sources = Arc::default();
    let git = Arc::new_cyclic(|git: &Weak<GitService>| {
        sources = Arc::new(registry(app, git, config, (parts, connectors, databases)));
        GitService {
            settings: GitSettings::new(config),
            store: store.clone(),
            clock: clock.clone(),
            rng: rng.clone(),
            vault: vault.clone(),
            networks: networks.clone(),
            outbound: outbound.clone(),
            gate: Arc::new(gate.with_sources(sources.clone(), Arc::new(vault.clone()), closing.clone())),
            push_slots: PushSlots::default(),
            push_grants: PushGrants::default(),
            reads: ForgeReads::default(),
            closing: closing.clone(),
        }
    });
    (git, sources)
}

/// Builds what calls the servers of connectors, and what queries databases.
fn outside(config: &Config, parts: &Parts) -> (Arc<Connectors>, Arc<Databases>) {
    let (vault, hosts) = (parts.vault.clone(), config.allowed_hosts.clone());
    let databases = Databases::new(vault.clone(), config);
    (
        Arc::new(Connectors::new(vault, parts.outbound.clone(), hosts, parts.clock.clone())),
        Arc::new(databases),
    )
}

/// What tells organizations that something waits for a person.
fn notifications(config: &Config, parts: &Parts, public_url: &Url) -> Notifications {
    let Parts { store, clock, vault, outbound, .. } = parts;
    let webhook = Webhook {
        vault: vault.clone(),
        clock: clock.clone(),
        outbound: outbound.clone(),
        allowed_hosts: config.allowed_hosts.clone(),
    };
    Notifications::new(store.clone(), clock.clone(), webhook, public_url.clone())
}

/// All sources of tools.
fn registry(
    app: &Weak<App>,
    git: &Weak<GitService>,
    config: &Config,
    (parts, connectors, databases): (&Parts, &Arc<Connectors>, &Arc<Databases>),
) -> Registry {
    let Parts { store, clock, vault, outbound, .. } = parts;
    let sandboxes = Arc::new(SessionSandboxes(app.clone()));
    let platform = PlatformSource {
        store: store.clone(),
        clock: clock.clone(),
        sandboxes: sandboxes.clone(),
        upload_slots: Arc::new(Semaphore::new(MAX_CONCURRENT_UPLOADS)),
    };
    let http = || HttpNeeds {
        vault: Some(vault.clone()),
        outbound: outbound.clone(),
        allowed_hosts: config.allowed_hosts.clone(),
    };
    let sources: Vec<Box<dyn Source>> = vec![
        Box::new(platform),
        Box::new(ServicesSource(sandboxes)),
        Box::new(GitSource(git.clone())),
        Box::new(ExportSource::new(store.clone())),
        Box::new(Integrations::new(store.clone(), http(), config)),
        Box::new(ConnectorSource { store: store.clone(), connectors: connectors.clone() }),
        Box::new(DatabaseTools { store: store.clone(), databases: databases.clone() }),
        Box::new(HttpTools::new(http())),
    ];
    Registry::new(sources, Some(store.clone()))
}

/// Builds the runtime. A sandbox reaches the gateway, which holds the runtime, so the reference back is weak.
fn runtime(
    app: &Weak<App>,
    (config, parts): (&Config, &Parts),
    (gate, llm): (&Arc<Gate>, &Arc<Llm>),
    (sandboxes, pool, agent_type): (Sandboxes, Pool, Arc<dyn AgentType>),
) -> Arc<Runtime> {
    let app = app.clone();
    let router = move || app.upgrade().map(|app| edge::router_inside(app.into()));
    Arc::new(Runtime {
        settings: RuntimeSettings {
            agent_type,
            sandboxes: config.sandboxes.clone(),
            search_path: config.search_path.clone(),
        },
        store: parts.store.clone(),
        vault: parts.vault.clone(),
        clock: parts.clock.clone(),
        rng: parts.rng.clone(),
        gate: gate.clone(),
        sandboxes,
        networks: parts.networks.clone(),
        pool,
        llm: llm.clone(),
        closing: parts.closing.clone(),
        inward: Inward { router: Box::new(router), agent_contents },
    })
}

/// What decides whether sessions may be created, started and prompted.
fn admission(config: &Config, parts: &Parts, llm: &Arc<Llm>) -> Arc<Admission> {
    Arc::new(Admission::new(parts.store.clone(), parts.clock.clone(), llm.clone(), config))
}

/// Builds the registry of live sessions.
fn hubs(
    config: &Config,
    parts: &Parts,
    (git, runtime, connectors): (&Arc<GitService>, &Arc<Runtime>, &Arc<Connectors>),
    (admission, shares): (&Arc<Admission>, &Shares),
    instance: &str,
) -> Hubs {
    let services = HubServices {
        store: parts.store.clone(),
        vault: parts.vault.clone(),
        clock: parts.clock.clone(),
        rng: parts.rng.clone(),
        gate: git.gate.clone(),
        runtime: runtime.clone(),
        repositories: git.clone(),
        connectors: connectors.clone(),
        admission: admission.clone(),
        memory: shares.memory.clone(),
        questions: config.questions,
        instance: instance.to_owned(),
    };
    Hubs::new(config.max_live_sessions, services)
}

/// Collects what the use cases of sessions need.
fn sessions(
    parts: &Parts,
    hubs: &Hubs,
    admission: Arc<Admission>,
    (git, runtime): (&Arc<GitService>, &Arc<Runtime>),
    instance: &str,
) -> SessionServices {
    SessionServices {
        store: parts.store.clone(),
        clock: parts.clock.clone(),
        rng: parts.rng.clone(),
        gate: git.gate.clone(),
        hubs: hubs.clone(),
        admission,
        runtime: runtime.clone(),
        instance: instance.to_owned(),
    }
}

/// Collects what the sweep needs.
fn sweep_services(app: &App) -> SweepServices {
    SweepServices {
        store: app.store.clone(),
        clock: app.clock.clone(),
        hubs: app.hubs.clone(),
        runtime: app.runtime.clone(),
        instance: app.process.instance.clone(),
        egress_keep: app.config.egress_keep,
        closing: app.process.closing.clone(),
    }
}

/// The persistent state of a gateway, and the locks that make this the only gateway that serves it.
struct Storage {
    data_dir: DataDir,
    keyring: Keyring,
    store: Store,
    instance_lock: Option<InstanceLock>,
}

impl Storage {
    /// Opens the storage. PostgreSQL needs nothing from the data directory, so it is tried before a directory is created.
    /// SQLite is in the data directory, and reports which keys it needs before any are created.
    async fn open(config: &Config, clock: &Clock, rng: &Rng) -> Result<Self, StartError> {
        if let Database::Postgres(url) = &config.database {
            let keyring = Keyring::open(config, rng)?;
            let instance_lock = Some(InstanceLock::acquire(url.expose_secret(), WAIT_FOR_PREDECESSOR).await?);
            let store = open_store(config, clock).await?;
            let data_dir = hold_data_dir(&config.data_dir).await?;
            return Ok(Self { data_dir, keyring, store, instance_lock });
        }
        let data_dir = hold_data_dir(&config.data_dir).await?;
        let store = open_store(config, clock).await?;
        let keyring = Keyring::open_for(config, rng, &store.secret_key_ids().await?)?;
        Ok(Self { data_dir, keyring, store, instance_lock: None })
    }
}

/// Locks the data directory, and waits for a gateway that holds it to finish stopping.
async fn hold_data_dir(path: &Path) -> Result<DataDir, DataDirError> {
    let holding = async {
        loop {
            match DataDir::hold(path) {
                Err(DataDirError::Served { .. }) => tokio::time::sleep(PREDECESSOR_CHECK).await,
                done => return done,
            }
        }
    };
    let served = || Err(DataDirError::Served { path: path.to_owned() });
    tokio::time::timeout(WAIT_FOR_PREDECESSOR, holding).await.unwrap_or_else(|_| served())
}

/// Stops this gateway once another one serves its database, because sessions belong to the newer one from then on.
async fn stop_when_replaced(lost: impl Future<Output = ()>, life: Lifecycle, patience: Duration) {
    lost.await;
    tracing::error!("another gateway serves the database now: stopping");
    life.soft.cancel();
    tokio::time::sleep(patience).await;
    life.hard.cancel();
}

/// Opens the configured database.
pub async fn open_store(config: &Config, clock: &Clock) -> Result<Store, StoreError> {
    match &config.database {
        Database::Sqlite => Store::open_sqlite(&config.sqlite_file(), clock).await,
        Database::Postgres(url) => Store::open_postgres(url.expose_secret(), clock).await,
    }
}

/// The socket send buffer of each connection; the kernel doubles this value. By default the kernel buffers up to 4 MiB
/// per connection, which stalled clients would pin.
const SEND_BUFFER: u32 = 128 * 1024;

/// Listens at an address, and returns the actual one: a setting may leave the port open.
fn bind(wanted: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { address: wanted, source };
    let listener = listen(wanted).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Listens like `TcpListener::bind`, with a smaller send buffer. Accepted connections inherit the listener's socket
/// options.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// The maximum number of connections that wait to be accepted.
const LISTEN_BACKLOG: u32 = 1024;

/// A URL that reaches `address` from this machine. The unspecified address ("all addresses") cannot be opened, so it
/// becomes the loopback address.
pub fn url_of(address: SocketAddr) -> Url {
    let mut url = local();
    if !address.ip().is_unspecified() {
        let _always_for_http = url.set_ip_host(address.ip());
    }
    let _always_for_http = url.set_port(Some(address.port()));
    url
}

/// The loopback URL.
#[expect(clippy::expect_used, reason = "the text is a constant, and a test parses it")]
fn local() -> Url {
    Url::parse("http://127.0.0.1").expect("a URL is written here")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_reads_nothing_pins_little_of_the_kernel() {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let client = TcpSocket::new_v4().unwrap();
        client.set_recv_buffer_size(64 * 1024).unwrap();
        let connecting = client.connect(listener.local_addr().unwrap());
        let (_client, accepted) = tokio::join!(connecting, listener.accept());
        let (stream, _) = accepted.unwrap();
        stream.writable().await.unwrap();
        let (piece, mut taken) = (vec![0; 64 * 1024], 0);
        while let Ok(written) = stream.try_write(&piece) {
            taken += written;
        }
        assert!((64 * 1024..1024 * 1024).contains(&taken), "{taken}");
    }

    #[test]
    fn every_address_is_a_url_that_this_machine_can_open() {
        for (address, url) in [
            ("127.0.0.1:8787", "http://127.0.0.1:8787/"),
            ("10.1.2.3:80", "http://10.1.2.3/"),
            ("0.0.0.0:1", "http://127.0.0.1:1/"),
            ("[::]:1", "http://127.0.0.1:1/"),
            ("[::1]:65535", "http://[::1]:65535/"),
            ("[fe80::1%3]:2", "http://[fe80::1]:2/"),
        ] {
            assert_eq!(url_of(address.parse().unwrap()).as_str(), url);
        }
    }
}
