-- A grant to break the glass can be revoked before it ends. It stays in the table: the ledger tells of it.
ALTER TABLE override_grants ADD COLUMN revoked_by TEXT;
ALTER TABLE override_grants ADD COLUMN revoked_at TIMESTAMPTZ;
