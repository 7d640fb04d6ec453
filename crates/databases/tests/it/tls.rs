//! PostgreSQL over TLS, with a password: whom the client trusts, and what works inside.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use databases::postgres::{Server, Tls, query as run};
use databases::{Limits, Problem};
use serde_json::json;
use tempfile::TempDir;
use testkit::TlsFront;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;

use crate::server::{becomes_zero, execute_as};
use crate::{WIDE, plain};

/// Starts a server that lets `reader` in only with a password over TLS, and prints its port.
const START: &str = r#"
    . scripts/postgres.sh
    init_postgres "$1/pg"
    data=$1/pg/data
    install -m 600 ${pg_as:+-o postgres} crates/testkit/fixtures/server.key "$data/server.key"
    install -m 644 crates/testkit/fixtures/server.pem "$data/server.crt"
    printf '%s\n' 'ssl = on' 'password_encryption = scram-sha-256' >>"$data/postgresql.conf"
    printf '%s\n' 'hostssl all reader 127.0.0.1/32 scram-sha-256' 'host all test 127.0.0.1/32 trust' >"$data/pg_hba.conf"
    run_postgres "$1/pg" off
    echo "$pg_port""#;

/// A private server with TLS; dropping it stops it.
struct TlsServer {
    dir: TempDir,
    address: SocketAddr,
}

impl TlsServer {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let port = script(START, dir.path()).parse().unwrap();
        let server = Self { dir, address: (Ipv4Addr::LOCALHOST, port).into() };
        server.sql("CREATE ROLE reader LOGIN PASSWORD 's3cret'").await;
        server
    }

    async fn sql(&self, sql: &str) -> Option<String> {
        execute_as("test", self.address, "postgres", sql).await
    }

    fn trusting(&self, authority: &Path, host: &str) -> Server {
        let authority = CertificateDer::from_pem_file(authority).unwrap();
        Server {
            host: host.to_owned(),
            addresses: vec![self.address],
            database: "postgres".to_owned(),
            user: "reader".to_owned(),
            password: Some("s3cret".to_owned().into()),
            tls: Some(Tls::trusting([authority]).unwrap()),
        }
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        script(r#". scripts/postgres.sh; stop_postgres "$1/pg""#, self.dir.path());
    }
}

/// Runs a script in the directory of the project. Returns what it prints.
fn script(text: &str, argument: &Path) -> String {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new("bash");
    let ran = command.args(["-euc", text, "-"]).arg(argument).current_dir(project).output().unwrap();
    let (printed, problem) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{printed}{problem}");
    printed.trim().to_owned()
}

/// The authority of the test server's certificate.
pub(crate) fn authority() -> [CertificateDer<'static>; 1] {
    [CertificateDer::from_pem_file(TlsFront::authority()).unwrap()]
}

#[tokio::test]
async fn a_session_over_tls_is_encrypted_authenticated_and_cancelled() {
    let server = TlsServer::start().await;
    let trusted = server.trusting(&TlsFront::authority(), "localhost");
    let sql =
        "SELECT ssl, usename FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE pid = pg_backend_pid()";
    let rows = run(&trusted, plain(sql), WIDE).await.unwrap();
    assert_eq!(json!(rows.rows), json!([{"ssl": true, "usename": "reader"}]));
    let by_address = server.trusting(&TlsFront::authority(), "127.0.0.1");
    assert!(run(&by_address, plain("SELECT 1"), WIDE).await.is_ok(), "the certificate has the address too");

    let said = async |server: Server| run(&server, plain("SELECT 1"), WIDE).await.unwrap_err();
    let stranger = server.trusting(&TlsFront::other_authority(), "localhost");
    assert_eq!(said(stranger).await, Problem::Certificate);
    let elsewhere = server.trusting(&TlsFront::authority(), "db.example.com");
    assert_eq!(said(elsewhere).await, Problem::Certificate);
    let wrong = Server { password: Some("guess".to_owned().into()), ..trusted.clone() };
    assert_eq!(said(wrong).await, Problem::Credential);
    let plain_text = Server { tls: None, ..trusted.clone() };
    assert_eq!(said(plain_text).await, Problem::Credential, "the server wants TLS of this role");

    let short = Limits { time: Duration::from_millis(300), ..WIDE };
    server
        .sql(
            "CREATE FUNCTION outlast() RETURNS void LANGUAGE plpgsql AS \
            'BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled THEN PERFORM pg_sleep(600); END'",
        )
        .await;
    // The server's timeout ends the first one. The second one ignores it, so only our cancellation ends that.
    for sql in ["SELECT pg_sleep(600)", "SELECT outlast()"] {
        assert_eq!(run(&trusted, plain(sql), short).await, Err(Problem::Timeout), "{sql}");
    }
    let running = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader' AND state = 'active'";
    becomes_zero(running, async || server.sql(running).await.unwrap_or_default()).await;
}
