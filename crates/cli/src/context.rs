//! What every command needs: the settings, the clock, and access to the database.

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use clock::{Clock, Rng};
use gate::{AdminChange, Governance};
use gateway::config::{self, Config, Database};
use gateway::keyring::Keyring;
use gateway::runtime::Insecure;
use gateway::vault::Vault;
use gateway::{DataDir, open_store};
use proto::OrgId;
use secrecy::ExposeSecret as _;
use store::Store;
use tokio::sync::OnceCell;
use url::Url;

use crate::args::{Cli, Command, Up};
use crate::failure::Failure;
use crate::operator::host_user;
use crate::output::{Output, ago};

/// The dependencies of a command.
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) out: Output,
    pub(crate) insecure: Insecure,
    /// The value of `--data-dir`. It counts before a saved login, and the commands that we suggest repeat it.
    pub(crate) data_dir_option: Option<PathBuf>,
    /// The user who runs the command, as the ledger names them.
    pub(crate) operator: String,
    /// The database, opened on first use.
    opened: OnceCell<Store>,
}

impl Context {
    pub(crate) fn new(cli: &Cli) -> Result<Self, Failure> {
        let mut flags = cli.settings.clone();
        if let Some(dir) = &cli.data_dir {
            let dir = dir.to_str().ok_or_else(|| Failure::usage("--data-dir must be UTF-8"))?;
            flags.push(("PROLIFERATE_DATA_DIR".to_owned(), dir.to_owned()));
        }
        if let Command::Up(Up { listen, .. }) | Command::Serve(listen) = &cli.command
            && let Some(address) = &listen.listen
        {
            flags.push(("PROLIFERATE_LISTEN".to_owned(), address.clone()));
        }
        let mut config = Config::load(&config::environment(), &flags)?;
        config.search_path.extend(tools_of_this_build());
        if matches!(cli.command, Command::Up(_)) {
            config.sandboxes.pool_size.get_or_insert(1);
        }
        Ok(Self {
            config,
            clock: Clock::system(),
            rng: Rng::system(),
            out: Output::new(cli.json),
            insecure: if cli.insecure_sandbox { Insecure::Allowed } else { Insecure::Refused },
            data_dir_option: cli.data_dir.clone(),
            operator: host_user(),
            opened: OnceCell::new(),
        })
    }

    /// Opens the existing database, even while a gateway is running. Creates nothing and runs no migration.
    pub(crate) async fn store(&self) -> Result<Store, Failure> {
        let open = async || match &self.config.database {
            Database::Sqlite => Store::open_existing_sqlite(&self.config.sqlite_file()).await,
            Database::Postgres(url) => Store::open_existing_postgres(url.expose_secret()).await,
        };
        Ok(self.opened.get_or_try_init(open).await?.clone())
    }

    /// Opens the database; creates it if it does not exist and migrates it to the newest schema.
    pub(crate) async fn store_or_new(&self) -> Result<Store, Failure> {
        if matches!(self.config.database, Database::Sqlite) {
            DataDir::prepare(&self.config.data_dir)?;
        }
        Ok(self.opened.get_or_try_init(|| open_store(&self.config, &self.clock)).await?.clone())
    }

    /// Closes the database. SQLite then checkpoints its WAL into the database file.
    pub(crate) async fn close(self) {
        if let Some(store) = self.opened.into_inner() {
            store.close().await;
        }
    }

    /// Opens the keyring. Creates no new keys if the database holds secrets that were sealed with lost ones.
    pub(crate) async fn keyring(&self, store: &Store) -> Result<Keyring, Failure> {
        Ok(Keyring::open_for(&self.config, &self.rng, &store.secret_key_ids().await?)?)
    }

    pub(crate) async fn vault(&self, store: &Store) -> Result<Vault, Failure> {
        let keyring = self.keyring(store).await?;
        Ok(Vault::new(store.clone(), &keyring, self.clock.clone(), self.rng.clone())?)
    }

    /// The interface for changing the policy state of every gateway on this database.
    pub(crate) fn governance<'a>(&'a self, store: &'a Store) -> Governance<'a> {
        let Self { config, clock, rng, operator, .. } = self;
        Governance { settings: config.gate_settings(), store, clock, rng, operator }
    }

    /// Returns a store that records this administrative change in the ledger together with the write.
    pub(crate) async fn administer(
        &self,
        store: &Store,
        org: OrgId,
        change: &AdminChange,
    ) -> Result<Store, Failure> {
        Ok(self.governance(store).administer(org, change).await?)
    }

    /// A command to suggest to the user, for the same data directory.
    pub(crate) fn suggest(&self, command: &str) -> String {
        match &self.data_dir_option {
            Some(dir) => {
                format!("proliferate --data-dir {} {command}", quote_for_shell(&dir.to_string_lossy()))
            }
            None => format!("proliferate {command}"),
        }
    }

    /// Formats how long ago a time was.
    pub(crate) fn ago(&self, at: DateTime<Utc>) -> String {
        ago(at, self.clock.now())
    }

    /// The URL at which clients reach a gateway with these settings.
    pub(crate) fn public_url(&self) -> Url {
        self.config.public_url.clone().unwrap_or_else(|| self.local_url())
    }

    /// The URL on which the gateway of this data dir listens: the address that a running gateway has published,
    /// otherwise the configured one.
    fn local_url(&self) -> Url {
        DataDir::address(&self.config.data_dir).unwrap_or_else(|| gateway::url_of(self.config.listen))
    }

    /// The URL of the gateway that serves this data dir now. The configured address would not do: another program may
    /// listen there, and must not be sent a token.
    pub(crate) fn serving_url(&self) -> Result<Url, Failure> {
        DataDir::address(&self.config.data_dir).ok_or_else(|| {
            Failure::missing(format!(
                "no gateway serves the data dir {} now: start it with `proliferate up`, or name another one with --url, \
                 PROLIFERATE_URL or `proliferate login URL`",
                self.config.data_dir.display()
            ))
        })
    }
}

/// Text as a word for a shell.
pub(crate) fn quote_for_shell(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// The directory where `make up` installs the agent, relative to the binary it built, so that `PATH` need not be changed.
fn tools_of_this_build() -> Vec<PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    let root = program.ancestors().nth(3).unwrap_or(&program);
    let directories = [".tools/node_modules/.bin", ".tools/browser/node_modules/.bin"];
    directories.iter().map(|directory| root.join(directory)).filter(|directory| directory.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggested_words_survive_a_shell() {
        assert_eq!(
            ["/a/b-1", "a b", "it's", ""].map(quote_for_shell),
            ["/a/b-1", "'a b'", "'it'\\''s'", "''"]
        );
    }
}
