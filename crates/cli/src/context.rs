//! What every command needs: settings, time, and the way to the database.

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

/// The parts a command works with.
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) out: Output,
    pub(crate) insecure: Insecure,
    /// Who runs the command, as the ledger names them.
    pub(crate) operator: String,
    /// The database, once a command has asked for it.
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
            operator: host_user(),
            opened: OnceCell::new(),
        })
    }

    /// The database as it is: nothing is made and no schema is changed, also beside a running gateway.
    pub(crate) async fn store(&self) -> Result<Store, Failure> {
        let open = async || match &self.config.database {
            Database::Sqlite => Store::open_existing_sqlite(&self.config.sqlite_file()).await,
            Database::Postgres(url) => Store::open_existing_postgres(url.expose_secret()).await,
        };
        Ok(self.opened.get_or_try_init(open).await?.clone())
    }

    /// The database, made when there is none and brought up to date.
    pub(crate) async fn store_or_new(&self) -> Result<Store, Failure> {
        if matches!(self.config.database, Database::Sqlite) {
            DataDir::prepare(&self.config.data_dir)?;
        }
        Ok(self.opened.get_or_try_init(|| open_store(&self.config, &self.clock)).await?.clone())
    }

    /// Lets go of the database; what SQLite has in its log is in its file then.
    pub(crate) async fn close(self) {
        if let Some(store) = self.opened.into_inner() {
            store.close().await;
        }
    }

    /// The keys; never new ones where the lost ones have sealed something.
    pub(crate) async fn keyring(&self, store: &Store) -> Result<Keyring, Failure> {
        Ok(Keyring::open_for(&self.config, &self.rng, &store.secret_key_ids().await?)?)
    }

    pub(crate) async fn vault(&self, store: &Store) -> Result<Vault, Failure> {
        let keyring = self.keyring(store).await?;
        Ok(Vault::new(store.clone(), &keyring, self.clock.clone(), self.rng.clone())?)
    }

    /// What changes the rules of all gateways on this database.
    pub(crate) fn governance<'a>(&'a self, store: &'a Store) -> Governance<'a> {
        let Self { config, clock, rng, operator, .. } = self;
        Governance { settings: config.gate_settings(), store, clock, rng, operator }
    }

    /// The store through which a change of administration is made, so that it is recorded.
    pub(crate) async fn administer(
        &self,
        store: &Store,
        org: OrgId,
        change: &AdminChange,
    ) -> Result<Store, Failure> {
        Ok(self.governance(store).administer(org, change).await?)
    }

    /// How long ago something was, for people.
    pub(crate) fn ago(&self, at: DateTime<Utc>) -> String {
        ago(at, self.clock.now())
    }

    /// Where a gateway with these settings is reached.
    pub(crate) fn public_url(&self) -> Url {
        self.config.public_url.clone().unwrap_or_else(|| self.local_url())
    }

    /// Where the gateway of this data dir listens: where one says so that runs, else where the settings would put it.
    pub(crate) fn local_url(&self) -> Url {
        DataDir::address(&self.config.data_dir).unwrap_or_else(|| gateway::url_of(self.config.listen))
    }
}

/// Where `make up` puts the agent, seen from the binary that it built: it is found there without a changed `PATH`.
fn tools_of_this_build() -> Option<PathBuf> {
    let root = std::env::current_exe().ok()?.ancestors().nth(3)?.to_owned();
    Some(root.join(".tools/node_modules/.bin")).filter(|folder| folder.is_dir())
}
