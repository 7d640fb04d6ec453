//! Shell completion for organizations, members, keys and sessions: from the gateway that the user has logged in to, or else
//! from the database. A shell calls it each time the user asks for completions, so it omits anything that it cannot read
//! and reports no error.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::StyledStr;
use clap_complete::engine::CompletionCandidate;
use client::Client;
use clock::Clock;
use gateway::config::{self, Config, Database};
use secrecy::ExposeSecret as _;
use store::Store;

use crate::args::{GatewayArgs, web_url};
use crate::failure::Failure;
use crate::gateway_client;
use crate::login_contexts::LoginContexts;
use crate::lookup::{self, Candidate};

/// How long a person at a prompt waits for completions from a gateway.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn orgs() -> Vec<CompletionCandidate> {
    from_database(async |store| Ok(to_completions(lookup::orgs(&store).await?)))
}

pub(crate) fn users() -> Vec<CompletionCandidate> {
    from_database(async |store| Ok(to_completions(lookup::users(&store, None).await?)))
}

pub(crate) fn keys() -> Vec<CompletionCandidate> {
    from_database(async |store| {
        let mut all = Vec::new();
        for org in store.orgs().await? {
            all.extend(lookup::keys(&store, org.id).await?);
        }
        Ok(to_completions(all))
    })
}

pub(crate) fn grants() -> Vec<CompletionCandidate> {
    from_database(async |store| {
        let now = Clock::system().now();
        let active = store.override_grants().await?.into_iter();
        let active = active.filter(|grant| grant.revoked_at.is_none() && grant.valid_until > now).collect();
        Ok(to_completions(lookup::grants(&store, active).await?))
    })
}

pub(crate) fn automations() -> Vec<CompletionCandidate> {
    remote(async |client| Ok(to_completions(crate::automations::candidates(&client).await?)))
        .unwrap_or_default()
}

pub(crate) fn runs() -> Vec<CompletionCandidate> {
    remote(async |client| Ok(to_completions(crate::runs::candidates(&client).await?))).unwrap_or_default()
}

pub(crate) fn contexts() -> Vec<CompletionCandidate> {
    let saved = LoginContexts::load().unwrap_or_default().contexts;
    saved.iter().map(|one| CompletionCandidate::new(&one.name)).collect()
}

pub(crate) fn repos() -> Vec<CompletionCandidate> {
    if let Some(found) = remote(async |client| Ok(to_completions(crate::repos::candidates(&client).await?))) {
        return found;
    }
    from_database(async |store| {
        let mut all = Vec::new();
        for org in store.orgs().await? {
            all.extend(lookup::repos(&store, org.id).await?);
        }
        Ok(to_completions(all))
    })
}

/// Integrations are known to the gateway only.
pub(crate) fn integrations() -> Vec<CompletionCandidate> {
    remote(async |client| Ok(to_completions(crate::integrations::candidates(&client).await?)))
        .unwrap_or_default()
}

pub(crate) fn configurations() -> Vec<CompletionCandidate> {
    if let Some(found) =
        remote(async |client| Ok(to_completions(crate::configurations::candidates(&client).await?)))
    {
        return found;
    }
    from_database(async |store| {
        let mut all = Vec::new();
        for org in store.orgs().await? {
            all.extend(lookup::configurations(&store, org.id).await?);
        }
        Ok(to_completions(all))
    })
}

pub(crate) fn sessions() -> Vec<CompletionCandidate> {
    if let Some(found) = remote(async |client| Ok(to_completions(crate::session::candidates(&client).await?)))
    {
        return found;
    }
    from_database(async |store| Ok(to_completions(lookup::sessions(&store).await?)))
}

/// Offers each candidate by its id, with its names as the help text, and by each name that needs no shell quoting.
fn to_completions<T: ToString>(all: Vec<Candidate<T>>) -> Vec<CompletionCandidate> {
    let plain = |name: &&String| name.chars().all(|c| c.is_ascii_alphanumeric() || "@._+-".contains(c));
    let mut found = Vec::new();
    for Candidate { id, names } in all {
        let help = StyledStr::from(crate::clean::one_line(&names.join(", ")));
        found.extend(names.iter().filter(plain).map(CompletionCandidate::new));
        found.push(CompletionCandidate::new(id.to_string()).help(Some(help)));
    }
    found
}

/// Asks the gateway that a login, an option or a setting names. `None` if there is none, or if `--data-dir` names the
/// database.
fn remote(
    list: impl AsyncFnOnce(Client) -> Result<Vec<CompletionCandidate>, Failure>,
) -> Option<Vec<CompletionCandidate>> {
    if data_dir().is_some() {
        return None;
    }
    let url = option("--url").and_then(|url| url.to_str().and_then(|url| web_url(url).ok()));
    let token = option("--token").and_then(|token| token.into_string().ok());
    let client = gateway_client::remote(GatewayArgs { url, token })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let answer = runtime.block_on(async { tokio::time::timeout(COMPLETION_TIMEOUT, list(client)).await });
    Some(answer.ok().and_then(Result::ok).unwrap_or_default())
}

fn from_database(
    list: impl AsyncFnOnce(Store) -> Result<Vec<CompletionCandidate>, Failure>,
) -> Vec<CompletionCandidate> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    runtime.block_on(async { list(open().await?).await }).unwrap_or_default()
}

async fn open() -> Result<Store, Failure> {
    let flags = data_dir().map(|dir| ("PROLIFERATE_DATA_DIR".to_owned(), dir.display().to_string()));
    let config = Config::load(&config::environment(), &flags.into_iter().collect::<Vec<_>>())?;
    Ok(match &config.database {
        Database::Sqlite => Store::open_existing_sqlite(&config.sqlite_file()).await?,
        Database::Postgres(url) => Store::open_existing_postgres(url.expose_secret()).await?,
    })
}

/// The data dir given on the command line that is being completed.
fn data_dir() -> Option<PathBuf> {
    option("--data-dir").map(PathBuf::from)
}

/// The value of an option on the command line that is being completed.
fn option(name: &str) -> Option<OsString> {
    let words: Vec<_> = std::env::args_os().collect();
    let named = words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    let joined = || words.iter().find_map(|word| word.to_str()?.strip_prefix(name)?.strip_prefix('='));
    named.cloned().or_else(|| joined().map(OsString::from))
}
