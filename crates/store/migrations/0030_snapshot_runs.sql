-- The run that made a snapshot. A call whose gateway died after the snapshot was stored finds it here and makes no second one.
ALTER TABLE snapshots ADD COLUMN run_id TEXT;
CREATE UNIQUE INDEX snapshots_by_run ON snapshots (org_id, run_id);
