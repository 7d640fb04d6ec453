-- Where the title of a session comes from. Titles from before were chosen by people.
ALTER TABLE sessions ADD COLUMN title_source TEXT CHECK (title_source IN ('prompt', 'model', 'person'));
UPDATE sessions SET title_source = 'person' WHERE title IS NOT NULL;
