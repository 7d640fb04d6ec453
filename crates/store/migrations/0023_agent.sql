-- A text that replaces the first part of an agent's instructions. The session's own counts before its configuration's.
ALTER TABLE sessions ADD COLUMN system_prompt TEXT;
ALTER TABLE configurations ADD COLUMN system_prompt TEXT;

-- Files that an agent uploaded as evidence. The content is an artifact of the session's case; `key` is the file's name for clients.
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
