//! The application state that every handler can reach.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use clock::{Clock, Rng};
use gate::Gate;
use metrics_exporter_prometheus::PrometheusHandle;
use secrecy::SecretString;
use store::Store;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::actions::Actions;
use crate::automations::Automations;
use crate::changes::Changes;
use crate::config::{Config, Origin};
use crate::connectors::Connectors;
use crate::data_dir::Space;
use crate::databases::Databases;
use crate::edge::auth::LiveCredentials;
use crate::git::GitService;
use crate::hub::Hubs;
use crate::identity::Issuer;
use crate::llm::{Llm, ModelWork, Spending};
use crate::notifications::Notifications;
use crate::runtime::Runtime;
use crate::sessions::SessionServices;
use crate::shares::Shares;
use crate::vault::Vault;

/// The parts of a running gateway.
pub struct App {
    pub config: Config,
    pub site: Site,
    pub clock: Clock,
    pub rng: Rng,
    pub store: Store,
    pub vault: Vault,
    pub credentials: Credentials,
    pub process: Process,
    pub hubs: Hubs,
    /// The services of the use cases of sessions.
    pub sessions: Arc<SessionServices>,
    pub automations: Arc<Automations>,
    pub actions: Arc<Actions>,
    /// Tells organizations' webhooks what waits for a person.
    pub notifications: Arc<Notifications>,
    /// Tells clients what has changed.
    pub changes: Arc<Changes>,
    pub connectors: Arc<Connectors>,
    pub databases: Arc<Databases>,
    pub runtime: Arc<Runtime>,
    pub git: Arc<GitService>,
    pub model: ModelServices,
    /// The only entry point for side effects.
    pub gate: Arc<Gate>,
    /// The pools of slots and memory that callers share.
    pub shares: Shares,
}

/// Where browsers, programs and sandboxes reach this gateway.
pub struct Site {
    pub url: Url,
    /// The web origins whose pages may call the API.
    pub origins: Vec<Origin>,
}

/// What makes and checks credentials.
pub struct Credentials {
    pub issuer: Issuer,
    /// The key of the plain token of old sandbox images, which is accepted only if a setting allows it.
    pub service_secret: SecretString,
    /// The credentials that open sockets and streams depend on.
    pub live: LiveCredentials,
}

/// The models behind the agents.
pub struct ModelServices {
    pub llm: Arc<Llm>,
    /// The amounts held for requests in flight.
    pub spending: Spending,
    /// The requests in flight, which a shutdown waits for until they are billed.
    pub work: ModelWork,
}

/// This process, as long as it runs.
pub struct Process {
    /// The public name of this instance.
    pub instance: String,
    /// Checks whether the data directory has space left.
    pub space: Space,
    /// Cancelled when the gateway stops, so that sockets close.
    pub closing: CancellationToken,
    /// `None` if something else in this process records metrics.
    pub metrics: Option<PrometheusHandle>,
}

/// A handle to the [`App`], and the extractor that gives it to handlers.
#[derive(Clone)]
pub struct AppState(Arc<App>);

impl From<Arc<App>> for AppState {
    fn from(app: Arc<App>) -> Self {
        Self(app)
    }
}

impl Deref for AppState {
    type Target = App;
    fn deref(&self) -> &App {
        &self.0
    }
}

impl FromRequestParts<Self> for AppState {
    type Rejection = std::convert::Infallible;
    async fn from_request_parts(_: &mut Parts, state: &Self) -> Result<Self, Self::Rejection> {
        Ok(state.clone())
    }
}
