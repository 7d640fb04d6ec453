-- Why the turn failed that ended with this message.
ALTER TABLE messages ADD COLUMN error TEXT;
