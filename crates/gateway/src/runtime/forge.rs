//! Where repositories are hosted, reached by the gateway itself: with the organisation's credential, which no sandbox
//! ever sees, and only where the organisation's sandboxes might go themselves.

mod ancestry;
mod commits;
mod inflate;
mod pkt;
mod pulls;
mod report;
mod updates;

use egress::{AddressClass, Denial, Host, Target, classify};
use proto::OrgId;
use secrecy::{ExposeSecret as _, SecretString};
use store::{Repo, Scope, StoreError};
use url::{Origin, Url};

use crate::app::App;
use crate::vault::VaultError;

pub(crate) use ancestry::RefsError;
pub(crate) use commits::{CommitScan, MOST_BYTES as MOST_COMMIT_BYTES, Scan};
pub(crate) use pulls::{NewPull, PullError, open_pull, way_to_github};
pub(crate) use report::{AnswerReader, Pushed, rejection};
pub(crate) use updates::{Update, UpdatesReader, Wanted, is_id};

/// A secret of one repository, for any forge.
const REPO_SECRET: &str = "GIT_TOKEN";
/// A secret of the organisation, for GitHub.
const GITHUB_SECRET: &str = "GITHUB_TOKEN";
/// What GitHub wants for a user name beside a token.
const TOKEN_USER: &str = "x-access-token";

/// Why a forge is not asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForgeError {
    #[error("this repository has no URL that can be asked")]
    NoUrl,
    #[error(transparent)]
    Denied(#[from] Denial),
    #[error("{0} is a private address: the operator can allow it with CONNECTOR_ALLOWED_HOSTS")]
    Private(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Vault(#[from] VaultError),
    #[error("the gateway cannot go out: {0}")]
    Outbound(#[from] reqwest::Error),
}

/// A repository that may be asked.
pub(crate) struct Access<'a> {
    pub(crate) client: &'a reqwest::Client,
    /// Without `/` or `.git` at its end.
    pub(crate) url: Url,
    token: Option<SecretString>,
}

impl Access<'_> {
    /// A request of git's own protocol.
    pub(crate) fn git(&self, method: reqwest::Method, rest: &str) -> reqwest::RequestBuilder {
        let request = self.client.request(method, format!("{}.git{rest}", self.url));
        match &self.token {
            Some(token) => request.basic_auth(TOKEN_USER, Some(token.expose_secret())),
            None => request,
        }
    }
}

/// The way to a repository, if its organisation may go there.
pub(crate) async fn access<'a>(app: &'a App, repo: &Repo) -> Result<Access<'a>, ForgeError> {
    let url = place(repo).filter(Url::has_host).ok_or(ForgeError::NoUrl)?;
    let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default());
    let name = format!("{host}:{}", port.unwrap_or_default());
    let named = app.config.allowed_hosts.contains(&name);
    let client = allowed(app, repo.org_id, &name, named).await?;
    let token = if url.scheme() == "https" || named { token(app, repo, &url).await? } else { None };
    Ok(Access { client, url, token })
}

/// The rules for sandboxes count for us too; only that a port is unusual does not matter where the operator named it.
async fn allowed<'a>(
    app: &'a App,
    org: OrgId,
    name: &str,
    named: bool,
) -> Result<&'a reqwest::Client, ForgeError> {
    let target = Target::parse(name, None).map_err(|_| ForgeError::NoUrl)?;
    match app.networks.decide(org, &target).await? {
        Err(Denial::PortClosed(_)) if named => {}
        decided => decided?,
    }
    match target.host {
        _ if named => Ok(app.outbound.named()?),
        Host::Address(address) if classify(address) != AddressClass::Public => {
            Err(ForgeError::Private(name.to_owned()))
        }
        Host::Address(_) | Host::Name(_) => Ok(app.outbound.public()?),
    }
}

/// What the forge knows the organisation by. A member may add a repository anywhere, so the organisation's token goes
/// to GitHub alone.
async fn token(app: &App, repo: &Repo, url: &Url) -> Result<Option<SecretString>, VaultError> {
    let own = app.vault.open(repo.org_id, Scope::Repo(repo.id), REPO_SECRET).await?;
    if own.is_some() || !is_github(app, url) {
        return Ok(own);
    }
    app.vault.open(repo.org_id, Scope::Org, GITHUB_SECRET).await
}

pub(crate) fn is_github(app: &App, url: &Url) -> bool {
    let origin = app.config.github_url.origin();
    matches!(origin, Origin::Tuple(..)) && url.origin() == origin
}

/// A repository's URL in one form, as everybody writes it differently.
pub(crate) fn place(repo: &Repo) -> Option<Url> {
    one_form(repo.url.as_deref()?)
}

pub(crate) fn one_form(text: &str) -> Option<Url> {
    let mut url = Url::parse(text).ok()?;
    match url.scheme() {
        "https" | "http" => {}
        // What a folder is called is up to its owner.
        "file" => return Some(url),
        _ => return None,
    }
    let path = url.path().trim_end_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path).to_owned();
    url.set_path(&path);
    url.set_query(None);
    Some(url)
}

/// A repository of which only the place matters.
#[cfg(test)]
pub(crate) fn repo_at(url: &str) -> Repo {
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
        added_by: None,
        created_at: chrono::DateTime::UNIX_EPOCH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_repository_is_one() {
        for text in ["https://h/o/r", "https://h/o/r/", "https://h/o/r.git", "https://h:443/o/r.git/"] {
            assert_eq!(one_form(text).unwrap().as_str(), "https://h/o/r", "{text}");
        }
        assert_eq!(one_form("http://h:1/o/x/../r?a#b").unwrap().path(), "/o/r");
        for bad in ["", "ssh://git@h/o/r", "o/r"] {
            assert!(one_form(bad).is_none(), "{bad}");
        }
    }
}
