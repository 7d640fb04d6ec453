//! A PostgreSQL database for one test, and a machine whose gateway uses it.

use std::process::Command;

use crate::harness::{Machine, postgres};

/// A database on the server of the test run; dropped at the end of the test.
pub(crate) struct Database(String);

impl Database {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("{name}_{}", std::process::id());
        psql(&format!("CREATE DATABASE {name}"));
        Self(name)
    }

    pub(crate) fn url(&self) -> String {
        let server = postgres();
        let (address, settings) = server.split_once('?').unwrap_or((&server, ""));
        format!("{}/{}?{settings}", address.rsplit_once('/').unwrap().0, self.0)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        psql(&format!("DROP DATABASE {} WITH (FORCE)", self.0));
    }
}

impl Machine {
    /// Configures the machine to use PostgreSQL, with the secrets that this requires.
    pub(crate) fn on(self, url: &str) -> Self {
        self.with("DATABASE_URL", url)
            .with("GATEWAY_JWT_SECRET", &"j".repeat(32))
            .with("SERVICE_TO_SERVICE_AUTH_TOKEN", &"s".repeat(32))
            .with("USER_SECRETS_ENCRYPTION_KEY", &"ab".repeat(32))
    }
}

fn psql(sql: &str) {
    let done =
        Command::new("psql").args([&postgres(), "-v", "ON_ERROR_STOP=1", "-qc", sql]).status().unwrap();
    assert!(done.success(), "{sql}");
}
