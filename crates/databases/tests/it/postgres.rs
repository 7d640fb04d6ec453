//! PostgreSQL: what comes back, and what is refused.

use std::time::Duration;

use databases::postgres::{Server, Tls, check, query as run};
use databases::{Limits, Problem, Query};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};

use crate::server::World;
use crate::tls::authority;
use crate::{WIDE, plain, query};

async fn refusal_of(world: &World, query: Query) -> String {
    match run(&world.server, query.clone(), WIDE).await {
        Ok(rows) => panic!("{query:?} returns {rows:?}"),
        Err(problem) => problem.to_string(),
    }
}

#[tokio::test]
async fn rows_come_back_as_json_by_their_types() {
    let world = World::new().await;
    world.sql("CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE DOMAIN small AS int CHECK (VALUE < 9)").await;
    let sql = "SELECT 1::int2 AS a, 9007199254740993::int8 AS b, 1.50::numeric AS c, 0.1::float8 AS d, 'NaN'::float8 AS e,
        true AS f, NULL::int AS g, '\\x00ff'::bytea AS h, '{\"k\": [1, null]}'::jsonb AS i, '[1]'::json AS j,
        '2026-02-03 04:05:06+02'::timestamptz AS k, '2026-02-03'::date AS l, ARRAY[1, NULL, 3] AS m,
        ARRAY[['a', 'b \"\\'], ['NULL', '{,}']] AS n, '{}'::text[] AS o, 'good'::mood AS p, 5::small AS q,
        '{good,bad}'::mood[] AS r, '1 day 02:00'::interval AS s, 'x'::char(3) AS t, inet '10.0.0.1' AS u,
        '00000000-0000-0000-0000-000000000001'::uuid AS v, int4range(1, 5) AS w, (1, 'a') AS x, 'ä€😀' AS y,
        'dup' AS z, 'dup2' AS z, '[18446744073709551616, 0.12345678901234567890, 0.5]'::jsonb AS za";
    let rows = run(&world.server, plain(sql), WIDE).await.unwrap();
    assert_eq!(
        json!(rows.rows),
        json!([{"a": 1, "b": "9007199254740993", "c": "1.50", "d": 0.1, "e": "NaN", "f": true, "g": null,
            "h": "\\x00ff", "i": {"k": [1, null]}, "j": [1], "k": "2026-02-03 02:05:06+00", "l": "2026-02-03",
            "m": [1, null, 3], "n": [["a", "b \"\\"], ["NULL", "{,}"]], "o": [], "p": "good", "q": 5,
            "r": ["good", "bad"], "s": "P1DT2H", "t": "x  ", "u": "10.0.0.1",
            "v": "00000000-0000-0000-0000-000000000001", "w": "[1,5)", "x": "(1,a)", "y": "ä€😀",
            "z": "dup", "z_2": "dup2", "za": ["18446744073709551616", "0.12345678901234567890", 0.5]}])
    );
    assert!(!rows.truncated);
    let none = run(&world.server, plain("SELECT id FROM orders WHERE false"), WIDE).await.unwrap();
    assert_eq!((none.columns, none.rows.len()), (vec!["id".to_owned()], 0));
}

#[tokio::test]
async fn parameters_are_values_and_never_sql() {
    let world = World::new().await;
    let sql = "SELECT count(*) AS n FROM orders WHERE customer = $1 OR id = ANY($2) OR id = $3";
    let injection = json!(["x' OR 'a' = 'a", [1, 2], null]);
    let rows = run(&world.server, query(sql, injection), WIDE).await.unwrap();
    assert_eq!(json!(rows.rows), json!([{"n": 2}]));
    let sql = "SELECT $1::jsonb -> 'a' AS a, $2::bool AS b, $3::numeric + 1 AS c, $4::timestamptz AS d, $5::text[] AS e";
    let values = json!([{"a": [1]}, true, 1.25, "2026-01-01T00:00:00Z", ["x,\"y", null]]);
    let rows = run(&world.server, query(sql, values), WIDE).await.unwrap();
    assert_eq!(
        json!(rows.rows),
        json!([{"a": [1], "b": true, "c": "2.25", "d": "2026-01-01 00:00:00+00", "e": ["x,\"y", null]}])
    );
    for (sql, values, part) in [
        ("SELECT $1::int", json!(["abc"]), "invalid input syntax for type integer"),
        ("SELECT $1::int", json!([]), "has 1 parameters, and 0 are given"),
        ("SELECT 1", json!([1]), "has 0 parameters, and 1 are given"),
        ("SELECT $1::text", json!(["a\u{0}b"]), "0x00"),
        ("SELECT '\u{0}'", json!([]), "NUL character"),
        ("", json!([]), "empty"),
        ("SELECT nothing FROM orders", json!([]), "\"nothing\" does not exist (at character 8) [42703]"),
    ] {
        let said = refusal_of(&world, query(sql, values)).await;
        assert!(said.contains(part), "{sql}: {said}");
    }
    let long = format!("SELECT '{}'", "x".repeat(databases::MAX_SQL));
    assert!(refusal_of(&world, plain(&long)).await.contains("longer than"));
}

/// Statements that write, leave the transaction, or are more than one.
const WRITES: &[&str] = &[
    "INSERT INTO own VALUES (2)",
    "UPDATE own SET id = 3",
    "DELETE FROM own",
    "TRUNCATE own",
    "DROP TABLE own",
    "CREATE TABLE other (id int)",
    "CREATE TEMP TABLE other AS SELECT 1",
    "SELECT 1 INTO other",
    "SELECT 1 AS a INTO TEMP other",
    "WITH gone AS (DELETE FROM own RETURNING id) SELECT * FROM gone",
    "WITH new AS (INSERT INTO own VALUES (9) RETURNING id) SELECT * FROM new",
    "SELECT * FROM own FOR UPDATE",
    "SELECT * FROM own FOR SHARE",
    "SELECT 1; DELETE FROM own",
    "SELECT 1; COMMIT; DELETE FROM own",
    "COMMIT",
    "ROLLBACK",
    "COMMIT; DELETE FROM own",
    "BEGIN READ WRITE",
    "SET transaction_read_only = off",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
    "RESET ALL",
    "SELECT set_config('transaction_read_only', 'off', false)",
    "SELECT set_config('transaction_read_only', 'off', true), wipe()",
    "SELECT wipe()",
    "SELECT wipe_as_owner()",
    "SELECT nextval('s')",
    "SELECT setval('s', 7)",
    "DO 'BEGIN DELETE FROM own; END'",
    "CALL wipe()",
    "COPY own TO STDOUT",
    "COPY own FROM STDIN",
    "COPY own TO PROGRAM 'true'",
    "COPY (SELECT 1) TO '/tmp/out'",
    "EXPLAIN ANALYZE DELETE FROM own",
    "PREPARE p AS DELETE FROM own",
    "EXECUTE p",
    "DECLARE c CURSOR FOR SELECT 1",
    "LISTEN x",
    "LOCK TABLE own",
    "VACUUM own",
    "GRANT ALL ON own TO PUBLIC",
    "SET ROLE postgres",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_ls_dir('/')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT query_to_xml('DELETE FROM own', true, true, '')",
    "1) ; DELETE FROM own; --",
];

/// The role owns a table, so that only the transaction protects it.
#[tokio::test]
async fn nothing_that_writes_is_executed() {
    let world = World::new().await;
    let role = &world.role;
    world
        .sql(&format!(
            "GRANT CREATE ON SCHEMA public TO {role}; CREATE TABLE own (id int); INSERT INTO own VALUES (1); \
        ALTER TABLE own OWNER TO {role}; CREATE SEQUENCE s; GRANT ALL ON s TO {role}"
        ))
        .await;
    world
        .sql("CREATE FUNCTION wipe() RETURNS int LANGUAGE plpgsql AS 'BEGIN DELETE FROM own; RETURN 1; END'")
        .await;
    world
        .sql(
            "CREATE FUNCTION wipe_as_owner() RETURNS int SECURITY DEFINER LANGUAGE plpgsql \
        AS 'BEGIN SET LOCAL transaction_read_only = off; DELETE FROM own; RETURN 1; END'",
        )
        .await;
    for sql in WRITES {
        let said = refusal_of(&world, plain(sql)).await;
        assert!(said.contains("the database answers"), "{sql}: {said}");
    }
    assert_eq!(world.value("SELECT count(*) || ' ' || max(id) FROM own").await, "1 1");
    assert_eq!(world.value("SELECT is_called FROM s").await, "f");
    // What is allowed changes nothing that lasts.
    let notify = "SELECT pg_notify('x', 'y'), set_config('search_path', 'x', false), pg_advisory_lock(1), lo_create(0)";
    run(&world.server, plain(notify), WIDE).await.unwrap();
    // A lock of the session ends with its process, which the client does not wait for.
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = \
        (SELECT oid FROM pg_database WHERE datname = current_database())";
    world.becomes_zero(locks).await;
    assert_eq!(world.value("SELECT count(*) FROM pg_largeobject_metadata").await, "0");
    run(&world.server, plain("VALUES (1), (2) -- comment"), WIDE).await.unwrap();
    run(&world.server, plain("TABLE orders;"), WIDE).await.unwrap();
}

#[tokio::test]
async fn a_role_with_more_rights_than_reading_is_refused() {
    let world = World::new().await;
    let role = &world.role;
    let problem = |outcome: Result<(), Problem>| outcome.err().map_or_else(String::new, |it| it.to_string());
    assert_eq!(problem(check(&world.server, WIDE).await), "");
    let as_superuser = run(&world.as_administrator(), plain("SELECT 1"), WIDE).await;
    assert!(as_superuser.unwrap_err().to_string().contains("superuser"));
    for (give, take) in [
        ("ALTER ROLE $ SUPERUSER", "ALTER ROLE $ NOSUPERUSER"),
        ("ALTER ROLE $ BYPASSRLS", "ALTER ROLE $ NOBYPASSRLS"),
        ("ALTER ROLE $ REPLICATION", "ALTER ROLE $ NOREPLICATION"),
        ("ALTER ROLE $ CREATEROLE", "ALTER ROLE $ NOCREATEROLE"),
        ("ALTER ROLE $ CREATEDB", "ALTER ROLE $ NOCREATEDB"),
        ("GRANT pg_read_server_files TO $", "REVOKE pg_read_server_files FROM $"),
        ("GRANT pg_execute_server_program TO $", "REVOKE pg_execute_server_program FROM $"),
        // A superuser that the role could only switch to.
        ("ALTER ROLE $ NOINHERIT; CREATE ROLE boss_$ SUPERUSER; GRANT boss_$ TO $", "DROP ROLE boss_$"),
    ] {
        world.sql(&give.replace('$', role)).await;
        let said = run(&world.server, plain("SELECT 1"), WIDE).await.unwrap_err();
        assert!(matches!(&said, Problem::Role(text) if text.contains("more than read")), "{give}: {said}");
        world.sql(&take.replace('$', role)).await;
        run(&world.server, plain("SELECT 1"), WIDE).await.unwrap();
    }
    for (give, take) in [
        ("GRANT DELETE ON orders TO $", "REVOKE DELETE ON orders FROM $"),
        ("GRANT UPDATE (customer) ON orders TO PUBLIC", "REVOKE UPDATE (customer) ON orders FROM PUBLIC"),
        (
            "ALTER TABLE orders OWNER TO $",
            "ALTER TABLE orders OWNER TO CURRENT_USER; GRANT SELECT ON orders TO $",
        ),
    ] {
        world.sql(&give.replace('$', role)).await;
        let said = problem(check(&world.server, WIDE).await);
        assert!(said.contains("can write to public.orders"), "{give}: {said}");
        world.sql(&take.replace('$', role)).await;
    }
    assert_eq!(problem(check(&world.server, WIDE).await), "");
}

#[tokio::test]
async fn a_role_that_may_call_functions_with_effects_outside_is_refused() {
    let world = World::new().await;
    let role = &world.role;
    let untrusted = "CREATE LANGUAGE plu HANDLER plpgsql_call_handler; CREATE FUNCTION escape() RETURNS int LANGUAGE plu \
        AS 'BEGIN RETURN 1; END'";
    for (give, function, take) in [
        ("CREATE EXTENSION dblink", "function of the extension dblink", "DROP EXTENSION dblink"),
        (
            "GRANT EXECUTE ON FUNCTION pg_read_file(text) TO $",
            "may call pg_read_file(text), which reaches the files of the server",
            "REVOKE EXECUTE ON FUNCTION pg_read_file(text) FROM $",
        ),
        (
            "GRANT EXECUTE ON FUNCTION lo_export(oid, text) TO PUBLIC",
            "may call lo_export(oid,text)",
            "REVOKE EXECUTE ON FUNCTION lo_export(oid, text) FROM PUBLIC",
        ),
        (
            untrusted,
            "may call escape(), which is written in the untrusted language plu",
            "DROP LANGUAGE plu CASCADE",
        ),
        // A function of a role that the role could only switch to.
        (
            "ALTER ROLE $ NOINHERIT; CREATE ROLE files_$; GRANT files_$ TO $; \
            GRANT EXECUTE ON FUNCTION pg_ls_dir(text) TO files_$",
            "may call pg_ls_dir(text)",
            "DROP OWNED BY files_$; DROP ROLE files_$",
        ),
    ] {
        world.sql(&give.replace('$', role)).await;
        let said = refusal_of(&world, plain("SELECT 1")).await;
        assert!(said.contains(function) && said.contains("revoke EXECUTE"), "{give}: {said}");
        world.sql(&take.replace('$', role)).await;
        run(&world.server, plain("SELECT 1"), WIDE).await.unwrap();
    }
}

#[tokio::test]
async fn a_query_ends_at_its_limits() {
    let world = World::new().await;
    let limits = |rows, bytes| Limits { time: Duration::from_secs(20), rows, bytes };
    let many = plain("SELECT id FROM orders ORDER BY id");
    for (rows, truncated) in [(99, true), (100, false), (101, false)] {
        let found = run(&world.server, many.clone(), limits(rows, 1 << 20)).await.unwrap();
        assert_eq!((found.rows.len(), found.truncated), (rows.min(100), truncated));
    }
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n";
    let found = run(&world.server, plain(endless), limits(10, 1 << 20)).await.unwrap();
    assert_eq!((found.rows.len(), found.truncated), (10, true), "only the wanted rows are computed");
    let found = run(&world.server, many, limits(1000, 90)).await.unwrap();
    assert_eq!((found.rows.len(), found.truncated), (11, true));
    // A value that would fill our memory is not read.
    let huge =
        "SELECT CASE n WHEN 3 THEN repeat('x', 20000000) ELSE 'y' END AS v FROM generate_series(1, 9) n";
    let found = run(&world.server, plain(huge), limits(100, 10_000)).await.unwrap();
    assert_eq!((found.rows.len(), found.truncated), (2, true));
    let huge = run(&world.server, plain("SELECT repeat('x', 20000000)"), limits(100, 10_000)).await;
    assert_eq!(huge, Err(Problem::TooLarge(10_000)));
    let wide = run(&world.server, plain("SELECT repeat('x', 20000)"), limits(100, 10_000)).await;
    assert_eq!(wide, Err(Problem::TooLarge(10_000)));
    let columns = plain(&format!("SELECT 1 {}", ", 1".repeat(500)));
    let said = refusal_of(&world, columns).await;
    assert_eq!(said, "the result has 501 columns, and at most 500 are returned: select fewer");
}

/// The number of queries that run in this database.
const RUNNING: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'proliferate' AND datname = \
    current_database() AND state = 'active'";

#[tokio::test]
async fn a_query_ends_in_time_on_the_server_as_well() {
    let world = World::new().await;
    let limits = Limits { time: Duration::from_millis(300), ..WIDE };
    for sql in [
        "SELECT pg_sleep(600)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "SELECT set_config('statement_timeout', '0', false), pg_sleep(600)",
    ] {
        assert_eq!(run(&world.server, plain(sql), limits).await, Err(Problem::Timeout), "{sql}");
    }
    world.becomes_zero(RUNNING).await;
}

/// The function catches the end of the server's timeout, and our first cancellation.
#[tokio::test]
async fn a_query_that_ignores_cancellations_is_cancelled_again() {
    let world = World::new().await;
    let sleep = "BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled THEN";
    world
        .sql(&format!(
            "CREATE FUNCTION outlast() RETURNS void LANGUAGE plpgsql AS \
            '{sleep} {sleep} PERFORM pg_sleep(600); END; END'"
        ))
        .await;
    let limits = Limits { time: Duration::from_millis(300), ..WIDE };
    assert_eq!(run(&world.server, plain("SELECT outlast()"), limits).await, Err(Problem::Timeout));
    world.becomes_zero(RUNNING).await;
}

#[tokio::test]
async fn problems_of_a_connection_have_one_text_and_name_no_credential() {
    let world = World::new().await;
    let said = async |server: Server| run(&server, plain("SELECT 1"), WIDE).await.unwrap_err();
    let wrong = Server { database: "nothing-here".to_owned(), ..world.server.clone() };
    assert_eq!(said(wrong).await, Problem::Credential);
    let wrong = Server { user: "nobody-here".to_owned(), ..world.server.clone() };
    assert_eq!(said(wrong).await, Problem::Credential);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = Some(Tls::trusting(authority()).unwrap());
    let refuses_tls = Server { tls, addresses: vec![address], ..world.server.clone() };
    let (problem, ()) = tokio::join!(said(refuses_tls), async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 8]).await.unwrap();
        stream.write_all(b"N").await.unwrap();
    });
    assert_eq!(problem, Problem::NoTls, "a password is never sent in plain text instead");
    // A port that nobody listens on, and that nobody else gets meanwhile.
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = Server { addresses: vec![silent.local_addr().unwrap()], ..world.server.clone() };
    assert_eq!(said(closed).await, Problem::Unreachable);
}

#[tokio::test]
async fn a_server_that_claims_a_huge_message_gets_no_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server {
        host: "127.0.0.1".to_owned(),
        addresses: vec![listener.local_addr().unwrap()],
        database: "d".to_owned(),
        user: "u".to_owned(),
        password: None,
        tls: None,
    };
    let (ended, ()) = tokio::join!(run(&server, plain("SELECT 1"), WIDE), async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let length = stream.read_u32().await.unwrap() as usize;
        stream.read_exact(&mut vec![0; length - 4]).await.unwrap();
        stream.write_all(&[b'R', 0, 0, 0, 8, 0, 0, 0, 0, b'S', 0xff, 0xff, 0xff, 0xff]).await.unwrap();
        // The client hangs up: the rest of the message never comes.
        assert_eq!(stream.read(&mut [0; 64]).await.unwrap_or(0), 0);
    });
    assert_eq!(ended, Err(Problem::Broken));
}
