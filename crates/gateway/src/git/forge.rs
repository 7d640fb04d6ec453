//! A repository at its forge, as the gateway itself reaches it: with the organization's credential, which no sandbox
//! ever sees, and only where the egress rules would let the organization's sandboxes connect.

mod github;
mod history;

use egress::{AddressClass, Denial, Host, Target, classify};
use gate::Permit;
use proto::OrgId;
use secrecy::{ExposeSecret as _, SecretString};
use store::{Repo, Scope, StoreError};
use url::{Origin, Url};

use super::GitService;
use crate::vault::VaultError;

pub(crate) use github::PullError;
pub(super) use github::{PullRequestContent, open};
pub(super) use history::RefsError;

/// The name of a repository's secret with the token for its forge.
const REPO_SECRET: &str = "GIT_TOKEN";
/// The name of the organization's secret with the token for GitHub.
const GITHUB_SECRET: &str = "GITHUB_TOKEN";
/// The user name that GitHub expects beside a token.
const TOKEN_USER: &str = "x-access-token";

/// Why the gateway does not connect to a forge.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForgeError {
    #[error("this repository has no URL that the gateway can connect to")]
    NoUrl,
    #[error("the repository belongs to another organization")]
    OtherOrganization,
    #[error(transparent)]
    Denied(#[from] Denial),
    #[error("{0} is a private address: the operator can allow it with CONNECTOR_ALLOWED_HOSTS")]
    Private(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Vault(#[from] VaultError),
    #[error("the gateway's HTTP client could not be created: {0}")]
    Outbound(#[from] reqwest::Error),
}

/// A repository that the gateway may connect to, for as long as the call that it belongs to.
pub(super) struct ForgeRepo<'a> {
    permit: &'a Permit,
    client: &'a reqwest::Client,
    /// The URL has no `/` or `.git` at its end.
    pub(super) url: Url,
    token: Option<SecretString>,
    is_github: bool,
}

impl ForgeRepo<'_> {
    /// A request of git's smart HTTP protocol, with the credential.
    pub(super) fn request(&self, method: reqwest::Method, rest: &str) -> reqwest::RequestBuilder {
        let request = self.client.request(method, format!("{}.git{rest}", self.url));
        match &self.token {
            Some(token) => request.basic_auth(TOKEN_USER, Some(token.expose_secret())),
            None => request,
        }
    }
}

impl GitService {
    /// Finds out how to reach a repository at its forge, if its organization's rules allow it.
    pub(super) async fn forge_repo<'a>(
        &'a self,
        permit: &'a Permit,
        repo: &Repo,
    ) -> Result<ForgeRepo<'a>, ForgeError> {
        if repo.org_id != permit.org() {
            return Err(ForgeError::OtherOrganization);
        }
        let url = canonical_url(repo).filter(Url::has_host).ok_or(ForgeError::NoUrl)?;
        let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default());
        let name = format!("{host}:{}", port.unwrap_or_default());
        let named = self.settings.allowed_hosts.contains(&name);
        let client = self.client_for(repo.org_id, &name, named).await?;
        let encrypted = url.scheme() == "https";
        let token = if encrypted || named { self.open_token(permit, repo, &url).await? } else { None };
        let is_github = self.is_github(&url);
        Ok(ForgeRepo { permit, client, url, token, is_github })
    }

    /// Applies the organization's egress rules to the gateway itself. An unusual port is fine where the operator named
    /// it.
    async fn client_for(&self, org: OrgId, name: &str, named: bool) -> Result<&reqwest::Client, ForgeError> {
        let target = Target::parse(name, None).map_err(|_| ForgeError::NoUrl)?;
        match self.networks.decide(org, &target).await? {
            Err(Denial::PortClosed(_)) if named => {}
            decision => decision?,
        }
        match target.host {
            _ if named => Ok(self.outbound.named()?),
            Host::Address(address) if classify(address) != AddressClass::Public => {
                Err(ForgeError::Private(name.to_owned()))
            }
            Host::Address(_) | Host::Name(_) => Ok(self.outbound.public()?),
        }
    }

    /// The credential for a repository. Any member may add a repository at any host, so the organization's own token is
    /// sent to GitHub only.
    async fn open_token(
        &self,
        permit: &Permit,
        repo: &Repo,
        url: &Url,
    ) -> Result<Option<SecretString>, VaultError> {
        let own = self.vault.open_for(permit, Scope::Repo(repo.id), REPO_SECRET).await?;
        if own.is_some() || !self.is_github(url) {
            return Ok(own);
        }
        self.vault.open_for(permit, Scope::Org, GITHUB_SECRET).await
    }

    fn is_github(&self, url: &Url) -> bool {
        let origin = self.settings.github_url.origin();
        matches!(origin, Origin::Tuple(..)) && url.origin() == origin
    }
}

/// The URL of a repository in canonical form: people write the same one in different ways.
pub(super) fn canonical_url(repo: &Repo) -> Option<Url> {
    canonical(repo.url.as_deref()?)
}

pub(super) fn canonical(text: &str) -> Option<Url> {
    let mut url = Url::parse(text).ok()?;
    match url.scheme() {
        "https" | "http" => {}
        // A directory may have any name, also one that ends with `.git`.
        "file" => return Some(url),
        _ => return None,
    }
    let path = url.path().trim_end_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path).to_owned();
    url.set_path(&path);
    url.set_query(None);
    Some(url)
}

/// A repository of which only the URL matters.
#[cfg(test)]
pub(super) fn repo_at(url: &str) -> Repo {
    Repo {
        id: uuid::Uuid::nil().into(),
        org_id: uuid::Uuid::nil().into(),
        name: "app".to_owned(),
        source: proto::RepoSource::Git,
        url: Some(url.to_owned()),
        local_path_hash: None,
        default_branch: "main".to_owned(),
        branch_given: false,
        is_private: false,
        service_commands: None,
        env_files: None,
        added_by: None,
        created_at: chrono::DateTime::UNIX_EPOCH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_repository_url_has_one_canonical_form() {
        for text in ["https://h/o/r", "https://h/o/r/", "https://h/o/r.git", "https://h:443/o/r.git/"] {
            assert_eq!(canonical(text).unwrap().as_str(), "https://h/o/r", "{text}");
        }
        assert_eq!(canonical("http://h:1/o/x/../r?a#b").unwrap().path(), "/o/r");
        for bad in ["", "ssh://git@h/o/r", "o/r"] {
            assert!(canonical(bad).is_none(), "{bad}");
        }
    }
}
