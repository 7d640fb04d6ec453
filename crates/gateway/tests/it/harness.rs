//! The gateway under test: on a temporary SQLite file or a new PostgreSQL database, in process or on a port.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::AgentType;
use axum::Router;
use clock::{Clock, Rng};
use gateway::config::Config;
use gateway::lifecycle::Lifecycle;
use gateway::runtime::Insecure;
use gateway::{AppState, Gateway, StartError, edge};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::pgwire;

/// The secrets of the gateway under test, which tests use to sign tokens that the gateway would never issue.
pub(crate) const JWT_SECRET: &str = "the-user-secret-of-the-gateway-tests";
pub(crate) const SERVICE_SECRET: &str = "the-service-secret-of-the-gateway-tests";
pub(crate) const VAULT_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Fails a test that hangs: no operation here may take a minute.
pub(crate) async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(1), what).await.unwrap_or_else(|_| panic!("it hangs"))
}

#[expect(clippy::disallowed_methods, reason = "the one place that asks where the test services are")]
fn test_variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run `make test`"))
}

pub(crate) fn postgres_url() -> String {
    test_variable("TEST_DATABASE_URL")
}

/// The host and port of a URL on loopback.
pub(crate) fn address_of(url: &str) -> SocketAddr {
    let url = url::Url::parse(url).unwrap();
    format!("{}:{}", url.host_str().unwrap(), url.port().unwrap()).parse().unwrap()
}

/// The same URL with the port of another address, such as a proxy's.
pub(crate) fn through(url: &str, address: SocketAddr) -> String {
    let mut url = url::Url::parse(url).unwrap();
    url.set_port(Some(address.port())).unwrap();
    url.to_string()
}

/// The configuration of a gateway under test.
pub(crate) struct Setup {
    settings: BTreeMap<String, String>,
    clock: Clock,
    /// The default type if `None`.
    agent_type: Option<Arc<dyn AgentType>>,
    dir: TempDir,
}

impl Setup {
    /// Uses a temporary SQLite file; the gateway generates the vault keys in the data dir.
    pub(crate) fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        // The readiness check looks for the sandbox engine on the PATH; this placeholder is never executed.
        std::fs::write(bin.join("bwrap"), "").unwrap();
        std::fs::set_permissions(bin.join("bwrap"), PermissionsExt::from_mode(0o755)).unwrap();
        let setup = Self { settings: BTreeMap::new(), clock: Clock::system(), agent_type: None, dir };
        let data = setup.data_dir();
        setup
            .set("PATH", bin.to_str().unwrap())
            .set("PROLIFERATE_DATA_DIR", data.to_str().unwrap())
            .set("PROLIFERATE_LISTEN", "127.0.0.1:0")
            .set("GATEWAY_JWT_SECRET", JWT_SECRET)
            .set("SERVICE_TO_SERVICE_AUTH_TOKEN", SERVICE_SECRET)
    }

    /// Uses a new PostgreSQL database.
    pub(crate) async fn postgres() -> Self {
        let url = fresh_database().await;
        Self::sqlite().set("DATABASE_URL", &url).set("USER_SECRETS_ENCRYPTION_KEY", VAULT_KEY)
    }

    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Adds these tools to the policy and allows connections to this address.
    pub(crate) fn with_tools(self, tools: &str, address: &str) -> Self {
        let directory = self.directory().join("policy");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("tools.yaml"), tools).unwrap();
        self.set("PROLIFERATE_POLICY_DIR", directory.to_str().unwrap())
            .set("CONNECTOR_ALLOWED_HOSTS", address)
    }

    /// Runs SQL on the database; PostgreSQL only.
    pub(crate) async fn sql(&self, text: &str) {
        pgwire::run(&self.settings["DATABASE_URL"], text).await;
    }

    pub(crate) fn clock(self, clock: &Clock) -> Self {
        Self { clock: clock.clone(), ..self }
    }

    pub(crate) fn agent_type(self, agent_type: Arc<dyn AgentType>) -> Self {
        Self { agent_type: Some(agent_type), ..self }
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The temporary directory that contains the data dir.
    pub(crate) fn directory(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn config(&self) -> Config {
        Config::load(&self.settings, &[]).unwrap()
    }

    pub(crate) async fn try_start(&self) -> Result<Gateway, StartError> {
        let (config, clock, rng) = (self.config(), self.clock.clone(), Rng::system());
        let Some(agent_type) = self.agent_type.clone() else {
            return within(Box::pin(Gateway::start(config, Insecure::Refused, clock, rng))).await;
        };
        let start = Gateway::start_with_agent(agent_type, config, Insecure::Refused, (clock, rng));
        within(Box::pin(start)).await
    }

    pub(crate) async fn start(self) -> TestGateway {
        let gateway = self.try_start().await.unwrap_or_else(|error| panic!("{error}"));
        let router = edge::router(gateway.app.clone());
        TestGateway { app: gateway.app.clone(), router, setup: self, gateway }
    }
}

/// Creates a database on the test server and returns its URL.
pub(crate) async fn fresh_database() -> String {
    let name = format!("gateway_{}", hex::encode(Rng::system().bytes::<8>()));
    pgwire::run(&postgres_url(), &format!("CREATE DATABASE {name}")).await;
    let mut url = url::Url::parse(&postgres_url()).unwrap();
    url.set_path(&name);
    url.to_string()
}

/// A gateway whose router is called in process, without a socket.
pub(crate) struct TestGateway {
    pub(crate) app: AppState,
    pub(crate) router: Router,
    pub(crate) setup: Setup,
    gateway: Gateway,
}

impl TestGateway {
    pub(crate) async fn sqlite() -> Self {
        Setup::sqlite().start().await
    }

    pub(crate) async fn postgres() -> Self {
        Setup::postgres().await.start().await
    }

    pub(crate) async fn both() -> [Self; 2] {
        [Self::sqlite().await, Self::postgres().await]
    }

    /// Runs SQL on the gateway's database; PostgreSQL only.
    pub(crate) async fn sql(&self, text: &str) {
        self.setup.sql(text).await;
    }

    /// Stops a gateway that has not served; the returned setup can start it again.
    pub(crate) async fn stop(self) -> Setup {
        within(self.app.store.clone().close()).await;
        self.setup
    }

    /// Serves the same gateway on its port.
    pub(crate) fn serve(self) -> Running {
        let (address, life) = (self.gateway.address().unwrap(), Lifecycle::default());
        let ours = life.clone();
        let task = tokio::spawn(async move { self.gateway.run(&ours).await });
        Running { address, life, task, setup: self.setup }
    }
}

/// A gateway that serves on a loopback port.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) life: Lifecycle,
    task: JoinHandle<bool>,
    pub(crate) setup: Setup,
}

impl Running {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Stops the gateway without a grace period; the returned setup can start it again.
    pub(crate) async fn stop(self) -> Setup {
        self.life.soft.cancel();
        self.life.hard.cancel();
        within(self.task).await.unwrap();
        self.setup
    }

    /// Waits for the gateway to end. Returns the result of `run` and the setup.
    pub(crate) async fn finished(self) -> (bool, Setup) {
        (within(self.task).await.unwrap(), self.setup)
    }

    /// Waits for the gateway to end. Returns whether it finished all requests.
    pub(crate) async fn ended(self) -> bool {
        within(self.task).await.unwrap()
    }
}

pub(crate) fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().timeout(Duration::from_mins(1)).build().unwrap()
}
