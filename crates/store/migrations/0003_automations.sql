-- Work that starts itself: automations, what triggers them, their runs, and what must be told afterwards.
-- Every reference to a row of an organisation carries the organisation, so that it can name no foreign one. An
-- optional one has no ON DELETE: SET NULL would empty the organisation too, so whoever deletes empties it first.

CREATE TABLE automations (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    description TEXT,
    enabled BOOLEAN NOT NULL,
    agent_instructions TEXT,
    model_id TEXT,
    configuration_id UUID,
    action_modes JSONB NOT NULL,
    notification JSONB,
    created_by UUID REFERENCES users (id) ON DELETE SET NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    UNIQUE (id, org_id),
    FOREIGN KEY (configuration_id, org_id) REFERENCES configurations (id, org_id)
);

CREATE TABLE automation_connections (
    automation_id UUID NOT NULL,
    integration_id UUID NOT NULL,
    org_id UUID NOT NULL,
    PRIMARY KEY (automation_id, integration_id),
    FOREIGN KEY (automation_id, org_id) REFERENCES automations (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (integration_id, org_id) REFERENCES integrations (id, org_id) ON DELETE CASCADE
);

CREATE TABLE triggers (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    automation_id UUID NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('webhook', 'schedule', 'manual')),
    schedule TEXT,
    secret_hash BYTEA,
    enabled BOOLEAN NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    UNIQUE (id, org_id),
    FOREIGN KEY (automation_id, org_id) REFERENCES automations (id, org_id) ON DELETE CASCADE
);

CREATE TABLE trigger_events (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    trigger_id UUID NOT NULL,
    external_event_id TEXT,
    dedup_key TEXT,
    status TEXT NOT NULL CHECK (status IN ('queued', 'processing', 'completed', 'failed', 'skipped')),
    payload JSONB NOT NULL,
    error_message TEXT,
    skip_reason TEXT,
    created_at TIMESTAMPTZ NOT NULL,
    processed_at TIMESTAMPTZ,
    UNIQUE (trigger_id, dedup_key),
    UNIQUE (id, org_id),
    FOREIGN KEY (trigger_id, org_id) REFERENCES triggers (id, org_id) ON DELETE CASCADE
);

CREATE TABLE automation_runs (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    automation_id UUID NOT NULL,
    trigger_event_id UUID UNIQUE,
    status TEXT NOT NULL CHECK (status IN ('queued', 'enriching', 'ready', 'running', 'succeeded', 'failed',
        'needs_human', 'timed_out', 'canceled', 'skipped')),
    status_reason TEXT,
    failure_stage TEXT,
    lease_owner TEXT,
    lease_expires_at TIMESTAMPTZ,
    lease_version BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    session_id UUID,
    completion_id TEXT,
    completion JSONB,
    error_code TEXT,
    error_message TEXT,
    assigned_to UUID REFERENCES users (id) ON DELETE SET NULL,
    queued_at TIMESTAMPTZ NOT NULL,
    execution_started_at TIMESTAMPTZ,
    prompt_sent_at TIMESTAMPTZ,
    completed_at TIMESTAMPTZ,
    deadline_at TIMESTAMPTZ NOT NULL,
    UNIQUE (id, org_id),
    FOREIGN KEY (automation_id, org_id) REFERENCES automations (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (trigger_event_id, org_id) REFERENCES trigger_events (id, org_id)
);
CREATE INDEX automation_runs_by_status ON automation_runs (status, deadline_at);

CREATE TABLE automation_run_events (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    run_id UUID NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('status_transition', 'enrichment_saved', 'target_resolved', 'completion',
        'manual_resolution')),
    from_status TEXT,
    to_status TEXT,
    data JSONB,
    created_at TIMESTAMPTZ NOT NULL,
    FOREIGN KEY (run_id, org_id) REFERENCES automation_runs (id, org_id) ON DELETE CASCADE
);

CREATE TABLE outbox (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    kind TEXT NOT NULL,
    payload JSONB NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'claimed', 'done', 'failed')),
    attempts BIGINT NOT NULL,
    available_at TIMESTAMPTZ NOT NULL,
    claimed_at TIMESTAMPTZ,
    last_error TEXT,
    created_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX outbox_by_due ON outbox (status, available_at);
