-- What is looked for, and nothing else: an index costs a page of every call, and one that no query can use costs it for
-- nothing.

-- Only what is under way is looked for by who executes it, and only a child by its parent.
DROP INDEX runs_at_work;
CREATE INDEX runs_at_work ON runs (instance) WHERE status = 'running';
DROP INDEX runs_by_parent;
CREATE INDEX runs_by_parent ON runs (org_id, parent_run_id) WHERE parent_run_id IS NOT NULL;

-- A run or a case is named without its organisation; the chain is compared after it is found.
DROP INDEX ledger_events_by_run;
CREATE INDEX ledger_events_by_run ON ledger_events (run_id);
DROP INDEX ledger_events_by_case;
CREATE INDEX ledger_events_by_case ON ledger_events (case_id);
