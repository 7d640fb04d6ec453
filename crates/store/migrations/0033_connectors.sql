-- Remote MCP servers that an organization has connected.
CREATE TABLE connectors (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    url TEXT NOT NULL CHECK (length(url) BETWEEN 1 AND 2000),
    -- How to authenticate. It names secrets of the organization, and never contains one.
    auth JSONB NOT NULL,
    default_risk TEXT NOT NULL CHECK (default_risk IN ('read', 'write', 'danger')),
    enabled BOOLEAN NOT NULL,
    created_by UUID REFERENCES users (id) ON DELETE SET NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    UNIQUE (id, org_id),
    UNIQUE (org_id, name)
);

-- What admins decided about single tools of a connector.
CREATE TABLE connector_tools (
    connector_id UUID NOT NULL,
    org_id UUID NOT NULL,
    tool TEXT NOT NULL CHECK (length(tool) BETWEEN 1 AND 128),
    -- The risk that an admin set; NULL if it follows from the tool's hints and the connector's default.
    risk TEXT CHECK (risk IN ('read', 'write', 'danger')),
    -- The definition that an admin reviewed, and its hash; NULL if none was.
    hash TEXT,
    definition JSONB,
    reviewed_by TEXT,
    reviewed_at TIMESTAMPTZ,
    PRIMARY KEY (connector_id, tool),
    FOREIGN KEY (connector_id, org_id) REFERENCES connectors (id, org_id) ON DELETE CASCADE
);
