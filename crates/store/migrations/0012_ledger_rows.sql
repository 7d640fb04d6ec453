-- A run says where its events are, so that they are found through it: an index by run and one by case would cost two
-- pages that lie anywhere for every call, and the run's own key finds the same.

ALTER TABLE runs ADD COLUMN begun_position BIGINT;
ALTER TABLE runs ADD COLUMN ended_position BIGINT;

-- The position is the key: one order and one index less than the chain's own key beside it.
ALTER TABLE ledger_events RENAME TO ledger_events_before;
CREATE TABLE ledger_events (
    position BIGINT PRIMARY KEY CHECK (position >= 0),
    chain TEXT NOT NULL,
    sequence BIGINT NOT NULL CHECK (sequence >= 0),
    event_id TEXT NOT NULL UNIQUE CHECK (length(event_id) BETWEEN 8 AND 120),
    org_id UUID,
    action_type TEXT NOT NULL CHECK (action_type IN ('tool_call', 'db_write', 'db_read', 'policy_change',
        'promotion', 'export', 'override', 'authz_decision', 'system')),
    outcome TEXT NOT NULL CHECK (outcome IN ('allow', 'deny', 'success', 'failure')),
    run_id TEXT,
    case_id TEXT,
    -- Not told together with its run: no run says where it is.
    loose BOOLEAN NOT NULL DEFAULT TRUE,
    record TEXT NOT NULL,
    prev_hash TEXT NOT NULL CHECK (length(prev_hash) = 64),
    hash TEXT NOT NULL CHECK (length(hash) = 64),
    created_at TIMESTAMPTZ NOT NULL,
    UNIQUE (chain, sequence)
);
INSERT INTO ledger_events (position, chain, sequence, event_id, org_id, action_type, outcome, run_id, case_id, loose,
    record, prev_hash, hash, created_at)
SELECT position, chain, sequence, event_id, org_id, action_type, outcome, run_id, case_id, TRUE,
    record, prev_hash, hash, created_at FROM ledger_events_before ORDER BY position;
DROP TABLE ledger_events_before;
CREATE INDEX ledger_events_by_run ON ledger_events (run_id) WHERE loose;
CREATE INDEX ledger_events_by_case ON ledger_events (case_id) WHERE loose;

-- What is told together is at most four events side by side. A run that is older than this says only where its end is.
CREATE VIEW events_of_runs AS
SELECT r.org_id, r.run_id, r.case_id, e.position FROM runs r JOIN ledger_events e
    ON e.position BETWEEN r.begun_position AND r.begun_position + 3 AND e.run_id = r.run_id AND NOT e.loose
    AND e.org_id = r.org_id
UNION ALL
SELECT r.org_id, r.run_id, r.case_id, e.position FROM runs r JOIN ledger_events e
    ON e.position BETWEEN r.ended_position AND r.ended_position + 3 AND e.run_id = r.run_id AND NOT e.loose
    AND e.org_id = r.org_id AND e.position > COALESCE(r.begun_position + 3, -1);

--- only sqlite
CREATE TRIGGER ledger_events_no_update BEFORE UPDATE ON ledger_events
BEGIN SELECT RAISE(ABORT, 'ledger rows are never changed'); END;
CREATE TRIGGER ledger_events_no_delete BEFORE DELETE ON ledger_events
BEGIN SELECT RAISE(ABORT, 'ledger rows are never deleted'); END;
-- REPLACE deletes without firing the trigger above, so a row that is there already refuses the insert itself.
CREATE TRIGGER ledger_events_no_replace BEFORE INSERT ON ledger_events
WHEN EXISTS (SELECT 1 FROM ledger_events WHERE position = NEW.position)
    OR EXISTS (SELECT 1 FROM ledger_events WHERE event_id = NEW.event_id)
    OR EXISTS (SELECT 1 FROM ledger_events WHERE chain = NEW.chain AND sequence = NEW.sequence)
BEGIN SELECT RAISE(ABORT, 'ledger rows are never replaced'); END;

--- only postgres
CREATE TRIGGER ledger_events_append_only BEFORE UPDATE OR DELETE ON ledger_events
FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER ledger_events_no_truncate BEFORE TRUNCATE ON ledger_events
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
