//! SQLite: what comes back, and what is refused.

use std::path::Path;
use std::time::Duration;

use databases::sqlite::{self, DatabaseFile};
use databases::{Limits, Problem, Query, Rows};
use rusqlite::Connection;
use serde_json::json;
use tempfile::TempDir;

use crate::{WIDE, plain, query};

async fn run(file: &DatabaseFile, query: Query, limits: Limits) -> Result<Rows, Problem> {
    sqlite::query(file, query, limits, ()).await
}

async fn check(file: &DatabaseFile, limits: Limits) -> Result<(), Problem> {
    sqlite::check(file, limits, ()).await
}

struct World {
    dir: TempDir,
    file: DatabaseFile,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (directory, never) = (dir.path().join("files"), dir.path().join("data"));
        std::fs::create_dir(&directory).unwrap();
        std::fs::create_dir(&never).unwrap();
        let database = Connection::open(directory.join("shop.db")).unwrap();
        database
            .execute_batch(
                "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT);
                WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)
                INSERT INTO orders SELECT i, 'c' || i FROM n",
            )
            .unwrap();
        let file = DatabaseFile { directory, file: "shop.db".into(), never };
        Self { dir, file }
    }

    async fn refusal_of(&self, query: Query) -> String {
        match run(&self.file, query.clone(), WIDE).await {
            Ok(rows) => panic!("{query:?} returns {rows:?}"),
            Err(problem) => problem.to_string(),
        }
    }

    fn named(&self, file: &str) -> DatabaseFile {
        DatabaseFile { file: file.into(), ..self.file.clone() }
    }
}

#[tokio::test]
async fn rows_come_back_as_json_by_their_types() {
    let world = World::new();
    let sql =
        "SELECT 1 AS a, 9007199254740993 AS b, 0.5 AS c, 9e999 AS d, NULL AS e, x'00ff' AS f, 'ä€' AS g,
        ?1 AS h, ?2 AS i, ?3 AS j, ?4 AS k, json_extract('{\"a\": [1]}', '$.a') AS l, 2 AS a";
    let values = json!(["x' OR 1", true, [1], null]);
    let rows = run(&world.file, query(sql, values), WIDE).await.unwrap();
    assert_eq!(
        json!(rows.rows),
        json!([{"a": 1, "b": "9007199254740993", "c": 0.5, "d": "inf", "e": null, "f": "\\x00ff", "g": "ä€",
            "h": "x' OR 1", "i": 1, "j": "[1]", "k": null, "l": "[1]", "a_2": 2}])
    );
    let tables = run(&world.file, plain("SELECT name FROM pragma_table_info('orders')"), WIDE).await.unwrap();
    assert_eq!(json!(tables.rows), json!([{"name": "id"}, {"name": "customer"}]));
}

#[tokio::test]
async fn nothing_that_writes_or_leaves_the_file_is_executed() {
    let world = World::new();
    let other = world.dir.path().join("other.db");
    let before = std::fs::read(world.file.directory.join("shop.db")).unwrap();
    let attach = format!("ATTACH '{}' AS other", other.display());
    let vacuum = format!("VACUUM INTO '{}'", other.display());
    for sql in [
        "INSERT INTO orders VALUES (1000, 'x')",
        "INSERT INTO orders VALUES (1000, 'x') RETURNING id",
        "UPDATE orders SET customer = ''",
        "DELETE FROM orders RETURNING id",
        "REPLACE INTO orders VALUES (1, 'x')",
        "DROP TABLE orders",
        "CREATE TABLE t (id)",
        "CREATE TEMP TABLE t (id)",
        "CREATE TEMP VIEW v AS SELECT 1",
        "CREATE VIRTUAL TABLE temp.t USING fts5(x)",
        "ALTER TABLE orders RENAME TO o",
        "BEGIN",
        "BEGIN IMMEDIATE",
        "COMMIT",
        "SAVEPOINT s",
        "SELECT 1; DELETE FROM orders",
        "SELECT 1; SELECT 2",
        "REINDEX",
        "ANALYZE",
        "VACUUM",
        &vacuum,
        &attach,
        "ATTACH ':memory:' AS m",
        "DETACH main",
        "SELECT load_extension('/lib/x.so')",
        "SELECT LOAD_EXTENSION('/lib/x.so')",
        "SELECT writefile('/tmp/x', 'y')",
        "SELECT readfile('/etc/passwd')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT json_patch('{}', '{}')",
        "SELECT hex(jsonb_patch('{}', '{}'))",
        "PRAGMA writable_schema = ON",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA temp_store_directory = '/tmp'",
        "PRAGMA mmap_size = 1000000000",
        "PRAGMA user_version = 7",
        "PRAGMA database_list",
        "SELECT * FROM pragma_database_list",
        "SELECT * FROM pragma_compile_options",
        "EXPLAIN DELETE FROM orders",
    ] {
        let said = world.refusal_of(plain(sql)).await;
        assert!(!said.contains("in time"), "{sql}: {said}");
    }
    assert_eq!(std::fs::read(world.file.directory.join("shop.db")).unwrap(), before);
    assert!(!other.exists());
}

#[tokio::test]
async fn parameters_have_positions() {
    let world = World::new();
    for (sql, values, part) in [
        ("SELECT ?2, ?1", json!([1]), "has 2 parameters, and 1 are given"),
        ("SELECT $2, $1", json!([1, 2]), "?1, ?2"),
        ("SELECT :a", json!([1]), "?1, ?2"),
        ("SELECT missing FROM orders", json!([]), "no such column: missing (at byte 8)"),
        ("", json!([]), "empty"),
        ("-- nothing", json!([]), "only statements that return rows"),
        ("SELECT '\u{0}'", json!([]), "NUL"),
    ] {
        let said = world.refusal_of(query(sql, values)).await;
        assert!(said.contains(part), "{sql}: {said}");
    }
    let both = run(&world.file, query("SELECT ?2 AS a, ?1 AS b", json!([1, 2])), WIDE).await.unwrap();
    assert_eq!(json!(both.rows), json!([{"a": 2, "b": 1}]));
}

#[tokio::test]
async fn a_query_ends_at_its_limits() {
    let world = World::new();
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) ";
    let limits = Limits { rows: 10, ..WIDE };
    let found = run(&world.file, plain(&format!("{endless} SELECT i FROM n")), limits).await.unwrap();
    assert_eq!((found.rows.len(), found.truncated), (10, true));
    let found = run(&world.file, plain("SELECT id FROM orders"), Limits { bytes: 90, ..WIDE }).await.unwrap();
    assert_eq!((found.rows.len(), found.truncated), (11, true));
    for huge in ["SELECT zeroblob(2000000000)", "SELECT hex(zeroblob(1000000))"] {
        let ended = run(&world.file, plain(huge), WIDE).await;
        assert_eq!(ended, Err(Problem::TooLarge(WIDE.bytes)), "{huge}");
    }
    let short = Limits { time: Duration::from_millis(200), ..WIDE };
    for late in [
        format!("{endless} SELECT count(*) FROM n"),
        "SELECT count(*) FROM orders a, orders b, orders c, orders d, orders e, orders f".to_owned(),
    ] {
        assert_eq!(run(&world.file, plain(&late), short).await, Err(Problem::Timeout), "{late}");
    }
    // Without a loop nothing asks between the columns whether the query is late, except for slow functions.
    let columns = |column: &dyn Fn(usize) -> String| (0..200).map(column).collect::<Vec<_>>().join(", ");
    let trim = columns(&|n| {
        format!("trim(hex(zeroblob({})), replace(hex(zeroblob(120)), '0', '1') || '0')", 30_000 + n)
    });
    let text = |any| {
        let zeros = "substr(hex(zeroblob(48)), 1, 95)";
        format!("WITH t(x, p) AS MATERIALIZED (SELECT hex(zeroblob(500000)), '{any}' || {zeros})")
    };
    let matches = |operator: &str| columns(&|n| format!("x {operator} p || '{}'", n + 100));
    for (slow, bytes) in [
        (format!("SELECT {trim}"), 64 << 10),
        (format!("{} SELECT {} FROM t", text('%'), matches("LIKE")), 1 << 20),
        (format!("{} SELECT {} FROM t", text('*'), matches("GLOB")), 1 << 20),
    ] {
        let short = Limits { time: Duration::from_millis(20), bytes, ..WIDE };
        let held = std::sync::Arc::new(());
        let ended = sqlite::query(&world.file, plain(&slow), short, held.clone()).await;
        assert_eq!(ended, Err(Problem::Timeout), "{}", &slow[..80]);
        let released = async {
            while std::sync::Arc::strong_count(&held) > 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(WIDE.time, released).await.is_ok(), "{}", &slow[..80]);
    }
    // The threads of late queries end too: otherwise the runtime of this test would never shut down.
    let deep = format!("SELECT 1{}{}", "+(1".repeat(500), ")".repeat(500));
    assert!(matches!(run(&world.file, plain(&deep), WIDE).await, Err(Problem::Statement(_))));
}

/// Within such a call SQLite could not be interrupted.
#[tokio::test]
async fn a_single_call_of_a_function_cannot_take_long() {
    let world = World::new();
    let ones = "replace(hex(zeroblob(400000)), '0', '1')";
    for sql in [
        &format!("SELECT trim(hex(zeroblob(400000)), {ones} || '0')"),
        &format!("SELECT ltrim(hex(zeroblob(400000)), {ones} || '0')"),
        &format!("SELECT rtrim(hex(zeroblob(400000)), {ones} || '0')"),
        "SELECT instr(hex(zeroblob(400000)), hex(zeroblob(200000)) || '1')",
        "SELECT replace(hex(zeroblob(400000)), hex(zeroblob(200000)) || '1', 'x')",
        "SELECT unhex(replace(hex(zeroblob(200000)), '0', ' '), hex(zeroblob(200000)) || ' ')",
        "SELECT format(replace(hex(zeroblob(40000)), '0', '%.900000g'))",
        "SELECT printf('%.99999999999999999999g')",
    ] {
        let said = world.refusal_of(plain(sql)).await;
        assert!(said.contains("too long together"), "{sql}: {said}");
    }
    let much = "SELECT length(replace(hex(zeroblob(400000)), '00', 'abc')) AS a, instr(hex(zeroblob(400000)), '1') AS b";
    let limits = Limits { bytes: 2 << 20, ..WIDE };
    assert_eq!(
        json!(run(&world.file, plain(much), limits).await.unwrap().rows),
        json!([{"a": 1_200_000, "b": 0}])
    );
    let longer = "SELECT replace(hex(zeroblob(400000)), '0', 'abcdef')";
    assert_eq!(run(&world.file, plain(longer), WIDE).await, Err(Problem::TooLarge(WIDE.bytes)));
}

#[tokio::test]
async fn bounded_functions_return_what_sqlite_returns() {
    let world = World::new();
    let values = "WITH v(x) AS (VALUES ('a,b,a'), ('äöä'), (''), (NULL), (12), (-1.5), (1e15), (0.1), (x'612c62'), (x''), \
        ('%s|%5.2f'), ('a'), (','), ('ä'), (1), ('.'), ('61 62'), (' '), (char(0, 97)))";
    let unrestricted = Connection::open_in_memory().unwrap();
    for call in [
        "instr(a.x, b.x)",
        "replace(a.x, b.x, c.x)",
        "trim(a.x, b.x) || ltrim(a.x, b.x) || rtrim(a.x, b.x)",
        "trim(a.x)",
        "unhex(a.x, b.x)",
        "format(a.x, b.x, c.x)",
        "printf(a.x, b.x)",
        "printf()",
        "a.x LIKE b.x",
        "a.x GLOB b.x",
        "like(a.x, b.x)",
        "glob(a.x, b.x)",
        "'x%y_z' LIKE 'x!%y!_%' ESCAPE '!'",
    ] {
        let sql = format!("{values} SELECT group_concat(quote({call}), ' ') AS x FROM v a, v b, v c");
        let expected: String = unrestricted.query_row(&sql, [], |row| row.get(0)).unwrap();
        let found = run(&world.file, plain(&sql), WIDE).await.unwrap();
        assert_eq!(json!(found.rows), json!([{"x": expected}]), "{call}");
    }
}

#[tokio::test]
async fn a_text_that_cannot_be_converted_is_too_much_memory() {
    let world = World::new();
    let wide = Connection::open(world.file.directory.join("wide.db")).unwrap();
    wide.execute_batch("PRAGMA encoding = 'UTF-16'; CREATE TABLE t (x)").unwrap();
    // The texts fit into the memory of a query, and the first one does not fit twice.
    for columns in 80..86 {
        let texts = (0..columns).map(|n| format!("hex(zeroblob({}))", 200_000 + n)).collect::<Vec<_>>();
        let sql = format!("SELECT {} FROM (SELECT 1)", texts.join(", "));
        let ended = run(&world.named("wide.db"), plain(&sql), WIDE).await;
        assert!(matches!(ended, Err(Problem::Memory(_) | Problem::TooLarge(_))), "{columns}: {ended:?}");
    }
}

#[tokio::test]
async fn a_query_fills_neither_the_memory_nor_the_disk() {
    let world = World::new();
    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000)";
    let wide = format!("SELECT {}", vec!["randomblob(900000)"; 400].join(", "));
    for greedy in [
        &format!("{rows} SELECT i FROM n ORDER BY randomblob(800000) LIMIT 1 OFFSET 99999"),
        &format!("{rows} SELECT i FROM n GROUP BY randomblob(800000)"),
        &format!("{rows} SELECT DISTINCT randomblob(800000) FROM n LIMIT 1 OFFSET 99999"),
        // No loop, so nothing asks between the columns whether the query should go on.
        &wide,
    ] {
        assert_eq!(run(&world.file, plain(greedy), WIDE).await, Err(Problem::Memory(64)), "{greedy}");
    }
    // What the failed queries took is free again, for this one and for the store, which has no limit.
    let sorted = format!("{rows} SELECT i FROM n ORDER BY i DESC LIMIT 1");
    let found = run(&world.file, plain(&sorted), WIDE).await.unwrap();
    assert_eq!(json!(found.rows), json!([{"i": 100_000}]));
    let unlimited = Connection::open_in_memory().unwrap();
    let large: i64 =
        unlimited.query_row("SELECT length(hex(zeroblob(40000000)))", [], |row| row.get(0)).unwrap();
    assert_eq!(large, 80_000_000);
}

#[tokio::test]
async fn only_files_below_the_directory_are_opened() {
    let world = World::new();
    assert_eq!(check(&world.file, WIDE).await, Ok(()));
    let directory = world.file.directory.clone();
    let keys = world.file.never.join("proliferate.db");
    std::fs::copy(directory.join("shop.db"), &keys).unwrap();
    std::fs::copy(directory.join("shop.db"), world.dir.path().join("outside.db")).unwrap();
    let link = |from: &Path, name: &str| std::os::unix::fs::symlink(from, directory.join(name)).unwrap();
    link(&world.dir.path().join("outside.db"), "link.db");
    link(Path::new("shop.db"), "inside.db");
    link(world.dir.path(), "up");
    std::fs::write(directory.join("text.db"), "this is not a database, but long enough to be asked").unwrap();
    std::fs::create_dir(directory.join("dir.db")).unwrap();
    for (file, part) in [
        ("", "relative path"),
        ("../outside.db", "relative path"),
        ("a/../../outside.db", "relative path"),
        ("/etc/passwd", "relative path"),
        ("link.db", "leads out"),
        ("up/outside.db", "leads out"),
        ("up/data/proliferate.db", "leads out"),
        ("missing.db", "does not exist"),
        ("dir.db", "not a regular file"),
        ("text.db", "not an SQLite database"),
    ] {
        let said = check(&world.named(file), WIDE).await.unwrap_err().to_string();
        assert!(said.contains(part), "{file}: {said}");
    }
    assert_eq!(check(&world.named("inside.db"), WIDE).await, Ok(()), "a link that stays inside");
    // Even if the directory were chosen badly, the gateway's own files stay closed.
    let bad = DatabaseFile { directory: world.dir.path().to_owned(), ..world.named("data/proliferate.db") };
    let said = check(&bad, WIDE).await.unwrap_err().to_string();
    assert!(said.contains("belongs to the gateway"), "{said}");
}
