//! Renders one schema text for both databases: it uses PostgreSQL's type names, which are mapped for SQLite.

/// The two databases that we support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

/// How SQLite's STRICT tables store PostgreSQL's types, as sqlx binds them.
const SQLITE_TYPES: [(&str, &str); 6] = [
    ("UUID", "BLOB"),
    ("TIMESTAMPTZ", "TEXT"),
    ("JSONB", "TEXT"),
    ("BOOLEAN", "INTEGER"),
    ("BYTEA", "BLOB"),
    ("BIGINT", "INTEGER"),
];

/// Starts a section of a migration that one database alone runs; it ends at the next mark.
const SECTION_MARKER: &str = "--- only ";

impl Dialect {
    fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }

    /// The text of a migration for this database.
    pub(crate) fn render(self, text: &str) -> String {
        let mut meant = true;
        let mut out = String::with_capacity(text.len());
        for line in text.lines() {
            if let Some(name) = line.strip_prefix(SECTION_MARKER) {
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
            // Only a table ends with this line. STRICT makes SQLite check types.
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
    fn types_are_mapped_and_sections_of_the_other_database_omitted() {
        let text = "CREATE TABLE a (\n    id UUID PRIMARY KEY,\n    data JSONB,\n    on_uuid TEXT\n);\nALTER TABLE a ADD COLUMN n BIGINT;\n--- only sqlite\nX;\n--- only postgres\nY;\n";
        assert_eq!(
            Dialect::Sqlite.render(text),
            "CREATE TABLE a (\n    id BLOB PRIMARY KEY,\n    data TEXT,\n    on_uuid TEXT\n) STRICT;\nALTER TABLE a ADD COLUMN n INTEGER;\nX;\n"
        );
        assert!(Dialect::Postgres.render(text).ends_with("BIGINT;\nY;\n"));
    }
}
