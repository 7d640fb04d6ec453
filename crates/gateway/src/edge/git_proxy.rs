//! Git for programs inside a sandbox: its smart HTTP protocol is passed on to the forge, with the organisation's
//! credential added here, and for the session's own repositories only.

use std::io;

use axum::body::Body;
use axum::extract::{OriginalUri, Request};
use axum::http::{HeaderName, Method, Response, StatusCode, Uri, header};
use axum::response::IntoResponse as _;
use futures_util::{Stream, StreamExt as _};
use store::Repo;
use tokio::time::timeout;
use url::Url;

use super::ApiError;
use super::auth::Caller;
use super::error::PlainText;
use super::git_push;
use crate::app::AppState;
use crate::outbound::{SILENT, lively};
use crate::runtime::{Access, ForgeError, access, local_repo, place};

const PREFIX: &str = "/git/";
/// What goes through in one request: what is asked for, what is fetched.
const MAX_QUESTION: u64 = 64 * 1024 * 1024;
const MAX_ANSWER: u64 = 8 * 1024 * 1024 * 1024;
const RECEIVE: &str = "git-receive-pack";
const REQUEST_HEADERS: [HeaderName; 4] =
    [header::ACCEPT, header::CONTENT_ENCODING, header::CONTENT_TYPE, HeaderName::from_static("git-protocol")];
const REPLY_HEADERS: [HeaderName; 2] = [header::CACHE_CONTROL, header::CONTENT_TYPE];

/// The requests that git makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// What there is to fetch, or what a push would meet.
    Refs(&'static str),
    Fetch,
    Push,
}

impl Ask {
    const ALL: [(Method, Self); 4] = [
        (Method::GET, Self::Refs("git-upload-pack")),
        (Method::GET, Self::Refs(RECEIVE)),
        (Method::POST, Self::Fetch),
        (Method::POST, Self::Push),
    ];

    /// What follows the repository in the URL.
    fn rest(self) -> String {
        match self {
            Self::Refs(service) => format!("/info/refs?service={service}"),
            Self::Fetch => "/git-upload-pack".to_owned(),
            Self::Push => "/git-receive-pack".to_owned(),
        }
    }
}

/// Every request of git that comes out of a sandbox. Refusals are plain text, which git prints.
pub(super) async fn git(
    app: AppState,
    caller: Result<Caller, ApiError>,
    OriginalUri(uri): OriginalUri,
    request: Request,
) -> Result<Response<Body>, PlainText> {
    answer(&app, caller, &uri, request).await.map_err(PlainText)
}

async fn answer(
    app: &AppState,
    caller: Result<Caller, ApiError>,
    uri: &Uri,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let Caller::Sandbox(session) = caller? else {
        return Err(ApiError::forbidden("Only sandboxes may do this"));
    };
    let repos = app.store.session_repos(session.id).await?;
    let found =
        repos.iter().find_map(|placed| Some((&placed.repo, wanted(&placed.repo, request.method(), uri)?)));
    let Some((repo, ask)) = found else {
        return Err(ApiError::forbidden("This is no repository of this session"));
    };
    if let Some(url) = place(repo).filter(|url| url.scheme() == "file") {
        return read_folder(app, &url, ask, request).await;
    }
    match ask {
        Ask::Refs(_) | Ask::Fetch => {
            let access = access(app, repo).await.map_err(refusal)?;
            pass(&access, ask, request).await
        }
        Ask::Push => git_push::push(app, repo, &session, request).await,
    }
}

/// A folder of this machine is read and never written.
async fn read_folder(
    app: &AppState,
    url: &Url,
    ask: Ask,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let gone = || ApiError::not_found("This folder cannot be had");
    let folder = url.to_file_path().ok().and_then(|path| local_repo::allowed(&app.config.local_roots, &path));
    let folder = folder.ok_or_else(gone)?;
    if matches!(ask, Ask::Push | Ask::Refs(RECEIVE)) {
        return Err(ApiError::forbidden("A folder of the operator's machine cannot be pushed to"));
    }
    let (parts, body) = request.into_parts();
    let text = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let rest = ask.rest();
    let (path, query) = rest.split_once('?').unwrap_or((&rest, ""));
    let question = local_repo::Question {
        method: parts.method.as_str(),
        path,
        query,
        content_type: text(header::CONTENT_TYPE),
        content_encoding: text(header::CONTENT_ENCODING),
    };
    let body = bounded(body.into_data_stream(), MAX_QUESTION);
    let answer = local_repo::ask(&folder, &question, body).await.map_err(|error| {
        tracing::warn!(%error, "git's backend gave nothing");
        gone()
    })?;
    let kind = [(header::CONTENT_TYPE, answer.content_type)];
    Ok((kind, Body::from_stream(answer.body)).into_response())
}

/// What is asked of this repository. The text is compared as it came, so that no other spelling of a path passes.
fn wanted(repo: &Repo, method: &Method, uri: &Uri) -> Option<Ask> {
    let url = place(repo)?;
    let asked = uri.path_and_query()?.as_str().strip_prefix(PREFIX)?;
    let (scheme, rest) = url.as_str().split_once("://")?;
    let rest = asked.strip_prefix(scheme)?.strip_prefix('/')?.strip_prefix(rest)?;
    let rest = rest.strip_prefix(".git").unwrap_or(rest);
    let asks = Ask::ALL.into_iter().find(|(by, ask)| by == method && ask.rest() == rest);
    asks.map(|(_, ask)| ask)
}

async fn pass(access: &Access<'_>, ask: Ask, request: Request) -> Result<Response<Body>, ApiError> {
    let (parts, body) = request.into_parts();
    let mut asking = access.git(parts.method.clone(), &ask.rest());
    for name in REQUEST_HEADERS {
        if let Some(value) = parts.headers.get(&name) {
            asking = asking.header(name, value);
        }
    }
    if parts.method == Method::POST {
        asking = asking.body(reqwest::Body::wrap_stream(bounded(body.into_data_stream(), MAX_QUESTION)));
    }
    let answer = timeout(SILENT, asking.send())
        .await
        .map_err(|_| ApiError::unavailable("The forge", "it does not answer"))?
        .map_err(|error| ApiError::unavailable("The forge", error.without_url().to_string()))?;
    let mut reply = Response::new(Body::empty());
    match answer.status() {
        StatusCode::OK => {}
        // Git must not be asked for a password that nobody inside has.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            return Err(ApiError::forbidden("The forge refused the organisation's credential"));
        }
        StatusCode::NOT_FOUND => return Err(ApiError::not_found("The forge has no such repository")),
        other => return Err(ApiError::unavailable("The forge", format!("it answered {other}"))),
    }
    for name in REPLY_HEADERS {
        if let Some(value) = answer.headers().get(&name) {
            reply.headers_mut().insert(name, value.clone());
        }
    }
    *reply.body_mut() = Body::from_stream(bounded(lively(answer.bytes_stream()), MAX_ANSWER));
    Ok(reply)
}

/// The same stream, broken off when it becomes too long. Its errors tell nothing of where it came from.
pub(super) fn bounded<E>(
    pieces: impl Stream<Item = Result<bytes::Bytes, E>> + Send + 'static,
    most: u64,
) -> impl Stream<Item = io::Result<bytes::Bytes>> + Send + 'static {
    let mut left = most;
    pieces.map(move |piece| {
        let piece = piece.map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?;
        left = left.checked_sub(piece.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(piece)
    })
}

pub(super) fn refusal(error: ForgeError) -> ApiError {
    match error {
        ForgeError::Store(error) => error.into(),
        ForgeError::Vault(error) => error.into(),
        other => ApiError::forbidden(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::repo_at;

    fn asked(repo: &str, method: &Method, path: &str) -> Option<Ask> {
        wanted(&repo_at(repo), method, &path.parse().unwrap())
    }

    #[test]
    fn a_path_is_a_repository_as_it_is_written_or_not_at_all() {
        let get = |path: &str| asked("https://h.example/o/r.git", &Method::GET, path);
        let refs = "info/refs?service=git-upload-pack";
        assert_eq!(get(&format!("/git/https/h.example/o/r/{refs}")), Some(Ask::Refs("git-upload-pack")));
        assert_eq!(get(&format!("/git/https/h.example/o/r.git/{refs}")), Some(Ask::Refs("git-upload-pack")));
        for path in ["o/./r", "o/x/../r", "o/r/", "o/r/.", "o//r", "o/%72", "O/r", "o/r.git.git", "o/r2", "o"]
        {
            assert_eq!(get(&format!("/git/https/h.example/{path}/{refs}")), None, "{path}");
        }
        let post = |path: &str| asked("https://h.example/o/r", &Method::POST, path);
        assert_eq!(post("/git/https/h.example/o/r.git/git-receive-pack"), Some(Ask::Push));
        assert_eq!(post("/git/https/h.example/o/r.git/git-upload-pack"), Some(Ask::Fetch));
        assert_eq!(post("/git/https/h.example/o/r.git/git-upload-pack?x"), None);
        assert_eq!(
            asked("file:///srv/a.git", &Method::POST, "/git/file//srv/a.git/git-upload-pack"),
            Some(Ask::Fetch)
        );
    }
}
