-- The modes of an organisation's actions, one row each, so that two changes at once never undo each other. The column
-- organizations.action_modes was never read and stays empty.

CREATE TABLE action_modes (
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    -- `sourceId:actionId`; of a tool from tools.yaml, `tools:` and its name.
    action_key TEXT NOT NULL CHECK (length(action_key) BETWEEN 3 AND 300),
    mode TEXT NOT NULL CHECK (mode IN ('allow', 'require_approval', 'deny')),
    changed_by TEXT NOT NULL,
    changed_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, action_key)
);
