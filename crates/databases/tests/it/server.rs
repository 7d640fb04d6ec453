//! A database and a role of its own on the test server.

use std::net::SocketAddr;
use std::time::Duration;

use clock::Rng;
use databases::postgres::Server;
use tokio::net::TcpStream;
use tokio_postgres::{Config, NoTls};

/// A database with the table `orders` and a role that can only read it.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) role: String,
}

#[expect(clippy::disallowed_methods, reason = "the one place that asks where the test server is")]
fn test_url() -> String {
    std::env::var("TEST_DATABASE_URL")
        .unwrap_or_else(|_| panic!("TEST_DATABASE_URL is not set: run `make test`"))
}

/// The user and the address of the test server's administrator.
fn administrator() -> (String, SocketAddr) {
    let url = test_url();
    let rest = url.strip_prefix("postgres://").unwrap();
    let (user, rest) = rest.split_once('@').unwrap();
    (user.to_owned(), rest.split_once('/').unwrap().0.parse().unwrap())
}

impl World {
    pub(crate) async fn new() -> Self {
        let name = format!("db_{}", Rng::system().bytes::<8>().map(|byte| format!("{byte:02x}")).concat());
        let (_, address) = administrator();
        execute("postgres", &format!("CREATE DATABASE {name}")).await;
        execute("postgres", &format!("CREATE ROLE {name} LOGIN")).await;
        let server = Server {
            host: "127.0.0.1".to_owned(),
            addresses: vec![address],
            database: name.clone(),
            user: name.clone(),
            password: None,
            tls: None,
        };
        let world = Self { server, role: name };
        world.sql("CREATE TABLE orders (id int PRIMARY KEY, customer text)").await;
        world.sql("INSERT INTO orders SELECT n, 'c' || n FROM generate_series(1, 100) n").await;
        world.sql(&format!("GRANT SELECT ON orders TO {}", world.role)).await;
        world
    }

    /// Runs SQL on the database as the administrator.
    pub(crate) async fn sql(&self, text: &str) {
        execute(&self.server.database, text).await;
    }

    /// What a query of the administrator returns.
    pub(crate) async fn value(&self, sql: &str) -> String {
        execute(&self.server.database, sql).await.unwrap_or_default()
    }

    /// Waits until a query of the administrator counts nothing.
    pub(crate) async fn becomes_zero(&self, count: &str) {
        becomes_zero(count, async || self.value(count).await).await;
    }

    pub(crate) fn as_administrator(&self) -> Server {
        Server { user: administrator().0, ..self.server.clone() }
    }
}

/// Waits until the server answers this query with 0.
pub(crate) async fn becomes_zero(count: &str, ask: impl AsyncFn() -> String) {
    for _ in 0..600 {
        if ask().await == "0" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the server still answers {} to {count}", ask().await);
}

/// Runs SQL, and returns the first value of its first row.
async fn execute(database: &str, sql: &str) -> Option<String> {
    let (user, address) = administrator();
    execute_as(&user, address, database, sql).await
}

/// Runs SQL on a server that trusts this user.
pub(crate) async fn execute_as(user: &str, address: SocketAddr, database: &str, sql: &str) -> Option<String> {
    let stream = TcpStream::connect(address).await.unwrap();
    let mut config = Config::new();
    config.user(user).dbname(database);
    let (client, connection) = config.connect_raw(stream, NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    let found = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    drop(client);
    let _ = driver.await;
    found.into_iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}
