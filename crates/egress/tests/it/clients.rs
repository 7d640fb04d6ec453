//! Real clients through the proxy: curl, git, pip, npm and cargo, each against a server on loopback.
//!
//! A client that is not installed is skipped and reported; git and curl are required to build, so they must exist.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use bytes::Bytes;
use egress::{Kind, Record, RequestEnd};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::harness::{PUBLIC, TEST_TIMEOUT, World};
use crate::origin::{HELLO, Origin};

/// A directory served over HTTP: static files, and `/git/` through git's own HTTP backend.
struct Site {
    directory: tempfile::TempDir,
    address: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl Site {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind((PUBLIC, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let root = directory.path().to_owned();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let root = root.clone();
                let service = service_fn(move |request| answer(root.clone(), request));
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { directory, address, _task: AbortOnDropHandle::new(task) }
    }

    fn url(&self) -> String {
        format!("http://site.test:{}", self.address.port())
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

async fn answer(root: PathBuf, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path().starts_with("/git/") {
        return Ok(git_backend(&root, request).await);
    }
    let path = root.join(request.uri().path().trim_start_matches('/'));
    let path = if path.is_dir() { path.join("index.html") } else { path };
    let kind = if path.extension().is_some_and(|extension| extension == "html") {
        "text/html"
    } else {
        "application/json"
    };
    Ok(match std::fs::read(path) {
        Ok(content) => Response::builder().header("content-type", kind).body(content.into()).unwrap(),
        Err(_) => Response::builder().status(StatusCode::NOT_FOUND).body(Full::default()).unwrap(),
    })
}

/// `git http-backend` is a CGI program: the request arrives in variables and on stdin, the response on stdout.
async fn git_backend(root: &Path, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let mut command = Command::new("git");
    command
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("PATH_INFO", request.uri().path())
        .env("QUERY_STRING", request.uri().query().unwrap_or_default())
        .env("REQUEST_METHOD", request.method().as_str())
        .env("REMOTE_USER", "tester");
    for (variable, name) in [
        ("CONTENT_TYPE", "content-type"),
        ("HTTP_CONTENT_ENCODING", "content-encoding"),
        ("GIT_PROTOCOL", "git-protocol"),
    ] {
        command.env(variable, header(name).unwrap_or_default());
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut input = child.stdin.take().unwrap();
    let (_, output) = tokio::join!(async move { input.write_all(&body).await }, child.wait_with_output());
    let output = output.unwrap().stdout;
    let split = output.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let mut response = Response::builder();
    for line in str::from_utf8(&output[..split]).unwrap().lines() {
        let (name, value) = line.split_once(": ").unwrap();
        response = if name == "Status" { response.status(&value[..3]) } else { response.header(name, value) };
    }
    response.body(Bytes::copy_from_slice(&output[split + 4..]).into()).unwrap()
}

/// A command that uses the proxy through the usual variables, isolated from this machine's settings.
fn proxied_command(world: &World, program: &str, directory: &Path) -> Command {
    let proxy = format!("http://{}", world.address);
    let mut command = Command::new(program);
    for variable in
        ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "CARGO_HTTP_PROXY"]
    {
        command.env(variable, &proxy);
    }
    command.env("no_proxy", "").env("NO_PROXY", "").current_dir(directory).kill_on_drop(true);
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0");
    command
}

async fn run(mut command: Command) -> Output {
    timeout(TEST_TIMEOUT, command.output()).await.unwrap().unwrap()
}

async fn run_ok(command: Command) -> String {
    let output = run(command).await;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    out.into_owned()
}

async fn is_installed(program: &str) -> bool {
    let version = Command::new(program).arg("--version").output().await;
    let installed = version.is_ok_and(|output| output.status.success());
    if !installed {
        println!("{program} is not installed: skipped");
    }
    installed
}

/// Runs a command in a directory without the proxy, to prepare what is then fetched.
async fn run_locally(directory: &Path, line: &[&str]) {
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).current_dir(directory);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    run_ok(command).await;
}

async fn only_plain_requests(world: &mut World) {
    let Record { kind, ended, bytes_up, bytes_down, .. } = world.record().await;
    assert_eq!((kind, ended), (Kind::Http, RequestEnd::Complete));
    assert!(bytes_up > 0 && bytes_down > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_works_plain_and_tunnelled_and_shows_refusals() {
    let site = Origin::start(PUBLIC, HELLO).await;
    let mut world = World::new().await;
    let here = Path::new(".");
    let url = format!("http://site.test:{}/", site.port());
    for (extra, kind) in [(&["-s"][..], Kind::Http), (&["-s", "--proxytunnel"], Kind::Connect)] {
        let mut curl = proxied_command(&world, "curl", here);
        curl.args(extra).arg(&url);
        assert_eq!(run_ok(curl).await, "hello");
        assert_eq!(world.record().await.kind, kind);
    }
    let mut upload = proxied_command(&world, "curl", here);
    upload.args(["-s", "-H", "Transfer-Encoding: chunked", "-d", "some data", &url]);
    assert_eq!(run_ok(upload).await, "hello");
    assert!(site.requests().last().unwrap().ends_with("9\r\nsome data\r\n0\r\n\r\n"));

    let mut refused = proxied_command(&world, "curl", here);
    refused.args(["-s", "-L", "http://169.254.169.254/latest/"]);
    let output = run_ok(refused).await;
    assert!(output.contains("address_refused") && output.contains("cloud metadata"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn git_clones_and_pushes() {
    let site = Site::start().await;
    let mut world = World::new().await;
    let root = site.directory.path();
    let seed = root.join("seed");
    site.write("seed/readme", "hello\n".repeat(20_000));
    let me = ["-c", "user.name=t", "-c", "user.email=t@example.com"];
    run_locally(&seed, &["git", "init", "-q", "-b", "main"]).await;
    run_locally(&seed, &["git", "add", "."]).await;
    run_locally(&seed, &[&["git"], &me[..], &["commit", "-qm", "first"]].concat()).await;
    run_locally(root, &["git", "clone", "-q", "--bare", "seed", "git/repo.git"]).await;
    run_locally(&root.join("git/repo.git"), &["git", "config", "http.receivepack", "true"]).await;

    let mut clone = proxied_command(&world, "git", root);
    clone.args(["clone", "-q", &format!("{}/git/repo.git", site.url()), "copy"]);
    run_ok(clone).await;
    let copy = root.join("copy");
    assert_eq!(std::fs::read_to_string(copy.join("readme")).unwrap().len(), 120_000);

    std::fs::write(copy.join("more"), vec![7; 3_000_000]).unwrap();
    run_locally(&copy, &["git", "add", "."]).await;
    run_locally(&copy, &[&["git"], &me[..], &["commit", "-qm", "second"]].concat()).await;
    let mut push = proxied_command(&world, "git", &copy);
    // A small buffer, so that the pack is sent in chunks.
    push.args(["-c", "http.postBuffer=1000", "-c", "core.compression=0", "push", "-q", "origin", "main"]);
    run_ok(push).await;
    let mut log = Command::new("git");
    log.args(["log", "--format=%s", "main"]).current_dir(root.join("git/repo.git"));
    assert_eq!(run_ok(log).await, "second\nfirst\n");
    only_plain_requests(&mut world).await;

    let mut refused = proxied_command(&world, "git", root);
    refused.args(["clone", "-q", &format!("http://127.0.0.1:{}/git/repo.git", site.address.port()), "no"]);
    let output = run(refused).await;
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("403"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pip_downloads_a_package() {
    if !is_installed("pip").await || !is_installed("python3").await {
        return;
    }
    let site = Site::start().await;
    let mut world = World::new().await;
    let wheel = "tiny_thing-1.0-py3-none-any.whl";
    let info = "tiny_thing-1.0.dist-info";
    site.write("w/tiny_thing.py", "answer = 42\n");
    site.write(&format!("w/{info}/METADATA"), "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n");
    site.write(
        &format!("w/{info}/WHEEL"),
        "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    );
    site.write(&format!("w/{info}/RECORD"), "");
    let directory = site.directory.path().join("w");
    run_locally(&directory, &["python3", "-m", "zipfile", "-c", wheel, "tiny_thing.py", info]).await;
    site.write("simple/tiny-thing/index.html", format!("<!DOCTYPE html><a href=\"/w/{wheel}\">{wheel}</a>"));
    let mut pip = proxied_command(&world, "pip", site.directory.path());
    pip.env("PIP_CONFIG_FILE", "/dev/null");
    pip.args([
        "download",
        "-q",
        "--no-deps",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--retries",
        "0",
    ]);
    pip.args([
        "--trusted-host",
        "site.test",
        "--index-url",
        &format!("{}/simple/", site.url()),
        "-d",
        "got",
        "tiny-thing",
    ]);
    run_ok(pip).await;
    assert!(site.directory.path().join("got").join(wheel).exists());
    only_plain_requests(&mut world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn npm_installs_a_package() {
    if !is_installed("npm").await {
        return;
    }
    let site = Site::start().await;
    let mut world = World::new().await;
    let url = site.url();
    site.write("package/package.json", r#"{"name":"tiny-thing","version":"1.0.0"}"#);
    run_locally(site.directory.path(), &["tar", "czf", "tiny.tgz", "package"]).await;
    let manifest = format!(
        r#"{{"name":"tiny-thing","dist-tags":{{"latest":"1.0.0"}},"versions":{{"1.0.0":{{"name":"tiny-thing","version":"1.0.0","dist":{{"tarball":"{url}/tiny.tgz"}}}}}}}}"#
    );
    site.write("tiny-thing", manifest);
    site.write("app/package.json", r#"{"name":"app","version":"1.0.0"}"#);
    let app = site.directory.path().join("app");
    let mut npm = proxied_command(&world, "npm", &app);
    npm.env("npm_config_userconfig", app.join("none")).env("npm_config_cache", app.join("cache"));
    npm.args(["install", "--no-audit", "--no-fund", "--no-update-notifier", "--fetch-retries=0"]);
    npm.args(["--registry", &format!("{url}/"), "tiny-thing"]);
    run_ok(npm).await;
    assert!(app.join("node_modules/tiny-thing/package.json").exists());
    only_plain_requests(&mut world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cargo_fetches_a_crate() {
    let site = Site::start().await;
    let mut world = World::new().await;
    let root = site.directory.path();
    let package =
        |name: &str| format!("[package]\nname = \"{name}\"\nversion = \"1.0.0\"\nedition = \"2021\"\n");
    site.write("tiny-thing-1.0.0/Cargo.toml", package("tiny-thing"));
    site.write("tiny-thing-1.0.0/src/lib.rs", "");
    let download = "dl/tiny-thing/1.0.0/download";
    site.write(download, "");
    run_locally(root, &["tar", "czf", download, "tiny-thing-1.0.0"]).await;
    let mut sum = Command::new("sha256sum");
    sum.arg(download).current_dir(root);
    let sum = run_ok(sum).await;
    let entry = format!(
        r#"{{"name":"tiny-thing","vers":"1.0.0","deps":[],"cksum":"{}","features":{{}},"yanked":false}}"#,
        &sum[..64]
    );
    site.write("index/ti/ny/tiny-thing", entry);
    site.write("index/config.json", format!(r#"{{"dl":"{}/dl"}}"#, site.url()));
    site.write(
        "app/Cargo.toml",
        package("app")
            + "[dependencies]\ntiny-thing = { version = \"1\", registry = \"here\" }\n[workspace]\n",
    );
    site.write("app/src/lib.rs", "");
    site.write("home/config.toml", format!("[registries.here]\nindex = \"sparse+{}/index/\"\n", site.url()));
    let mut cargo = proxied_command(&world, env!("CARGO"), &root.join("app"));
    cargo.env("CARGO_HOME", root.join("home")).args(["fetch", "-q"]);
    run_ok(cargo).await;
    let lock = std::fs::read_to_string(root.join("app/Cargo.lock")).unwrap();
    assert!(lock.contains("tiny-thing"), "{lock}");
    only_plain_requests(&mut world).await;
}
