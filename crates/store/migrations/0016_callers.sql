-- A key belongs to its caller. Nobody knows any more who sent the keys of before, so none of them can be answered for.
DROP TABLE idempotency_keys;

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
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, caller, route, key),
    CHECK ((state = 'done') = (response_status IS NOT NULL))
);
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (org_id, expires_at);

-- What a ticket was made with: an API key, a login, or neither (a user's token), by the hash that those are known by. A
-- ticket ends with it, and so does the socket that it opened.
ALTER TABLE tickets ADD COLUMN key_hash BYTEA;
ALTER TABLE tickets ADD COLUMN login_hash BYTEA;
