-- The life of the database in which the present owner was made: in another one the end of the log may be lost. Then
-- numbers go on after the floor, which is the last one that was reserved before.
ALTER TABLE sessions ADD COLUMN seq_life TEXT;
ALTER TABLE sessions ADD COLUMN seq_floor BIGINT NOT NULL DEFAULT 0 CHECK (seq_floor >= 0);
