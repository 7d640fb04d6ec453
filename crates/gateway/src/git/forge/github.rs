//! Pull requests over the forge's REST API, which has the shape of GitHub's.

use ledger::Redactor;
use reqwest::StatusCode;
use reqwest::header::{ACCEPT, USER_AGENT};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::json;
use store::Repo;
use url::Url;

use super::super::GitService;
use super::super::read::ReadError;
use super::{ForgeError, ForgeRepo};
use gate::Permit;

/// How much of a response body is read.
const MAX_RESPONSE: usize = 1024 * 1024;
const API_VERSION: &str = "2022-11-28";

/// The content of a new pull request.
pub(in crate::git) struct PullRequestContent<'a> {
    pub(in crate::git) title: &'a str,
    pub(in crate::git) body: &'a str,
    /// The branch that was pushed.
    pub(in crate::git) head: &'a str,
    pub(in crate::git) base: &'a str,
}

/// Why a pull request was not opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PullError {
    #[error("pull requests are supported on GitHub only")]
    NotGithub,
    #[error("the organization has no GITHUB_TOKEN: an administrator can set it")]
    NoCredential,
    #[error("GitHub refused the organization's token")]
    CredentialRefused,
    #[error("GitHub refused the pull request: {0}")]
    Refused(String),
    #[error("GitHub cannot be reached: try again")]
    Unreachable,
    #[error("GitHub's response cannot be understood: whether it opened the pull request is unknown")]
    Unknown,
    #[error(transparent)]
    Forge(#[from] ForgeError),
    #[error("Denied by policy: {0}")]
    Denied(String),
    /// The gate could not decide whether the gateway may look at the repository.
    #[error("{0}")]
    NotRead(String),
}

impl From<ReadError> for PullError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Forge(error) => Self::Forge(error),
            ReadError::Denied(reason) => Self::Denied(reason),
            other => Self::NotRead(other.to_string()),
        }
    }
}

/// The fields of GitHub's responses that we need.
#[derive(Deserialize)]
struct Created {
    html_url: String,
}

#[derive(Deserialize)]
struct ErrorResponse {
    message: String,
    #[serde(default)]
    errors: Vec<ErrorDetail>,
}

#[derive(Deserialize)]
struct ErrorDetail {
    message: Option<String>,
}

impl ForgeRepo<'_> {
    /// The credential, if the repository is on GitHub.
    pub(in crate::git) fn github_token(&self) -> Result<&SecretString, PullError> {
        if !self.is_github {
            return Err(PullError::NotGithub);
        }
        self.token.as_ref().ok_or(PullError::NoCredential)
    }
}

/// Opens a pull request, and returns the URL of its page.
pub(in crate::git) async fn open(
    git: &GitService,
    permit: &Permit,
    repo: &Repo,
    content: &PullRequestContent<'_>,
) -> Result<String, PullError> {
    let forge = git.forge_repo(permit, repo).await?;
    let token = forge.github_token()?;
    let url = format!("{}/repos{}/pulls", api_url(&git.settings.github_url), forge.url.path());
    let body =
        json!({"title": content.title, "body": content.body, "head": content.head, "base": content.base});
    let request = forge.client.post(url).bearer_auth(token.expose_secret()).json(&body);
    let request = request
        .header(ACCEPT, "application/vnd.github+json")
        .header("x-github-api-version", API_VERSION)
        .header(USER_AGENT, "proliferate");
    let response = request.send().await.map_err(|error| {
        let sent = !error.is_connect();
        tracing::warn!(run = forge.permit.run_id(), error = %error.without_url(), "the forge cannot be reached");
        if sent { PullError::Unknown } else { PullError::Unreachable }
    })?;
    let status = response.status();
    let body = read_body(response).await?;
    match status {
        StatusCode::CREATED => {
            let created: Created = serde_json::from_slice(&body).map_err(|_| PullError::Unknown)?;
            // People click on it, so no other scheme passes.
            let page =
                Url::parse(&created.html_url).ok().filter(|page| matches!(page.scheme(), "https" | "http"));
            page.map(Into::into).ok_or(PullError::Unknown)
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(PullError::CredentialRefused),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Err(PullError::Unreachable),
        // A proxy in front of GitHub that lost its response has already forwarded the request.
        status if status.is_server_error() => Err(PullError::Unknown),
        _ => Err(PullError::Refused(redact(token, &error_message(&body, status)))),
    }
}

async fn read_body(mut response: reqwest::Response) -> Result<Vec<u8>, PullError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|_| PullError::Unknown)? {
        if body.len() + chunk.len() > MAX_RESPONSE {
            return Err(PullError::Unknown);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// GitHub's own error message in one line.
fn error_message(body: &[u8], status: StatusCode) -> String {
    let Ok(error) = serde_json::from_slice::<ErrorResponse>(body) else { return status.to_string() };
    let details = error.errors.into_iter().filter_map(|detail| detail.message);
    let all = std::iter::once(error.message).chain(details).collect::<Vec<_>>().join(": ");
    all.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

/// Removes the credential from a message: some servers repeat it.
fn redact(token: &SecretString, message: &str) -> String {
    match Redactor::new([token.expose_secret()]) {
        Ok(redactor) => redactor.text(message),
        Err(_) => "its message is not shown, because the credential cannot be removed from it".to_owned(),
    }
}

/// github.com has its API on a host of its own, GitHub Enterprise under a path.
fn api_url(github: &Url) -> String {
    if github.host_str() == Some("github.com") {
        return "https://api.github.com".to_owned();
    }
    format!("{}/api/v3", github.as_str().trim_end_matches('/'))
}
