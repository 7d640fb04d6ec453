-- Who there is: organisations, users, membership, and every kind of credential that is looked up here.
-- One text for both databases: PostgreSQL's type words, mapped for SQLite by `dialect.rs`.
-- Credentials are stored as SHA-256 of 32 random bytes; the credential itself is shown once and never kept.

CREATE TABLE organizations (
    id UUID PRIMARY KEY,
    name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    action_modes JSONB NOT NULL,
    session_limit BIGINT CHECK (session_limit >= 0),
    budget_micros BIGINT CHECK (budget_micros >= 0),
    created_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE users (
    id UUID PRIMARY KEY,
    email TEXT NOT NULL UNIQUE CHECK (email = lower(email) AND length(email) BETWEEN 3 AND 320),
    created_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE members (
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    user_id UUID NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    -- What this organisation calls the user: a name that another one wrote is none of its business.
    name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('owner', 'admin', 'member')),
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, user_id)
);
CREATE INDEX members_by_user ON members (user_id);

-- A key, a login code, a login and a ticket belong to a membership, so that they die with it.
CREATE TABLE api_keys (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    user_id UUID NOT NULL,
    name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    hint TEXT NOT NULL,
    key_hash BYTEA NOT NULL UNIQUE,
    created_at TIMESTAMPTZ NOT NULL,
    revoked_at TIMESTAMPTZ,
    FOREIGN KEY (org_id, user_id) REFERENCES members (org_id, user_id) ON DELETE CASCADE
);
CREATE INDEX api_keys_by_org ON api_keys (org_id, created_at);
CREATE INDEX api_keys_by_member ON api_keys (org_id, user_id);

CREATE TABLE login_codes (
    code_hash BYTEA PRIMARY KEY,
    org_id UUID NOT NULL,
    user_id UUID NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    used_at TIMESTAMPTZ,
    FOREIGN KEY (org_id, user_id) REFERENCES members (org_id, user_id) ON DELETE CASCADE
);
CREATE INDEX login_codes_by_member ON login_codes (org_id, user_id);
CREATE INDEX login_codes_by_expiry ON login_codes (org_id, expires_at);

-- The cookie of a browser.
CREATE TABLE login_sessions (
    token_hash BYTEA PRIMARY KEY,
    org_id UUID NOT NULL,
    user_id UUID NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    ended_at TIMESTAMPTZ,
    FOREIGN KEY (org_id, user_id) REFERENCES members (org_id, user_id) ON DELETE CASCADE
);
CREATE INDEX login_sessions_by_member ON login_sessions (org_id, user_id);
CREATE INDEX login_sessions_by_expiry ON login_sessions (org_id, expires_at);
