//! `up` and `serve`: the same gateway, started by a person at a terminal or by a service supervisor.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use gateway::config::Database;
use gateway::identity::login_link;
use gateway::lifecycle::Lifecycle;
use gateway::runtime::Sandboxes;
use gateway::{Gateway, telemetry};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandbox::{SandboxInfo, SandboxState};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use store::Member;

use crate::context::Context;
use crate::doctor;
use crate::failure::Failure;
use crate::memory;
use crate::output::{BOLD, DIM, GREEN, json_line, line, warn};

/// How long to wait before releasing memory; by then all startup work is done.
const STARTUP_TIME: Duration = Duration::from_secs(2);

/// Starts the gateway and prints a new login link for the person who started it.
pub(crate) async fn up(context: &Context, stop_agents: bool) -> Result<(), Failure> {
    let (gateway, life) = start(context).await?;
    let owner = gateway.app.store.first_owner().await?;
    let link = link(context, &gateway, owner.as_ref()).await?;
    if context.out.is_json() {
        announce(&gateway, link.as_ref());
    } else {
        print_welcome(context, &gateway, link.as_ref());
    }
    if let Some(warning) = plain_http_warning(&gateway) {
        warn(&warning);
    }
    serve_until_stopped(context, gateway, life, stop_agents).await
}

/// Runs the gateway and prints the address on which it listens. On the first start of a database it also prints the
/// owner's login link, but only to a terminal: service logs are stored and read by others.
pub(crate) async fn serve(context: &Context) -> Result<(), Failure> {
    let (gateway, life) = start(context).await?;
    for problem in doctor::startup_problems(&context.config).await {
        tracing::warn!(check = problem.name, remedy = problem.remedy, "{}", problem.detail);
    }
    if let Some(warning) = plain_http_warning(&gateway) {
        tracing::warn!("{warning}");
    }
    let first = gateway.first_owner.as_ref();
    let to_terminal = std::io::stdout().is_terminal();
    let link = link(context, &gateway, first.filter(|_| to_terminal)).await?;
    if context.out.is_json() {
        announce(&gateway, link.as_ref());
    } else {
        line(&format!("listening on {}", listening(&gateway)));
        match &link {
            Some(link) => line(&format!("first start: log in, once, with {}", link.expose_secret())),
            None if first.is_some() => {
                let command = context.suggest("login-link");
                line(&format!("first start: `{command}` prints a link that logs the first owner in"));
            }
            None => {}
        }
    }
    serve_until_stopped(context, gateway, life, false).await
}

/// Starts the gateway. Installs the signal handlers first, because a caller may send a stop signal as soon as it reads
/// the greeting.
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

/// Raises the limit of open files to the hard limit: every client and sandbox needs several descriptors, and the
/// default soft limit is meant for one small program.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

async fn serve_until_stopped(
    context: &Context,
    gateway: Gateway,
    life: Lifecycle,
    stop_agents: bool,
) -> Result<(), Failure> {
    tracing::info!(url = %gateway.app.site.url, version = env!("CARGO_PKG_VERSION"), "serving");
    tokio::spawn(async {
        tokio::time::sleep(STARTUP_TIME).await;
        memory::give_back();
    });
    let app = gateway.app.clone();
    if !gateway.run(&life).await {
        tracing::warn!("stopped hard: requests were cut off");
    }
    leave_agents(context, &app.runtime.sandboxes, stop_agents).await
}

/// Lists the agents that keep running after the gateway stops, as they do by design, or ends them if `stop` is set.
async fn leave_agents(context: &Context, sandboxes: &Sandboxes, stop: bool) -> Result<(), Failure> {
    if !sandboxes.provider.capabilities().owns_processes {
        return Ok(());
    }
    let runs = |listed: &SandboxInfo| matches!(listed.state, SandboxState::Running | SandboxState::Paused);
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
        "{} agents keep running: {names}\nend them with `{}`, or next time with `up --stop-agents`",
        running.len(),
        context.suggest("sandbox halt --all")
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
    Ok(Some(login_link(&app.store, member, &app.site.url, &context.clock, &context.rng).await?))
}

/// Prints the address, the URL and the login link as one JSON value.
fn announce(gateway: &Gateway, link: Option<&SecretString>) {
    let address = gateway.address().map(|address| address.to_string());
    let link = link.map(|link| link.expose_secret().to_owned());
    json_line(&json!({ "address": address, "url": gateway.app.site.url.as_str(), "loginLink": link }));
}

/// Describes the address on which the gateway listens, with the port that it bound, and the public URL if it differs.
fn listening(gateway: &Gateway) -> String {
    let url = &gateway.app.site.url;
    match gateway.address() {
        Some(address) if address.ip().is_unspecified() => {
            format!("{address} (every network of this machine), {url}")
        }
        _ => url.to_string(),
    }
}

/// A warning if other machines can reach the gateway over plain HTTP.
fn plain_http_warning(gateway: &Gateway) -> Option<String> {
    let address = gateway.address()?;
    let public = &gateway.app.site.url;
    (!address.ip().is_loopback() && public.scheme() == "http").then(|| {
        format!(
            "{address} is plain HTTP: whoever is on the way can read logins and tokens. Listen on 127.0.0.1 behind a \
             proxy that speaks TLS, and set PUBLIC_URL to its https:// address"
        )
    })
}

fn print_welcome(context: &Context, gateway: &Gateway, link: Option<&SecretString>) {
    let app = &gateway.app;
    let model = match &app.model.llm.providers()[..] {
        [] => "built-in script, no account needed (set ANTHROPIC_API_KEY or OPENAI_BASE_URL for a real one)"
            .to_owned(),
        providers => providers.join(", "),
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
    row("Web", app.site.url.as_str());
    if gateway.address().is_some_and(|address| address.ip().is_unspecified()) {
        row("Listen", &listening(gateway));
    }
    if let Some(link) = link {
        row("Log in", &format!("{BOLD}{}{BOLD:#}", link.expose_secret()));
        row("", &format!("works once, within 15 minutes; another: {}", context.suggest("login-link")));
    }
    row("Model", &model);
    row("Sandbox", app.runtime.sandboxes.name());
    row("Data", &data);
    row("Check", &context.suggest("doctor"));
    row("Stop", "Ctrl-C\n");
}
