-- What was done and who allowed it. No foreign keys and no cascades from here on: a deleted session or
-- organisation leaves its records, and a tombstone.

CREATE TABLE runs (
    org_id UUID NOT NULL,
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
    inputs JSONB,
    outputs JSONB,
    error JSONB,
    outcome TEXT,
    retry_count BIGINT NOT NULL CHECK (retry_count >= 0),
    retry_reason TEXT,
    created_at TIMESTAMPTZ NOT NULL,
    started_at TIMESTAMPTZ,
    completed_at TIMESTAMPTZ,
    PRIMARY KEY (org_id, run_id)
);
CREATE INDEX runs_by_case ON runs (org_id, case_id, created_at);

-- One row per tool call, claimed before the effect. `unknown` is what a crash leaves: never run again.
CREATE TABLE invocations (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    session_id UUID,
    case_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    call_id TEXT NOT NULL CHECK (length(call_id) BETWEEN 1 AND 200),
    run_id TEXT NOT NULL,
    request_hash TEXT NOT NULL CHECK (length(request_hash) = 64),
    state TEXT NOT NULL CHECK (state IN ('claimed', 'executing', 'completed', 'failed', 'denied', 'unknown')),
    owner_epoch BIGINT NOT NULL CHECK (owner_epoch >= 0),
    answer JSONB,
    created_at TIMESTAMPTZ NOT NULL,
    settled_at TIMESTAMPTZ,
    UNIQUE (org_id, case_id, tool, call_id),
    CHECK ((state IN ('claimed', 'executing')) = (settled_at IS NULL))
);
CREATE INDEX invocations_by_state ON invocations (state, created_at);

CREATE TABLE action_invocations (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    session_id UUID NOT NULL,
    integration_id UUID,
    integration TEXT NOT NULL,
    action TEXT NOT NULL,
    risk_level TEXT NOT NULL CHECK (risk_level IN ('read', 'write', 'danger')),
    mode TEXT NOT NULL CHECK (mode IN ('allow', 'require_approval', 'deny')),
    mode_source TEXT NOT NULL CHECK (mode_source IN ('automation_override', 'org_default', 'inferred_default')),
    params JSONB NOT NULL,
    request_hash TEXT NOT NULL CHECK (length(request_hash) = 64),
    definition_hash TEXT NOT NULL CHECK (length(definition_hash) = 64),
    lanes_version TEXT NOT NULL,
    roles_version TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'approved', 'executing', 'completed', 'denied', 'failed',
        'expired', 'unknown')),
    result JSONB,
    error TEXT,
    denied_reason TEXT,
    duration_ms BIGINT,
    approved_by UUID,
    approved_at TIMESTAMPTZ,
    completed_at TIMESTAMPTZ,
    expires_at TIMESTAMPTZ,
    created_at TIMESTAMPTZ NOT NULL,
    CHECK (status <> 'pending' OR expires_at IS NOT NULL)
);
CREATE INDEX action_invocations_by_session ON action_invocations (session_id, created_at);
CREATE INDEX action_invocations_by_org ON action_invocations (org_id, created_at);
CREATE INDEX action_invocations_by_expiry ON action_invocations (status, expires_at);

CREATE TABLE artifacts (
    org_id UUID NOT NULL,
    artifact_id TEXT NOT NULL CHECK (length(artifact_id) BETWEEN 3 AND 120),
    artifact_kind TEXT NOT NULL CHECK (length(artifact_kind) BETWEEN 2 AND 80),
    hash_sha256 TEXT NOT NULL CHECK (length(hash_sha256) = 64),
    hash_source TEXT CHECK (hash_source IN ('bytes', 'normalized_text', 'normalized_json')),
    scope TEXT NOT NULL CHECK (scope IN ('case', 'shared', 'system')),
    case_id TEXT,
    storage_locator TEXT,
    content_type TEXT,
    byte_size BIGINT NOT NULL CHECK (byte_size >= 0),
    lineage JSONB,
    confidentiality JSONB,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, artifact_id),
    CHECK ((scope = 'case') = (case_id IS NOT NULL))
);
CREATE INDEX artifacts_by_case ON artifacts (org_id, case_id, created_at);

-- `chain` is an organisation's id, or 'system'. `position` counts over all chains: the leaf of the tree.
CREATE TABLE ledger_events (
    chain TEXT NOT NULL,
    sequence BIGINT NOT NULL CHECK (sequence >= 0),
    position BIGINT NOT NULL UNIQUE CHECK (position >= 0),
    event_id TEXT NOT NULL UNIQUE CHECK (length(event_id) BETWEEN 8 AND 120),
    org_id UUID,
    action_type TEXT NOT NULL CHECK (action_type IN ('tool_call', 'db_write', 'db_read', 'policy_change',
        'promotion', 'export', 'override', 'authz_decision', 'system')),
    outcome TEXT NOT NULL CHECK (outcome IN ('allow', 'deny', 'success', 'failure')),
    run_id TEXT,
    case_id TEXT,
    record TEXT NOT NULL,
    prev_hash TEXT NOT NULL CHECK (length(prev_hash) = 64),
    hash TEXT NOT NULL CHECK (length(hash) = 64),
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (chain, sequence)
);
CREATE INDEX ledger_events_by_run ON ledger_events (org_id, run_id);

CREATE TABLE ledger_heads (
    chain TEXT PRIMARY KEY,
    org_id UUID,
    sequence BIGINT NOT NULL,
    hash TEXT NOT NULL CHECK (length(hash) = 64)
);

CREATE TABLE ledger_checkpoints (
    size BIGINT PRIMARY KEY CHECK (size >= 0),
    root TEXT NOT NULL CHECK (length(root) = 64),
    key_id TEXT NOT NULL,
    signature TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE tombstones (
    kind TEXT NOT NULL CHECK (kind IN ('session', 'organization')),
    id UUID NOT NULL,
    org_id UUID NOT NULL,
    deleted_by TEXT NOT NULL,
    deleted_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (kind, id)
);

--- only sqlite
CREATE TRIGGER ledger_events_no_update BEFORE UPDATE ON ledger_events
BEGIN SELECT RAISE(ABORT, 'ledger rows are never changed'); END;
CREATE TRIGGER ledger_events_no_delete BEFORE DELETE ON ledger_events
BEGIN SELECT RAISE(ABORT, 'ledger rows are never deleted'); END;
-- REPLACE deletes without firing the trigger above, so a row that is there already refuses the insert itself.
-- An insert may name the hidden rowid, and replaces by that too.
CREATE TRIGGER ledger_events_no_replace BEFORE INSERT ON ledger_events
WHEN EXISTS (SELECT 1 FROM ledger_events WHERE rowid = NEW.rowid OR event_id = NEW.event_id
    OR position = NEW.position
    OR (chain = NEW.chain AND sequence = NEW.sequence))
BEGIN SELECT RAISE(ABORT, 'ledger rows are never replaced'); END;
CREATE TRIGGER ledger_checkpoints_no_update BEFORE UPDATE ON ledger_checkpoints
BEGIN SELECT RAISE(ABORT, 'checkpoints are never changed'); END;
CREATE TRIGGER ledger_checkpoints_no_delete BEFORE DELETE ON ledger_checkpoints
BEGIN SELECT RAISE(ABORT, 'checkpoints are never deleted'); END;
CREATE TRIGGER ledger_checkpoints_no_replace BEFORE INSERT ON ledger_checkpoints
WHEN EXISTS (SELECT 1 FROM ledger_checkpoints WHERE size = NEW.size)
BEGIN SELECT RAISE(ABORT, 'checkpoints are never replaced'); END;

--- only postgres
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '% rows are never changed or deleted', TG_TABLE_NAME; END $$;
CREATE TRIGGER ledger_events_append_only BEFORE UPDATE OR DELETE ON ledger_events
FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER ledger_events_no_truncate BEFORE TRUNCATE ON ledger_events
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER ledger_checkpoints_append_only BEFORE UPDATE OR DELETE ON ledger_checkpoints
FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER ledger_checkpoints_no_truncate BEFORE TRUNCATE ON ledger_checkpoints
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
