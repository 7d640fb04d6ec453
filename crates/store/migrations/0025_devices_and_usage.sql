-- Logins of devices without a browser, and model usage by day.

-- A device shows its user code and polls with its device code until a member approves. The row has no organization before
-- that, and is deleted when the device gets its API key.
CREATE TABLE device_logins (
    device_hash BYTEA PRIMARY KEY,
    user_code TEXT NOT NULL UNIQUE,
    client_name TEXT NOT NULL CHECK (length(client_name) BETWEEN 1 AND 80),
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    denied_at TIMESTAMPTZ,
    org_id UUID,
    user_id UUID,
    FOREIGN KEY (org_id, user_id) REFERENCES members (org_id, user_id) ON DELETE CASCADE,
    CHECK ((org_id IS NULL) = (user_id IS NULL))
);
CREATE INDEX device_logins_by_member ON device_logins (org_id, user_id);
CREATE INDEX device_logins_by_expiry ON device_logins (expires_at);

-- The rows of model_usage, split by day (UTC). No foreign key to the session: a deleted session has still been paid for.
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

-- Earlier usage counts for the day of its last change.
--- only sqlite
INSERT INTO daily_model_usage (org_id, day, session_id, model, requests, input_tokens, output_tokens,
    cache_read_tokens, cache_write_tokens, cost_micros)
    SELECT org_id, substr(updated_at, 1, 10), session_id, model, requests, input_tokens, output_tokens,
    cache_read_tokens, cache_write_tokens, cost_micros FROM model_usage;
--- only postgres
INSERT INTO daily_model_usage (org_id, day, session_id, model, requests, input_tokens, output_tokens,
    cache_read_tokens, cache_write_tokens, cost_micros)
    SELECT org_id, to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD'), session_id, model, requests, input_tokens,
    output_tokens, cache_read_tokens, cache_write_tokens, cost_micros FROM model_usage;
