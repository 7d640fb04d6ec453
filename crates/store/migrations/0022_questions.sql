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
