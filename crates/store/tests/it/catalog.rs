//! The schema text must produce the same schema in both databases, according to their catalogs.

use std::collections::BTreeSet;

use sqlx::{FromRow, SqliteConnection, query_as, query_scalar};

use crate::backend::{Backend, Raw};

/// A schema as one line per column, key and index, in the same terms for both databases.
type Catalog = BTreeSet<String>;

#[tokio::test]
async fn both_databases_have_the_same_schema() {
    let (sqlite, postgres) = (sqlite_catalog().await, postgres_catalog().await);
    assert!(sqlite.len() > 300, "only {} lines: the catalog is not read", sqlite.len());
    let only = |name: &str, these: &Catalog, those: &Catalog| -> Vec<String> {
        these.difference(those).map(|line| format!("only in {name}: {line}")).collect()
    };
    let differences =
        [only("SQLite", &sqlite, &postgres), only("PostgreSQL", &postgres, &sqlite)].concat().join("\n");
    assert!(differences.is_empty(), "the schemas differ:\n{differences}");
}

/// Tables without the column, and why.
const WITHOUT_ORG: [(&str, &str); 7] = [
    ("instances", "a process serves all organizations"),
    ("ledger_checkpoints", "one tree covers the chains of all organizations"),
    ("ledger_tree", "one tree covers the chains of all organizations"),
    ("organizations", "it is the organization"),
    ("safety_lock", "it stops everything"),
    ("schema_migrations", "it belongs to the program"),
    ("users", "a user may belong to several"),
];
/// Tables where the column is nullable, and why.
const ORG_MAY_BE_NULL: [(&str, &str); 3] = [
    ("device_logins", "a device belongs to nobody until a member approves it"),
    ("ledger_events", "the system's own chain belongs to none"),
    ("ledger_heads", "the system's own chain belongs to none"),
];

#[tokio::test]
async fn every_row_belongs_to_an_organization() {
    let backend = Backend::sqlite().await;
    let Raw::Sqlite(mut connection) = backend.raw().await else { unreachable!() };
    let (mut without, mut nullable) = (Vec::new(), Vec::new());
    for table in tables(&mut connection).await {
        match columns(&mut connection, &table).await.into_iter().find(|column| column.name == "org_id") {
            None => without.push(table),
            Some(column) if !column.notnull => nullable.push(table),
            Some(column) => assert_eq!(column.kind, "BLOB", "{table}"),
        }
    }
    assert_eq!(without, WITHOUT_ORG.map(|(table, _)| table));
    assert_eq!(nullable, ORG_MAY_BE_NULL.map(|(table, _)| table));
}

/// Parses a line of a foreign key: table, columns, referenced table and its columns.
fn parse_foreign_key(line: &str) -> Option<(&str, Vec<&str>, &str, Vec<&str>)> {
    let (table, rest) = line.split_once(": foreign key (")?;
    let (from, rest) = rest.split_once(") to ")?;
    let (target, rest) = rest.split_once(" (")?;
    let (to, _) = rest.split_once(')')?;
    Some((table, from.split(", ").collect(), target, to.split(", ").collect()))
}

#[tokio::test]
async fn foreign_keys_cannot_cross_organizations() {
    let catalog = sqlite_catalog().await;
    let owned: BTreeSet<_> =
        catalog.iter().filter_map(|line| line.strip_suffix(": unique constraint (id, org_id)")).collect();
    assert!(owned.contains("sessions") && owned.contains("automations"), "{owned:?}");
    let keys: Vec<_> = catalog.iter().filter_map(|line| parse_foreign_key(line)).collect();
    assert!(keys.len() > 30, "only {} keys: the catalog is not read", keys.len());
    let loose: Vec<_> = keys
        .iter()
        .filter(|(_, from, target, to)| {
            let place = to.iter().position(|column| *column == "org_id");
            owned.contains(target) && place.is_none_or(|place| from[place] != "org_id")
        })
        .collect();
    assert!(loose.is_empty(), "without the organization: {loose:?}");
}

/// Deleting one row must not scan whole tables for rows that reference it.
#[tokio::test]
async fn cascades_of_members_and_sessions_use_an_index() {
    let catalog = sqlite_catalog().await;
    let indexed = |table: &str, from: &[&str]| {
        catalog.iter().filter(|line| line.starts_with(&format!("{table}: "))).any(|line| {
            let Some((_, columns)) = line.split_once(" (") else { return false };
            let is_index = [": primary key", ": unique", ": index"].iter().any(|kind| line.contains(kind));
            let columns: Vec<_> = columns.trim_end_matches(')').split(", ").collect();
            let of_one = columns[0] != "org_id" && from.contains(&columns[0]);
            is_index && (of_one || from.iter().all(|name| columns.iter().take(from.len()).any(|c| c == name)))
        })
    };
    let scanned: Vec<_> = catalog
        .iter()
        .filter_map(|line| parse_foreign_key(line))
        .filter(|(table, from, target, _)| ["members", "sessions"].contains(target) && !indexed(table, from))
        .collect();
    assert!(scanned.is_empty(), "without an index: {scanned:?}");
}

#[tokio::test]
async fn every_sqlite_table_is_strict() {
    let backend = Backend::sqlite().await;
    let Raw::Sqlite(mut connection) = backend.raw().await else { unreachable!() };
    let sql = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND NOT strict
        AND name NOT LIKE 'sqlite_%'";
    let loose: Vec<String> = query_scalar(sql).fetch_all(&mut connection).await.unwrap();
    assert_eq!(loose, [""; 0]);
}

async fn sqlite_catalog() -> Catalog {
    let backend = Backend::sqlite().await;
    let Raw::Sqlite(mut connection) = backend.raw().await else { unreachable!() };
    let mut catalog = Catalog::new();
    for table in tables(&mut connection).await {
        let columns = columns(&mut connection, &table).await;
        let mut key: Vec<_> = columns.iter().filter(|column| column.pk > 0).collect();
        key.sort_by_key(|column| column.pk);
        let key: Vec<_> = key.into_iter().map(|column| column.name.as_str()).collect();
        catalog.insert(format!("{table}: primary key ({})", key.join(", ")));
        for column in &columns {
            let null = if column.notnull || column.pk > 0 { "not null" } else { "nullable" };
            catalog.insert(format!(
                "{table}: column {} {} {} {null}",
                column.cid + 1,
                column.name,
                column.kind
            ));
        }
        catalog.extend(sqlite_indexes(&mut connection, &table).await);
        catalog.extend(sqlite_foreign_keys(&mut connection, &table).await);
    }
    catalog
}

async fn tables(connection: &mut SqliteConnection) -> Vec<String> {
    let sql =
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
    query_scalar(sql).fetch_all(connection).await.unwrap()
}

#[derive(FromRow)]
struct Column {
    cid: i64,
    name: String,
    #[sqlx(rename = "type")]
    kind: String,
    notnull: bool,
    pk: i64,
}

async fn columns(connection: &mut SqliteConnection, table: &str) -> Vec<Column> {
    let sql = "SELECT cid, name, type, \"notnull\", pk FROM pragma_table_info($1) ORDER BY cid";
    query_as(sql).bind(table).fetch_all(connection).await.unwrap()
}

async fn sqlite_indexes(connection: &mut SqliteConnection, table: &str) -> Vec<String> {
    // `c`: from CREATE INDEX, `u`: from UNIQUE. Primary keys (`pk`) are listed with the columns already.
    let sql = "SELECT i.name, i.\"unique\", i.origin = 'c',
        (SELECT group_concat(COALESCE(name, '(expression)'), ', ') FROM
            (SELECT name FROM pragma_index_info(i.name) ORDER BY seqno))
        FROM pragma_index_list($1) i WHERE i.origin <> 'pk'";
    let rows: Vec<(String, bool, bool, String)> =
        query_as(sql).bind(table).fetch_all(connection).await.unwrap();
    rows.into_iter()
        .map(|(name, unique, named, columns)| index(table, &name, unique, named, &columns))
        .collect()
}

async fn sqlite_foreign_keys(connection: &mut SqliteConnection, table: &str) -> Vec<String> {
    let sql =
        "SELECT group_concat(\"from\", ', '), \"table\", group_concat(\"to\", ', '), on_delete, on_update
        FROM (SELECT * FROM pragma_foreign_key_list($1) ORDER BY id, seq) GROUP BY id";
    let rows: Vec<(String, String, String, String, String)> =
        query_as(sql).bind(table).fetch_all(connection).await.unwrap();
    rows.into_iter().map(|key| foreign_key(table, &key)).collect()
}

fn index(table: &str, name: &str, unique: bool, named: bool, columns: &str) -> String {
    // Each database generates its own name for a UNIQUE constraint.
    let name = if named { name } else { "constraint" };
    format!("{table}: {} {name} ({columns})", if unique { "unique" } else { "index" })
}

fn foreign_key(
    table: &str,
    (from, to, columns, delete, update): &(String, String, String, String, String),
) -> String {
    format!("{table}: foreign key ({from}) to {to} ({columns}) on delete {delete} on update {update}")
}

async fn postgres_catalog() -> Catalog {
    let backend = Backend::postgres().await;
    let Raw::Postgres(mut connection) = backend.raw().await else { unreachable!() };
    let mut catalog = Catalog::new();

    let sql = "SELECT table_name::text, ordinal_position::bigint, column_name::text, data_type::text, is_nullable = 'YES'
        FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
        WHERE table_schema = 'public' AND table_type = 'BASE TABLE'";
    let columns: Vec<(String, i64, String, String, bool)> =
        query_as(sql).fetch_all(&mut connection).await.unwrap();
    catalog.extend(columns.iter().map(|(table, position, name, kind, nullable)| {
        let null = if *nullable { "nullable" } else { "not null" };
        format!("{table}: column {position} {name} {} {null}", in_sqlite(kind))
    }));

    let sql = "SELECT t.relname::text, i.relname::text, x.indisprimary, x.indisunique, c.oid IS NULL,
        (SELECT string_agg(COALESCE(a.attname, '(expression)'), ', ' ORDER BY k.position)
            FROM unnest(x.indkey::int2[]) WITH ORDINALITY k (number, position)
            LEFT JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = k.number)
        FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
        LEFT JOIN pg_constraint c ON c.conindid = i.oid AND c.contype IN ('p', 'u')
        WHERE t.relnamespace = 'public'::regnamespace";
    let indexes: Vec<(String, String, bool, bool, bool, String)> =
        query_as(sql).fetch_all(&mut connection).await.unwrap();
    catalog.extend(indexes.iter().map(|(table, name, primary, unique, named, columns)| {
        if *primary {
            format!("{table}: primary key ({columns})")
        } else {
            index(table, name, *unique, *named, columns)
        }
    }));
    catalog.extend(postgres_foreign_keys(&mut connection).await);
    catalog
}

async fn postgres_foreign_keys(connection: &mut sqlx::PgConnection) -> Vec<String> {
    let sql = "SELECT c.conrelid::regclass::text,
        (SELECT string_agg(a.attname, ', ' ORDER BY k.position) FROM unnest(c.conkey) WITH ORDINALITY k (number, position)
            JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.number),
        c.confrelid::regclass::text,
        (SELECT string_agg(a.attname, ', ' ORDER BY k.position) FROM unnest(c.confkey) WITH ORDINALITY k (number, position)
            JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.number),
        c.confdeltype::text, c.confupdtype::text
        FROM pg_constraint c WHERE c.contype = 'f'";
    let rows: Vec<(String, String, String, String, String, String)> =
        query_as(sql).fetch_all(connection).await.unwrap();
    let rows = rows.into_iter().map(|(table, from, to, columns, delete, update)| {
        foreign_key(&table, &(from, to, columns, rule(&delete), rule(&update)))
    });
    rows.collect()
}

fn rule(letter: &str) -> String {
    match letter {
        "a" => "NO ACTION".to_owned(),
        "c" => "CASCADE".to_owned(),
        "n" => "SET NULL".to_owned(),
        other => format!("unknown rule {other}"),
    }
}

/// SQLite's name of a PostgreSQL type.
fn in_sqlite(kind: &str) -> String {
    match kind {
        "uuid" | "bytea" => "BLOB".to_owned(),
        "timestamp with time zone" | "jsonb" | "text" => "TEXT".to_owned(),
        "boolean" | "bigint" => "INTEGER".to_owned(),
        other => format!("unknown type {other}"),
    }
}
