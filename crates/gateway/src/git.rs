//! Git between a session's sandbox and its forge: clones, the proxy, pushes, pull requests, and what git is configured
//! with. The organization's credential stays in the gateway, and is opened with a [`Permit`](gate::Permit) only.

mod call;
mod clone;
mod config;
mod forge;
mod local_repo;
mod pack;
mod pkt_line;
mod proxy;
mod pull_request;
mod push;
mod read;
mod workspace;

use std::path::PathBuf;
use std::sync::Arc;

use clock::{Clock, Rng};
use gate::Gate;
use proto::JsonObject;
use serde::Serialize;
use serde_json::Value;
use store::Store;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::config::Config;
use crate::outbound::Outbound;
use crate::runtime::Networks;
use crate::vault::Vault;

pub(crate) use forge::{ForgeError, PullError};
pub(crate) use proxy::{ProxyError, ProxyReply, ProxyRequest};
pub(crate) use pull_request::{
    CREATE_PULL_REQUEST, NewPullRequest, PullRequestOutcome, create_pull_request, open_pull_request,
    parameter_problem,
};
pub(crate) use push::{GIT_SOURCE, Operation, PushGrants, PushSlots};
pub(crate) use read::{FETCH_TOOL, ForgeReads, ReadError};
pub(crate) use workspace::{GitError, WorkspaceRepo, failed};

/// The parts of the gateway that git uses.
pub struct GitService {
    pub(crate) settings: GitSettings,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) vault: Vault,
    pub(crate) networks: Arc<Networks>,
    pub(crate) outbound: Arc<Outbound>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) push_slots: PushSlots,
    pub(crate) push_grants: PushGrants,
    pub(crate) reads: ForgeReads,
    /// Cancelled when the gateway stops.
    pub(crate) closing: CancellationToken,
}

/// The operator's settings that concern git.
pub(crate) struct GitSettings {
    /// `host:port` of forges with a private address or an unusual port.
    allowed_hosts: Vec<String>,
    github_url: Url,
    /// Repositories in directories below these are served to sandboxes.
    local_roots: Vec<PathBuf>,
}

impl GitSettings {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            allowed_hosts: config.allowed_hosts.clone(),
            github_url: config.github_url.clone(),
            local_roots: config.local_roots.clone(),
        }
    }
}

/// The fields of an outcome, for the data of its run's answer.
pub(crate) fn object(outcome: &impl Serialize) -> JsonObject {
    match serde_json::json!(outcome) {
        Value::Object(fields) => fields,
        _ => JsonObject::new(),
    }
}

impl GitService {
    /// The directory that a `file:` URL names, if the operator lets sessions read it.
    pub(crate) fn local_directory(&self, url: &Url) -> Option<PathBuf> {
        let allowed = |path: PathBuf| local_repo::allowed(&self.settings.local_roots, &path);
        url.to_file_path().ok().and_then(allowed)
    }
}
