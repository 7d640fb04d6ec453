//! The gateway's handle of one running sandbox: the channel to the supervisor inside, and the servers behind the ports
//! that are injected into it (the egress proxy and the gateway itself).

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use channel::Limits as ChannelLimits;
use egress::Proxy;
use sandbox::{ByteStream, InjectedConnection, SandboxError, SandboxId, SnapshotId, Spec};
use sandboxd::Sandboxd;
use sandboxd::server::{DEFAULT_PATH, Options, startup};
use store::Owner;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::sandboxes::Sandboxes;
use crate::server;

/// The ports inside of the supervisor, the egress proxy and the gateway.
const SUPERVISOR_PORT: u16 = 4097;
const PROXY_PORT: u16 = 3128;
const GATEWAY_PORT: u16 = 4098;
/// The port that the agent listens on inside the sandbox.
const AGENT_PORT: u16 = 4096;
/// How long the supervisor may take to answer after PID 1 runs; longer than a loaded machine needs.
const SUPERVISOR_READY_TIMEOUT: Duration = Duration::from_secs(20);
/// The delay between connection attempts. Fast retries sleep on a thread, because the runtime's timer is too
/// coarse for so short a delay.
const FAST_RETRY_DELAY: Duration = Duration::from_micros(300);
const FAST_RETRIES: u32 = 50;
const SLOW_RETRY_DELAY: Duration = Duration::from_millis(50);
/// The name of our own program in `/opt`.
const OWN_PROGRAM: &str = "proliferate";
/// The directory of our own files in the home directory. Snapshots never contain it.
pub(crate) const OWN_DIRECTORY: &str = ".proliferate";
/// Our git settings, in the home directory.
pub(crate) const GIT_CONFIG: &str = ".proliferate/git.config";
/// The default git identity for commits. The user's own settings take precedence.
pub(crate) const GIT_IDENTITY: &str = ".proliferate/git.identity";
/// The maximum number of connections of one sandbox that are served at a time; more of them wait. The proxy has a
/// smaller limit of its own.
const MAX_SERVED: usize = 256;

/// The parameters for starting a sandbox.
pub struct SandboxRequest {
    pub id: SandboxId,
    /// The environment of every program inside.
    pub env: BTreeMap<String, String>,
    pub snapshot: Option<SnapshotId>,
    /// The egress proxy, the sandbox's only route to the network.
    pub proxy: Proxy,
    /// The router behind `PROLIFERATE_GATEWAY_URL` inside.
    pub gateway: Option<Router>,
    /// Programs and directories of the host that are mounted in `/opt` inside, under these names.
    pub programs: BTreeMap<&'static str, PathBuf>,
}

/// A running sandbox. Dropping the handle does not stop the sandbox, but cuts it off from the network.
pub struct SandboxHandle {
    pub id: SandboxId,
    /// The channel that was opened at the start. Later callers use [`RunningSandbox`].
    pub inside: Sandboxd,
    channel: Arc<SharedChannel>,
    /// Whether the sandbox was already running, so that only the id of the requested parameters applied.
    pub recovered: bool,
    /// The gateway's URL for programs inside.
    pub gateway_url: String,
    /// The port inside for the agent to listen on.
    pub agent_port: u16,
    serving: Serving,
}

/// A running sandbox with an open supervisor channel, for work in it besides the agent's.
#[derive(Clone)]
pub struct ConnectedSandbox {
    pub owner: Owner,
    pub sandbox: SandboxId,
    pub supervisor: Sandboxd,
    /// The gateway's URL for programs inside.
    pub gateway_url: String,
}

/// A running sandbox whose supervisor has not been connected to yet.
pub struct RunningSandbox {
    pub owner: Owner,
    pub sandbox: SandboxId,
    gateway_url: String,
    channel: Arc<SharedChannel>,
}

/// The channel to a supervisor, which all callers share.
struct SharedChannel {
    port: u16,
    channel: Mutex<Sandboxd>,
}

impl SharedChannel {
    /// Returns the channel, and reconnects if it has closed. A supervisor that was silent for a while, for example
    /// because it was paused, can thus be reached again.
    async fn get(&self, sandboxes: &Sandboxes, id: &SandboxId) -> Result<Sandboxd, SandboxError> {
        let mut channel = self.channel.lock().await;
        if channel.is_closed() {
            *channel = sandboxes.supervisor(id, self.port).await?;
        }
        Ok(channel.clone())
    }
}

impl RunningSandbox {
    pub(crate) async fn connect(self, sandboxes: &Sandboxes) -> Result<ConnectedSandbox, SandboxError> {
        let supervisor = self.channel.get(sandboxes, &self.sandbox).await?;
        Ok(ConnectedSandbox {
            owner: self.owner,
            sandbox: self.sandbox,
            supervisor,
            gateway_url: self.gateway_url,
        })
    }
}

impl SandboxHandle {
    pub(crate) fn owned_by(&self, owner: Owner) -> RunningSandbox {
        let (gateway_url, channel) = (self.gateway_url.clone(), self.channel.clone());
        RunningSandbox { owner, sandbox: self.id.clone(), gateway_url, channel }
    }

    /// Replaces the egress proxy for new connections from inside.
    pub(super) fn set_proxy(&self, proxy: Proxy) {
        self.serving.servers.send_modify(|servers| {
            let (gateway, proxied) = (servers.gateway.clone(), servers.proxied.clone());
            *servers = Arc::new(Servers { proxy, gateway, ports: servers.ports, proxied });
        });
    }
}

struct Serving {
    task: JoinHandle<()>,
    servers: watch::Sender<Arc<Servers>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone, Copy)]
struct Ports {
    supervisor: u16,
    proxy: u16,
    gateway: u16,
    agent: u16,
}

impl Ports {
    const OWN_NAMESPACE: Self =
        Self { supervisor: SUPERVISOR_PORT, proxy: PROXY_PORT, gateway: GATEWAY_PORT, agent: AGENT_PORT };
}

impl Sandboxes {
    /// Starts a sandbox, or finds it running, and waits until its supervisor answers. On failure, this ends what it
    /// started and removes only files that it created.
    pub async fn start(&self, request: SandboxRequest) -> Result<SandboxHandle, SandboxError> {
        let ports = self.ports().await?;
        let spec = self.spec(&request, ports)?;
        let ensured = self.provider.ensure(&spec).await?;
        let id = request.id.clone();
        let proxied = self.proxied.clone();
        let servers = Servers { proxy: request.proxy, gateway: request.gateway, ports, proxied };
        let handle = self.open_handle(&id, servers, ensured.recovered).await;
        if handle.is_err() && !ensured.recovered {
            let undone = if ensured.made_files {
                self.provider.terminate(&id).await
            } else {
                self.provider.halt(&id).await
            };
            if let Err(error) = undone {
                tracing::error!(sandbox = %id, %error, "cannot end a sandbox that did not become ready");
            }
        }
        handle
    }

    /// Connects to the supervisor of a running sandbox, besides any other holder.
    pub async fn reach(&self, id: &SandboxId) -> Result<Sandboxd, SandboxError> {
        self.supervisor(id, SUPERVISOR_PORT).await
    }

    async fn open_handle(
        &self,
        id: &SandboxId,
        servers: Servers,
        recovered: bool,
    ) -> Result<SandboxHandle, SandboxError> {
        let injected = self.provider.listeners(id).await?;
        let ports = servers.ports;
        let (servers, served) = watch::channel(Arc::new(servers));
        let serving = Serving { task: tokio::spawn(serve(injected, served)), servers };
        let inside = self.supervisor(id, ports.supervisor).await?;
        let channel = Arc::new(SharedChannel { port: ports.supervisor, channel: Mutex::new(inside.clone()) });
        let gateway_url = format!("http://127.0.0.1:{}", ports.gateway);
        Ok(SandboxHandle {
            id: id.clone(),
            inside,
            channel,
            recovered,
            gateway_url,
            agent_port: ports.agent,
            serving,
        })
    }

    /// The ports to use. A sandbox with its own network namespace can use fixed ports; otherwise we pick ports that are
    /// free now.
    async fn ports(&self) -> Result<Ports, SandboxError> {
        if self.has_own_network() {
            return Ok(Ports::OWN_NAMESPACE);
        }
        let free = async || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            Ok(listener.local_addr()?.port())
        };
        let none = |error: io::Error| SandboxError::Host { what: "find a free port", kind: error.kind() };
        Ok(Ports {
            supervisor: free().await.map_err(none)?,
            proxy: free().await.map_err(none)?,
            gateway: free().await.map_err(none)?,
            agent: free().await.map_err(none)?,
        })
    }

    fn spec(&self, request: &SandboxRequest, ports: Ports) -> Result<Spec, SandboxError> {
        let home = self.home(&request.id);
        let program = self.place_of(OWN_PROGRAM, &self.program);
        let mut spec =
            Spec::new(request.id.clone(), vec![program.clone(), sandboxd::server::SUBCOMMAND.to_owned()]);
        if self.has_own_network() {
            spec.programs.insert(OWN_PROGRAM.to_owned(), self.program.clone());
            spec.programs
                .extend(request.programs.iter().map(|(name, path)| ((*name).to_owned(), path.clone())));
        }
        let mut env = proxy_variables(ports.proxy);
        // Our own program is the command line of agents.
        let ours = Path::new(&program).parent().unwrap_or(Path::new("/opt")).display();
        env.insert("PATH".to_owned(), format!("{ours}:{DEFAULT_PATH}"));
        if request.gateway.is_some() {
            env.insert("PROLIFERATE_GATEWAY_URL".to_owned(), format!("http://127.0.0.1:{}", ports.gateway));
            env.extend(git_variables(&home));
        }
        env.extend(request.env.clone());
        let options = Options {
            port: ports.supervisor,
            workspace: home.join("workspace"),
            home,
            env,
            ..Options::default()
        };
        spec.stdin = startup(&self.keys.bytes_of(&request.id), &options)
            .map_err(|_| SandboxError::BadSpec("the environment of the sandbox is too large"))?;
        spec.limits = self.limits.clone();
        spec.injected = [ports.proxy, ports.gateway].into();
        spec.snapshot.clone_from(&request.snapshot);
        spec.rootfs.clone_from(&self.rootfs);
        Ok(spec)
    }

    /// The path of a host program for programs inside.
    pub(crate) fn place_of(&self, name: &str, program: &Path) -> String {
        if self.has_own_network() { format!("/opt/{name}") } else { program.to_string_lossy().into_owned() }
    }

    /// Connects to the supervisor, and retries while the connection is refused, which means too early. Any other error
    /// is final.
    async fn supervisor(&self, id: &SandboxId, port: u16) -> Result<Sandboxd, SandboxError> {
        let key = self.keys.of(id);
        let asking = async {
            for tries in 0_u32.. {
                match self.provider.dial(id, port).await {
                    Ok(stream) => {
                        let limits = ChannelLimits::default();
                        match Sandboxd::connect(stream, &key, limits, &self.rng).await {
                            Ok(inside) => return Ok(inside),
                            Err(error) => tracing::debug!(sandbox = %id, %error, "no supervisor yet"),
                        }
                    }
                    Err(SandboxError::Refused { .. }) => {}
                    Err(error) => return Err(error),
                }
                // A supervisor is up within milliseconds, unless the machine is busy; then frequent attempts only add
                // load.
                if tries < FAST_RETRIES {
                    let _ = tokio::task::spawn_blocking(|| std::thread::sleep(FAST_RETRY_DELAY)).await;
                } else {
                    tokio::time::sleep(SLOW_RETRY_DELAY).await;
                }
            }
            Err(SandboxError::Timeout("its supervisor"))
        };
        timeout(SUPERVISOR_READY_TIMEOUT, asking)
            .await
            .unwrap_or(Err(SandboxError::Timeout("its supervisor")))
    }
}

/// Serves every connection that programs inside make, until the task is dropped or the sandbox ends.
async fn serve(mut injected: mpsc::Receiver<InjectedConnection>, servers: watch::Receiver<Arc<Servers>>) {
    let mut served = JoinSet::new();
    while let Some(InjectedConnection { port, stream }) = injected.recv().await {
        while served.try_join_next().is_some() {}
        if served.len() >= MAX_SERVED {
            served.join_next().await;
        }
        let servers = servers.borrow().clone();
        served.spawn(async move { servers.serve(port, stream).await });
    }
}

/// The servers behind the injected ports.
struct Servers {
    proxy: Proxy,
    gateway: Option<Router>,
    ports: Ports,
    proxied: ProxiedConnections,
}

impl Servers {
    async fn serve(&self, port: u16, stream: Box<dyn ByteStream>) {
        match &self.gateway {
            Some(router) if port == self.ports.gateway => server::serve_stream(stream, router.clone()).await,
            _ if port == self.ports.proxy => self.proxied.track(self.proxy.serve(stream)).await,
            _ => {}
        }
    }
}

/// Tracks all proxied connections of sandboxes, so that they can be closed at once.
#[derive(Clone, Default)]
pub(super) struct ProxiedConnections {
    closed: CancellationToken,
    open: TaskTracker,
}

impl ProxiedConnections {
    async fn track(&self, connection: impl Future<Output = ()>) {
        // Released only after the connection is dropped, which is when its egress record is queued.
        let _open = self.open.token();
        tokio::select! {
            () = connection => {}
            () = self.closed.cancelled() => {}
        }
    }

    /// Closes all connections and waits until they have ended.
    pub(super) async fn close(&self) {
        self.closed.cancel();
        self.open.close();
        self.open.wait().await;
    }
}

/// Makes git read our settings files, which may not exist yet. The user's own files stay untouched.
fn git_variables(home: &Path) -> BTreeMap<String, String> {
    let file = |name: &str| home.join(name).to_string_lossy().into_owned();
    let variables = [
        ("GIT_CONFIG_COUNT", "1".to_owned()),
        ("GIT_CONFIG_KEY_0", "include.path".to_owned()),
        ("GIT_CONFIG_VALUE_0", file(GIT_CONFIG)),
        ("GIT_CONFIG_SYSTEM", file(GIT_IDENTITY)),
    ];
    variables.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The environment variables that announce the proxy. Some programs know only one spelling.
fn proxy_variables(port: u16) -> BTreeMap<String, String> {
    let proxy = format!("http://127.0.0.1:{port}");
    let mut variables = BTreeMap::new();
    for (names, value) in [
        (["HTTP_PROXY", "http_proxy"], proxy.as_str()),
        (["HTTPS_PROXY", "https_proxy"], &proxy),
        (["ALL_PROXY", "all_proxy"], &proxy),
        (["NO_PROXY", "no_proxy"], "localhost,127.0.0.1,::1"),
    ] {
        variables.extend(names.map(|name| (name.to_owned(), value.to_owned())));
    }
    // Node uses the proxy variables only if this one is set.
    variables.insert("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned());
    variables
}

#[cfg(test)]
mod tests;
