//! One schema text for two databases: PostgreSQL's type words, and what SQLite calls them.

/// The two databases we speak to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

/// How SQLite's strict tables store what PostgreSQL has a type for. This is what sqlx binds for each.
const SQLITE_TYPES: [(&str, &str); 6] = [
    ("UUID", "BLOB"),
    ("TIMESTAMPTZ", "TEXT"),
    ("JSONB", "TEXT"),
    ("BOOLEAN", "INTEGER"),
    ("BYTEA", "BLOB"),
    ("BIGINT", "INTEGER"),
];

/// Marks the rest of a migration, up to the next mark, as meant for one database only.
const ONLY: &str = "--- only ";

impl Dialect {
    fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }

    /// The text of a migration as this database understands it.
    pub(crate) fn render(self, text: &str) -> String {
        let mut meant = true;
        let mut out = String::with_capacity(text.len());
        for line in text.lines() {
            if let Some(name) = line.strip_prefix(ONLY) {
                meant = name.trim() == self.name();
            } else if meant {
                out.push_str(&self.line(line));
                out.push('\n');
            }
        }
        out
    }

    fn line(self, line: &str) -> String {
        match self {
            Self::Postgres => line.to_owned(),
            // A table ends with this line and nothing else does; STRICT makes SQLite keep its types.
            Self::Sqlite if line == ");" => ") STRICT;".to_owned(),
            Self::Sqlite => line.split(' ').map(sqlite_word).collect::<Vec<_>>().join(" "),
        }
    }
}

fn sqlite_word(word: &str) -> String {
    let bare = word.trim_end_matches([',', ';']);
    match SQLITE_TYPES.iter().find(|(postgres, _)| *postgres == bare) {
        Some((_, sqlite)) => format!("{sqlite}{}", &word[bare.len()..]),
        None => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_mapped_and_foreign_sections_left_out() {
        let text = "CREATE TABLE a (\n    id UUID PRIMARY KEY,\n    data JSONB,\n    on_uuid TEXT\n);\nALTER TABLE a ADD COLUMN n BIGINT;\n--- only sqlite\nX;\n--- only postgres\nY;\n";
        assert_eq!(
            Dialect::Sqlite.render(text),
            "CREATE TABLE a (\n    id BLOB PRIMARY KEY,\n    data TEXT,\n    on_uuid TEXT\n) STRICT;\nALTER TABLE a ADD COLUMN n INTEGER;\nX;\n"
        );
        assert!(Dialect::Postgres.render(text).ends_with("BIGINT;\nY;\n"));
    }
}
