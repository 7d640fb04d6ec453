//! Somebody with full access to the database changes what the API shows. The test changes every column of every table
//! of the gate, one at a time, on both databases: `audit verify` must fail and name it.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _, SqliteConnection, raw_sql};
use testkit::EffectRecorder;

use crate::harness::{Machine, Server};
use crate::postgres::Database;

const TABLES: [&str; 10] = [
    "action_modes",
    "artifact_contents",
    "artifacts",
    "ledger_checkpoints",
    "ledger_events",
    "ledger_heads",
    "ledger_tree",
    "override_grants",
    "runs",
    "safety_lock",
];

/// Columns whose change goes undetected, each with the reason.
const UNVERIFIED_COLUMNS: [(&str, &str, &str); 5] = [
    ("ledger_checkpoints", "created_at", "nothing shows it; the signed note has no time"),
    ("ledger_tree", "id", "the table can have one row only"),
    ("runs", "decision", "only `policy replay` reads it, to try other policies"),
    ("runs", "instance", "changes while the run is at work, and the API does not show it"),
    ("safety_lock", "id", "the table can have one row only"),
];

/// The columns of the hash chain: for a change there, the error names the record.
const CHAINED_COLUMNS: [&str; 6] = ["position", "chain", "sequence", "record", "prev_hash", "hash"];

/// Direct access to a database, bypassing the gateway.
struct Sql {
    runtime: tokio::runtime::Runtime,
    connection: Raw,
}

enum Raw {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Sql {
    /// Connects as the owner and disables the triggers and foreign keys that protect the tables.
    fn open(machine: &Machine, url: Option<&str>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let file = format!("sqlite:{}", machine.data_dir().join("proliferate.db").display());
        let connection = match url {
            Some(url) => Raw::Postgres(runtime.block_on(PgConnection::connect(url)).unwrap()),
            None => Raw::Sqlite(runtime.block_on(SqliteConnection::connect(&file)).unwrap()),
        };
        let mut sql = Self { runtime, connection };
        if sql.is_postgres() {
            sql.run("SET session_replication_role = replica");
        } else {
            sql.run("PRAGMA foreign_keys = OFF");
            for trigger in sql.texts("SELECT name FROM sqlite_master WHERE type = 'trigger'") {
                sql.run(&format!("DROP TRIGGER {trigger}"));
            }
        }
        sql
    }

    fn is_postgres(&self) -> bool {
        matches!(self.connection, Raw::Postgres(_))
    }

    fn run(&mut self, sql: &str) -> u64 {
        let text = AssertSqlSafe(sql.to_owned());
        let done = match &mut self.connection {
            Raw::Sqlite(c) => self.runtime.block_on(raw_sql(text).execute(c)).map(|it| it.rows_affected()),
            Raw::Postgres(c) => self.runtime.block_on(raw_sql(text).execute(c)).map(|it| it.rows_affected()),
        };
        done.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn texts(&mut self, sql: &str) -> Vec<String> {
        let text = AssertSqlSafe(sql.to_owned());
        match &mut self.connection {
            Raw::Sqlite(c) => {
                let rows = self.runtime.block_on(raw_sql(text).fetch_all(c)).unwrap();
                rows.iter().map(|row| row.get(0)).collect()
            }
            Raw::Postgres(c) => {
                let rows = self.runtime.block_on(raw_sql(text).fetch_all(c)).unwrap();
                rows.iter().map(|row| row.get(0)).collect()
            }
        }
    }

    /// The columns of a table according to the database.
    fn columns(&mut self, table: &str) -> Vec<String> {
        self.texts(&if self.is_postgres() {
            format!(
                "SELECT column_name::text FROM information_schema.columns WHERE table_name = '{table}' ORDER BY 1"
            )
        } else {
            format!("SELECT name FROM pragma_table_info('{table}') ORDER BY 1")
        })
    }
}

/// A gate on one machine, with a tool that counts its effects.
struct Stage {
    machine: Machine,
    url: Option<String>,
    effects: EffectRecorder,
    runtime: tokio::runtime::Runtime,
}

impl Stage {
    fn new(url: Option<String>) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let effects = runtime.block_on(EffectRecorder::start()).unwrap();
        let mut machine = Machine::new();
        let directory = machine.file("policy");
        std::fs::create_dir(&directory).unwrap();
        let address = effects.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
        let tool = format!(
            "- {{name: effect.write, method: POST, url: 'http://{address}/effects/write', risk: write}}\n"
        );
        std::fs::write(directory.join("tools.yaml"), tool).unwrap();
        machine = machine
            .with("PROLIFERATE_POLICY_DIR", directory.to_str().unwrap())
            .with("CONNECTOR_ALLOWED_HOSTS", &address);
        if let Some(url) = &url {
            machine = machine.on(url);
        }
        Self { machine, url, effects, runtime }
    }

    fn sql(&self) -> Sql {
        Sql::open(&self.machine, self.url.as_deref())
    }

    fn effects(&self) -> usize {
        let _inside = self.runtime.enter();
        self.effects.all().len()
    }

    fn call(server: &Server, token: &str, run: &str) -> (u16, Value) {
        let call = json!({
            "tool_name": "effect", "operation": "effect.write", "lane_id": "actions.write",
            "actor": {"actor_type": "system", "actor_id": "worker"}, "case_id": "case-1", "run_id": run,
            "correlation_id": "why", "parameters": {"note": run},
        });
        server.post("/v1/tool-calls", token, &call)
    }

    /// Makes calls that put rows into every table.
    fn filled(self) -> Self {
        let server = self.machine.serve();
        let token = self.machine.service();
        let started = json!({"run_kind": "orchestrator", "run_name": "all", "case_id": "case-1"});
        let (status, run) = server.post("/v1/runs", &token, &started);
        assert_eq!(status, 201, "{run}");
        let (status, answer) = Self::call(&server, &token, "run-00000001");
        assert_eq!(status, 200, "{answer}");
        Self::call(&server, &token, "run-00000002");
        let denied = json!({"tool_name": "nowhere.look", "operation": "nowhere.look", "lane_id": "actions.read",
            "actor": {"actor_type": "system", "actor_id": "worker"}, "run_id": "run-denied-1"});
        assert_eq!(server.post("/v1/tool-calls", &token, &denied).0, 403);
        assert_eq!(server.post("/v1/tool-calls", &token, &json!({})).0, 400, "an event without a run");
        assert_eq!(self.machine.run(&["policy", "lock", "--reason", "a drill"]).code, 0);
        assert_eq!(self.machine.run(&["policy", "unlock", "--reason", "it is over"]).code, 0);
        let set = self.machine.run(&["actions", "modes", "set", "tools:effect.write", "allow"]);
        assert_eq!(set.code, 0, "{}", set.err);
        let owner = self.machine.json(&["users", "ls"])[0].clone();
        let (user, org) = (owner["id"].as_str().unwrap(), self.machine.first_org());
        for ticket in ["INC-1", "INC-2"] {
            let who = ["policy", "override", "grant", "--user", user, "--org", &org, "--ticket", ticket];
            let granted =
                self.machine.json(&[&who[..], &["--reason", "an outage", "--minutes", "5"]].concat());
            if ticket == "INC-2" {
                let id = granted["id"].as_str().unwrap();
                let revoked = self.machine.run(&["policy", "grants", "revoke", id, "--reason", "it is over"]);
                assert_eq!(revoked.code, 0, "{}", revoked.err);
            }
        }
        assert_eq!(server.stop(), 0);
        let verified = self.machine.json(&["audit", "verify"]);
        assert_eq!((&verified["ok"], &verified["runs"]), (&json!(true), &json!(4)), "{verified}");
        assert!(verified["artifacts"].as_u64().unwrap() >= 3, "{verified}");
        self
    }

    /// Asserts that `audit verify` fails on a changed database, and returns its output.
    fn verify_refusal(&self, what: &str) -> String {
        let found = self.machine.run(&["audit", "verify"]);
        assert_eq!(found.code, 1, "{what} went unnoticed: {} {}", found.out, found.err);
        assert!(found.err.contains("does not verify"), "{what}: {}", found.err);
        found.out
    }
}

/// The condition that selects the row to change.
fn row(table: &str) -> &'static str {
    match table {
        "runs" => "run_id = 'run-00000001'",
        "ledger_events" => "run_id = 'run-00000001' AND action_type = 'tool_call'",
        "action_modes" => "action_key = 'tools:effect.write'",
        "ledger_heads" => "chain <> 'system'",
        "ledger_checkpoints" => "size = (SELECT min(size) FROM ledger_checkpoints)",
        "override_grants" => "ticket = 'INC-1'",
        "artifacts" => "artifact_id = (SELECT min(artifact_id) FROM artifacts)",
        "artifact_contents" => "artifact_id = (SELECT min(artifact_id) FROM artifact_contents)",
        _ => "id = 1",
    }
}

/// Another value that the type and the constraints of the column allow.
fn other_value(table: &str, column: &str, kind: &str, is_postgres: bool) -> String {
    let words = [
        ("outcome", "ledger_events", "'failure'"),
        ("action_type", "ledger_events", "'system'"),
        ("mode", "action_modes", "'deny'"),
        ("run_kind", "runs", "'system'"),
        ("status", "runs", "'failed'"),
        ("scope", "artifacts", "'shared', case_id = NULL"),
        ("hash_source", "artifacts", "'normalized_json'"),
        ("case_id", "artifacts", "'case-2'"),
    ];
    if let Some((_, _, value)) = words.iter().find(|(name, of, _)| *name == column && *of == table) {
        return (*value).to_owned();
    }
    let other_first = format!("CASE WHEN {column} LIKE '0%' THEN '1' ELSE '0' END || substr({column}, 2)");
    match (kind, is_postgres) {
        ("uuid", true) => "'00000000-0000-0000-0000-000000000001'".to_owned(),
        ("uuid", false) => "x'00000000000000000000000000000001'".to_owned(),
        ("bytea", true) => "'\\x7b20207d'".to_owned(),
        ("bytea", false) => "x'7b20207d'".to_owned(),
        ("bigint", _) => format!("COALESCE({column}, 0) + 1000"),
        ("boolean", _) => format!("NOT {column}"),
        ("jsonb", _) => "'{\"forged\": true}'".to_owned(),
        ("timestamp with time zone", _) if column == "valid_from" => {
            "'2001-01-01T00:00:00.000+00:00'".to_owned()
        }
        ("timestamp with time zone", _) => "'2099-01-01T00:00:00.000+00:00'".to_owned(),
        _ => format!("COALESCE({other_first}, 'forged-1')"),
    }
}

/// The PostgreSQL type of each column; both databases use the same schema.
fn kinds(sql: &mut Sql) -> BTreeMap<(String, String), String> {
    let all = "SELECT table_name || ' ' || column_name || ' ' || data_type FROM information_schema.columns
        WHERE table_schema = 'public'";
    let split = |line: String| {
        let mut words = line.splitn(3, ' ').map(str::to_owned);
        Some(((words.next()?, words.next()?), words.next()?))
    };
    sql.texts(all).into_iter().filter_map(split).collect()
}

fn change_every_column(stage: &Stage, kinds: &BTreeMap<(String, String), String>) {
    let mut sql = stage.sql();
    let mut unverified = Vec::new();
    for table in TABLES {
        sql.run(&format!("CREATE TABLE saved_{table} AS SELECT * FROM {table}"));
        for column in sql.columns(table) {
            if let Some((of, name, _)) =
                UNVERIFIED_COLUMNS.iter().find(|(of, name, _)| (*of, *name) == (table, &*column))
            {
                unverified.push((*of, *name));
                continue;
            }
            let kind = &kinds[&(table.to_owned(), column.clone())];
            let value = other_value(table, &column, kind, sql.is_postgres());
            let changed = match (table, &*column) {
                // Choose a policy change: no run references it.
                (_, "unattached") => sql.run(
                    "UPDATE ledger_events SET unattached = NOT unattached WHERE position = (SELECT max(position)
                    FROM ledger_events WHERE action_type = 'policy_change')",
                ),
                _ => sql.run(&format!("UPDATE {table} SET {column} = {value} WHERE {}", row(table))),
            };
            let what = format!("{table}.{column}");
            assert_eq!(changed, 1, "{what}");
            let said = stage.verify_refusal(&what);
            let named = if table == "ledger_events" && CHAINED_COLUMNS.contains(&&*column) {
                said.contains("record ")
            } else {
                said.contains(table) && said.contains(&*column)
            };
            assert!(named, "{what} is not named: {said}");
            sql.run(&format!("DELETE FROM {table}"));
            sql.run(&format!("INSERT INTO {table} SELECT * FROM saved_{table}"));
        }
    }
    let named: Vec<_> = UNVERIFIED_COLUMNS.iter().map(|(table, column, _)| (*table, *column)).collect();
    unverified.sort_unstable();
    assert_eq!(unverified, named, "an exception for a column that is not there");
    take_rows_away(stage, &mut sql);
    assert_eq!(stage.machine.run(&["audit", "verify"]).code, 0, "everything is back as it was");
}

/// Deletes a row from each table, and inserts additional ones.
fn take_rows_away(stage: &Stage, sql: &mut Sql) {
    for table in TABLES {
        sql.run(&format!("DELETE FROM {table} WHERE {}", row(table)));
        let said = stage.verify_refusal(&format!("a row of {table} is gone"));
        assert!(said.contains(if table == "ledger_events" { "record" } else { table }), "{table}: {said}");
        sql.run(&format!("DELETE FROM {table}"));
        sql.run(&format!("INSERT INTO {table} SELECT * FROM saved_{table}"));
    }
    for (table, key, value) in [
        ("runs", "run_id", "'run-forged-1'".to_owned()),
        ("artifacts", "artifact_id", "'art_forged'".to_owned()),
        ("override_grants", "id", other_value("override_grants", "id", "uuid", sql.is_postgres())),
    ] {
        sql.run(&format!("CREATE TABLE forged AS SELECT * FROM {table} WHERE {}", row(table)));
        sql.run(&format!("UPDATE forged SET {key} = {value}"));
        sql.run(&format!("INSERT INTO {table} SELECT * FROM forged"));
        sql.run("DROP TABLE forged");
        let said = stage.verify_refusal(&format!("a forged row of {table}"));
        assert!(said.contains(table), "{table}: {said}");
        sql.run(&format!("DELETE FROM {table}"));
        sql.run(&format!("INSERT INTO {table} SELECT * FROM saved_{table}"));
    }
}

/// Runs a test on both databases.
fn on_both(name: &str, story: impl Fn(Stage)) {
    story(Stage::new(None));
    let database = Database::new(name);
    story(Stage::new(Some(database.url())));
}

#[test]
fn a_changed_column_of_any_table_of_the_gate_is_named() {
    let database = Database::new("tamper");
    let postgres = Stage::new(Some(database.url())).filled();
    let kinds = kinds(&mut postgres.sql());
    change_every_column(&Stage::new(None).filled(), &kinds);
    change_every_column(&postgres, &kinds);
}

#[test]
fn a_forged_artifact_is_not_served() {
    on_both("forged", |stage| {
        let stage = stage.filled();
        let id = stage
            .sql()
            .texts("SELECT artifact_id FROM artifacts WHERE artifact_kind = 'tool_output'")
            .remove(0);
        let read = |path: &str| {
            let server = stage.machine.serve();
            let answer = server.get(path, &stage.machine.service());
            server.stop();
            answer
        };
        let content = format!("/v1/artifacts/{id}/content?case_id=case-1");
        assert_eq!(read(&content).0, 200);
        let bytes = other_value("artifact_contents", "content", "bytea", stage.url.is_some());
        let key = format!("WHERE artifact_id = '{id}'");
        stage.sql().run(&format!("UPDATE artifact_contents SET content = {bytes} {key}"));
        let (status, said) = read(&content);
        assert_eq!(status, 500, "{said}");
        assert!(said.to_string().contains("was changed in the database"), "{said}");
        // Changing the hash as well does not help: the artifact id is derived from it.
        let hash = ledger::sha256(b"{  }");
        stage.sql().run(&format!("UPDATE artifacts SET hash_sha256 = '{hash}' {key}"));
        for path in [content, format!("/v1/artifacts/{id}?case_id=case-1")] {
            let (status, said) = read(&path);
            assert_eq!(status, 500, "{path}: {said}");
        }
    });
}

#[test]
fn a_ledger_with_a_changed_end_accepts_no_more_events() {
    let changes = [
        "UPDATE ledger_heads SET hash = (SELECT prev_hash FROM ledger_events LIMIT 1) WHERE chain <> 'system'",
        "DELETE FROM ledger_heads WHERE chain <> 'system'",
        "UPDATE ledger_tree SET size = size + 1",
        "DELETE FROM ledger_events WHERE position = (SELECT max(position) FROM ledger_events)",
    ];
    on_both("ends", |stage| {
        let stage = stage.filled();
        let done = stage.effects();
        let mut sql = stage.sql();
        for (number, change) in changes.into_iter().enumerate() {
            let server = stage.machine.serve();
            let token = stage.machine.service();
            for table in ["ledger_heads", "ledger_tree", "ledger_events"] {
                sql.run(&format!("CREATE TABLE kept_{table} AS SELECT * FROM {table}"));
            }
            sql.run(change);
            let (status, answer) = Stage::call(&server, &token, &format!("run-after-{number}"));
            assert_eq!(
                (status, &answer["error"]["error_code"]),
                (503, &json!("DEPENDENCY_DOWN")),
                "{change}"
            );
            for table in ["ledger_heads", "ledger_tree", "ledger_events"] {
                sql.run(&format!("DELETE FROM {table}"));
                sql.run(&format!("INSERT INTO {table} SELECT * FROM kept_{table}"));
                sql.run(&format!("DROP TABLE kept_{table}"));
            }
            server.kill();
        }
        assert_eq!(stage.effects(), done, "nothing was executed that could not be recorded");
    });
}
