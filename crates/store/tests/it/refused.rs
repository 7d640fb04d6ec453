//! The database itself refuses invalid rows: each case is a valid row with one thing wrong.

use sqlx::error::ErrorKind;

use crate::backend::{Backend, Raw, on_both};

on_both! {
    bad_rows_are_refused
    deleting_an_organization_deletes_its_rows_but_not_its_runs
}

/// Rows that the valid rows reference. Organization 2 has one of each that organization 1 must not reference.
const INSERT_WORLD: &str = "
    INSERT INTO organizations (id, name, created_at) VALUES (#1, 'one', '2025-06-15T00:00:00Z'),
        (#2, 'two', '2025-06-15T00:00:00Z');
    INSERT INTO users (id, email, created_at) VALUES (#10, 'ada@example.com', '2025-06-15T00:00:00Z');
    INSERT INTO members (org_id, user_id, name, role, created_at) VALUES (#1, #10, 'Ada', 'owner', '2025-06-15T00:00:00Z');
    INSERT INTO repos (id, org_id, name, source, url, default_branch, branch_given, is_private, created_at)
        VALUES (#20, #1, 'r', 'git', 'https://a', 'main', true, true, '2025-06-15T00:00:00Z'),
        (#21, #2, 'r', 'git', 'https://a', 'main', true, true, '2025-06-15T00:00:00Z');
    INSERT INTO configurations (id, org_id, name, kind, status, sandbox_provider, created_at, updated_at)
        VALUES (#30, #1, 'c', 'manual', 'ready', 'local', '2025-06-15T00:00:00Z', '2025-06-15T00:00:00Z'),
        (#31, #2, 'c', 'manual', 'ready', 'local', '2025-06-15T00:00:00Z', '2025-06-15T00:00:00Z');
    INSERT INTO automations (id, org_id, name, instructions, enabled, action_modes, created_at, updated_at)
        VALUES (#80, #1, 'a', '', true, '{}', '2025-06-15T00:00:00Z', '2025-06-15T00:00:00Z'),
        (#81, #2, 'a', '', true, '{}', '2025-06-15T00:00:00Z', '2025-06-15T00:00:00Z');
    INSERT INTO sessions (id, org_id, session_type, origin, status, sandbox_provider, sandbox_generation, owner_epoch,
        seq_reserved, pr_urls, metrics, started_at, last_activity_at) VALUES (#40, #1, 'coding', 'web', 'running',
        'local', 0, 0, 0, '[]', '{}', '2025-06-15T00:00:00Z', '2025-06-15T00:00:00Z'),
        (#49, #2, 'coding', 'web', 'running', 'local', 0, 0, 0, '[]', '{}', '2025-06-15T00:00:00Z', '2025-06-15T00:00:00Z');
    INSERT INTO messages (session_id, id, org_id, position, role, content, is_complete, interrupted, created_at)
        VALUES (#40, 'm1', #1, 1, 'user', 'hi', true, false, '2025-06-15T00:00:00Z');";

const INSERT_USER: &str = "INSERT INTO users (id, email, created_at)
    VALUES (#11, 'bob@example.com', '2025-06-15T00:00:00Z')";
const INSERT_MEMBER: &str = "INSERT INTO members (org_id, user_id, name, role, created_at)
    VALUES (#2, #10, 'Ada', 'admin', '2025-06-15T00:00:00Z')";
const INSERT_KEY: &str = "INSERT INTO api_keys (id, org_id, user_id, name, scope, hint, key_hash, created_at)
    VALUES (#50, #1, #10, 'laptop', 'full', 'plf_a', @1, '2025-06-15T00:00:00Z')";
const INSERT_REPO: &str =
    "INSERT INTO repos (id, org_id, name, source, url, local_path_hash, default_branch, branch_given,
    is_private, created_at) VALUES (#22, #1, 'r', 'git', 'https://b', NULL, 'main', true, false, '2025-06-15T00:00:00Z')";
const CONFIGURATION_REPO: &str =
    "INSERT INTO configuration_repos (configuration_id, repo_id, org_id, workspace_path)
    VALUES (#30, #20, #1, 'app')";
const INSERT_SECRET: &str =
    "INSERT INTO secrets (id, org_id, scope, repo_id, configuration_id, purpose, key, key_id, nonce, ciphertext,
    created_at, updated_at) VALUES (#60, #1, 'repo', #20, NULL, 'env', 'K', 'k1', @1, @2, '2025-06-15T00:00:00Z',
    '2025-06-15T00:00:00Z')";
const INSERT_SESSION: &str =
    "INSERT INTO sessions (id, org_id, session_type, origin, status, sandbox_provider,
    sandbox_generation, owner_epoch, seq_reserved, pr_urls, metrics, started_at, last_activity_at)
    VALUES (#41, #1, 'coding', 'web', 'pending', 'local', 1, 2, 3, '[]', '{}', '2025-06-15T00:00:00Z',
    '2025-06-15T00:00:00Z')";
const INSERT_CHILD_SESSION: &str =
    "INSERT INTO sessions (id, org_id, configuration_id, parent_session_id, automation_id,
    session_type, origin, status, sandbox_provider, sandbox_generation, owner_epoch, seq_reserved,
    pr_urls, metrics, started_at, last_activity_at) VALUES (#42, #1, #30, #40, #80, 'coding', 'web',
    'pending', 'local', 1, 2, 3, '[]', '{}', '2025-06-15T00:00:00Z', '2025-06-15T00:00:00Z')";
const INSERT_LOGIN: &str = "INSERT INTO login_sessions (token_hash, org_id, user_id, created_at, expires_at)
    VALUES (@4, #1, #10, '2025-06-15T00:00:00Z', '2025-06-16T00:00:00Z')";
const INSERT_SANDBOX_TOKEN: &str = "INSERT INTO sandbox_tokens (token_hash, org_id, session_id, generation)
    VALUES (@3, #1, #40, 0)";
const INSERT_IDEMPOTENCY_KEY: &str = "INSERT INTO idempotency_keys (org_id, caller, route, key, fingerprint, state, response_status,
    created_at, expires_at) VALUES (#1, 'user one', 'POST /x', 'k', 'ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff',
    'done', 200, '2025-06-15T00:00:00Z', '2025-06-16T00:00:00Z')";
const INSERT_EVENT: &str =
    "INSERT INTO events (session_id, first_seq, last_seq, org_id, epoch, frames, created_at)
    VALUES (#40, 7, 9, #1, 1, '{}', '2025-06-15T00:00:00Z')";
const TOOL_PART: &str =
    "INSERT INTO parts (session_id, message_id, id, org_id, position, kind, text, tool_call_id, tool,
    status) VALUES (#40, 'm1', 'p1', #1, 1, 'tool', NULL, 'call', 'bash', 'running')";
const INSERT_CALL: &str = "INSERT INTO runs (org_id, run_id, run_kind, status, lanes_version,
    roles_version, root_run_id, actor, role_id, tool, request_hash, instance, inputs, outputs, retry_count, begun_position,
    created_at, completed_at) VALUES (#1, 'run-0001', 'tool_gateway', 'running', 'lanes-1', 'roles-1', 'run-0001', '{}',
    'SERVICE', 'bash', 'ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff', 'here', '[]', '[]', 0, 0,
    '2025-06-15T00:00:00Z', NULL)";
/// A valid row, a text in it, the replacement, and the kind of constraint that must refuse the result.
type Case = (&'static str, &'static str, &'static str, ErrorKind);

const REFUSED_CASES: [Case; 41] = [
    (INSERT_USER, "bob@", "Bob@", ErrorKind::CheckViolation),
    (INSERT_USER, "bob@example.com", "b@", ErrorKind::CheckViolation),
    (INSERT_USER, "bob@", "ada@", ErrorKind::UniqueViolation),
    (INSERT_USER, "#11", "NULL", ErrorKind::NotNullViolation),
    (INSERT_MEMBER, "admin", "root", ErrorKind::CheckViolation),
    (INSERT_MEMBER, "#2", "#1", ErrorKind::UniqueViolation),
    (INSERT_MEMBER, "#2", "#9", ErrorKind::ForeignKeyViolation),
    (INSERT_KEY, "#10", "#11", ErrorKind::ForeignKeyViolation),
    (INSERT_KEY, "#1, #10", "#2, #10", ErrorKind::ForeignKeyViolation),
    (INSERT_KEY, "laptop", "", ErrorKind::CheckViolation),
    (INSERT_REPO, "'git', 'https://b'", "'svn', 'https://b'", ErrorKind::CheckViolation),
    (INSERT_REPO, "'https://b'", "NULL", ErrorKind::CheckViolation),
    (INSERT_REPO, "'git', 'https://b'", "'local', 'https://b'", ErrorKind::CheckViolation),
    (INSERT_REPO, "https://b", "https://a", ErrorKind::UniqueViolation),
    (CONFIGURATION_REPO, "#20, #1", "#21, #1", ErrorKind::ForeignKeyViolation),
    (CONFIGURATION_REPO, "#20, #1", "#21, #2", ErrorKind::ForeignKeyViolation),
    (INSERT_SECRET, "'repo', #20", "'repo', NULL", ErrorKind::CheckViolation),
    (INSERT_SECRET, "'repo', #20", "'org', #20", ErrorKind::CheckViolation),
    (INSERT_SECRET, "#20, NULL", "#20, #30", ErrorKind::CheckViolation),
    (INSERT_SECRET, "'repo', #20", "'repo', #21", ErrorKind::ForeignKeyViolation),
    (INSERT_SESSION, "'pending'", "'sleeping'", ErrorKind::CheckViolation),
    (INSERT_SESSION, "'local', 1, 2, 3", "'local', -1, 2, 3", ErrorKind::CheckViolation),
    (INSERT_SESSION, "'local', 1, 2, 3", "'local', 1, -2, 3", ErrorKind::CheckViolation),
    (INSERT_SESSION, "'local', 1, 2, 3", "'local', 1, 2, -3", ErrorKind::CheckViolation),
    (INSERT_CHILD_SESSION, "#30", "#31", ErrorKind::ForeignKeyViolation),
    (INSERT_CHILD_SESSION, "#40", "#49", ErrorKind::ForeignKeyViolation),
    (INSERT_CHILD_SESSION, "#80", "#81", ErrorKind::ForeignKeyViolation),
    (INSERT_LOGIN, "#1, #10", "#2, #10", ErrorKind::ForeignKeyViolation),
    (INSERT_LOGIN, "#10", "#11", ErrorKind::ForeignKeyViolation),
    (INSERT_SANDBOX_TOKEN, "#1, #40, 0", "#2, #40, 0", ErrorKind::ForeignKeyViolation),
    (INSERT_IDEMPOTENCY_KEY, "'done', 200", "'done', NULL", ErrorKind::CheckViolation),
    (INSERT_IDEMPOTENCY_KEY, "'done', 200", "'in_flight', 200", ErrorKind::CheckViolation),
    (INSERT_EVENT, "#40, 7", "#40, 0", ErrorKind::CheckViolation),
    (INSERT_EVENT, "7, 9", "7, 6", ErrorKind::CheckViolation),
    (INSERT_EVENT, "#1, 1, '{}'", "#1, -1, '{}'", ErrorKind::CheckViolation),
    (TOOL_PART, "'call'", "NULL", ErrorKind::CheckViolation),
    (TOOL_PART, "'tool', NULL", "'tool', 'words'", ErrorKind::CheckViolation),
    (TOOL_PART, "'m1'", "'m2'", ErrorKind::ForeignKeyViolation),
    (TOOL_PART, "#1, 1, 'tool'", "#2, 1, 'tool'", ErrorKind::ForeignKeyViolation),
    (INSERT_CALL, "'running'", "'completed'", ErrorKind::CheckViolation),
    (INSERT_CALL, "'here'", "NULL", ErrorKind::CheckViolation),
];

async fn bad_rows_are_refused(b: &Backend) {
    let mut raw = b.raw().await;
    raw.execute(INSERT_WORLD).await.unwrap();
    for (good, from, to, kind) in REFUSED_CASES {
        assert_eq!(good.matches(from).count(), 1, "`{from}` must stand once in: {good}");
        try_row(&mut raw, good).await.unwrap_or_else(|error| panic!("{error} refuses the good row: {good}"));
        let bad = good.replace(from, to);
        match try_row(&mut raw, &bad).await {
            Err(sqlx::Error::Database(error)) => {
                assert!(same(&error.kind(), &kind), "refused as {:?} ({error}): {bad}", error.kind());
            }
            other => panic!("{other:?} for the bad row: {bad}"),
        }
    }
}

/// Inserts a row and rolls it back.
async fn try_row(raw: &mut Raw, sql: &str) -> Result<u64, sqlx::Error> {
    raw.execute("BEGIN").await?;
    let done = raw.execute(sql).await;
    raw.execute("ROLLBACK").await?;
    done
}

/// `ErrorKind` is not comparable.
fn same(a: &ErrorKind, b: &ErrorKind) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

/// A deleted organization leaves its runs and nothing else.
async fn deleting_an_organization_deletes_its_rows_but_not_its_runs(b: &Backend) {
    let mut raw = b.raw().await;
    raw.execute(INSERT_WORLD).await.unwrap();
    let dependent = [
        INSERT_KEY,
        INSERT_LOGIN,
        CONFIGURATION_REPO,
        INSERT_SECRET,
        INSERT_SESSION,
        INSERT_CHILD_SESSION,
        INSERT_SANDBOX_TOKEN,
        INSERT_IDEMPOTENCY_KEY,
        INSERT_EVENT,
        TOOL_PART,
    ];
    for row in dependent.into_iter().chain([INSERT_CALL]) {
        raw.execute(row).await.unwrap();
    }
    raw.execute("DELETE FROM organizations WHERE id = #1").await.unwrap();
    for row in dependent.into_iter().chain([INSERT_CALL]) {
        let table = row.split(' ').nth(2).unwrap();
        let left = raw.number(&format!("SELECT count(*) FROM {table} WHERE org_id = #1")).await;
        assert_eq!(left, i64::from(table == "runs"), "{table}");
    }
    assert_eq!(raw.number("SELECT count(*) FROM repos").await, 1, "the other organization keeps its own");
    assert_eq!(raw.number("SELECT count(*) FROM users").await, 1, "a user outlives an organization");
}
