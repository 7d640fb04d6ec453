-- Whether somebody chose a repository's default branch. Who did not gets what its forge calls so, and what was assumed
-- until now was `main`.
ALTER TABLE repos ADD COLUMN branch_given BOOLEAN NOT NULL DEFAULT FALSE;
UPDATE repos SET branch_given = TRUE WHERE default_branch <> 'main';
