-- The environment of sandboxes: purposes of secrets, values for one session, environment files of repositories.

-- SQLite cannot change the checks of a table, so it is copied.
ALTER TABLE secrets RENAME TO secrets_without_purpose;

-- Values are AES-256-GCM with the owner (org, scope, key) and the purpose as associated data, so that a row that was moved
-- elsewhere cannot be decrypted.
CREATE TABLE secrets (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    scope TEXT NOT NULL CHECK (scope IN ('org', 'repo', 'configuration', 'session')),
    repo_id UUID,
    configuration_id UUID,
    session_id UUID,
    -- `platform`: a credential of the gateway, which no sandbox gets. `env`: a variable for sandboxes. `file`: the content
    -- of a file for sandboxes, whose key is its path in the workspace.
    purpose TEXT NOT NULL CHECK (purpose IN ('platform', 'env', 'file')),
    key TEXT NOT NULL CHECK (length(key) BETWEEN 1 AND 1000),
    key_id TEXT NOT NULL,
    nonce BYTEA NOT NULL,
    ciphertext BYTEA NOT NULL,
    created_by UUID REFERENCES users (id) ON DELETE SET NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    FOREIGN KEY (repo_id, org_id) REFERENCES repos (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (configuration_id, org_id) REFERENCES configurations (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE,
    CHECK ((scope = 'repo') = (repo_id IS NOT NULL)),
    CHECK ((scope = 'configuration') = (configuration_id IS NOT NULL)),
    CHECK ((scope = 'session') = (session_id IS NOT NULL))
);
INSERT INTO secrets (id, org_id, scope, repo_id, configuration_id, purpose, key, key_id, nonce, ciphertext, created_by,
    created_at, updated_at)
SELECT id, org_id, scope, repo_id, configuration_id, 'platform', key, key_id, nonce, ciphertext, created_by, created_at,
    updated_at FROM secrets_without_purpose;
DROP TABLE secrets_without_purpose;
CREATE UNIQUE INDEX secrets_by_owner
    ON secrets (org_id, scope, COALESCE(repo_id, configuration_id, session_id, org_id), key);
CREATE INDEX secrets_by_session ON secrets (session_id);

ALTER TABLE repos ADD COLUMN env_files JSONB;
ALTER TABLE repos ADD COLUMN env_files_updated_at TIMESTAMPTZ;

-- Where a session's sandbox has or had files with secrets. No snapshot copies them.
CREATE TABLE session_secret_paths (
    session_id UUID NOT NULL,
    org_id UUID NOT NULL,
    path TEXT NOT NULL,
    PRIMARY KEY (session_id, path),
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE
);


-- The port of the session's app that people are shown.
ALTER TABLE sessions ADD COLUMN exposed_port BIGINT CHECK (exposed_port BETWEEN 1 AND 65535);
