//! Queries the databases of organizations: the gateway resolves their hosts through the guard of `outbound`, opens their
//! passwords, and bounds how many queries run at a time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use databases::postgres::{self, Server, Tls};
use databases::sqlite::{self, DatabaseFile};
use databases::{Limits, Problem, Query, Rows};
use gate::{CallRequest, Permit};
use ledger::Redactor;
use proto::OrgId;
use proto::http::{DatabaseLimits, DatabaseQuery, DatabaseTarget};
use secrecy::SecretString;
use serde_json::Value;
use shares::{Held, OverShare, Party, Pool, PoolLimits};
use store::{DatabaseSource, Scope};
use tokio::sync::OnceCell;

use crate::config::Config;
use crate::outbound;
use crate::vault::{self, Vault};

/// Queries at a time: each has a connection or a thread.
const AT_A_TIME: PoolLimits = PoolLimits { name: "database queries", unit: "", total: 32, per_session: 4 };
/// The largest limits that an admin can set, and the smallest.
const MAX_LIMITS: DatabaseLimits =
    DatabaseLimits { timeout_ms: 30_000, max_rows: 10_000, max_bytes: 900 * 1024 };
const MIN_LIMITS: DatabaseLimits = DatabaseLimits { timeout_ms: 10, max_rows: 1, max_bytes: 1024 };

/// The maximum number of characters of a failure that callers are shown.
const MAX_FAILURE_CHARS: usize = 400;

/// What the databases need.
pub struct Databases {
    vault: Vault,
    /// The private addresses that the operator has listed.
    allowed_hosts: Vec<String>,
    /// The directory with a directory of SQLite files for each organization.
    files: Option<PathBuf>,
    data_dir: PathBuf,
    slots: Arc<Pool>,
    /// The authorities of this machine, read when the first query needs them.
    tls: OnceCell<Tls>,
}

/// Why a query has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    #[error("{0}")]
    Problem(#[from] Problem),
    #[error("{0}")]
    OverShare(#[from] OverShare),
    #[error("the secret {0} is not set")]
    NoSecret(String),
    #[error("the password of the database cannot be opened")]
    Vault,
    #[error("the database is stored wrongly")]
    Stored,
    #[error("{0}")]
    Address(&'static str),
}

impl QueryError {
    /// What a caller is shown: without secrets, on one line, and short. Nothing was cut before, because half a secret is not
    /// found.
    pub(crate) fn shown(&self, redactor: &Redactor) -> String {
        let plain = |char: char| if char.is_control() { ' ' } else { char };
        redactor.text(&self.to_string()).chars().take(MAX_FAILURE_CHARS).map(plain).collect()
    }
}

/// Who needs a secret: the gateway itself, or a call that the gate has allowed.
#[derive(Clone, Copy)]
enum Opener<'a> {
    /// The gateway checks a connection for an admin.
    Gateway(OrgId),
    Call(&'a Permit),
}

/// How to reach a database.
enum Connection {
    Postgres(Server),
    Sqlite(DatabaseFile),
}

/// A stored database whose parts have been parsed.
#[derive(Clone, Debug)]
pub(crate) struct Definition {
    pub(crate) target: DatabaseTarget,
    pub(crate) queries: Vec<DatabaseQuery>,
    pub(crate) limits: DatabaseLimits,
}

impl Definition {
    pub(crate) fn of(database: &DatabaseSource) -> Result<Self, QueryError> {
        let parsed = || -> serde_json::Result<Self> {
            Ok(Self {
                target: serde_json::from_value(database.target.clone())?,
                queries: serde_json::from_value(database.queries.clone())?,
                limits: serde_json::from_value(database.limits.clone())?,
            })
        };
        parsed().map_err(|_| QueryError::Stored)
    }
}

impl Databases {
    pub(crate) fn new(vault: Vault, config: &Config) -> Self {
        Self {
            vault,
            allowed_hosts: config.allowed_hosts.clone(),
            files: config.database_files_dir.clone(),
            data_dir: config.data_dir.clone(),
            slots: Pool::new(AT_A_TIME),
            tls: OnceCell::new(),
        }
    }

    /// Checks a target that somebody wants to store, and brings it into the form that is stored. Whether a name leads to a
    /// public address is checked again whenever the gateway connects.
    pub(crate) fn check_target(&self, target: DatabaseTarget) -> Result<DatabaseTarget, String> {
        match target {
            DatabaseTarget::Postgres { host, port, database, user, secret_key, tls } => {
                let host = outbound::parse_host(&host).ok_or("host is not the name or address of a host")?;
                if secret_key.as_deref().is_some_and(|key| !vault::is_name(key)) {
                    return Err(
                        "secretKey names a secret: letters, digits and _, at most 200 characters".to_owned()
                    );
                }
                let fits = |text: &str| (1..=100).contains(&text.len()) && !text.contains(char::is_control);
                if !fits(&database) || !fits(&user) {
                    return Err("database and user have 1 to 100 characters on one line".to_owned());
                }
                if !tls && !outbound::is_listed(&self.allowed_hosts, &host, port) {
                    return Err(
                        "without TLS, CONNECTOR_ALLOWED_HOSTS must name the host and the port".to_owned()
                    );
                }
                let host = host.to_string();
                Ok(DatabaseTarget::Postgres { host, port, database, user, secret_key, tls })
            }
            DatabaseTarget::Sqlite { file } => {
                if self.files.is_none() {
                    return Err(
                        "the operator has not set DATABASE_FILES_DIR, so there are no SQLite databases"
                            .to_owned(),
                    );
                }
                let short = file.len() <= 1000 && !file.contains(char::is_control);
                if !short || !sqlite::is_relative(file.as_ref()) {
                    return Err("file is a relative path without `..`".to_owned());
                }
                Ok(DatabaseTarget::Sqlite { file })
            }
        }
    }

    /// Checks limits that somebody wants to store.
    pub(crate) fn check_limits(limits: DatabaseLimits) -> Result<DatabaseLimits, String> {
        let within = |value, least, most| (least..=most).contains(&value);
        if within(limits.timeout_ms, MIN_LIMITS.timeout_ms, MAX_LIMITS.timeout_ms)
            && within(limits.max_rows, MIN_LIMITS.max_rows, MAX_LIMITS.max_rows)
            && within(limits.max_bytes, MIN_LIMITS.max_bytes, MAX_LIMITS.max_bytes)
        {
            return Ok(limits);
        }
        Err(format!(
            "timeoutMs is {} to {}, maxRows {} to {}, maxBytes {} to {}",
            MIN_LIMITS.timeout_ms,
            MAX_LIMITS.timeout_ms,
            MIN_LIMITS.max_rows,
            MAX_LIMITS.max_rows,
            MIN_LIMITS.max_bytes,
            MAX_LIMITS.max_bytes
        ))
    }

    /// Checks that a database can be queried, by a role that can only read.
    pub(crate) async fn check(&self, database: &DatabaseSource) -> Result<(), QueryError> {
        let definition = Definition::of(database)?;
        let org = database.org_id;
        let slot = self.slot(Party::org(org))?;
        let limits = limits_of(definition.limits);
        match self.connection(org, definition.target, Opener::Gateway(org)).await? {
            Connection::Postgres(server) => postgres::check(&server, limits).await?,
            Connection::Sqlite(file) => sqlite::check(&file, limits, slot).await?,
        }
        Ok(())
    }

    /// Executes a query of a call.
    pub(crate) async fn run(
        &self,
        permit: &Permit,
        call: &CallRequest,
        definition: &Definition,
        query: Query,
    ) -> Result<Rows, QueryError> {
        let org = permit.org();
        let party =
            call.caller.session.map_or_else(|| Party::org(org), |session| Party::session(session, org));
        let slot = self.slot(party)?;
        let limits = limits_of(definition.limits);
        Ok(match self.connection(org, definition.target.clone(), Opener::Call(permit)).await? {
            Connection::Postgres(server) => postgres::query(&server, query, limits).await?,
            Connection::Sqlite(file) => sqlite::query(&file, query, limits, slot).await?,
        })
    }

    fn slot(&self, party: Party) -> Result<Held, OverShare> {
        self.slots.take(party, 1)
    }

    async fn connection(
        &self,
        org: OrgId,
        target: DatabaseTarget,
        opener: Opener<'_>,
    ) -> Result<Connection, QueryError> {
        match target {
            DatabaseTarget::Postgres { host, port, database, user, secret_key, tls } => {
                let parsed = outbound::parse_host(&host).ok_or(QueryError::Stored)?;
                if !tls && !outbound::is_listed(&self.allowed_hosts, &parsed, port) {
                    return Err(QueryError::Address(
                        "without TLS, CONNECTOR_ALLOWED_HOSTS must name its host and port",
                    ));
                }
                let addresses = outbound::addresses(&self.allowed_hosts, &parsed, port).await;
                let addresses = addresses.map_err(QueryError::Address)?;
                let password = match secret_key {
                    Some(key) => Some(self.secret(opener, &key).await?),
                    None => None,
                };
                let tls = if tls { Some(self.tls().await?) } else { None };
                // In certificates, IPv6 addresses have no brackets.
                let host = host.trim_matches(['[', ']']).to_owned();
                Ok(Connection::Postgres(Server { host, addresses, database, user, password, tls }))
            }
            DatabaseTarget::Sqlite { file } => {
                let files =
                    self.files.as_ref().ok_or(QueryError::Address("DATABASE_FILES_DIR is not set"))?;
                let (directory, file) = (files.join(org.to_string()), PathBuf::from(file));
                Ok(Connection::Sqlite(DatabaseFile { directory, file, never: self.data_dir.clone() }))
            }
        }
    }

    /// Reads and parses the certificates on a thread that may block, once.
    async fn tls(&self) -> Result<Tls, Problem> {
        let read = async || {
            let read = tokio::task::spawn_blocking(Tls::of_this_machine).await;
            read.unwrap_or(Err(Problem::NoAuthorities))
        };
        self.tls.get_or_try_init(read).await.cloned()
    }

    async fn secret(&self, opener: Opener<'_>, key: &str) -> Result<SecretString, QueryError> {
        let found = match opener {
            Opener::Gateway(org) => self.vault.open_without_permit(org, Scope::Org, key).await,
            Opener::Call(permit) => self.vault.open_for(permit, Scope::Org, key).await,
        };
        let found = found.map_err(|error| {
            tracing::error!(%error, key, "the password of a database cannot be opened");
            QueryError::Vault
        })?;
        found.ok_or_else(|| QueryError::NoSecret(key.to_owned()))
    }
}

fn limits_of(limits: DatabaseLimits) -> Limits {
    Limits {
        time: Duration::from_millis(limits.timeout_ms.into()),
        rows: limits.max_rows as usize,
        bytes: limits.max_bytes as usize,
    }
}

/// The values of a call of the action for free-form statements.
pub(crate) fn free_form(parameters: &Value) -> Query {
    Query {
        sql: parameters["sql"].as_str().unwrap_or_default().to_owned(),
        parameters: parameters["params"].as_array().cloned().unwrap_or_default(),
    }
}
