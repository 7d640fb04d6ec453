//! A fake forge: git's own HTTP backend with a password, and the part of GitHub's API that creates pull
//! requests, implemented from its published documentation.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path as UrlPath, Request, State};
use axum::http::{HeaderMap, Method, Response, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::IntoResponse as _;
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::serve::Server;

const MAX_BODY: usize = 64 * 1024 * 1024;

/// Serves the bare repositories of a directory as `OWNER/NAME.git`.
#[derive(Debug)]
pub struct Forge {
    server: Server,
    state: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    root: PathBuf,
    pulls: Mutex<Vec<Value>>,
    posted: Mutex<Vec<String>>,
    /// The fixed answer to requests for pull requests, if set.
    answer: Mutex<Option<(StatusCode, String)>>,
}

impl Forge {
    /// The token that the forge accepts.
    pub const TOKEN: &str = "forge-secret-0123456789";
    /// The token with GitHub's user name, as git sends it in the `Authorization` header.
    pub const BASIC_CREDENTIALS: &str = "eC1hY2Nlc3MtdG9rZW46Zm9yZ2Utc2VjcmV0LTAxMjM0NTY3ODk=";

    pub async fn start(root: &Path) -> io::Result<Self> {
        let state = Arc::new(Shared {
            root: root.to_owned(),
            pulls: Mutex::default(),
            posted: Mutex::default(),
            answer: Mutex::default(),
        });
        let router = Router::new()
            .route("/api/v3/repos/{owner}/{name}/pulls", post(pull))
            .fallback(git)
            .layer(middleware::from_fn_with_state(state.clone(), record_post))
            .with_state(state.clone());
        Ok(Self { server: Server::start(router).await?, state })
    }

    /// The base URL, without a trailing slash.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// The paths of all POST requests that would change something, including rejected ones.
    pub fn posted(&self) -> Vec<String> {
        self.state.posted.lock().clone()
    }

    /// From now on, pull requests are created but answered with this error, as if a gateway had lost the
    /// response.
    pub fn answer_pulls(&self, status: StatusCode, message: &str) {
        *self.state.answer.lock() = Some((status, message.to_owned()));
    }

    /// The created pull requests.
    pub fn pulls(&self) -> Vec<Value> {
        self.state.pulls().clone()
    }
}

impl Shared {
    fn pulls(&self) -> MutexGuard<'_, Vec<Value>> {
        self.pulls.lock()
    }
}

async fn record_post(State(state): State<Arc<Shared>>, request: Request, next: Next) -> Response<Body> {
    let path = request.uri().path().to_owned();
    if request.method() == Method::POST && !path.ends_with("/git-upload-pack") {
        state.posted.lock().push(path);
    }
    next.run(request).await
}

fn authorization(headers: &HeaderMap) -> &str {
    headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Runs git's backend as a CGI program.
async fn git(State(state): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    if authorization(&parts.headers) != format!("Basic {}", Forge::BASIC_CREDENTIALS) {
        let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"forge\"")];
        return (StatusCode::UNAUTHORIZED, ask).into_response();
    }
    let Ok(body) = axum::body::to_bytes(body, MAX_BODY).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut command = Command::new("git");
    command
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", &state.root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REMOTE_USER", "ada")
        .env("REQUEST_METHOD", parts.method.as_str())
        .env("PATH_INFO", parts.uri.path())
        .env("QUERY_STRING", parts.uri.query().unwrap_or_default())
        .env("CONTENT_TYPE", text("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", text("content-encoding"))
        .env("GIT_PROTOCOL", text("git-protocol"));
    match run(command, &body).await {
        Ok(output) => reply(&output),
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}

async fn run(mut command: Command, input: &[u8]) -> io::Result<Vec<u8>> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let feeding = async {
        // The program may have closed its input early.
        let _ = stdin.write_all(input).await;
        drop(stdin);
    };
    let ((), output) = tokio::join!(feeding, child.wait_with_output());
    Ok(output?.stdout)
}

/// Converts the output of a CGI program: headers, an empty line, a body.
fn reply(output: &[u8]) -> Response<Body> {
    let end = output.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(output.len());
    let mut response = Response::builder();
    for line in String::from_utf8_lossy(&output[..end]).lines() {
        match line.split_once(": ") {
            Some(("Status", status)) => response = response.status(status.get(..3).unwrap_or("500")),
            Some((name, value)) => response = response.header(name, value),
            None => {}
        }
    }
    let body = output.get(end + 4..).unwrap_or_default().to_vec();
    response.body(Body::from(body)).unwrap_or_else(|_| StatusCode::BAD_GATEWAY.into_response())
}

/// `POST /repos/{owner}/{repo}/pulls` with title, head and base. The head must exist and must not have a pull
/// request yet.
async fn pull(
    State(state): State<Arc<Shared>>,
    UrlPath((owner, name)): UrlPath<(String, String)>,
    headers: HeaderMap,
    Json(wanted): Json<Value>,
) -> Response<Body> {
    if authorization(&headers) != format!("Bearer {}", Forge::TOKEN) {
        return (StatusCode::UNAUTHORIZED, Json(json!({"message": "Bad credentials"}))).into_response();
    }
    if !headers.contains_key(header::USER_AGENT) {
        return (StatusCode::FORBIDDEN, Json(json!({"message": "Request forbidden"}))).into_response();
    }
    let text = |field: &str| wanted[field].as_str().filter(|text| !text.is_empty());
    let (Some(_), Some(head), Some(_)) = (text("title"), text("head"), text("base")) else {
        return invalid("title, head and base are required");
    };
    let repository = state.root.join(&owner).join(format!("{name}.git"));
    let mut find = Command::new("git");
    find.arg("--git-dir").arg(&repository).args(["show-ref", "--verify", &format!("refs/heads/{head}")]);
    if run(find, b"").await.is_ok_and(|found| found.is_empty()) {
        return invalid("head does not exist");
    }
    let answer = state.answer.lock().clone();
    let mut pulls = state.pulls();
    if pulls.iter().any(|made| made["head"] == head) {
        return invalid(&format!("A pull request already exists for {owner}:{head}."));
    }
    pulls.push(wanted.clone());
    if let Some((status, message)) = answer {
        return (status, Json(json!({ "message": message }))).into_response();
    }
    let number = pulls.len();
    let page = format!("https://forge.example/{owner}/{name}/pull/{number}");
    (StatusCode::CREATED, Json(json!({"number": number, "html_url": page, "state": "open"}))).into_response()
}

fn invalid(message: &str) -> Response<Body> {
    let body = json!({"message": "Validation Failed", "errors": [
        {"resource": "PullRequest", "code": "custom", "message": message},
    ]});
    (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response()
}
