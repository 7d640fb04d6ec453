-- Which process an instance is, so that others on the same machine can tell for certain that it has died; and which instance
-- is doing what a key stands for, so that the key is free when that one has died.
ALTER TABLE instances ADD COLUMN process TEXT;
ALTER TABLE idempotency_keys ADD COLUMN instance TEXT;
