-- Live sessions: the log by batches, how far the transcript is, and what models cost.

-- One row is what one read of the agent's stream gave: a frame of JSON per line, numbered from first to last.
DROP TABLE events;
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

-- The effects of all numbers up to this one are in messages and parts.
ALTER TABLE sessions ADD COLUMN transcript_seq BIGINT NOT NULL DEFAULT 0 CHECK (transcript_seq >= 0);
ALTER TABLE sessions ADD COLUMN budget_micros BIGINT CHECK (budget_micros >= 0);
UPDATE sessions SET metrics = '{"toolCalls":0,"messagesExchanged":0,"activeSeconds":0}' WHERE metrics = '{}';
CREATE INDEX sessions_by_configuration ON sessions (configuration_id);
CREATE INDEX configuration_repos_by_repo ON configuration_repos (repo_id);
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (org_id, expires_at);

-- No key to the session: whoever deletes a session has still spent what it cost.
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
