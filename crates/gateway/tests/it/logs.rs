//! Checks that no secret reaches a log, whatever the level and wherever a client puts a credential.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::Once;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use proto::Role;
use serde_json::json;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::harness::{JWT_SECRET, Running, SERVICE_SECRET, Setup, VAULT_KEY};
use crate::people::{OrgOf3, api_key, login_code, sandbox_token, service_token, session};

thread_local! {
    /// The log output of this thread while a test captures it.
    static CAPTURED_LOG: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Captures everything that this thread logs, at every level, until dropped. A test and all its tasks run on one
/// thread.
pub(crate) struct Captured(());

impl Captured {
    pub(crate) fn start() -> Self {
        // Install one subscriber for the whole process: tracing caches for each call site whether anybody is
        // interested, so a per-thread subscriber misses events that another thread logged first.
        static INSTALL_CAPTURE: Once = Once::new();
        INSTALL_CAPTURE.call_once(|| {
            let listens = dynamic_filter_fn(|_, _| CAPTURED_LOG.with_borrow(Option::is_some));
            let layer = tracing_subscriber::fmt::layer().with_writer(|| Listener).with_ansi(false);
            tracing_subscriber::registry().with(layer.with_filter(listens)).init();
        });
        CAPTURED_LOG.set(Some(Vec::new()));
        Self(())
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Self(()) = self;
        CAPTURED_LOG.with_borrow(|heard| heard.clone().unwrap_or_default())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        CAPTURED_LOG.set(None);
    }
}

struct Listener;

impl Write for Listener {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        CAPTURED_LOG.with_borrow_mut(|heard| heard.get_or_insert_default().extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The secret in every encoding that would hide it from a plain search.
pub(crate) fn forms(secret: &str) -> Vec<String> {
    vec![
        secret.to_owned(),
        hex::encode(secret),
        BASE64_STANDARD.encode(secret),
        BASE64_URL_SAFE_NO_PAD.encode(secret),
    ]
}

/// Sends `secret` in every place where a client can put one.
async fn show_everywhere(running: &Running, secret: &str, session: &str, owner: &str) {
    let client = crate::harness::client();
    let cookie = format!("proliferate_login_{}={secret}", running.address.port());
    let status = format!("/proliferate/sessions/{session}/status?token={secret}");
    let (query, path, file) =
        (format!("/v1/me?token={secret}"), format!("/{secret}"), format!("/ui/{secret}"));
    for path in ["/v1/me", &status, &query, &path, &file] {
        let request = client.get(running.url(path)).bearer_auth(secret).header("x-api-key", secret);
        request.send().await.unwrap();
        client.get(running.url(path)).header("cookie", &cookie).send().await.unwrap();
    }
    client.post(running.url("/v1/login")).json(&json!({"code": secret})).send().await.unwrap();
    client.post(running.url("/llm/v1/messages")).header("x-api-key", secret).send().await.unwrap();
    let set = client.put(running.url("/v1/secrets/A")).bearer_auth(owner).json(&json!({"value": secret}));
    assert!(set.send().await.unwrap().status().is_success());
}

#[tokio::test]
async fn a_refused_request_is_logged_with_its_caller_and_the_reason() {
    let logs = Captured::start();
    let gateway = Setup::sqlite().start().await;
    let team = OrgOf3::new(&gateway.app).await;
    let member = team.person(Role::Member);
    let set = gateway.call("PUT", "/v1/secrets/A").bearer(&member.token).json(&json!({"value": "x"}));
    assert_eq!(set.send().await.status, 403);
    let body = gateway.post("/v1/tickets", &json!({"kind": "s3cret"})).bearer(&member.token).send().await;
    assert_eq!(body.status, 400, "{}", body.text());
    let text = logs.text();
    let line = |status: &str| {
        let of = |line: &&str| line.contains("answered") && line.contains(&format!("status={status}"));
        text.lines().find(of).unwrap_or_else(|| panic!("no {status} in:\n{text}"))
    };
    for wanted in
        [&format!("caller=\"user {}\"", member.id), &format!("org={}", team.org), "Only admins and owners"]
    {
        assert!(line("403").contains(wanted), "{wanted} is not in {}", line("403"));
    }
    assert!(line("400").contains("reason=\"") && !line("400").contains("s3cret"), "{}", line("400"));
}

#[tokio::test]
async fn no_credential_code_or_secret_is_ever_logged() {
    let logs = Captured::start();
    let gateway = Setup::postgres().await.set("SANDBOX_TOKEN_COMPAT", "1").start().await;
    let app = gateway.app.clone();
    let team = OrgOf3::new(&app).await;
    let (owner, session) = (team.person(Role::Owner), session(&app, team.org).await);
    let ticket =
        gateway.post("/v1/tickets", &json!({"sessionId": session, "kind": "socket"})).bearer(&owner.token);
    let made = gateway.post("/v1/keys", &json!({"name": "k"})).bearer(&owner.token).send().await.json();
    let login = login_code(&app, owner).await;
    let cookie = crate::login::logged_in(&gateway, owner).await;
    let mut secrets = vec![
        owner.token.clone(),
        api_key(&app, owner).await.1,
        made["key"].as_str().unwrap().to_owned(),
        service_token(&app, None),
        sandbox_token(&app, session).await,
        gateway::identity::compat_sandbox_token(&app.credentials.service_secret, &session.to_string()),
        ticket.send().await.json()["ticket"].as_str().unwrap().to_owned(),
        login,
        cookie,
        "plk_not-a-key-but-somebody-might-think-so".to_owned(),
        "the-password-of-a-user-who-mistook-the-field".to_owned(),
    ];
    let running = gateway.serve();
    for secret in &secrets {
        show_everywhere(&running, secret, &session.to_string(), &owner.token).await;
    }
    secrets.extend([JWT_SECRET, SERVICE_SECRET, VAULT_KEY].map(str::to_owned));
    let text = logs.text();
    assert!(text.contains("route=\"/v1/me\"") && text.contains("answered"), "the log was looked at:\n{text}");
    for secret in secrets {
        for form in forms(&secret) {
            let line = text.lines().find(|line| line.contains(&form));
            assert!(line.is_none(), "{secret} is in: {line:?}");
        }
    }
}
