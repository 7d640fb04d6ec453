-- What sandboxes may reach, and what they reached. Records have no key to their session: they outlive it.

CREATE TABLE egress_policies (
    org_id UUID PRIMARY KEY REFERENCES organizations (id) ON DELETE CASCADE,
    mode TEXT NOT NULL CHECK (mode IN ('open', 'allow_list', 'offline')),
    allow JSONB NOT NULL,
    deny JSONB NOT NULL,
    updated_by UUID REFERENCES users (id) ON DELETE SET NULL,
    updated_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX egress_policies_by_change ON egress_policies (updated_at);

CREATE TABLE egress_records (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    session_id UUID,
    sandbox_id TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('connect', 'http', 'unknown')),
    host TEXT,
    port BIGINT,
    address TEXT,
    outcome TEXT NOT NULL CHECK (outcome IN ('complete', 'refused', 'failed', 'cancelled')),
    reason TEXT,
    bytes_up BIGINT NOT NULL CHECK (bytes_up >= 0),
    bytes_down BIGINT NOT NULL CHECK (bytes_down >= 0),
    started_at TIMESTAMPTZ NOT NULL,
    duration_ms BIGINT NOT NULL CHECK (duration_ms >= 0)
);
CREATE INDEX egress_records_by_org ON egress_records (org_id, started_at);
CREATE INDEX egress_records_by_session ON egress_records (session_id, started_at);
