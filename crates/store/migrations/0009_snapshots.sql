-- Copies of sandboxes' files, and whose they are: nobody starts from another organisation's.

-- A snapshot outlives the session that it was made of, so that is no key.
CREATE TABLE snapshots (
    id TEXT PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    session_id UUID NOT NULL,
    target TEXT NOT NULL CHECK (target IN ('configuration', 'session')),
    sandbox_provider TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX snapshots_by_session ON snapshots (org_id, session_id);
