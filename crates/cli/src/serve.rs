//! `up` and `serve`: the same gateway, once for a person at a terminal and once for a supervisor.

use std::io::Write as _;
use std::time::Duration;

use gateway::config::Database;
use gateway::identity::login_link;
use gateway::lifecycle::Lifecycle;
use gateway::llm::Llm;
use gateway::runtime::Sandboxes;
use gateway::{Gateway, telemetry};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandbox::{Listed, SandboxState};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use store::Member;

use crate::context::Context;
use crate::failure::Failure;
use crate::memory;
use crate::output::{BOLD, DIM, GREEN, line};

/// By then everything that happens once at the start has happened.
const STARTED: Duration = Duration::from_secs(2);

/// Runs everything and greets the person who started it with a fresh login link.
pub(crate) async fn up(context: &Context, stop_agents: bool) -> Result<(), Failure> {
    let (gateway, life) = start(context).await?;
    let owner = gateway.app.store.first_owner().await?;
    let link = link(context, &gateway, owner.as_ref()).await?;
    if context.out.is_json() {
        announce(&gateway, link.as_ref());
    } else {
        greet(&gateway, link.as_ref());
    }
    serve_until_stopped(gateway, life, stop_agents).await
}

/// Runs the gateway; prints where it listens, and on the first start of a database the link of its owner.
pub(crate) async fn serve(context: &Context) -> Result<(), Failure> {
    let (gateway, life) = start(context).await?;
    let link = link(context, &gateway, gateway.first_owner.as_ref()).await?;
    if context.out.is_json() {
        announce(&gateway, link.as_ref());
    } else {
        line(&format!("listening on {}", gateway.app.public_url));
        if let Some(link) = &link {
            line(&format!("first start: log in, once, with {}", link.expose_secret()));
        }
    }
    serve_until_stopped(gateway, life, false).await
}

/// Listens to signals first: whoever reads our greeting may answer it with a stop signal at once.
async fn start(context: &Context) -> Result<(Gateway, Lifecycle), Failure> {
    telemetry::start_logging(&context.config);
    raise_descriptor_limit();
    let life = Lifecycle::default();
    let signals = life.stop_on_signals(context.config.stop_after);
    signals.map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))?;
    let (clock, rng) = (context.clock.clone(), context.rng.clone());
    let starting = Box::pin(Gateway::start(context.config.clone(), context.insecure, clock, rng));
    tokio::select! {
        gateway = starting => Ok((gateway?, life)),
        () = life.soft.cancelled() => Err(Failure::failed("stopped before the start was complete")),
    }
}

/// Clients and sandboxes need some each, and what a shell gives at first is meant for one program.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the host gives no more open files than it did at first");
    }
}

async fn serve_until_stopped(gateway: Gateway, life: Lifecycle, stop_agents: bool) -> Result<(), Failure> {
    tracing::info!(url = %gateway.app.public_url, version = env!("CARGO_PKG_VERSION"), "serving");
    tokio::spawn(async {
        tokio::time::sleep(STARTED).await;
        memory::give_back();
    });
    let app = gateway.app.clone();
    if !gateway.run(&life).await {
        tracing::warn!("stopped hard: requests were cut off");
    }
    leave_agents(&app.sandboxes, stop_agents).await
}

/// Agents outlive the gateway on purpose. Whoever stops it learns which do, or has them ended.
async fn leave_agents(sandboxes: &Sandboxes, stop: bool) -> Result<(), Failure> {
    if !sandboxes.provider.capabilities().owns_processes {
        return Ok(());
    }
    let runs = |listed: &Listed| matches!(listed.state, SandboxState::Running | SandboxState::Paused);
    let running: Vec<_> = sandboxes.provider.list().await?.into_iter().filter(runs).collect();
    if running.is_empty() {
        return Ok(());
    }
    let names = running.iter().map(|listed| listed.id.as_str()).collect::<Vec<_>>().join(" ");
    if stop {
        for listed in &running {
            sandboxes.provider.halt(&listed.id).await?;
        }
        tracing::info!(sandboxes = names, "ended the agents");
        let _ = writeln!(anstream::stderr(), "ended the agents; their files are kept: {names}");
        return Ok(());
    }
    tracing::info!(sandboxes = names, "agents keep running");
    let _ = writeln!(
        anstream::stderr(),
        "{} agents keep running: {names}\nend them with `proliferate sandbox halt --all`, or next time with `up --stop-agents`",
        running.len()
    );
    Ok(())
}

async fn link(
    context: &Context,
    gateway: &Gateway,
    member: Option<&Member>,
) -> Result<Option<SecretString>, Failure> {
    let Some(member) = member else { return Ok(None) };
    let app = &gateway.app;
    Ok(Some(login_link(&app.store, member, &app.public_url, &context.clock, &context.rng).await?))
}

/// One JSON value that tells a program where to go.
fn announce(gateway: &Gateway, link: Option<&SecretString>) {
    let address = gateway.address().map(|address| address.to_string());
    let link = link.map(|link| link.expose_secret().to_owned());
    line(
        &json!({ "address": address, "url": gateway.app.public_url.as_str(), "loginLink": link }).to_string(),
    );
}

fn greet(gateway: &Gateway, link: Option<&SecretString>) {
    let app = &gateway.app;
    let model = match app.llm {
        Llm::Scripted(_) => {
            "built-in script, no account needed (set ANTHROPIC_API_KEY for a real one)".to_owned()
        }
        Llm::Upstream { ref base, .. } => format!("{base}"),
    };
    let data = match app.config.database {
        Database::Sqlite => format!("{} (SQLite)", app.config.data_dir.display()),
        Database::Postgres(_) => "PostgreSQL".to_owned(),
    };
    let row = |name: &str, value: &str| line(&format!("  {DIM}{name:8}{DIM:#} {value}"));
    line(&format!(
        "\n{GREEN}●{GREEN:#} {BOLD}proliferate {}{BOLD:#} is running\n",
        env!("CARGO_PKG_VERSION")
    ));
    row("Web", app.public_url.as_str());
    if let Some(link) = link {
        row("Log in", &format!("{BOLD}{}{BOLD:#}", link.expose_secret()));
        row("", "works once, within 15 minutes; another: proliferate login-link");
    }
    row("Model", &model);
    row("Sandbox", app.sandboxes.name());
    row("Data", &data);
    row("Check", "proliferate doctor");
    row("Stop", "Ctrl-C\n");
}
