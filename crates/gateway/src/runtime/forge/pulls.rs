//! Pull requests by the forge's API, in the shape of GitHub's.

use ledger::Redactor;
use reqwest::StatusCode;
use reqwest::header::{ACCEPT, USER_AGENT};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::json;
use store::Repo;
use url::Url;

use super::{Access, ForgeError, access, is_github};
use crate::app::App;

/// What of an answer is read.
const MAX_ANSWER: usize = 1024 * 1024;
const VERSION: &str = "2022-11-28";

/// A pull request to be made.
pub(crate) struct NewPull<'a> {
    pub(crate) title: &'a str,
    pub(crate) body: &'a str,
    /// The branch that was pushed.
    pub(crate) head: &'a str,
    pub(crate) base: &'a str,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PullError {
    #[error("pull requests can be made on GitHub only, for now")]
    NotGithub,
    #[error("the organisation has no GITHUB_TOKEN: an administrator can set it")]
    NoCredential,
    #[error("GitHub refused the organisation's token")]
    Credential,
    #[error("GitHub did not make it: {0}")]
    Refused(String),
    #[error("GitHub cannot be reached: try again")]
    Unreachable,
    #[error("GitHub gave no answer that makes sense: whether it made the pull request is unknown")]
    Unknown,
    #[error(transparent)]
    Forge(#[from] ForgeError),
}

/// The parts of GitHub's answers that we need.
#[derive(Deserialize)]
struct Made {
    html_url: String,
}

#[derive(Deserialize)]
struct Failure {
    message: String,
    #[serde(default)]
    errors: Vec<Detail>,
}

#[derive(Deserialize)]
struct Detail {
    message: Option<String>,
}

/// The way to a repository that can have pull requests, with the credential for them.
pub(crate) async fn way_to_github<'a>(
    app: &'a App,
    repo: &Repo,
) -> Result<(Access<'a>, SecretString), PullError> {
    let access = access(app, repo).await?;
    if !is_github(app, &access.url) {
        return Err(PullError::NotGithub);
    }
    let token = access.token.clone().ok_or(PullError::NoCredential)?;
    Ok((access, token))
}

/// Makes a pull request, and gives the address of its page.
pub(crate) async fn open_pull(app: &App, repo: &Repo, new: &NewPull<'_>) -> Result<String, PullError> {
    let (access, token) = way_to_github(app, repo).await?;
    let url = format!("{}/repos{}/pulls", api_of(&app.config.github_url), access.url.path());
    let pull = json!({ "title": new.title, "body": new.body, "head": new.head, "base": new.base });
    let request = access.client.post(url).bearer_auth(token.expose_secret()).json(&pull);
    let request = request
        .header(ACCEPT, "application/vnd.github+json")
        .header("x-github-api-version", VERSION)
        .header(USER_AGENT, "proliferate");
    let answer = request.send().await.map_err(|error| {
        let sent = !error.is_connect();
        tracing::warn!(error = %error.without_url(), "the forge cannot be reached");
        if sent { PullError::Unknown } else { PullError::Unreachable }
    })?;
    let status = answer.status();
    let body = read(answer).await?;
    match status {
        StatusCode::CREATED => {
            let made: Made = serde_json::from_slice(&body).map_err(|_| PullError::Unknown)?;
            // People click on it.
            let page =
                Url::parse(&made.html_url).ok().filter(|page| matches!(page.scheme(), "https" | "http"));
            page.map(Into::into).ok_or(PullError::Unknown)
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(PullError::Credential),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Err(PullError::Unreachable),
        // Whoever stands before GitHub and lost its answer has passed the request on.
        status if status.is_server_error() => Err(PullError::Unknown),
        _ => Err(PullError::Refused(without(&token, &reason(&body, status)))),
    }
}

async fn read(mut answer: reqwest::Response) -> Result<Vec<u8>, PullError> {
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|_| PullError::Unknown)? {
        if body.len() + piece.len() > MAX_ANSWER {
            return Err(PullError::Unknown);
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// What GitHub says of it, in one line.
fn reason(body: &[u8], status: StatusCode) -> String {
    let Ok(failure) = serde_json::from_slice::<Failure>(body) else { return status.to_string() };
    let details = failure.errors.into_iter().filter_map(|detail| detail.message);
    let all = std::iter::once(failure.message).chain(details).collect::<Vec<_>>().join(": ");
    all.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

/// The same words without the credential, which some servers repeat.
fn without(token: &SecretString, said: &str) -> String {
    match Redactor::new([token.expose_secret()]) {
        Ok(redactor) => redactor.text(said),
        Err(_) => "it said why, and its words cannot be cleared of the credential".to_owned(),
    }
}

/// GitHub's own API has a host of its own; other servers have theirs under a path.
fn api_of(github: &Url) -> String {
    if github.host_str() == Some("github.com") {
        return "https://api.github.com".to_owned();
    }
    format!("{}/api/v3", github.as_str().trim_end_matches('/'))
}
