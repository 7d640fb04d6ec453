-- The schema, for both databases: PostgreSQL's type names, which `dialect.rs` maps for SQLite.
--
-- A foreign key to an organization's row always includes the organization, so that no row can reference another
-- organization's. An optional one has no ON DELETE: SET NULL would also set the organization to NULL, so the code that
-- deletes a row sets the reference to NULL first.

-- Identity: organizations, users, memberships and credentials.
-- A credential is 32 random bytes, stored as their SHA-256; the credential itself is shown once and never stored.

CREATE TABLE organizations (
    id UUID PRIMARY KEY,
    name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
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
    -- The user's name in this organization, which other organizations neither see nor change.
    name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('owner', 'admin', 'member')),
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, user_id)
);
CREATE INDEX members_by_user ON members (user_id);

-- Keys, login codes, logins and tickets belong to a membership, so that they are deleted with it.
CREATE TABLE api_keys (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    user_id UUID NOT NULL,
    name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    scope TEXT NOT NULL CHECK (scope IN ('full', 'mcp')),
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
    expires_at TIMESTAMPTZ NOT NULL,
    used_at TIMESTAMPTZ,
    FOREIGN KEY (org_id, user_id) REFERENCES members (org_id, user_id) ON DELETE CASCADE
);
CREATE INDEX login_codes_by_member ON login_codes (org_id, user_id);
CREATE INDEX login_codes_by_expiry ON login_codes (org_id, expires_at);

-- Browser logins, by the hash of their cookie.
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

-- Logins of devices without a browser. A device shows its user code and polls with its device code until a member
-- approves. The row has no organization before that, and is deleted when the device gets its API key.
CREATE TABLE device_logins (
    device_hash BYTEA PRIMARY KEY,
    user_code TEXT NOT NULL UNIQUE,
    client_name TEXT NOT NULL CHECK (length(client_name) BETWEEN 1 AND 80),
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    denied_at TIMESTAMPTZ,
    org_id UUID,
    user_id UUID,
    -- The API key or login that approved it, by hash; neither for a user's token. The approval ends with it.
    key_hash BYTEA,
    login_hash BYTEA,
    FOREIGN KEY (org_id, user_id) REFERENCES members (org_id, user_id) ON DELETE CASCADE,
    CHECK ((org_id IS NULL) = (user_id IS NULL))
);
CREATE INDEX device_logins_by_member ON device_logins (org_id, user_id);
CREATE INDEX device_logins_by_expiry ON device_logins (expires_at);

-- Workspaces: repositories and configurations.

CREATE TABLE repos (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    source TEXT NOT NULL CHECK (source IN ('github', 'git', 'local')),
    url TEXT,
    local_path_hash TEXT,
    default_branch TEXT NOT NULL,
    -- Whether somebody chose the default branch. Otherwise it is whatever the forge calls the default.
    branch_given BOOLEAN NOT NULL,
    is_private BOOLEAN NOT NULL,
    service_commands JSONB,
    env_files JSONB,
    env_files_updated_at TIMESTAMPTZ,
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
    service_commands JSONB,
    service_commands_updated_at TIMESTAMPTZ,
    service_commands_updated_by TEXT,
    env_files JSONB,
    env_files_updated_at TIMESTAMPTZ,
    env_files_updated_by TEXT,
    -- Replaces the first part of the agent's instructions. A session's own text counts before it.
    system_prompt TEXT,
    created_by UUID REFERENCES users (id) ON DELETE SET NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    UNIQUE (org_id, user_id, local_path_hash),
    UNIQUE (id, org_id),
    CHECK ((kind = 'cli') = (local_path_hash IS NOT NULL)),
    CHECK ((user_id IS NULL) = (local_path_hash IS NULL))
);
CREATE INDEX configurations_by_org ON configurations (org_id, created_at);

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
CREATE INDEX configuration_repos_by_repo ON configuration_repos (repo_id);

-- Automations, and which actions an organization allows. The runs of automations are below.

CREATE TABLE action_modes (
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    -- `sourceId:actionId`; of a tool from tools.yaml, `tools:` and its name.
    action_key TEXT NOT NULL CHECK (length(action_key) BETWEEN 3 AND 300),
    -- The mode of all arguments that no rule matches.
    mode TEXT NOT NULL CHECK (mode IN ('allow', 'require_approval', 'deny')),
    -- Rules that choose another mode by the arguments, and examples.
    conditions JSONB,
    -- Whether two people must approve.
    two_person BOOLEAN NOT NULL,
    -- The invocation whose approver set the mode, if one did.
    invocation_id UUID,
    changed_by TEXT NOT NULL,
    changed_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, action_key)
);

-- What users have disabled for the sessions they create. Without a row, a source and its actions are enabled. Not tied to
-- the membership: the sessions of a former member keep their restrictions.
CREATE TABLE disabled_actions (
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    user_id UUID NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    source_id TEXT NOT NULL CHECK (length(source_id) BETWEEN 1 AND 300),
    -- Empty for the source with all its actions.
    action_id TEXT NOT NULL CHECK (length(action_id) <= 300),
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, user_id, source_id, action_id)
);

CREATE TABLE automations (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    -- The prompt of every run.
    instructions TEXT NOT NULL,
    model TEXT,
    -- No foreign key: a configuration can be deleted, and then a run of the automation fails and says so.
    configuration_id UUID,
    system_prompt TEXT,
    enabled BOOLEAN NOT NULL,
    -- Modes by action key, as in the table action_modes.
    action_modes JSONB NOT NULL,
    -- Whether somebody chose the integrations. Otherwise the automation's sessions get all that are active.
    integrations_chosen BOOLEAN NOT NULL DEFAULT FALSE,
    -- The webhook: how its requests are signed, and the name of the vault's secret that verifies them.
    webhook_scheme TEXT CHECK (webhook_scheme IN ('generic', 'github', 'linear')),
    webhook_secret TEXT,
    -- The cron line, its time zone, and when it fires next.
    cron_schedule TEXT,
    cron_time_zone TEXT,
    cron_next_at TIMESTAMPTZ,
    created_by UUID REFERENCES users (id) ON DELETE SET NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    -- Incremented with every change, so that of two concurrent changes one is refused.
    revision BIGINT NOT NULL DEFAULT 0,
    UNIQUE (id, org_id)
);
CREATE INDEX automations_by_org ON automations (org_id, created_at);
CREATE INDEX automations_by_firing ON automations (cron_next_at) WHERE cron_next_at IS NOT NULL;

-- Sessions: their credentials, ordered events and transcripts.

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
    -- What the agent of an automation reported at its end.
    summary TEXT,
    title TEXT,
    title_source TEXT CHECK (title_source IN ('prompt', 'model', 'person')),
    initial_prompt TEXT,
    initial_prompt_sent_at TIMESTAMPTZ,
    agent_config JSONB,
    -- Replaces the first part of the agent's instructions.
    system_prompt TEXT,
    automation_id UUID,
    -- The event that started the session. It is written into the sandbox.
    trigger_context JSONB,
    branch_name TEXT,
    base_commit_sha TEXT,
    local_path_hash TEXT,
    sandbox_provider TEXT NOT NULL,
    sandbox_id TEXT,
    -- Incremented when a sandbox starts and when one ends; tokens of earlier generations are invalid.
    sandbox_generation BIGINT NOT NULL CHECK (sandbox_generation >= 0),
    sandbox_expires_at TIMESTAMPTZ,
    -- Whether files were given up and the agent has not been told yet.
    files_lost BOOLEAN NOT NULL DEFAULT FALSE,
    -- The port of the session's app that people are shown.
    exposed_port BIGINT CHECK (exposed_port BETWEEN 1 AND 65535),
    snapshot_id TEXT,
    agent_session_id TEXT,
    -- Incremented with every grant of ownership; a write with an earlier epoch changes nothing.
    owner_epoch BIGINT NOT NULL CHECK (owner_epoch >= 0),
    owner_instance TEXT,
    -- The end of the block of event numbers that an owner may use; none is ever used twice.
    seq_reserved BIGINT NOT NULL CHECK (seq_reserved >= 0),
    -- The incarnation of the database in which the present owner was granted. In another incarnation the end of the log
    -- may be lost, so numbers continue after the floor: the last one that was reserved before.
    seq_incarnation TEXT,
    seq_floor BIGINT NOT NULL DEFAULT 0 CHECK (seq_floor >= 0),
    -- Messages and parts include the effects of all events up to this number.
    transcript_seq BIGINT NOT NULL DEFAULT 0 CHECK (transcript_seq >= 0),
    budget_micros BIGINT CHECK (budget_micros >= 0),
    latest_task TEXT,
    pr_urls JSONB NOT NULL,
    metrics JSONB NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    last_activity_at TIMESTAMPTZ NOT NULL,
    paused_at TIMESTAMPTZ,
    ended_at TIMESTAMPTZ,
    -- When somebody deleted it. Its owner then ends the sandbox and deletes the row, or the next owner does.
    deleted_at TIMESTAMPTZ,
    UNIQUE (id, org_id),
    FOREIGN KEY (configuration_id, org_id) REFERENCES configurations (id, org_id),
    FOREIGN KEY (parent_session_id, org_id) REFERENCES sessions (id, org_id),
    FOREIGN KEY (automation_id, org_id) REFERENCES automations (id, org_id)
);
CREATE INDEX sessions_by_activity ON sessions (org_id, last_activity_at);
CREATE INDEX sessions_by_parent ON sessions (parent_session_id);
CREATE INDEX sessions_by_configuration ON sessions (configuration_id);
CREATE INDEX sessions_by_status ON sessions (status, sandbox_expires_at);
CREATE INDEX sessions_deleted ON sessions (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX sessions_by_automation ON sessions (automation_id) WHERE automation_id IS NOT NULL;

-- Short-lived credentials for URLs: one session, one user; a socket ticket works once.
CREATE TABLE tickets (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    session_id UUID NOT NULL,
    user_id UUID NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('socket', 'proxy')),
    token_hash BYTEA NOT NULL UNIQUE,
    -- The API key or login that the ticket was made with, by hash; neither for a user's token. The ticket, and the
    -- socket that it opened, end with it.
    key_hash BYTEA,
    login_hash BYTEA,
    expires_at TIMESTAMPTZ NOT NULL,
    used_at TIMESTAMPTZ,
    revoked_at TIMESTAMPTZ,
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (org_id, user_id) REFERENCES members (org_id, user_id) ON DELETE CASCADE
);
CREATE INDEX tickets_by_member ON tickets (org_id, user_id);
CREATE INDEX tickets_by_session ON tickets (session_id);
CREATE INDEX tickets_by_expiry ON tickets (org_id, expires_at);

-- The token of a pooled sandbox has no row, and so no access, until a session takes the sandbox.
CREATE TABLE sandbox_tokens (
    token_hash BYTEA PRIMARY KEY,
    org_id UUID NOT NULL,
    session_id UUID NOT NULL,
    generation BIGINT NOT NULL,
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE
);
CREATE INDEX sandbox_tokens_by_session ON sandbox_tokens (session_id);

CREATE TABLE idempotency_keys (
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    -- The user, service or sandbox that sent the request, whatever credential it used.
    caller TEXT NOT NULL,
    route TEXT NOT NULL,
    key TEXT NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    fingerprint TEXT NOT NULL CHECK (length(fingerprint) = 64),
    state TEXT NOT NULL CHECK (state IN ('in_flight', 'done')),
    response_status BIGINT,
    response JSONB,
    -- The instance that is executing the request. The key is free again once that instance has died.
    instance TEXT,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, caller, route, key),
    CHECK ((state = 'done') = (response_status IS NOT NULL))
);
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (org_id, expires_at);

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
-- /metrics counts queued prompts, and anybody may request it: the count must not read every prompt ever sent.
CREATE INDEX prompts_waiting ON prompts (session_id) WHERE state = 'queued';

-- Questions of agents to people, and requests for permissions.
CREATE TABLE questions (
    session_id UUID NOT NULL,
    -- The agent's id of the request.
    id TEXT NOT NULL,
    org_id UUID NOT NULL,
    -- The prompt of the turn that asked.
    prompt_id TEXT,
    kind TEXT NOT NULL CHECK (kind IN ('question', 'permission')),
    questions JSONB NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'answered', 'rejected')),
    answers JSONB NOT NULL,
    answered_by TEXT,
    -- Whether the agent has the answer, or will never need it.
    delivered BOOLEAN NOT NULL,
    asked_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, id),
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE
);
-- Settled questions stay, so lists of open ones must not read them.
CREATE INDEX questions_open ON questions (org_id, asked_at) WHERE state = 'open';
CREATE INDEX questions_expiry ON questions (expires_at) WHERE state = 'open';
CREATE INDEX questions_undelivered ON questions (session_id) WHERE state <> 'open' AND NOT delivered;

CREATE TABLE events (
    session_id UUID NOT NULL,
    first_seq BIGINT NOT NULL CHECK (first_seq > 0),
    last_seq BIGINT NOT NULL,
    org_id UUID NOT NULL,
    epoch BIGINT NOT NULL CHECK (epoch >= 0),
    frames TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, last_seq),
    CHECK (last_seq >= first_seq),
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
    -- Why the turn that ended with this message failed.
    error TEXT,
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

-- No foreign key to the session: a snapshot outlives it.
CREATE TABLE snapshots (
    id TEXT PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    session_id UUID NOT NULL,
    target TEXT NOT NULL CHECK (target IN ('configuration', 'session')),
    sandbox_provider TEXT NOT NULL,
    -- The run that made the snapshot. If its gateway dies after the snapshot was stored, the retried call finds it here.
    run_id TEXT,
    created_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX snapshots_by_session ON snapshots (org_id, session_id);
CREATE UNIQUE INDEX snapshots_by_run ON snapshots (org_id, run_id);

-- The vault, and the files in sandboxes that contain secrets.

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
CREATE UNIQUE INDEX secrets_by_owner
    ON secrets (org_id, scope, COALESCE(repo_id, configuration_id, session_id, org_id), key);
CREATE INDEX secrets_by_session ON secrets (session_id);

-- Where a session's sandbox has or had files with secrets. No snapshot copies them.
CREATE TABLE session_secret_paths (
    session_id UUID NOT NULL,
    org_id UUID NOT NULL,
    path TEXT NOT NULL,
    PRIMARY KEY (session_id, path),
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE
);

-- Model usage. No foreign key to the session: a deleted session has still been paid for.

CREATE TABLE model_usage (
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    session_id UUID NOT NULL,
    model TEXT NOT NULL CHECK (length(model) BETWEEN 1 AND 200),
    requests BIGINT NOT NULL CHECK (requests >= 0),
    input_tokens BIGINT NOT NULL CHECK (input_tokens >= 0),
    output_tokens BIGINT NOT NULL CHECK (output_tokens >= 0),
    cache_read_tokens BIGINT NOT NULL CHECK (cache_read_tokens >= 0),
    cache_write_tokens BIGINT NOT NULL CHECK (cache_write_tokens >= 0),
    cost_micros BIGINT NOT NULL CHECK (cost_micros >= 0),
    updated_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, session_id, model)
);

-- The rows of model_usage, split by day (UTC).
CREATE TABLE daily_model_usage (
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    day TEXT NOT NULL CHECK (length(day) = 10),
    session_id UUID NOT NULL,
    model TEXT NOT NULL CHECK (length(model) BETWEEN 1 AND 200),
    requests BIGINT NOT NULL CHECK (requests >= 0),
    input_tokens BIGINT NOT NULL CHECK (input_tokens >= 0),
    output_tokens BIGINT NOT NULL CHECK (output_tokens >= 0),
    cache_read_tokens BIGINT NOT NULL CHECK (cache_read_tokens >= 0),
    cache_write_tokens BIGINT NOT NULL CHECK (cache_write_tokens >= 0),
    cost_micros BIGINT NOT NULL CHECK (cost_micros >= 0),
    PRIMARY KEY (org_id, day, session_id, model)
);

-- Runs of automations, and what starts them.

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
    -- For cron: the time of the firing, and how many earlier firings were missed and are made up for by this one.
    scheduled_for TIMESTAMPTZ,
    missed BIGINT NOT NULL CHECK (missed >= 0),
    received_at TIMESTAMPTZ NOT NULL,
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
CREATE INDEX automation_runs_ended_badly ON automation_runs (org_id, completed_at)
    WHERE status IN ('failed', 'needs_human', 'timed_out');
CREATE INDEX automation_runs_needing_human ON automation_runs (org_id, completed_at) WHERE status = 'needs_human';

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

-- Where an organization is told that something waits for a person. The address and the key that signs are in the vault.
CREATE TABLE notification_settings (
    org_id UUID PRIMARY KEY REFERENCES organizations (id) ON DELETE CASCADE,
    -- The origin of the address, for people.
    origin TEXT NOT NULL CHECK (length(origin) BETWEEN 1 AND 2000),
    -- What began to wait earlier is not reported.
    since TIMESTAMPTZ NOT NULL,
    changed_by UUID REFERENCES users (id) ON DELETE SET NULL
);

-- What was reported, or will be: one row for each approval, question and run.
CREATE TABLE notifications (
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('approval', 'question', 'run')),
    -- The invocation, the session of the question, or the run.
    subject_id UUID NOT NULL,
    -- Empty unless it is about a question.
    question_id TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('pending', 'sent', 'dropped', 'failed')),
    attempts BIGINT NOT NULL CHECK (attempts >= 0),
    last_error TEXT,
    available_at TIMESTAMPTZ NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, kind, subject_id, question_id)
);
CREATE INDEX notifications_due ON notifications (available_at) WHERE state = 'pending';
CREATE INDEX notifications_by_time ON notifications (created_at);

-- Connectors and integrations: what agents can reach through actions.

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

-- Databases that agents may query.
CREATE TABLE databases (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    -- Where the database is. It names a secret of the organization, and never contains one.
    target JSONB NOT NULL,
    -- The queries that are actions.
    queries JSONB NOT NULL,
    free_form TEXT NOT NULL CHECK (free_form IN ('off', 'read', 'write', 'danger')),
    limits JSONB NOT NULL,
    enabled BOOLEAN NOT NULL,
    created_by UUID REFERENCES users (id) ON DELETE SET NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    UNIQUE (id, org_id),
    UNIQUE (org_id, name)
);

-- Vendors whose API agents may use.
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

-- Which integrations a session may use.
CREATE TABLE session_connections (
    session_id UUID NOT NULL,
    integration_id UUID NOT NULL,
    org_id UUID NOT NULL,
    PRIMARY KEY (session_id, integration_id),
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (integration_id, org_id) REFERENCES integrations (id, org_id) ON DELETE CASCADE
);
CREATE INDEX session_connections_by_integration ON session_connections (integration_id);

-- Which integrations the sessions of an automation may use.
CREATE TABLE automation_connections (
    automation_id UUID NOT NULL,
    integration_id UUID NOT NULL,
    org_id UUID NOT NULL,
    PRIMARY KEY (automation_id, integration_id),
    FOREIGN KEY (automation_id, org_id) REFERENCES automations (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (integration_id, org_id) REFERENCES integrations (id, org_id) ON DELETE CASCADE
);
CREATE INDEX automation_connections_by_integration ON automation_connections (integration_id);

-- Egress rules, and records of connection attempts. Records have no foreign key to their session: they outlive it.

CREATE TABLE egress_policies (
    org_id UUID PRIMARY KEY REFERENCES organizations (id) ON DELETE CASCADE,
    mode TEXT NOT NULL CHECK (mode IN ('open', 'allow_list', 'offline')),
    allow JSONB NOT NULL,
    deny JSONB NOT NULL,
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

-- Runs and the ledger. Nothing from here on cascades to them: the records of a deleted session or organization stay.

CREATE TABLE runs (
    org_id UUID NOT NULL,
    -- The first to insert the id of a call executes it; everybody else gets its answer.
    run_id TEXT NOT NULL CHECK (length(run_id) BETWEEN 8 AND 120),
    run_kind TEXT NOT NULL CHECK (run_kind IN ('orchestrator', 'agent', 'tool_gateway', 'write_broker',
        'policy_change', 'promotion', 'export', 'override', 'system', 'db_write', 'db_read')),
    status TEXT NOT NULL CHECK (status IN ('created', 'running', 'completed', 'failed', 'cancelled', 'denied')),
    lanes_version TEXT NOT NULL CHECK (length(lanes_version) >= 6),
    roles_version TEXT NOT NULL CHECK (length(roles_version) >= 6),
    parent_run_id TEXT,
    root_run_id TEXT NOT NULL,
    run_name TEXT,
    case_id TEXT,
    session_id UUID,
    correlation_id TEXT,
    actor JSONB NOT NULL,
    role_id TEXT NOT NULL,
    lane_id TEXT,
    -- For runs that are calls.
    tool TEXT,
    operation TEXT,
    request_hash TEXT CHECK (length(request_hash) = 64),
    response_hash TEXT CHECK (length(response_hash) = 64),
    -- The input of the policy decision, so that another policy can be tried on it.
    decision JSONB,
    -- Ledger positions of the first event of the run and of its end; up to four events from each belong to the run.
    begun_position BIGINT NOT NULL CHECK (begun_position >= 0),
    ended_position BIGINT,
    -- The instance that executes the call. If it dies, it is unknown whether the effect happened.
    instance TEXT,
    inputs JSONB NOT NULL,
    outputs JSONB NOT NULL,
    error JSONB,
    outcome TEXT,
    -- The answer to the caller, and to every duplicate call.
    answer JSONB,
    retry_count BIGINT NOT NULL CHECK (retry_count >= 0),
    retry_reason TEXT,
    created_at TIMESTAMPTZ NOT NULL,
    started_at TIMESTAMPTZ,
    completed_at TIMESTAMPTZ,
    PRIMARY KEY (org_id, run_id),
    CHECK ((status IN ('created', 'running')) = (completed_at IS NULL)),
    CHECK (tool IS NULL OR status <> 'running' OR instance IS NOT NULL)
);
CREATE INDEX runs_by_case ON runs (org_id, case_id, created_at);
CREATE INDEX runs_by_time ON runs (org_id, created_at);
-- Partial indexes, because every call pays for every index page that it changes.
CREATE INDEX runs_by_parent ON runs (org_id, parent_run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX runs_in_flight ON runs (instance) WHERE status = 'running';
-- Few runs wait at any time, so an ordinary call does not pay for this index.
CREATE INDEX runs_waiting ON runs (org_id, session_id) WHERE status = 'created';

CREATE TABLE artifacts (
    org_id UUID NOT NULL,
    artifact_id TEXT NOT NULL CHECK (length(artifact_id) BETWEEN 3 AND 120),
    artifact_kind TEXT NOT NULL CHECK (length(artifact_kind) BETWEEN 2 AND 80),
    hash_sha256 TEXT NOT NULL CHECK (length(hash_sha256) = 64),
    hash_source TEXT CHECK (hash_source IN ('bytes', 'normalized_text', 'normalized_json')),
    scope TEXT NOT NULL CHECK (scope IN ('case', 'shared', 'system')),
    case_id TEXT,
    content_type TEXT,
    byte_size BIGINT NOT NULL CHECK (byte_size >= 0),
    lineage JSONB,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, artifact_id),
    CHECK ((scope = 'case') = (case_id IS NOT NULL))
);
CREATE INDEX artifacts_by_case ON artifacts (org_id, case_id, created_at);

-- The content of artifacts, in its own table so that listing artifacts reads no content.
CREATE TABLE artifact_contents (
    org_id UUID NOT NULL,
    artifact_id TEXT NOT NULL,
    content BYTEA NOT NULL,
    PRIMARY KEY (org_id, artifact_id)
);

-- Files that an agent uploaded as evidence. The content is an artifact of the session's case; `key` is the file's name for
-- clients.
CREATE TABLE evidence_files (
    org_id UUID NOT NULL,
    session_id UUID NOT NULL,
    key TEXT NOT NULL,
    -- The call that uploaded it. If it is executed again, its files are replaced.
    run_id TEXT NOT NULL,
    artifact_id TEXT NOT NULL,
    content_type TEXT NOT NULL,
    byte_size BIGINT NOT NULL CHECK (byte_size > 0),
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, key),
    FOREIGN KEY (session_id, org_id) REFERENCES sessions (id, org_id) ON DELETE CASCADE,
    FOREIGN KEY (org_id, artifact_id) REFERENCES artifacts (org_id, artifact_id)
);
CREATE INDEX evidence_files_by_run ON evidence_files (org_id, run_id);
CREATE INDEX evidence_files_by_artifact ON evidence_files (org_id, artifact_id);

-- What an invocation of an action has beside its run. The run's own row says how far it has come: a run that waits for
-- approval is `created`.
CREATE TABLE invocations (
    org_id UUID NOT NULL,
    run_id TEXT NOT NULL,
    -- The name of the invocation outside of the gate.
    id UUID NOT NULL,
    -- Runs outlive their sessions, and so do invocations.
    session_id UUID,
    integration TEXT NOT NULL,
    action TEXT NOT NULL,
    risk TEXT NOT NULL CHECK (risk IN ('read', 'write', 'danger')),
    mode TEXT NOT NULL CHECK (mode IN ('allow', 'require_approval', 'deny')),
    mode_source TEXT NOT NULL CHECK (mode_source IN ('automation_override', 'org_default', 'inferred_default')),
    -- Why the mode is stricter than it was set to.
    mode_reason TEXT,
    -- The parameters as people may see them: redacted and truncated.
    params JSONB NOT NULL,
    -- The definition that an approval is bound to.
    definition_hash TEXT CHECK (length(definition_hash) = 64),
    -- The complete request, encrypted, only while it waits.
    request JSONB,
    -- The API key with which it was requested. It may be deleted, and the invocation stays.
    key_id UUID,
    -- Whether two people must approve it, and who has approved it first, with the arguments that it has now.
    two_person BOOLEAN NOT NULL,
    first_approved_by UUID,
    first_approved_at TIMESTAMPTZ,
    -- The hash of the request after an approver has edited its arguments.
    edited_hash TEXT CHECK (length(edited_hash) = 64),
    -- Until when it can be approved. NULL if it never waited.
    expires_at TIMESTAMPTZ,
    -- Who approved or denied it.
    decided_by UUID,
    decided_at TIMESTAMPTZ,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, run_id),
    FOREIGN KEY (org_id, run_id) REFERENCES runs (org_id, run_id)
);
CREATE UNIQUE INDEX invocations_by_id ON invocations (org_id, id);
CREATE INDEX invocations_by_session ON invocations (org_id, session_id, created_at) WHERE session_id IS NOT NULL;

-- `chain` is an organization's id, or 'system'. `position` counts over all chains: the leaf of the tree.
CREATE TABLE ledger_events (
    position BIGINT PRIMARY KEY CHECK (position >= 0),
    chain TEXT NOT NULL,
    sequence BIGINT NOT NULL CHECK (sequence >= 0),
    event_id TEXT NOT NULL UNIQUE CHECK (length(event_id) BETWEEN 8 AND 120),
    org_id UUID,
    action_type TEXT NOT NULL CHECK (action_type IN ('tool_call', 'db_write', 'db_read', 'policy_change',
        'promotion', 'export', 'override', 'authz_decision', 'system')),
    outcome TEXT NOT NULL CHECK (outcome IN ('allow', 'deny', 'success', 'failure')),
    run_id TEXT,
    case_id TEXT,
    -- No run references this event (refused ids, governance), so it needs the indexes below.
    unattached BOOLEAN NOT NULL,
    record TEXT NOT NULL,
    prev_hash TEXT NOT NULL CHECK (length(prev_hash) = 64),
    hash TEXT NOT NULL CHECK (length(hash) = 64),
    created_at TIMESTAMPTZ NOT NULL,
    UNIQUE (chain, sequence)
);
-- A run references its own events, so only unattached events need an index by run or case. Both are looked up without the
-- organization, and the chain is compared afterwards.
CREATE INDEX ledger_events_by_run ON ledger_events (run_id) WHERE unattached;
CREATE INDEX ledger_events_by_case ON ledger_events (case_id) WHERE unattached;

CREATE VIEW events_of_runs AS
SELECT r.org_id, r.run_id, r.case_id, e.position FROM runs r JOIN ledger_events e
    ON e.position BETWEEN r.begun_position AND r.begun_position + 3 AND e.run_id = r.run_id AND NOT e.unattached
    AND e.org_id = r.org_id
UNION ALL
SELECT r.org_id, r.run_id, r.case_id, e.position FROM runs r JOIN ledger_events e
    ON e.position BETWEEN r.ended_position AND r.ended_position + 3 AND e.run_id = r.run_id AND NOT e.unattached
    AND e.org_id = r.org_id AND e.position > r.begun_position + 3;

CREATE TABLE ledger_heads (
    chain TEXT PRIMARY KEY,
    org_id UUID,
    sequence BIGINT NOT NULL,
    hash TEXT NOT NULL CHECK (length(hash) = 64)
);

CREATE TABLE ledger_checkpoints (
    size BIGINT PRIMARY KEY CHECK (size >= 0),
    root TEXT NOT NULL CHECK (length(root) = 64),
    key_id TEXT NOT NULL,
    signature TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL
);

-- The number of events over all chains. Every writer of events updates this row first, so that positions have no gaps and
-- two writers never append to the same head.
CREATE TABLE ledger_tree (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    size BIGINT NOT NULL CHECK (size >= 0)
);
INSERT INTO ledger_tree (id, size) VALUES (1, 0);

-- The state of the installation.

-- The gateway processes. One that has not been seen for a while has died.
CREATE TABLE instances (
    id TEXT PRIMARY KEY,
    seen_at TIMESTAMPTZ NOT NULL,
    -- The process, so that others on the same machine can tell for certain that it has died.
    process TEXT
);

-- The global safety lock: while it is set, nothing is executed in any lane.
CREATE TABLE safety_lock (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    locked BOOLEAN NOT NULL,
    changed_by TEXT NOT NULL,
    reason TEXT NOT NULL,
    changed_at TIMESTAMPTZ NOT NULL
);

-- Permissions to override denials in an emergency.
CREATE TABLE override_grants (
    id UUID PRIMARY KEY,
    org_id UUID NOT NULL,
    user_id UUID NOT NULL,
    ticket TEXT NOT NULL CHECK (length(ticket) BETWEEN 1 AND 120),
    reason TEXT NOT NULL CHECK (length(reason) BETWEEN 1 AND 200),
    granted_by TEXT NOT NULL,
    valid_from TIMESTAMPTZ NOT NULL,
    valid_until TIMESTAMPTZ NOT NULL,
    -- A revoked grant stays in the table, because the ledger refers to it.
    revoked_by TEXT,
    revoked_at TIMESTAMPTZ,
    CHECK (valid_from < valid_until)
);
CREATE INDEX override_grants_by_user ON override_grants (org_id, user_id, valid_until);

--- only sqlite
CREATE TRIGGER ledger_events_no_update BEFORE UPDATE ON ledger_events
BEGIN SELECT RAISE(ABORT, 'ledger rows are never changed'); END;
CREATE TRIGGER ledger_events_no_delete BEFORE DELETE ON ledger_events
BEGIN SELECT RAISE(ABORT, 'ledger rows are never deleted'); END;
-- REPLACE deletes without firing the trigger above, so the insert itself is refused if the row exists.
CREATE TRIGGER ledger_events_no_replace BEFORE INSERT ON ledger_events
WHEN EXISTS (SELECT 1 FROM ledger_events WHERE position = NEW.position)
    OR EXISTS (SELECT 1 FROM ledger_events WHERE event_id = NEW.event_id)
    OR EXISTS (SELECT 1 FROM ledger_events WHERE chain = NEW.chain AND sequence = NEW.sequence)
BEGIN SELECT RAISE(ABORT, 'ledger rows are never replaced'); END;
CREATE TRIGGER ledger_checkpoints_no_update BEFORE UPDATE ON ledger_checkpoints
BEGIN SELECT RAISE(ABORT, 'checkpoints are never changed'); END;
CREATE TRIGGER ledger_checkpoints_no_delete BEFORE DELETE ON ledger_checkpoints
BEGIN SELECT RAISE(ABORT, 'checkpoints are never deleted'); END;
CREATE TRIGGER ledger_checkpoints_no_replace BEFORE INSERT ON ledger_checkpoints
WHEN EXISTS (SELECT 1 FROM ledger_checkpoints WHERE size = NEW.size)
BEGIN SELECT RAISE(ABORT, 'checkpoints are never replaced'); END;
CREATE TRIGGER runs_terminal BEFORE UPDATE ON runs WHEN OLD.completed_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a run that has ended is never changed'); END;
CREATE TRIGGER runs_no_delete BEFORE DELETE ON runs
BEGIN SELECT RAISE(ABORT, 'runs are never deleted'); END;
-- REPLACE deletes without firing the trigger above.
CREATE TRIGGER runs_no_replace BEFORE INSERT ON runs
WHEN EXISTS (SELECT 1 FROM runs WHERE rowid = NEW.rowid OR (org_id = NEW.org_id AND run_id = NEW.run_id))
BEGIN SELECT RAISE(ABORT, 'runs are never replaced'); END;

--- only postgres
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '% rows are never changed or deleted', TG_TABLE_NAME; END $$;
CREATE TRIGGER ledger_events_append_only BEFORE UPDATE OR DELETE ON ledger_events
FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER ledger_events_no_truncate BEFORE TRUNCATE ON ledger_events
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER ledger_checkpoints_append_only BEFORE UPDATE OR DELETE ON ledger_checkpoints
FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER ledger_checkpoints_no_truncate BEFORE TRUNCATE ON ledger_checkpoints
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER runs_terminal BEFORE UPDATE ON runs FOR EACH ROW WHEN (OLD.completed_at IS NOT NULL)
EXECUTE FUNCTION refuse_change();
CREATE TRIGGER runs_no_delete BEFORE DELETE ON runs FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER runs_no_truncate BEFORE TRUNCATE ON runs FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
