-- What an invocation of an action has beside its run. The run's own row says how far it has come: a run that waits for
-- approval is `created`.
CREATE TABLE invocations (
    org_id UUID NOT NULL,
    run_id TEXT NOT NULL,
    -- The name of the invocation outside of the gate.
    id UUID NOT NULL,
    -- Runs outlive their sessions, and so do invocations.
    session_id UUID,
    integration TEXT NOT NULL,
    action TEXT NOT NULL,
    risk TEXT NOT NULL CHECK (risk IN ('read', 'write', 'danger')),
    mode TEXT NOT NULL CHECK (mode IN ('allow', 'require_approval', 'deny')),
    mode_source TEXT NOT NULL CHECK (mode_source IN ('automation_override', 'org_default', 'inferred_default')),
    -- Why the mode is stricter than it was set to.
    mode_reason TEXT,
    -- The parameters as people may see them: redacted and truncated.
    params JSONB NOT NULL,
    -- The definition that an approval is bound to.
    definition_hash TEXT CHECK (length(definition_hash) = 64),
    -- The complete request, only while it waits.
    request JSONB,
    -- Whether it was requested with an API key.
    by_key BOOLEAN NOT NULL,
    -- Until when it can be approved. NULL if it never waited.
    expires_at TIMESTAMPTZ,
    -- Who approved or denied it.
    decided_by UUID,
    decided_at TIMESTAMPTZ,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, run_id),
    FOREIGN KEY (org_id, run_id) REFERENCES runs (org_id, run_id)
);
CREATE UNIQUE INDEX invocations_by_id ON invocations (org_id, id);
CREATE INDEX invocations_by_session ON invocations (org_id, session_id, created_at) WHERE session_id IS NOT NULL;
-- Few runs wait at any time, so an ordinary call does not pay for this index.
CREATE INDEX runs_waiting ON runs (org_id, session_id) WHERE status = 'created';
