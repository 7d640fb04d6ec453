-- The event that started a session, which is written into its sandbox.
ALTER TABLE sessions ADD COLUMN trigger_context JSONB;
