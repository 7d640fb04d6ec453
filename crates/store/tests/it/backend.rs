//! A fresh database for each test, of either kind, and raw SQL on it.

use std::path::{Path, PathBuf};

use clock::{Clock, Rng};
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _, Row as _, raw_sql};
use store::{Store, StoreError};
use tempfile::TempDir;

/// Makes two tests of each function: `sqlite::…` and `postgres::…`.
macro_rules! on_both {
    ($($story:ident)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $story() {
                super::$story(&crate::backend::Backend::sqlite().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $story() {
                super::$story(&crate::backend::Backend::postgres().await).await;
            })+
        }
    };
}
pub(crate) use on_both;

/// An open store and its location.
pub(crate) struct Backend {
    pub(crate) store: Store,
    place: Place,
}

/// The location of a database, which may not exist yet.
pub(crate) enum Place {
    Sqlite { file: PathBuf, _directory: TempDir },
    Postgres(PgDatabase),
}

impl Backend {
    pub(crate) async fn sqlite() -> Self {
        Self::open(Place::sqlite()).await
    }

    pub(crate) async fn postgres() -> Self {
        Self::open(Place::postgres().await).await
    }

    async fn open(place: Place) -> Self {
        Self { store: place.open().await.unwrap(), place }
    }

    /// Opens the same database again.
    pub(crate) async fn reopen(&self) -> Result<Store, StoreError> {
        self.place.open().await
    }

    /// Opens the same database again, without migrating it.
    pub(crate) async fn open_existing(&self) -> Result<Store, StoreError> {
        match &self.place {
            Place::Sqlite { file, .. } => Store::open_existing_sqlite(file).await,
            Place::Postgres(database) => Store::open_existing_postgres(&database.url()).await,
        }
    }

    /// A connection for raw SQL.
    pub(crate) async fn raw(&self) -> Raw {
        self.place.raw().await
    }

    /// The file of a SQLite database.
    pub(crate) fn file(&self) -> &Path {
        match &self.place {
            Place::Sqlite { file, .. } => file,
            Place::Postgres(_) => panic!("a PostgreSQL database is not one file"),
        }
    }
}

impl Place {
    /// The location of a file that does not exist yet.
    pub(crate) fn sqlite() -> Self {
        let directory = TempDir::new().unwrap();
        Self::Sqlite { file: directory.path().join("test.db"), _directory: directory }
    }

    /// An empty database.
    pub(crate) async fn postgres() -> Self {
        Self::Postgres(PgDatabase::create().await)
    }

    /// The address of a PostgreSQL database.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sqlite { .. } => panic!("a SQLite database has no address"),
            Self::Postgres(database) => database.url(),
        }
    }

    /// Opens it as a gateway does.
    pub(crate) async fn open(&self) -> Result<Store, StoreError> {
        match self {
            Self::Sqlite { file, .. } => Store::open_sqlite(file, &Clock::system()).await,
            Self::Postgres(database) => Store::open_postgres(&database.url(), &Clock::system()).await,
        }
    }

    pub(crate) async fn raw(&self) -> Raw {
        match self {
            Self::Sqlite { file, .. } => Raw::sqlite(file).await,
            Self::Postgres(database) => Raw::postgres(&database.url()).await,
        }
    }
}

/// A database on the server of the test run.
pub(crate) struct PgDatabase(String);

impl PgDatabase {
    async fn create() -> Self {
        let name = format!("store_{:016x}", u64::from_le_bytes(Rng::system().bytes()));
        Raw::postgres(&server()).await.execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        Self(name)
    }

    fn url(&self) -> String {
        let server = server();
        let (address, settings) = server.split_once('?').unwrap_or((&server, ""));
        let (host, _) = address.rsplit_once('/').unwrap();
        format!("{host}/{}?{settings}", self.0)
    }
}

impl Drop for PgDatabase {
    /// Runs also after a panic, and on its own thread, because the test's runtime may be shutting down.
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.0);
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { Raw::postgres(&server()).await.execute(&sql).await })
        };
        std::thread::spawn(work).join().unwrap().unwrap();
    }
}

/// The server's URL, with the database to connect to for creating others.
#[expect(clippy::disallowed_methods, reason = "the test run names its server in the environment")]
fn server() -> String {
    std::env::var("TEST_DATABASE_URL")
        .unwrap_or_else(|_| panic!("TEST_DATABASE_URL is not set: run `make test`"))
}

/// Plain SQL on either database. `#7` stands for the id 7 and `@7` for the hash of 32 bytes 7.
pub(crate) enum Raw {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Raw {
    pub(crate) async fn sqlite(file: &Path) -> Self {
        let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
        Self::Sqlite(SqliteConnection::connect_with(&options).await.unwrap())
    }

    async fn postgres(url: &str) -> Self {
        Self::Postgres(PgConnection::connect(url).await.unwrap())
    }

    pub(crate) async fn execute(&mut self, sql: &str) -> Result<u64, sqlx::Error> {
        let sql = AssertSqlSafe(self.literals(sql));
        match self {
            Self::Sqlite(connection) => {
                raw_sql(sql).execute(connection).await.map(|done| done.rows_affected())
            }
            Self::Postgres(connection) => {
                raw_sql(sql).execute(connection).await.map(|done| done.rows_affected())
            }
        }
    }

    pub(crate) async fn number(&mut self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(self.literals(sql));
        match self {
            Self::Sqlite(connection) => raw_sql(sql).fetch_one(connection).await.unwrap().get(0),
            Self::Postgres(connection) => raw_sql(sql).fetch_one(connection).await.unwrap().get(0),
        }
    }

    /// The first column of every row.
    pub(crate) async fn texts(&mut self, sql: &str) -> Vec<String> {
        let sql = AssertSqlSafe(self.literals(sql));
        match self {
            Self::Sqlite(connection) => {
                raw_sql(sql).fetch_all(connection).await.unwrap().iter().map(|row| row.get(0)).collect()
            }
            Self::Postgres(connection) => {
                raw_sql(sql).fetch_all(connection).await.unwrap().iter().map(|row| row.get(0)).collect()
            }
        }
    }

    /// Replaces each `#n` and `@n` with the database's own binary literal.
    fn literals(&self, sql: &str) -> String {
        let mut out = String::new();
        let mut rest = sql;
        while let Some(start) = rest.find(['#', '@']) {
            let digits: String = rest[start + 1..].chars().take_while(char::is_ascii_digit).collect();
            let bytes = match digits.parse::<u8>() {
                Err(_) => None,
                Ok(number) if rest[start..].starts_with('#') => Some(format!("{number:032x}")),
                Ok(number) => Some(format!("{number:02x}").repeat(32)),
            };
            let literal = match (bytes, self) {
                (None, _) => rest[start..=start].to_owned(),
                (Some(hex), Self::Sqlite(_)) => format!("x'{hex}'"),
                (Some(hex), Self::Postgres(_)) if hex.len() == 32 => format!("'{hex}'"),
                (Some(hex), Self::Postgres(_)) => format!("'\\x{hex}'"),
            };
            out.extend([&rest[..start], &literal]);
            rest = &rest[start + 1 + digits.len()..];
        }
        out + rest
    }
}
