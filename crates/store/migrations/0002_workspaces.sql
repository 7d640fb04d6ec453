-- What a session works on: repositories, configurations, connected services, and the vault.

CREATE TABLE repos (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    source TEXT NOT NULL CHECK (source IN ('github', 'git', 'local')),
    url TEXT,
    local_path_hash TEXT,
    default_branch TEXT NOT NULL,
    is_private BOOLEAN NOT NULL,
    service_commands JSONB,
    added_by UUID REFERENCES users (id) ON DELETE SET NULL,
    created_at TIMESTAMPTZ NOT NULL,
    UNIQUE (org_id, url),
    UNIQUE (id, org_id),
    CHECK ((source = 'local') = (local_path_hash IS NOT NULL)),
    CHECK (source = 'local' OR url IS NOT NULL)
);

CREATE TABLE configurations (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('manual', 'managed', 'cli')),
    status TEXT NOT NULL CHECK (status IN ('pending', 'building', 'default', 'ready', 'failed')),
    error TEXT,
    snapshot_id TEXT,
    sandbox_provider TEXT NOT NULL,
    user_id UUID REFERENCES users (id) ON DELETE CASCADE,
    local_path_hash TEXT,
    notes TEXT,
    routing_description TEXT,
    service_commands JSONB,
    service_commands_updated_at TIMESTAMPTZ,
    service_commands_updated_by TEXT,
    env_files JSONB,
    env_files_updated_at TIMESTAMPTZ,
    env_files_updated_by TEXT,
    created_by UUID REFERENCES users (id) ON DELETE SET NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    UNIQUE (org_id, user_id, local_path_hash),
    UNIQUE (id, org_id),
    CHECK ((kind = 'cli') = (local_path_hash IS NOT NULL)),
    CHECK ((user_id IS NULL) = (local_path_hash IS NULL))
);
CREATE INDEX configurations_by_org ON configurations (org_id, created_at);

-- The organisation is part of both keys: a configuration can hold no foreign repository.
CREATE TABLE configuration_repos (
    configuration_id UUID NOT NULL,
    repo_id UUID NOT NULL,
    org_id UUID NOT NULL,
    workspace_path TEXT NOT NULL,
    PRIMARY KEY (configuration_id, repo_id),
    UNIQUE (configuration_id, workspace_path),
    FOREIGN KEY (configuration_id, org_id) REFERENCES configurations (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (repo_id, org_id) REFERENCES repos (id, org_id) ON DELETE CASCADE
);

-- Values are AES-256-GCM with the owner (org, scope, key) as associated data: a row moved elsewhere does not open.
CREATE TABLE secrets (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    scope TEXT NOT NULL CHECK (scope IN ('org', 'repo', 'configuration')),
    repo_id UUID,
    configuration_id UUID,
    key TEXT NOT NULL CHECK (length(key) BETWEEN 1 AND 200),
    key_id TEXT NOT NULL,
    nonce BYTEA NOT NULL,
    ciphertext BYTEA NOT NULL,
    created_by UUID REFERENCES users (id) ON DELETE SET NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    FOREIGN KEY (repo_id, org_id) REFERENCES repos (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (configuration_id, org_id) REFERENCES configurations (id, org_id) ON DELETE CASCADE,
    CHECK ((scope = 'repo') = (repo_id IS NOT NULL)),
    CHECK ((scope = 'configuration') = (configuration_id IS NOT NULL))
);
CREATE UNIQUE INDEX secrets_by_owner ON secrets (org_id, scope, COALESCE(repo_id, configuration_id, org_id), key);

CREATE TABLE secret_files (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    configuration_id UUID NOT NULL,
    path TEXT NOT NULL CHECK (length(path) BETWEEN 1 AND 500),
    description TEXT,
    key_id TEXT NOT NULL,
    nonce BYTEA NOT NULL,
    ciphertext BYTEA NOT NULL,
    created_by UUID REFERENCES users (id) ON DELETE SET NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    UNIQUE (configuration_id, path),
    FOREIGN KEY (configuration_id, org_id) REFERENCES configurations (id, org_id) ON DELETE CASCADE
);

CREATE TABLE integrations (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    provider TEXT NOT NULL CHECK (provider IN ('linear', 'sentry', 'slack', 'github')),
    display_name TEXT,
    secret_key TEXT NOT NULL,
    scopes JSONB NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('active', 'disabled', 'error')),
    visibility TEXT NOT NULL CHECK (visibility IN ('org', 'private')),
    created_by UUID REFERENCES users (id) ON DELETE SET NULL,
    created_at TIMESTAMPTZ NOT NULL,
    UNIQUE (id, org_id)
);

CREATE TABLE connectors (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    transport TEXT NOT NULL CHECK (transport IN ('remote_http')),
    url TEXT NOT NULL,
    auth JSONB NOT NULL,
    default_risk TEXT NOT NULL CHECK (default_risk IN ('read', 'write', 'danger')),
    enabled BOOLEAN NOT NULL,
    created_by UUID REFERENCES users (id) ON DELETE SET NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    UNIQUE (org_id, name),
    UNIQUE (id, org_id)
);

-- The definition of a tool as an admin reviewed it; a difference later is drift.
CREATE TABLE connector_tools (
    connector_id UUID NOT NULL,
    org_id UUID NOT NULL,
    tool TEXT NOT NULL,
    definition_hash TEXT NOT NULL CHECK (length(definition_hash) = 64),
    risk TEXT CHECK (risk IN ('read', 'write', 'danger')),
    reviewed_by UUID REFERENCES users (id) ON DELETE SET NULL,
    reviewed_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (connector_id, tool),
    FOREIGN KEY (connector_id, org_id) REFERENCES connectors (id, org_id) ON DELETE CASCADE
);

-- Absence means enabled; action '' is the whole source.
CREATE TABLE user_action_preferences (
    org_id UUID NOT NULL,
    user_id UUID NOT NULL,
    source_id TEXT NOT NULL,
    action_id TEXT NOT NULL,
    enabled BOOLEAN NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, user_id, source_id, action_id),
    FOREIGN KEY (org_id, user_id) REFERENCES members (org_id, user_id) ON DELETE CASCADE
);
