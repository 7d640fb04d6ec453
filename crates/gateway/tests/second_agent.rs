//! A second type of agent in a real sandbox: the gateway writes its files, starts its program and talks to it, without
//! knowing it. The supervisor of a sandbox is the gateway's own program, which is this one here.

#![expect(clippy::print_stdout, reason = "it has no harness that prints")]

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as B64;
use clock::{Clock, Rng};
use gateway::Gateway;
use gateway::config::Config;
use gateway::identity::USER_TOKEN_LIFETIME;
use gateway::lifecycle::Lifecycle;
use gateway::runtime::Insecure;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use testkit::Acp;

type Outcome<T> = Result<T, Box<dyn Error>>;

const TEST_NAME: &str = "a_second_type_of_agent_works_in_a_sandbox";
const TEST_TIMEOUT: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    if let Some(code) = std::env::args_os()
        .nth(1)
        .and_then(|word| sandbox::local::hidden_main(&word).or_else(|| sandboxd::server::hidden_main(&word)))
    {
        return code;
    }
    let filters: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if !filters.is_empty() && !filters.iter().any(|filter| TEST_NAME.contains(filter.as_str())) {
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => {
            println!("test {TEST_NAME} ... ok");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("test {TEST_NAME} ... FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, converse()).await });
    outcome.map_err(|_| "it hangs")?
}

async fn converse() -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let settings = BTreeMap::from([
        ("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("PROLIFERATE_DATA_DIR".to_owned(), directory.path().join("data").to_string_lossy().into_owned()),
        ("PROLIFERATE_LISTEN".to_owned(), "127.0.0.1:0".to_owned()),
    ]);
    let config = Config::load(&settings, &[])?;
    let parts = (Clock::system(), Rng::system());
    let gateway =
        Box::pin(Gateway::start_with_agent(Arc::new(Acp), config, Insecure::Refused, parts)).await?;
    let owner = gateway.first_owner.clone().ok_or("the first start creates an owner")?;
    let now = gateway.app.clock.now();
    let token = gateway.app.credentials.issuer.user(
        owner.user_id,
        owner.org_id,
        &owner.email,
        now,
        USER_TOKEN_LIFETIME,
    );
    let address = gateway.address().ok_or("the gateway listens")?;
    let life = Lifecycle::default();
    let (ours, task) = (life.clone(), tokio::spawn(async move { gateway.run(&life).await }));
    let api = Api {
        http: reqwest::Client::builder().no_proxy().build()?,
        url: format!("http://{address}"),
        token: token.expose_secret().to_owned(),
    };
    let outcome = check(&api).await;
    ours.soft.cancel();
    ours.hard.cancel();
    task.await?;
    outcome
}

async fn check(api: &Api) -> Outcome<()> {
    let body = json!({ "sessionType": "coding", "clientType": "web" });
    let created = api.call("POST", "/proliferate/sessions", &body).await?;
    let session = created["sessionId"].as_str().ok_or("a session has an id")?.to_owned();
    let prompt = json!({ "type": "prompt", "content": "greet me" });
    api.call("POST", &format!("/proliferate/{session}/message"), &prompt).await?;
    let wanted = json!(["greet me", "Running a command.", "The command printed its greeting."]);
    let messages = loop {
        let page = api.call("GET", &format!("/proliferate/{session}/messages"), &Value::Null).await?;
        let complete = |message: &Value| message["isComplete"] == true;
        let messages = page["messages"].as_array().cloned().unwrap_or_default();
        if messages.len() == 3 && messages.iter().all(complete) {
            break messages;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    let contents: Vec<Value> = messages.iter().map(|message| message["content"].clone()).collect();
    expect("the conversation", &json!(contents), &wanted)?;
    expect("the tool", &messages[1]["toolCalls"][0]["tool"], &json!("bash"))?;

    // Its files are those that its type names, with the instructions and the tools of the session's mode.
    let command = json!({ "command": ["sh", "-c", "cd /home/user/.proliferate/agent && ls . tool"] });
    let answer = api.call("POST", &format!("/proliferate/{session}/exec"), &command).await?;
    let output: Value =
        serde_json::from_str(answer.as_str().unwrap_or_default().lines().next().unwrap_or_default())?;
    let listing = String::from_utf8(B64.decode(output["data"].as_str().unwrap_or_default())?)?;
    for name in ["server.mjs", "recording.jsonl", "instructions.md", "model-key", "save_snapshot.json"] {
        if !listing.contains(name) {
            return Err(format!("{name} is not in {listing}").into());
        }
    }
    if listing.contains("opencode") {
        return Err(format!("a file of OpenCode is in {listing}").into());
    }
    Ok(())
}

fn expect(what: &str, found: &Value, wanted: &Value) -> Outcome<()> {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found} instead of {wanted}").into()) }
}

struct Api {
    http: reqwest::Client,
    url: String,
    token: String,
}

impl Api {
    async fn call(&self, method: &str, path: &str, body: &Value) -> Outcome<Value> {
        let request = self.http.request(method.parse()?, format!("{}{path}", self.url));
        let mut request = request.bearer_auth(&self.token);
        if !body.is_null() {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = request.send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        if !status.is_success() {
            return Err(format!("{method} {path}: {status} {text}").into());
        }
        // The output of a command is a stream of lines, each of them JSON.
        Ok(serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }
}
