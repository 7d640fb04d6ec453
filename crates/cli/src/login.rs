//! `login`, `logout`, `approve-login` and `context`: which gateway later commands talk to, and as whom.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::time::Duration;

use client::Client;
use proto::http::{DeviceToken, StartedDeviceLogin};
use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use secrecy::SecretString;
use serde_json::json;
use url::{Host, Url};

use crate::args::{ApproveArgs, ContextCommand, LOCAL, LoginArgs};
use crate::clean::clean;
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect;
use crate::login_contexts::{LoginContext, LoginContexts};
use crate::output::{note, warn};

/// Added to the interval between polls when the gateway says that they come too fast (RFC 8628).
const SLOW_DOWN_STEP: Duration = Duration::from_secs(5);

pub(crate) async fn login(context: &Context, args: LoginArgs) -> Result<(), Failure> {
    let LoginArgs { url, name, device } = args;
    if url.scheme() == "http" && !is_loopback(&url) {
        warn("this address is plain HTTP: whoever is on the way can read the key");
    }
    let mut saved = LoginContexts::load()?;
    let key = if device { None } else { ask_for_key()? };
    let name = name.unwrap_or_else(|| name_of(&url));
    let login = match key {
        Some(key) => with_key(name, url, key).await?,
        None => with_code(context, name, url).await?,
    };
    let value = json!({
        "context": login.name, "url": login.url.as_str(), "email": login.email, "organization": login.organization,
    });
    let who = login.email.clone().unwrap_or_else(|| "the owner of the key".to_owned());
    let sentence =
        format!("logged in to {} as {who}; later commands use it (context {})", login.url, login.name);
    saved.put(login);
    saved.save()?;
    context.out.result(&value, &sentence);
    Ok(())
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

/// The default name of a login: the host, with the port if it is not the usual one.
fn name_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default().replace(['[', ']'], "");
    url.port().map_or_else(|| host.clone(), |port| format!("{host}:{port}"))
}

/// Reads an API key from standard input, without echo on a terminal. `None` if the line is empty.
fn ask_for_key() -> Result<Option<SecretString>, Failure> {
    let mut line = String::new();
    let echo = io::stdin().is_terminal().then(|| {
        let _ = write!(anstream::stderr(), "API key (press Enter to log in with a code instead): ");
        HiddenInput::start()
    });
    let read = io::stdin().lock().read_line(&mut line);
    if echo.is_some() {
        let _ = writeln!(anstream::stderr());
    }
    read.map_err(|error| Failure::usage(format!("cannot read the key from standard input: {error}")))?;
    Ok(Some(line.trim()).filter(|key| !key.is_empty()).map(SecretString::from))
}

/// Switches the echo of the terminal off until it is dropped.
struct HiddenInput(Option<Termios>);

impl HiddenInput {
    fn start() -> Self {
        let before = termios::tcgetattr(io::stdin()).ok();
        if let Some(mut hidden) = before.clone() {
            hidden.local_modes.remove(LocalModes::ECHO);
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &hidden);
        }
        Self(before)
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

/// Checks the key with the gateway and names its owner.
async fn with_key(name: String, url: Url, key: SecretString) -> Result<LoginContext, Failure> {
    let client = Client::new(url.clone(), &key)?;
    let me = client.me().await?;
    let user =
        me.user_id.ok_or_else(|| Failure::usage("this key belongs to no person: use a person's API key"))?;
    // Old gateways and restricted keys may not list members; the address is shown only for convenience.
    let members = client.members().await.map(|list| list.members).unwrap_or_default();
    let email = members.into_iter().find(|member| member.user_id == user).map(|member| member.email);
    Ok(LoginContext { name, url, key, key_id: None, email, organization: me.org_id.map(|id| id.to_string()) })
}

/// Shows a code and waits until somebody has approved it.
async fn with_code(context: &Context, name: String, url: Url) -> Result<LoginContext, Failure> {
    let client = Client::without_token(url.clone())?;
    let started = client.start_device_login(&device_name(context)).await?;
    note(&format!(
        "the code is {}\nopen {} in a browser where you are logged in, or run `proliferate approve-login {}` there",
        started.user_code, started.verification_url, started.user_code
    ));
    let spinner = context.out.spinner("waiting until somebody approves the code");
    let token = wait_for_approval(&client, &started).await;
    spinner.finish_and_clear();
    let DeviceToken { token, key_id, user, org } = token?;
    let organization = Some(org.name).filter(|name| !name.is_empty());
    Ok(LoginContext {
        name,
        url,
        key: token.into(),
        key_id: Some(key_id),
        email: Some(user.email),
        organization,
    })
}

async fn wait_for_approval(client: &Client, started: &StartedDeviceLogin) -> Result<DeviceToken, Failure> {
    let mut interval = Duration::from_secs(started.interval.clamp(1, 60));
    loop {
        tokio::time::sleep(interval).await;
        match client.poll_device_login(&started.device_code).await {
            Ok(token) => return Ok(token),
            Err(error) if error.status() == Some(429) => interval += SLOW_DOWN_STEP,
            Err(error) if error.is_transient() || error.reason().contains("authorization_pending") => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// How the device appears to the person who approves it: the host's user and name.
fn device_name(context: &Context) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let user = context.operator.trim_start_matches("host:");
    let name: String =
        format!("{user}@{}", host.trim()).chars().filter(|c| !c.is_control()).take(70).collect();
    format!("CLI {name}")
}

pub(crate) async fn logout(context: &Context, name: Option<String>) -> Result<(), Failure> {
    let mut saved = LoginContexts::load()?;
    let name = name.or_else(|| saved.current.clone());
    let name =
        name.ok_or_else(|| Failure::failed("nobody is logged in: `proliferate context ls` shows logins"))?;
    let login = saved.remove(&name).ok_or_else(|| unknown_login(&name))?;
    saved.save()?;
    let revoked = if let Some(key) = login.key_id {
        let client = Client::new(login.url.clone(), &login.key)?;
        let revoked = client.delete_key(key).await;
        if let Err(error) = &revoked {
            warn(&format!("the key {key} could not be revoked, revoke it at the gateway: {error}"));
        }
        revoked.is_ok()
    } else {
        note("the key itself is still valid: whoever made it can revoke it with `proliferate keys revoke`");
        false
    };
    context
        .out
        .result(&json!({ "context": name, "revoked": revoked }), &format!("logged out of {}", login.url));
    Ok(())
}

fn unknown_login(name: &str) -> Failure {
    Failure::failed(format!("there is no login {name:?}: `proliferate context ls` shows them"))
}

pub(crate) async fn approve(context: &Context, args: ApproveArgs) -> Result<(), Failure> {
    let client = connect(context, args.gateway).await?;
    let waiting = client.device_login(&args.code).await?;
    client.decide_device_login(&waiting.user_code, !args.deny).await?;
    let (verb, device) = (if args.deny { "denied" } else { "approved" }, clean(&waiting.client_name));
    let value =
        json!({ "userCode": waiting.user_code, "clientName": waiting.client_name, "approved": !args.deny });
    context.out.result(&value, &format!("{verb} the login of {device}"));
    Ok(())
}

pub(crate) fn context(context: &Context, command: ContextCommand) -> Result<(), Failure> {
    let mut saved = LoginContexts::load()?;
    match command {
        ContextCommand::Ls => ls(context, &saved),
        ContextCommand::Use { name } if name == LOCAL => {
            saved.current = None;
            saved.save()?;
            context
                .out
                .result(&json!({ "context": name }), "commands use the data directory of this machine");
        }
        ContextCommand::Use { name } => {
            let url = saved.get(&name).map(|one| one.url.clone()).ok_or_else(|| unknown_login(&name))?;
            saved.current = Some(name.clone());
            saved.save()?;
            context
                .out
                .result(&json!({ "context": name, "url": url.as_str() }), &format!("commands use {url}"));
        }
    }
    Ok(())
}

fn ls(context: &Context, saved: &LoginContexts) {
    let current = |one: &LoginContext| saved.current.as_deref() == Some(one.name.as_str());
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let row = |one: &LoginContext| {
        let mark = if current(one) { "*" } else { "" };
        let names = [mark.to_owned(), one.name.clone(), one.url.to_string()];
        names.into_iter().chain([text(&one.email), text(&one.organization)]).collect()
    };
    let value = |one: &LoginContext| {
        json!({ "name": one.name, "url": one.url.as_str(), "email": one.email, "organization": one.organization,
            "current": current(one) })
    };
    let rows: Vec<Vec<String>> = saved.contexts.iter().map(row).collect();
    let values = saved.contexts.iter().map(value).collect();
    context.out.list(values, &["", "NAME", "URL", "USER", "ORGANIZATION"], &rows);
}
