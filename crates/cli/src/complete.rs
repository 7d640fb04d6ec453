//! Shell completion for organizations, members, keys and sessions in the database. A shell calls it each time the user
//! asks for completions, so it omits anything that it cannot read and reports no error.

use std::path::PathBuf;

use clap::builder::StyledStr;
use clap_complete::engine::CompletionCandidate;
use clock::Clock;
use gateway::config::{self, Config, Database};
use secrecy::ExposeSecret as _;
use store::Store;

use crate::failure::Failure;
use crate::lookup::{self, Candidate};

pub(crate) fn orgs() -> Vec<CompletionCandidate> {
    asked(async |store| Ok(shown(lookup::orgs(&store).await?)))
}

pub(crate) fn users() -> Vec<CompletionCandidate> {
    asked(async |store| Ok(shown(lookup::users(&store, None).await?)))
}

pub(crate) fn keys() -> Vec<CompletionCandidate> {
    asked(async |store| {
        let mut all = Vec::new();
        for org in store.orgs().await? {
            all.extend(lookup::keys(&store, org.id).await?);
        }
        Ok(shown(all))
    })
}

pub(crate) fn grants() -> Vec<CompletionCandidate> {
    asked(async |store| {
        let now = Clock::system().now();
        let active = store.override_grants().await?.into_iter();
        let active = active.filter(|grant| grant.revoked_at.is_none() && grant.valid_until > now).collect();
        Ok(shown(lookup::grants(&store, active).await?))
    })
}

pub(crate) fn repos() -> Vec<CompletionCandidate> {
    asked(async |store| {
        let mut all = Vec::new();
        for org in store.orgs().await? {
            all.extend(lookup::repos(&store, org.id).await?);
        }
        Ok(shown(all))
    })
}

pub(crate) fn configurations() -> Vec<CompletionCandidate> {
    asked(async |store| {
        let mut all = Vec::new();
        for org in store.orgs().await? {
            all.extend(lookup::configurations(&store, org.id).await?);
        }
        Ok(shown(all))
    })
}

pub(crate) fn sessions() -> Vec<CompletionCandidate> {
    asked(async |store| Ok(shown(lookup::sessions(&store).await?)))
}

/// Offers each candidate by its id, with its names as the help text, and by each name that needs no shell quoting.
fn shown<T: ToString>(all: Vec<Candidate<T>>) -> Vec<CompletionCandidate> {
    let plain = |name: &&String| name.chars().all(|c| c.is_ascii_alphanumeric() || "@._+-".contains(c));
    let mut found = Vec::new();
    for Candidate { id, names } in all {
        let help = StyledStr::from(crate::clean::one_line(&names.join(", ")));
        found.extend(names.iter().filter(plain).map(CompletionCandidate::new));
        found.push(CompletionCandidate::new(id.to_string()).help(Some(help)));
    }
    found
}

fn asked(
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
    let words: Vec<_> = std::env::args_os().collect();
    let named = words.iter().position(|word| word == "--data-dir").and_then(|at| words.get(at + 1));
    let joined = || words.iter().find_map(|word| word.to_str()?.strip_prefix("--data-dir="));
    named.map(PathBuf::from).or_else(|| joined().map(PathBuf::from))
}
