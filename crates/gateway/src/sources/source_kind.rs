//! The kinds of sources of which an organization may have many, each with an id of its own: `connector:<uuid>`, `db:<uuid>`.

use std::fmt::Display;
use std::str::FromStr;

use policy::ModeKey;

pub(super) const CONNECTOR: SourceKind = SourceKind {
    name: "connector",
    noun: "connector",
    form: "connector:ID:TOOL",
    list: "proliferate connectors ls",
};
pub(super) const DATABASE: SourceKind =
    SourceKind { name: "db", noun: "database", form: "db:ID:QUERY", list: "proliferate databases ls" };

pub(super) struct SourceKind {
    /// The beginning of the ids.
    pub(super) name: &'static str,
    /// For people.
    pub(super) noun: &'static str,
    /// The form of a mode key.
    pub(super) form: &'static str,
    /// The command that shows those of an organization.
    pub(super) list: &'static str,
}

impl SourceKind {
    /// The id of one source.
    pub(super) fn source_id(&self, id: impl Display) -> String {
        format!("{}:{id}", self.name)
    }

    /// Whether a name is that of an action of this kind of source.
    pub(super) fn claims(&self, name: &str) -> bool {
        name.split_once(':').is_some_and(|(kind, _)| kind == self.name)
    }

    /// The id of the source and the name of the action, in the name `kind:id:action`.
    pub(super) fn parse<'a, Id: FromStr>(&self, name: &'a str) -> Option<(Id, &'a str)> {
        let (kind, rest) = name.split_once(':')?;
        let (id, action) = rest.split_once(':')?;
        Some((id.parse().ok().filter(|_| kind == self.name)?, action))
    }

    /// What the caller of an action is told who writes no id of a source.
    pub(super) fn unknown_id(&self) -> String {
        format!("Unknown {}: the integration is {}:ID, where ID is a complete id", self.noun, self.name)
    }

    /// What the caller of an action is told whose source the organization does not have, or has disabled.
    pub(super) fn unusable(&self, id: impl Display, disabled: bool) -> String {
        let Self { noun, .. } = self;
        if disabled { format!("The {noun} {id} is disabled") } else { format!("Unknown {noun}: {id}") }
    }
}

/// Whether the action with this key belongs to a source that an organization has set up, and that no policy file names.
pub fn is_of_organization(key: &ModeKey) -> bool {
    [CONNECTOR, DATABASE].iter().any(|kind| kind.name == key.parts().0)
}

#[cfg(test)]
mod tests {
    use proto::ConnectorId;

    use super::*;

    #[test]
    fn a_name_has_the_id_of_its_source_and_its_action() {
        let id: ConnectorId = "0190f5d2-7c3e-7a11-8000-5b1f6c2d9e40".parse().unwrap();
        let source = CONNECTOR.source_id(id);
        let name = format!("{source}:files:read");
        assert_eq!(CONNECTOR.parse(&name), Some((id, "files:read")));
        assert!(CONNECTOR.claims(&name) && !DATABASE.claims(&name) && !CONNECTOR.claims("connectors:1:a"));
        for wrong in
            [source.as_str(), "connector:nobody:read", "connector", &name.replacen("connector", "db", 1)]
        {
            assert_eq!(CONNECTOR.parse::<ConnectorId>(wrong), None, "{wrong}");
        }
    }
}
