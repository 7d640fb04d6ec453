//! One gateway serves a PostgreSQL database at a time: a second one waits for the first to finish stopping, or is
//! refused.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::Command;

use crate::deadline::wait_for_end;
use crate::harness::{Machine, postgres};

const SERVE_ARGUMENTS: &[&str] = &["serve", "--json", "--listen", "127.0.0.1:0"];

/// Two data dirs on one new database.
fn machines(name: &str) -> [Machine; 2] {
    let server = postgres();
    let name = format!("one_gateway_{name}_{}", std::process::id());
    let create = format!("CREATE DATABASE {name}");
    let done =
        Command::new("psql").args([&server, "-v", "ON_ERROR_STOP=1", "-qc", &create]).status().unwrap();
    assert!(done.success());
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    let machines = [Machine::new(), Machine::new()];
    // The checkpoints of one ledger are signed with one key.
    let key = machines[0].file("audit.key").display().to_string();
    machines.map(|machine| {
        machine
            .with("DATABASE_URL", &url)
            .with("AUDIT_SIGNING_KEY", &key)
            .with("GATEWAY_JWT_SECRET", &"j".repeat(32))
            .with("SERVICE_TO_SERVICE_AUTH_TOKEN", &"s".repeat(32))
            .with("USER_SECRETS_ENCRYPTION_KEY", &"ab".repeat(32))
    })
}

#[test]
fn a_second_gateway_on_a_postgres_database_is_refused() {
    let [first, second] = machines("refused");
    let server = first.serve();
    let refused = second.run(SERVE_ARGUMENTS);
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("another gateway serves the database postgres://"), "{}", refused.err);
    assert!(refused.err.contains("stop it") && refused.err.contains("DATABASE_URL"), "{}", refused.err);
    assert!(!second.data_dir().exists(), "a refused start leaves nothing");
    assert_eq!(second.run(&["users", "ls"]).code, 0, "commands still work beside a gateway");
    let token = first.run(&["token", "user"]).out;
    assert_eq!(server.get("/v1/me", token.trim()).0, 200, "the first one goes on");
}

#[test]
fn a_gateway_that_starts_while_the_first_one_stops_waits_for_it() {
    let [first, second] = machines("stopping");
    let mut server = first.serve_with(&[("PROLIFERATE_STOP_SECONDS", "2")]);
    // A request that never ends keeps the first gateway stopping until its deadline.
    let address = server.url("").trim_start_matches("http://").to_owned();
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"POST /v1/login HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{").unwrap();
    assert_eq!(server.get("/health", "").0, 200, "the request before this one has arrived");
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.child.try_wait().unwrap().is_none(), "it is still stopping");
    let next = second.serve();
    assert_eq!(next.get("/health", "").0, 200);
    wait_for_end("the first gateway to stop", &mut server.child);
}

#[test]
fn a_killed_gateway_does_not_keep_its_database() {
    let [first, second] = machines("killed");
    first.serve().kill();
    let next = second.serve();
    assert_eq!(next.get("/health", "").0, 200);
}
