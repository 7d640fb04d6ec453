//! Git's smart HTTP protocol for programs inside a sandbox. The gateway forwards requests to the forge, adds the
//! organization's credential, and serves the session's own repositories only.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode};
use store::{Repo, SandboxSession, StoreError};
use tokio::time::timeout;
use url::Url;

use super::call::Initiator;
use super::forge::{ForgeRepo, canonical_url};
use super::read::ReadError;
use super::{GitService, local_repo};
use crate::outbound::{SILENCE_TIMEOUT, lively};

const PATH_PREFIX: &str = "/git/";
/// The most bytes of one fetch request and of its response.
const MAX_REQUEST: u64 = 64 * 1024 * 1024;
const MAX_RESPONSE: u64 = 8 * 1024 * 1024 * 1024;
const RECEIVE_PACK: &str = "git-receive-pack";
const REQUEST_HEADERS: [HeaderName; 4] =
    [header::ACCEPT, header::CONTENT_ENCODING, header::CONTENT_TYPE, HeaderName::from_static("git-protocol")];
const REPLY_HEADERS: [HeaderName; 2] = [header::CACHE_CONTROL, header::CONTENT_TYPE];

/// A request of git from inside a sandbox.
pub(crate) struct ProxyRequest {
    pub(crate) method: Method,
    /// Path and query, exactly as git sent them.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: BoxStream<'static, io::Result<Bytes>>,
}

/// A successful response for git.
pub(crate) struct ProxyReply {
    pub(crate) headers: HeaderMap,
    pub(crate) body: BoxStream<'static, io::Result<Bytes>>,
}

impl ProxyReply {
    pub(super) fn new(content_type: &'static str, body: Vec<u8>) -> Self {
        let headers = HeaderMap::from_iter([
            (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        ]);
        Self { headers, body: stream::iter([Ok(body.into())]).boxed() }
    }
}

/// Why a request of git fails. The text is for git's user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    #[error("This repository does not belong to the session")]
    OtherRepository,
    #[error("A directory of the operator's machine is read-only for sessions: it cannot be pushed to")]
    LocalPush,
    #[error("This directory is not available")]
    NoDirectory,
    #[error(
        "Parts of this repository are outside of the directories that the operator lets sessions read (its .git file, alternates \
         or symbolic links lead there)"
    )]
    OutsideRoots,
    #[error(
        "This repository has too many files in its git directory: the operator can pack them with `git gc`"
    )]
    TooManyFiles,
    #[error("The forge refused the organization's credential")]
    CredentialRefused,
    #[error("The forge has no such repository")]
    NoRepository,
    /// The reason is for the log.
    #[error("{0}")]
    ForgeUnavailable(String),
    #[error("{0}")]
    BadPush(String),
    #[error("This session has too many pushes in flight: wait until one has ended")]
    TooManyPushes,
    #[error("{0}")]
    PushRefused(String),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The requests that git makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    /// The refs of the repository, for a fetch or for a push.
    Refs(&'static str),
    Fetch,
    Push,
}

impl Endpoint {
    const ALL: [(Method, Self); 4] = [
        (Method::GET, Self::Refs("git-upload-pack")),
        (Method::GET, Self::Refs(RECEIVE_PACK)),
        (Method::POST, Self::Fetch),
        (Method::POST, Self::Push),
    ];

    /// The part of the URL after the repository.
    fn suffix(self) -> String {
        match self {
            Self::Refs(service) => format!("/info/refs?service={service}"),
            Self::Fetch => "/git-upload-pack".to_owned(),
            Self::Push => "/git-receive-pack".to_owned(),
        }
    }
}

impl GitService {
    /// Serves one request of git from a session's sandbox.
    pub(crate) async fn proxy(
        self: &Arc<Self>,
        session: &SandboxSession,
        request: ProxyRequest,
    ) -> Result<ProxyReply, ProxyError> {
        let repos = self.store.session_repos(session.id).await?;
        let found = repos.iter().find_map(|placed| {
            Some((&placed.repo, endpoint(&placed.repo, &request.method, &request.target)?))
        });
        let (repo, endpoint) = found.ok_or(ProxyError::OtherRepository)?;
        if let Some(url) = canonical_url(repo).filter(|url| url.scheme() == "file") {
            return self.read_directory(&url, endpoint, request).await;
        }
        match endpoint {
            Endpoint::Refs(_) | Endpoint::Fetch => {
                let reader = (session.id, Initiator::Agent);
                self.read(reader, repo, move |forge| fetch(forge, endpoint, request).boxed()).await?
            }
            Endpoint::Push => self.receive_push(session, repo, request).await,
        }
    }

    /// Serves a directory of the operator's machine, which sessions can read and not write.
    async fn read_directory(
        &self,
        url: &Url,
        endpoint: Endpoint,
        request: ProxyRequest,
    ) -> Result<ProxyReply, ProxyError> {
        let directory = self.local_directory(url).ok_or(ProxyError::NoDirectory)?;
        if matches!(endpoint, Endpoint::Push | Endpoint::Refs(RECEIVE_PACK)) {
            return Err(ProxyError::LocalPush);
        }
        let git_dir = local_repo::git_dir(&self.settings.local_roots, &directory).await.map_err(|error| {
            tracing::warn!(%error, "a repository is not served");
            match error.kind() {
                io::ErrorKind::NotFound => ProxyError::NoDirectory,
                io::ErrorKind::FileTooLarge => ProxyError::TooManyFiles,
                _ => ProxyError::OutsideRoots,
            }
        })?;
        let text = |name| request.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let suffix = endpoint.suffix();
        let (path, query) = suffix.split_once('?').unwrap_or((&suffix, ""));
        let cgi = local_repo::CgiRequest {
            method: request.method.as_str(),
            path,
            query,
            content_type: text(header::CONTENT_TYPE),
            content_encoding: text(header::CONTENT_ENCODING),
        };
        let body = bounded(request.body, MAX_REQUEST);
        let response = local_repo::serve(&git_dir, &cgi, body).await.map_err(|error| {
            tracing::warn!(%error, "git http-backend failed");
            ProxyError::NoDirectory
        })?;
        let content_type =
            HeaderValue::from_str(&response.content_type).map_err(|_| ProxyError::NoDirectory)?;
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, content_type)]);
        Ok(ProxyReply { headers, body: response.body })
    }
}

/// Which request this is, if it is one for this repository. The target is compared as text, so that no other spelling
/// of a path passes.
fn endpoint(repo: &Repo, method: &Method, target: &str) -> Option<Endpoint> {
    let url = canonical_url(repo)?;
    let (scheme, location) = url.as_str().split_once("://")?;
    let rest = target.strip_prefix(PATH_PREFIX)?.strip_prefix(scheme)?.strip_prefix('/')?;
    let suffix = rest.strip_prefix(location)?;
    let suffix = suffix.strip_prefix(".git").unwrap_or(suffix);
    let matches = |(by, endpoint): &(Method, Endpoint)| by == method && endpoint.suffix() == suffix;
    Endpoint::ALL.into_iter().find(matches).map(|(_, endpoint)| endpoint)
}

async fn fetch(
    forge: &ForgeRepo<'_>,
    endpoint: Endpoint,
    request: ProxyRequest,
) -> Result<ProxyReply, ProxyError> {
    let mut outgoing = forge.request(request.method.clone(), &endpoint.suffix());
    for name in REQUEST_HEADERS {
        if let Some(value) = request.headers.get(&name) {
            outgoing = outgoing.header(name, value);
        }
    }
    if request.method == Method::POST {
        outgoing = outgoing.body(reqwest::Body::wrap_stream(bounded(request.body, MAX_REQUEST)));
    }
    let response = timeout(SILENCE_TIMEOUT, outgoing.send())
        .await
        .map_err(|_| ProxyError::ForgeUnavailable("it does not answer".to_owned()))?
        .map_err(|error| ProxyError::ForgeUnavailable(error.without_url().to_string()))?;
    match response.status() {
        StatusCode::OK => {}
        // With the forge's own 401, git would ask for a password that nobody inside has.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(ProxyError::CredentialRefused),
        StatusCode::NOT_FOUND => return Err(ProxyError::NoRepository),
        other => return Err(ProxyError::ForgeUnavailable(format!("it answered {other}"))),
    }
    let copy = |name: HeaderName| Some((name.clone(), response.headers().get(&name)?.clone()));
    let headers = REPLY_HEADERS.into_iter().filter_map(copy).collect();
    Ok(ProxyReply { headers, body: bounded(lively(response.bytes_stream()), MAX_RESPONSE).boxed() })
}

/// The same stream, ended with an error when it exceeds `max` bytes. Its errors do not reveal where it came from.
pub(super) fn bounded(
    chunks: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    max: u64,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let mut left = max;
    chunks.map(move |chunk| {
        let chunk = chunk.map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?;
        left = left.checked_sub(chunk.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::super::forge::repo_at;
    use super::*;

    fn endpoint_at(repo: &str, method: &Method, target: &str) -> Option<Endpoint> {
        endpoint(&repo_at(repo), method, target)
    }

    #[test]
    fn only_the_exact_path_of_a_repository_is_served() {
        let get = |path: &str| endpoint_at("https://h.example/o/r.git", &Method::GET, path);
        let refs = "info/refs?service=git-upload-pack";
        let expected = Some(Endpoint::Refs("git-upload-pack"));
        assert_eq!(get(&format!("/git/https/h.example/o/r/{refs}")), expected);
        assert_eq!(get(&format!("/git/https/h.example/o/r.git/{refs}")), expected);
        for path in ["o/./r", "o/x/../r", "o/r/", "o/r/.", "o//r", "o/%72", "O/r", "o/r.git.git", "o/r2", "o"]
        {
            assert_eq!(get(&format!("/git/https/h.example/{path}/{refs}")), None, "{path}");
        }
        let post = |path: &str| endpoint_at("https://h.example/o/r", &Method::POST, path);
        assert_eq!(post("/git/https/h.example/o/r.git/git-receive-pack"), Some(Endpoint::Push));
        assert_eq!(post("/git/https/h.example/o/r.git/git-upload-pack"), Some(Endpoint::Fetch));
        assert_eq!(post("/git/https/h.example/o/r.git/git-upload-pack?x"), None);
        assert_eq!(
            endpoint_at("file:///srv/a.git", &Method::POST, "/git/file//srv/a.git/git-upload-pack"),
            Some(Endpoint::Fetch)
        );
    }
}
