//! The options of `databases`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use proto::FreeForm;
use proto::http::{DatabaseLimits, DatabaseTarget};
use url::Url;

use super::connectors::Place;
use super::words;
use crate::failure::Failure;

#[derive(Subcommand)]
pub(crate) enum DatabasesCommand {
    /// Add a database that agents may query: PostgreSQL with a read-only role, or an SQLite file on the gateway's machine
    ///
    /// Store the password first: `proliferate secrets set ORDERS_PASSWORD -`. Each query in the file becomes an action of
    /// agents; set its mode with `proliferate actions modes`.
    Add {
        /// The name of the database
        #[arg(long)]
        name: String,
        #[command(flatten)]
        target: TargetArgs,
        #[command(flatten)]
        settings: SettingsArgs,
        /// Check whether the database could be added, without adding it
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        place: Place,
    },
    /// List the databases of the organization
    Ls {
        #[command(flatten)]
        place: Place,
    },
    /// Show a database, its actions with their modes, and whether it can be queried now
    Show {
        #[command(flatten)]
        database: OneDatabase,
    },
    /// Check that a database can be queried now, with a read-only role
    Check {
        #[command(flatten)]
        database: OneDatabase,
    },
    /// Change a database; settings that you leave out keep their values
    Set {
        #[command(flatten)]
        database: OneDatabase,
        /// The new name
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        target: TargetArgs,
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// Enable a database, so that agents can query it
    Enable {
        #[command(flatten)]
        database: OneDatabase,
    },
    /// Disable a database, so that agents cannot query it; its settings are kept
    Disable {
        #[command(flatten)]
        database: OneDatabase,
    },
    /// Remove a database from the organization; the database itself is not changed
    Rm {
        #[command(flatten)]
        database: OneDatabase,
    },
}

#[derive(Args)]
pub(crate) struct OneDatabase {
    /// The database, by name, id or the beginning of its id
    #[arg(value_name = "DATABASE")]
    pub(crate) database: String,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Where a database is.
#[expect(clippy::doc_markdown, reason = "help is read in a terminal, where backticks are noise")]
#[derive(Args)]
pub(crate) struct TargetArgs {
    /// A PostgreSQL database, as postgres://ROLE@HOST:PORT/DATABASE without the password
    #[arg(long, value_name = "URL", conflicts_with = "sqlite")]
    postgres: Option<Url>,
    /// The name of the organization's secret that contains the password
    #[arg(long, value_name = "KEY", requires = "postgres")]
    secret: Option<String>,
    /// Connect without TLS; only to hosts in CONNECTOR_ALLOWED_HOSTS
    #[arg(long, requires = "postgres")]
    no_tls: bool,
    /// An SQLite file, relative to the organization's directory in DATABASE_FILES_DIR
    #[arg(long, value_name = "FILE")]
    sqlite: Option<String>,
}

/// What agents may do with a database.
#[derive(Args)]
pub(crate) struct SettingsArgs {
    /// A YAML or JSON file with the queries that become actions; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) queries: Option<PathBuf>,
    /// Allow agents to write their own SELECT statements, with this risk; `write` needs approval unless a mode says otherwise
    #[arg(long, value_parser = words(FreeForm::ALL, FreeForm::as_str))]
    pub(crate) free_form: Option<FreeForm>,
    /// The time limit of a query in milliseconds [default: 5000]
    #[arg(long, value_name = "MS")]
    timeout_ms: Option<u32>,
    /// The maximum number of rows in a result [default: 500]
    #[arg(long, value_name = "ROWS")]
    max_rows: Option<u32>,
    /// The maximum size of the rows read, in bytes of JSON [default: 262144]; an agent sees at most 10240 bytes
    #[arg(long, value_name = "BYTES")]
    max_bytes: Option<u32>,
}

impl TargetArgs {
    /// The target, if one is given.
    pub(crate) fn target(self) -> Result<Option<DatabaseTarget>, Failure> {
        let Self { postgres, secret, no_tls, sqlite } = self;
        match (postgres, sqlite) {
            (None, None) => Ok(None),
            (None, Some(file)) => Ok(Some(DatabaseTarget::Sqlite { file })),
            (Some(url), _) => postgres_target(&url, secret, !no_tls).map(Some),
        }
    }
}

fn postgres_target(url: &Url, secret_key: Option<String>, tls: bool) -> Result<DatabaseTarget, Failure> {
    if url.password().is_some() {
        return Err(Failure::usage(
            "store the password with `proliferate secrets set KEY -` and give --secret KEY, not in the address",
        ));
    }
    let decoded = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    let (user, database) = (decoded(url.username()), decoded(url.path().trim_start_matches('/')));
    let host = url.host_str().map(decoded).unwrap_or_default();
    let known = matches!(url.scheme(), "postgres" | "postgresql") && url.query().is_none();
    if !known || host.is_empty() || user.is_empty() || database.is_empty() {
        return Err(Failure::usage("--postgres is postgres://ROLE@HOST:PORT/DATABASE, without options"));
    }
    Ok(DatabaseTarget::Postgres { host, port: url.port().unwrap_or(5432), database, user, secret_key, tls })
}

impl SettingsArgs {
    /// The limits with the given changes; `None` if there are none.
    pub(crate) fn limits(&self, present: DatabaseLimits) -> Option<DatabaseLimits> {
        let limits = DatabaseLimits {
            timeout_ms: self.timeout_ms.unwrap_or(present.timeout_ms),
            max_rows: self.max_rows.unwrap_or(present.max_rows),
            max_bytes: self.max_bytes.unwrap_or(present.max_bytes),
        };
        (limits != present).then_some(limits)
    }
}
