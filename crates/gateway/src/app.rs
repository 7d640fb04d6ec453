//! What every handler can reach.

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

use crate::config::{Config, Origin};
use crate::data_dir::Space;
use crate::edge::auth::LiveCredentials;
use crate::git::GitService;
use crate::hub::Hubs;
use crate::identity::Issuer;
use crate::llm::{Llm, ModelWork, Spending};
use crate::runtime::Runtime;
use crate::shares::Shares;
use crate::vault::Vault;

/// The running gateway's parts.
pub struct App {
    pub config: Config,
    /// How people and sandboxes reach this gateway.
    pub public_url: Url,
    /// Whom browsers may call us for.
    pub origins: Vec<Origin>,
    pub clock: Clock,
    pub rng: Rng,
    pub store: Store,
    pub vault: Vault,
    pub issuer: Issuer,
    /// Keys the plain token of old sandbox images, which is accepted only when the setting says so.
    pub service_secret: SecretString,
    /// What this instance calls itself, where others can read it.
    pub instance: String,
    pub hubs: Hubs,
    /// Whether the data dir can take more.
    pub space: Space,
    /// What open sockets and streams rest on.
    pub live_credentials: LiveCredentials,
    /// Says to sockets that it is time to go.
    pub closing: CancellationToken,
    pub runtime: Arc<Runtime>,
    pub git: Arc<GitService>,
    pub llm: Arc<Llm>,
    /// What requests to the model that are under way may cost.
    pub spending: Spending,
    /// Requests to the model that are being counted: a stop waits for them.
    pub model_work: ModelWork,
    /// The one door for side effects.
    pub gate: Arc<Gate>,
    /// What each caller may hold of slots and memory.
    pub shares: Shares,
    /// Absent when something else in this process counts.
    pub metrics: Option<PrometheusHandle>,
}

/// A handle to the [`App`], and the extractor by which handlers get it.
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
