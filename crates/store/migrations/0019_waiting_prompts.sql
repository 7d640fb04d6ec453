-- Metrics count the prompts that wait, and anybody may ask for metrics: the count must not read every prompt ever sent.
CREATE INDEX prompts_waiting ON prompts (session_id) WHERE state = 'queued';
