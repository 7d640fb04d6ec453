-- The gate: a call is a run, and the row of the run is its claim. Nothing was ever written to the tables that this
-- replaces.

DROP TABLE invocations;
DROP TABLE runs;

CREATE TABLE runs (
    org_id UUID NOT NULL,
    -- The key of a call: whoever inserts it first executes, everybody else gets the answer.
    run_id TEXT NOT NULL CHECK (length(run_id) BETWEEN 8 AND 120),
    run_kind TEXT NOT NULL CHECK (run_kind IN ('orchestrator', 'agent', 'tool_gateway', 'write_broker',
        'policy_change', 'promotion', 'export', 'override', 'system', 'db_write', 'db_read')),
    status TEXT NOT NULL CHECK (status IN ('created', 'running', 'completed', 'failed', 'cancelled', 'denied')),
    contract_version TEXT NOT NULL CHECK (contract_version IN ('v1')),
    lanes_version TEXT NOT NULL CHECK (length(lanes_version) >= 6),
    roles_version TEXT NOT NULL CHECK (length(roles_version) >= 6),
    parent_run_id TEXT,
    root_run_id TEXT NOT NULL,
    run_name TEXT,
    case_id TEXT,
    session_id UUID,
    correlation_id TEXT,
    actor JSONB NOT NULL,
    role_id TEXT NOT NULL,
    lane_id TEXT,
    -- What is called, for runs that are calls.
    tool TEXT,
    operation TEXT,
    request_hash TEXT CHECK (length(request_hash) = 64),
    response_hash TEXT CHECK (length(response_hash) = 64),
    -- What policy was asked, so that another policy can be asked the same.
    decision JSONB,
    -- Which process executes the call. When it has died, nobody knows whether the effect happened.
    instance TEXT,
    inputs JSONB NOT NULL,
    outputs JSONB NOT NULL,
    error JSONB,
    outcome TEXT,
    -- What the caller was told, and what a repeated call is told.
    answer JSONB,
    retry_count BIGINT NOT NULL CHECK (retry_count >= 0),
    retry_reason TEXT,
    created_at TIMESTAMPTZ NOT NULL,
    started_at TIMESTAMPTZ,
    completed_at TIMESTAMPTZ,
    PRIMARY KEY (org_id, run_id),
    CHECK ((status IN ('created', 'running')) = (completed_at IS NULL)),
    CHECK (tool IS NULL OR status <> 'running' OR instance IS NOT NULL)
);
CREATE INDEX runs_by_case ON runs (org_id, case_id, created_at);
CREATE INDEX runs_by_parent ON runs (org_id, parent_run_id);
CREATE INDEX runs_by_time ON runs (org_id, created_at);
CREATE INDEX runs_at_work ON runs (status, instance);
CREATE INDEX ledger_events_by_case ON ledger_events (org_id, case_id);

-- What artifacts hold. Apart from what is known of them, so that a list of artifacts reads no content.
CREATE TABLE artifact_contents (
    org_id UUID NOT NULL,
    artifact_id TEXT NOT NULL,
    content BYTEA NOT NULL,
    PRIMARY KEY (org_id, artifact_id)
);

-- How many events the ledger has over all chains. Whoever writes events changes this row first, so that positions
-- have no gaps and no two writers make one link.
CREATE TABLE ledger_tree (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    size BIGINT NOT NULL CHECK (size >= 0)
);
INSERT INTO ledger_tree (id, size) VALUES (1, 0);

-- Which processes execute calls. One that is not seen any more has died.
CREATE TABLE instances (
    id TEXT PRIMARY KEY,
    seen_at TIMESTAMPTZ NOT NULL
);

-- The global safety lock: while it is set, nothing is executed in any lane.
CREATE TABLE safety_lock (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    locked BOOLEAN NOT NULL,
    changed_by TEXT NOT NULL,
    reason TEXT NOT NULL,
    changed_at TIMESTAMPTZ NOT NULL
);

-- Permissions to break the glass.
CREATE TABLE override_grants (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    user_id UUID NOT NULL,
    ticket TEXT NOT NULL CHECK (length(ticket) BETWEEN 1 AND 120),
    reason TEXT NOT NULL CHECK (length(reason) BETWEEN 1 AND 200),
    granted_by TEXT NOT NULL,
    valid_from TIMESTAMPTZ NOT NULL,
    valid_until TIMESTAMPTZ NOT NULL,
    CHECK (valid_from < valid_until)
);
CREATE INDEX override_grants_by_user ON override_grants (org_id, user_id, valid_until);

--- only sqlite
CREATE TRIGGER runs_terminal BEFORE UPDATE ON runs WHEN OLD.completed_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a run that has ended is never changed'); END;
CREATE TRIGGER runs_no_delete BEFORE DELETE ON runs
BEGIN SELECT RAISE(ABORT, 'runs are never deleted'); END;
-- REPLACE deletes without firing the trigger above.
CREATE TRIGGER runs_no_replace BEFORE INSERT ON runs
WHEN EXISTS (SELECT 1 FROM runs WHERE rowid = NEW.rowid OR (org_id = NEW.org_id AND run_id = NEW.run_id))
BEGIN SELECT RAISE(ABORT, 'runs are never replaced'); END;

--- only postgres
CREATE TRIGGER runs_terminal BEFORE UPDATE ON runs FOR EACH ROW WHEN (OLD.completed_at IS NOT NULL)
EXECUTE FUNCTION refuse_change();
CREATE TRIGGER runs_no_delete BEFORE DELETE ON runs FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER runs_no_truncate BEFORE TRUNCATE ON runs FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
