-- Vendors whose API agents may use through actions, and which of them a session or an automation may use.

CREATE TABLE integrations (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    provider TEXT NOT NULL CHECK (provider IN ('linear', 'sentry', 'slack', 'github')),
    display_name TEXT,
    -- The name of the organization's platform secret that holds the token.
    secret_key TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('active', 'disabled')),
    created_by UUID REFERENCES users (id) ON DELETE SET NULL,
    created_at TIMESTAMPTZ NOT NULL,
    -- Mode keys name a provider, not one of several accounts there.
    UNIQUE (org_id, provider),
    UNIQUE (id, org_id)
);

CREATE TABLE session_connections (
    session_id UUID NOT NULL,
    integration_id UUID NOT NULL,
    org_id UUID NOT NULL,
    PRIMARY KEY (session_id, integration_id),
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (integration_id, org_id) REFERENCES integrations (id, org_id) ON DELETE CASCADE
);
CREATE INDEX session_connections_by_integration ON session_connections (integration_id);

CREATE TABLE automation_connections (
    automation_id UUID NOT NULL,
    integration_id UUID NOT NULL,
    org_id UUID NOT NULL,
    PRIMARY KEY (automation_id, integration_id),
    FOREIGN KEY (automation_id, org_id) REFERENCES automations (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (integration_id, org_id) REFERENCES integrations (id, org_id) ON DELETE CASCADE
);
CREATE INDEX automation_connections_by_integration ON automation_connections (integration_id);

-- Whether somebody chose the integrations of an automation. Otherwise its sessions get all that are active.
ALTER TABLE automations ADD COLUMN integrations_chosen BOOLEAN NOT NULL DEFAULT FALSE;
