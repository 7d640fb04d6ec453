-- Automations: what they do, what starts them, and their runs.

-- What a run is told, and what it starts from. The configuration has no foreign key, because SQLite cannot add one over two
-- columns to an existing table: queries compare the organization, and a run whose configuration is gone fails and says so.
ALTER TABLE automations ADD COLUMN instructions TEXT NOT NULL DEFAULT '';
ALTER TABLE automations ADD COLUMN model TEXT;
ALTER TABLE automations ADD COLUMN configuration_id UUID;
ALTER TABLE automations ADD COLUMN system_prompt TEXT;
ALTER TABLE automations ADD COLUMN enabled BOOLEAN NOT NULL DEFAULT TRUE;
-- The webhook: how its requests are signed, and the name of the vault's secret that verifies them.
ALTER TABLE automations ADD COLUMN webhook_scheme TEXT CHECK (webhook_scheme IN ('generic', 'github', 'linear'));
ALTER TABLE automations ADD COLUMN webhook_secret TEXT;
-- The cron line, its time zone, and when it fires next.
ALTER TABLE automations ADD COLUMN cron_schedule TEXT;
ALTER TABLE automations ADD COLUMN cron_time_zone TEXT;
ALTER TABLE automations ADD COLUMN cron_next_at TIMESTAMPTZ;
ALTER TABLE automations ADD COLUMN created_by UUID REFERENCES users (id) ON DELETE SET NULL;
ALTER TABLE automations ADD COLUMN updated_at TIMESTAMPTZ;
-- Incremented with every change, so that of two concurrent changes one is refused.
ALTER TABLE automations ADD COLUMN revision BIGINT NOT NULL DEFAULT 0;
CREATE INDEX automations_by_org ON automations (org_id, created_at);
CREATE INDEX automations_by_firing ON automations (cron_next_at) WHERE cron_next_at IS NOT NULL;

-- What the agent of an automation reported at its end.
ALTER TABLE sessions ADD COLUMN summary TEXT;
CREATE INDEX sessions_by_automation ON sessions (automation_id) WHERE automation_id IS NOT NULL;

-- Everything that started a run, or would have: skipped firings are events too.
CREATE TABLE trigger_events (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    automation_id UUID NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('manual', 'webhook', 'cron')),
    status TEXT NOT NULL CHECK (status IN ('queued', 'processing', 'completed', 'failed', 'skipped')),
    -- Why the event started no run.
    skip_reason TEXT,
    -- Why its run did not succeed.
    error TEXT,
    -- The provider's name of the event.
    event_name TEXT,
    -- JSON, as it was received.
    payload TEXT,
    requested_by UUID REFERENCES users (id) ON DELETE SET NULL,
    -- For cron: the time of the firing, and how many earlier firings were missed and are made up for by this one.
    scheduled_for TIMESTAMPTZ,
    missed BIGINT NOT NULL CHECK (missed >= 0),
    received_at TIMESTAMPTZ NOT NULL,
    processed_at TIMESTAMPTZ,
    UNIQUE (id, org_id),
    FOREIGN KEY (automation_id, org_id) REFERENCES automations (id, org_id) ON DELETE CASCADE
);
CREATE INDEX trigger_events_by_automation ON trigger_events (automation_id, received_at);

-- Signatures, bodies and delivery ids that were accepted, as SHA-256: each starts one run.
CREATE TABLE webhook_deliveries (
    automation_id UUID NOT NULL,
    key_hash BYTEA NOT NULL,
    org_id UUID NOT NULL,
    trigger_event_id UUID NOT NULL,
    received_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (automation_id, key_hash),
    FOREIGN KEY (automation_id, org_id) REFERENCES automations (id, org_id) ON DELETE CASCADE
);

CREATE TABLE automation_runs (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    automation_id UUID NOT NULL,
    trigger_event_id UUID NOT NULL UNIQUE,
    rerun_of UUID,
    status TEXT NOT NULL CHECK (status IN ('queued', 'ready', 'running', 'succeeded', 'failed', 'needs_human',
        'timed_out', 'cancelled')),
    status_reason TEXT,
    -- No foreign key: the run outlives its session.
    session_id UUID,
    deadline_at TIMESTAMPTZ NOT NULL,
    -- Since when the agent has waited for an answer. The deadline stands still meanwhile.
    waiting_since TIMESTAMPTZ,
    -- What the agent reported, under the id that makes reporting idempotent.
    completion_id TEXT,
    completion JSONB,
    assigned_to UUID REFERENCES users (id) ON DELETE SET NULL,
    assigned_at TIMESTAMPTZ,
    queued_at TIMESTAMPTZ NOT NULL,
    started_at TIMESTAMPTZ,
    completed_at TIMESTAMPTZ,
    UNIQUE (id, org_id),
    FOREIGN KEY (automation_id, org_id) REFERENCES automations (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (trigger_event_id, org_id) REFERENCES trigger_events (id, org_id) ON DELETE CASCADE,
    CHECK ((status IN ('queued', 'ready', 'running')) = (completed_at IS NULL)),
    CHECK ((completion_id IS NULL) = (completion IS NULL))
);
CREATE INDEX automation_runs_by_automation ON automation_runs (automation_id, queued_at);
CREATE INDEX automation_runs_by_org ON automation_runs (org_id, queued_at);
CREATE INDEX automation_runs_by_session ON automation_runs (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX automation_runs_open ON automation_runs (deadline_at) WHERE completed_at IS NULL;

-- The log of a run: every change of its state, and who made it.
CREATE TABLE automation_run_events (
    run_id UUID NOT NULL,
    position BIGINT NOT NULL CHECK (position > 0),
    org_id UUID NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('created', 'transition', 'completion', 'waiting', 'assignment', 'resolution')),
    from_status TEXT CHECK (from_status IN ('queued', 'ready', 'running', 'succeeded', 'failed', 'needs_human',
        'timed_out', 'cancelled')),
    to_status TEXT CHECK (to_status IN ('queued', 'ready', 'running', 'succeeded', 'failed', 'needs_human',
        'timed_out', 'cancelled')),
    actor TEXT NOT NULL,
    detail TEXT,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (run_id, position),
    FOREIGN KEY (run_id, org_id) REFERENCES automation_runs (id, org_id) ON DELETE CASCADE
);

-- Work that follows from a change of a run, written in the transaction of that change.
CREATE TABLE automation_outbox (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    run_id UUID NOT NULL,
    step TEXT NOT NULL CHECK (step IN ('start_session', 'end_session')),
    attempts BIGINT NOT NULL CHECK (attempts >= 0),
    last_error TEXT,
    available_at TIMESTAMPTZ NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    UNIQUE (run_id, step),
    FOREIGN KEY (run_id, org_id) REFERENCES automation_runs (id, org_id) ON DELETE CASCADE
);
CREATE INDEX automation_outbox_by_time ON automation_outbox (available_at);
