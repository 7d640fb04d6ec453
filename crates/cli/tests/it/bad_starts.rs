//! Commands that cannot work print one clear sentence, exit with a code that scripts understand, and leave nothing
//! behind.

use std::net::TcpListener;

use sqlx::Connection as _;

use crate::harness::{Ended, Machine};

const SERVE_ARGUMENTS: &[&str] = &["serve", "--listen", "127.0.0.1:0"];

fn assert_refused(ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.code, code, "{}", ended.err);
    assert_eq!(ended.out, "");
    for word in words {
        assert!(ended.err.contains(word), "{word:?} is not in: {}", ended.err);
    }
    assert!(!ended.err.contains("hunter2"), "a secret is shown: {}", ended.err);
    assert!(!ended.err.contains("panicked"), "{}", ended.err);
}

pub(crate) fn execute(file: &std::path::Path, sql: &'static str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
        let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::query(sql).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    });
}

#[test]
fn wrong_settings_are_named_all_at_once() {
    let machine = Machine::new()
        .with("GATEWAY_JWT_SECRET", "hunter2")
        .with("PUBLIC_URL", "not a url")
        .with("SANDBOX_PROVIDER", "cloud")
        .with("ALLOWED_ORIGINS", "https://a.example/path");
    let names = ["GATEWAY_JWT_SECRET", "PUBLIC_URL", "SANDBOX_PROVIDER", "ALLOWED_ORIGINS", "4 settings"];
    assert_refused(&machine.run(SERVE_ARGUMENTS), 2, &names);
    assert!(!machine.data_dir().exists());
}

#[test]
fn a_taken_port() {
    let machine = Machine::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert_refused(&machine.run(&["serve", "--listen", &address]), 3, &[&address, "--listen"]);
    assert!(!machine.data_dir().exists());
}

#[test]
fn a_data_dir_that_cannot_be_written() {
    let machine = Machine::new();
    let file = machine.file("in-the-way");
    std::fs::write(&file, "").unwrap();
    let inside = file.join("data");
    let args = [SERVE_ARGUMENTS, &["--data-dir", inside.to_str().unwrap()]].concat();
    assert_refused(&machine.run(&args), 3, &["in-the-way", "--data-dir"]);
}

#[test]
fn a_read_only_data_dir() {
    // Root ignores file permissions, so use a directory in which not even root can create a file.
    assert_refused(
        &Machine::new().run(&[SERVE_ARGUMENTS, &["--data-dir", "/proc/self"]].concat()),
        3,
        &["/proc/self", "--data-dir"],
    );
}

#[test]
fn an_unreachable_database() {
    let secret = "s".repeat(32);
    let machine = Machine::new()
        .with("DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/d")
        .with("GATEWAY_JWT_SECRET", &secret)
        .with("SERVICE_TO_SERVICE_AUTH_TOKEN", &"t".repeat(32))
        .with("USER_SECRETS_ENCRYPTION_KEY", &"ab".repeat(32));
    assert_refused(&machine.run(SERVE_ARGUMENTS), 3, &["127.0.0.1:1", "DATABASE_URL"]);
    assert!(!machine.data_dir().exists());
}

#[test]
fn postgres_without_secrets() {
    let machine = Machine::new().with("DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/d");
    let names = ["GATEWAY_JWT_SECRET", "SERVICE_TO_SERVICE_AUTH_TOKEN", "USER_SECRETS_ENCRYPTION_KEY"];
    assert_refused(&machine.run(SERVE_ARGUMENTS), 2, &names);
    assert!(!machine.data_dir().exists());
}

#[test]
fn settings_that_do_nothing_yet() {
    let machine = Machine::new().with("REDIS_URL", "redis://:hunter2@127.0.0.1:1").with("S3_BUCKET", "b");
    for command in [SERVE_ARGUMENTS, &["doctor"]] {
        assert_refused(
            &machine.run(command),
            2,
            &["REDIS_URL is not supported yet", "S3_BUCKET is not supported yet"],
        );
    }
    assert!(!machine.data_dir().exists());
}

#[test]
fn a_database_of_a_newer_program() {
    let machine = Machine::new();
    machine.serve().stop();
    let file = machine.data_dir().join("proliferate.db");
    let insert = "INSERT INTO schema_migrations VALUES (999, 'later', 'x', 'now')";
    // Simulate a database of a newer version: a migration writes its schema version last.
    execute(&file, insert);
    assert_refused(&machine.run(SERVE_ARGUMENTS), 3, &["999", "newer program"]);
    assert_refused(&machine.run(&["users", "ls"]), 3, &["999"]);
}

#[test]
fn a_file_that_is_not_a_database() {
    let machine = Machine::new();
    std::fs::create_dir_all(machine.data_dir()).unwrap();
    std::fs::write(machine.data_dir().join("proliferate.db"), "This is not a database, only a text.")
        .unwrap();
    assert_refused(&machine.run(SERVE_ARGUMENTS), 3, &["proliferate.db"]);
}

#[test]
fn a_broken_model_script() {
    let machine = Machine::new();
    let script = machine.file("script.toml");
    std::fs::write(&script, "[[rule]]\nwhen = 5\n").unwrap();
    let machine = machine.with("PROLIFERATE_MODEL_SCRIPT", script.to_str().unwrap());
    assert_refused(&machine.run(SERVE_ARGUMENTS), 2, &["PROLIFERATE_MODEL_SCRIPT", "script.toml"]);
    assert!(!machine.data_dir().exists());
}

#[test]
fn for_programs_the_error_is_json() {
    let ended = Machine::new().with("PUBLIC_URL", "x").run(&["serve", "--json"]);
    let error: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
    assert!(error["error"].as_str().unwrap().contains("PUBLIC_URL"));
    assert_eq!(error["exitCode"], 2);
}

#[test]
fn commands_that_read_or_change_rows_create_no_database() {
    let machine = Machine::new();
    let out = machine.file("backup.db");
    let backup = ["db", "backup", out.to_str().unwrap()];
    for args in [&["users", "ls"][..], &["keys", "ls"], &["token", "user"], &["secrets", "ls"], &backup] {
        assert_refused(&machine.run(args), 3, &["proliferate.db"]);
    }
    assert!(!machine.data_dir().exists() && !out.exists());
}

#[test]
fn a_credential_in_a_url_is_not_repeated() {
    let machine = Machine::new().with("ANTHROPIC_BASE_URL", "https://user:hunter2@example.com");
    assert_refused(&machine.run(SERVE_ARGUMENTS), 2, &["ANTHROPIC_BASE_URL"]);
}

#[test]
fn a_lost_key_file_is_noticed_before_anything_is_served() {
    let machine = Machine::new();
    machine.serve().stop();
    machine.feed(&["secrets", "set", "KEPT", "-"], "1");
    let keys = machine.data_dir().join("keys.env");
    std::fs::rename(&keys, machine.file("elsewhere")).unwrap();
    let ended = machine.run(SERVE_ARGUMENTS);
    assert_ne!(ended.code, 0);
    assert!(ended.err.contains("keys.env"), "{}", ended.err);
    std::fs::rename(machine.file("elsewhere"), &keys).unwrap();
    assert_eq!(machine.serve().stop(), 0);
}
