//! Backups: taken while a gateway is running, checked before they replace anything, and complete.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::bad_starts::execute;
use crate::harness::{Machine, postgres};

#[test]
fn a_backup_made_while_a_gateway_runs_can_be_restored() {
    let machine = Machine::new();
    let server = machine.serve();
    machine.feed(&["secrets", "set", "BEFORE", "-"], "1");
    let file = machine.file("backup.db");
    let path = file.to_str().unwrap();
    assert_eq!(machine.run(&["db", "backup", path]).code, 0);
    assert_eq!(machine.run(&["db", "backup", path]).code, 2, "a backup is never overwritten");
    machine.feed(&["secrets", "set", "AFTER", "-"], "2");
    let busy = machine.run(&["db", "restore", path, "--yes"]);
    assert_eq!(busy.code, 3, "{}", busy.err);
    assert!(busy.err.contains("another proliferate serves"), "{}", busy.err);
    server.stop();
    let unasked = machine.run(&["db", "restore", path]);
    assert_eq!(unasked.code, 2, "without a terminal it must be told");
    let restored = machine.run(&["db", "restore", path, "--yes"]);
    assert_eq!(restored.code, 0, "{}", restored.err);
    assert!(restored.out.contains("kept"), "{}", restored.out);
    let names = machine.json(&["secrets", "ls"]);
    assert_eq!(names.as_array().unwrap().len(), 1);
    assert_eq!(names[0]["key"], "BEFORE");
    machine.serve().stop();
}

#[test]
fn a_file_that_is_not_a_backup_replaces_nothing() {
    let machine = Machine::new();
    machine.serve().stop();
    machine.feed(&["secrets", "set", "KEPT", "-"], "1");
    let file = machine.file("no.db");
    std::fs::write(&file, "no database").unwrap();
    assert_ne!(machine.run(&["db", "restore", file.to_str().unwrap(), "--yes"]).code, 0);
    assert_ne!(machine.run(&["db", "restore", "/nonexistent", "--yes"]).code, 0);
    assert_eq!(machine.json(&["secrets", "ls"])[0]["key"], "KEPT");
}

#[test]
fn migrate_says_where_the_schema_is() {
    let machine = Machine::new();
    let first = machine.json(&["db", "migrate"]);
    assert_eq!(first["backend"], "SQLite");
    assert_eq!(machine.json(&["db", "migrate"]), first);
}

#[test]
fn the_same_commands_work_on_postgres() {
    let server = postgres();
    let name = format!("cli_{}", std::process::id());
    let base = server.rsplit_once('/').unwrap().0;
    let psql = |sql: String| {
        let done =
            Command::new("psql").args([&server, "-v", "ON_ERROR_STOP=1", "-qc", &sql]).status().unwrap();
        assert!(done.success(), "{sql}");
    };
    psql(format!("CREATE DATABASE {name}"));
    let machine = Machine::new()
        .with("DATABASE_URL", &format!("{base}/{name}"))
        .with("GATEWAY_JWT_SECRET", &"j".repeat(32))
        .with("SERVICE_TO_SERVICE_AUTH_TOKEN", &"s".repeat(32))
        .with("USER_SECRETS_ENCRYPTION_KEY", &"ab".repeat(32));
    let gateway = machine.serve();
    let token = machine.run(&["token", "user"]).out;
    assert_eq!(gateway.get("/v1/me", token.trim()).1["role"], "owner");
    machine.feed(&["secrets", "set", "BEFORE", "-"], "1");
    gateway.stop();
    let file = machine.file("dump");
    let path = file.to_str().unwrap();
    let backup = machine.run(&["db", "backup", path]);
    assert_eq!(backup.code, 0, "{}", backup.err);
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "others can read it");
    machine.feed(&["secrets", "set", "AFTER", "-"], "2");
    let restored = machine.run(&["db", "restore", path, "--yes"]);
    assert_eq!(restored.code, 0, "{}", restored.err);
    assert_eq!(machine.json(&["secrets", "ls"]).as_array().unwrap().len(), 1);
    psql(format!("DROP DATABASE {name} WITH (FORCE)"));
}

#[test]
fn a_database_from_before_the_first_release_is_refused_everywhere_with_one_sentence() {
    let machine = Machine::new();
    machine.serve().stop();
    let file = machine.data_dir().join("proliferate.db");
    let older =
        "UPDATE schema_migrations SET version = version - (SELECT max(version) FROM schema_migrations) + 19";
    execute(&file, older);
    for command in [&["serve"][..], &["users", "ls"], &["db", "migrate"]] {
        let refused = machine.run(command);
        assert_eq!(refused.code, 3, "{command:?}: {}", refused.err);
        assert!(refused.err.contains("schema version 19") && refused.err.contains("move the data dir away"));
    }
    let doctor = machine.run(&["doctor", "--json"]).out;
    assert!(doctor.contains("schema version 19") && doctor.contains("move the data dir away"), "{doctor}");
    // The operator can still take a backup, but cannot restore it into this version.
    let out = machine.file("old.db");
    assert_eq!(machine.run(&["db", "backup", out.to_str().unwrap()]).code, 0);
    let restored = machine.run(&["db", "restore", out.to_str().unwrap(), "--yes"]);
    assert!(restored.code != 0 && restored.err.contains("schema version 19"), "{}", restored.err);
}

#[test]
fn a_stopped_gateway_leaves_everything_in_one_file() {
    let machine = Machine::new();
    machine.serve().stop();
    let log = machine.data_dir().join("proliferate.db-wal");
    assert!(
        std::fs::metadata(&log).map(|log| log.len()).unwrap_or_default() == 0,
        "the log was not folded in"
    );
}
