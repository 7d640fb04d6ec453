-- A session, its credentials, its ordered events and its transcript.

CREATE TABLE sessions (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    created_by UUID REFERENCES users (id) ON DELETE SET NULL,
    configuration_id UUID,
    parent_session_id UUID,
    session_type TEXT NOT NULL CHECK (session_type IN ('coding', 'setup', 'cli')),
    client_type TEXT CHECK (client_type IN ('web', 'slack', 'cli', 'automation')),
    client_metadata JSONB,
    origin TEXT NOT NULL CHECK (origin IN ('web', 'cli')),
    status TEXT NOT NULL CHECK (status IN ('pending', 'starting', 'running', 'paused', 'stopped', 'suspended',
        'failed')),
    pause_reason TEXT CHECK (pause_reason IN ('inactivity', 'orphaned', 'manual', 'snapshot_failed', 'credit_limit',
        'payment_failed', 'overage_cap', 'suspended', 'automation_completed')),
    stop_reason TEXT,
    outcome TEXT CHECK (outcome IN ('completed', 'succeeded', 'failed', 'needs_human')),
    summary TEXT,
    title TEXT,
    title_status TEXT CHECK (title_status IN ('generating')),
    initial_prompt TEXT,
    initial_prompt_sent_at TIMESTAMPTZ,
    system_prompt TEXT,
    agent_config JSONB,
    automation_id UUID,
    trigger_id UUID,
    trigger_event_id UUID,
    trigger_context JSONB,
    branch_name TEXT,
    base_commit_sha TEXT,
    local_path_hash TEXT,
    sandbox_provider TEXT NOT NULL,
    sandbox_id TEXT,
    -- Rises with every new sandbox and when one ends: a token of an earlier one is dead.
    sandbox_generation BIGINT NOT NULL CHECK (sandbox_generation >= 0),
    sandbox_expires_at TIMESTAMPTZ,
    snapshot_id TEXT,
    agent_session_id TEXT,
    preview_url TEXT,
    -- Rises with every grant of ownership: a write with an earlier one changes nothing.
    owner_epoch BIGINT NOT NULL CHECK (owner_epoch >= 0),
    owner_instance TEXT,
    -- The end of the block of event numbers that an owner may use; none is ever used twice.
    seq_reserved BIGINT NOT NULL CHECK (seq_reserved >= 0),
    latest_task TEXT,
    pr_urls JSONB NOT NULL,
    metrics JSONB NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    last_activity_at TIMESTAMPTZ NOT NULL,
    paused_at TIMESTAMPTZ,
    ended_at TIMESTAMPTZ,
    UNIQUE (automation_id, trigger_event_id),
    UNIQUE (id, org_id),
    FOREIGN KEY (configuration_id, org_id) REFERENCES configurations (id, org_id),
    FOREIGN KEY (parent_session_id, org_id) REFERENCES sessions (id, org_id),
    FOREIGN KEY (automation_id, org_id) REFERENCES automations (id, org_id),
    FOREIGN KEY (trigger_id, org_id) REFERENCES triggers (id, org_id),
    FOREIGN KEY (trigger_event_id, org_id) REFERENCES trigger_events (id, org_id)
);
CREATE INDEX sessions_by_activity ON sessions (org_id, last_activity_at);
CREATE INDEX sessions_by_parent ON sessions (parent_session_id);
CREATE INDEX sessions_by_status ON sessions (status, sandbox_expires_at);

CREATE TABLE session_connections (
    session_id UUID NOT NULL,
    integration_id UUID NOT NULL,
    org_id UUID NOT NULL,
    PRIMARY KEY (session_id, integration_id),
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (integration_id, org_id) REFERENCES integrations (id, org_id) ON DELETE CASCADE
);

-- Short-lived credentials for URLs: one session, one user; a socket ticket works once.
CREATE TABLE tickets (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    session_id UUID NOT NULL,
    user_id UUID NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('socket', 'proxy')),
    token_hash BYTEA NOT NULL UNIQUE,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    used_at TIMESTAMPTZ,
    revoked_at TIMESTAMPTZ,
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (org_id, user_id) REFERENCES members (org_id, user_id) ON DELETE CASCADE
);
CREATE INDEX tickets_by_member ON tickets (org_id, user_id);
CREATE INDEX tickets_by_session ON tickets (session_id);
CREATE INDEX tickets_by_expiry ON tickets (org_id, expires_at);

-- A token of a pooled sandbox has no session until one takes it, and opens nothing before.
CREATE TABLE sandbox_tokens (
    token_hash BYTEA PRIMARY KEY,
    org_id UUID,
    session_id UUID,
    generation BIGINT,
    created_at TIMESTAMPTZ NOT NULL,
    revoked_at TIMESTAMPTZ,
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE,
    CHECK ((session_id IS NULL) = (org_id IS NULL) AND (session_id IS NULL) = (generation IS NULL))
);
CREATE INDEX sandbox_tokens_by_session ON sandbox_tokens (session_id);

CREATE TABLE idempotency_keys (
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    route TEXT NOT NULL,
    key TEXT NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    fingerprint TEXT NOT NULL CHECK (length(fingerprint) = 64),
    state TEXT NOT NULL CHECK (state IN ('in_flight', 'done')),
    response_status BIGINT,
    response JSONB,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, route, key),
    CHECK ((state = 'done') = (response_status IS NOT NULL))
);

CREATE TABLE prompts (
    session_id UUID NOT NULL,
    id TEXT NOT NULL,
    org_id UUID NOT NULL,
    position BIGINT NOT NULL,
    content TEXT NOT NULL,
    images JSONB NOT NULL,
    sender_id TEXT,
    source TEXT CHECK (source IN ('slack', 'web', 'api', 'cli', 'automation')),
    state TEXT NOT NULL CHECK (state IN ('queued', 'dispatched', 'answered', 'cancelled', 'failed')),
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, id),
    UNIQUE (session_id, position),
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE
);

-- What clients were sent, in order. Written before it is sent; compacted once a message is complete.
CREATE TABLE events (
    session_id UUID NOT NULL,
    seq BIGINT NOT NULL CHECK (seq > 0),
    org_id UUID NOT NULL,
    epoch BIGINT NOT NULL CHECK (epoch >= 0),
    frame TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, seq),
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE
);

CREATE TABLE messages (
    session_id UUID NOT NULL,
    id TEXT NOT NULL,
    org_id UUID NOT NULL,
    position BIGINT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
    content TEXT NOT NULL,
    is_complete BOOLEAN NOT NULL,
    interrupted BOOLEAN NOT NULL,
    sender_id TEXT,
    source TEXT CHECK (source IN ('slack', 'web', 'api', 'cli', 'automation')),
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, id),
    UNIQUE (session_id, position),
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE
);

CREATE TABLE parts (
    session_id UUID NOT NULL,
    message_id TEXT NOT NULL,
    id TEXT NOT NULL,
    org_id UUID NOT NULL,
    position BIGINT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('text', 'image', 'tool')),
    text TEXT,
    image TEXT,
    tool_call_id TEXT,
    tool TEXT,
    args JSONB,
    result TEXT,
    status TEXT CHECK (status IN ('pending', 'running', 'completed', 'error')),
    started_at TIMESTAMPTZ,
    completed_at TIMESTAMPTZ,
    PRIMARY KEY (session_id, message_id, id),
    FOREIGN KEY (session_id, message_id) REFERENCES messages (session_id, id) ON DELETE CASCADE,
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE,
    CHECK ((kind = 'text') = (text IS NOT NULL) AND (kind = 'image') = (image IS NOT NULL)),
    CHECK ((kind = 'tool') = (tool_call_id IS NOT NULL AND tool IS NOT NULL AND status IS NOT NULL))
);
