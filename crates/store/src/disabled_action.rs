//! Disabled actions: sources of actions, and single actions, that a user has disabled for the sessions they create.

use chrono::{DateTime, Utc};
use proto::{ApiKeyId, OrgId, SessionId, UserId};
use uuid::Uuid;

use crate::db::{find, list};
use crate::gate::administer;
use crate::row::{from_row, storable};
use crate::{Store, StoreError};

/// How many sources and actions a user may disable in one organization.
const MAX_DISABLED: i64 = 500;

/// A source of actions, or one of its actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisabledAction {
    pub source: String,
    /// `None` for the source with all its actions.
    pub action: Option<String>,
}

/// Whose choice counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chooser {
    User(UserId),
    /// The user who created the session. A session that a service or an automation created has none.
    CreatorOf(SessionId),
    OwnerOf(ApiKeyId),
}

impl Chooser {
    /// The user, the session or the key, for the queries below.
    fn ids(self) -> [Option<Uuid>; 3] {
        match self {
            Self::User(user) => [Some(user.uuid()), None, None],
            Self::CreatorOf(session) => [None, Some(session.uuid()), None],
            Self::OwnerOf(key) => [None, None, Some(key.uuid())],
        }
    }
}

impl DisabledAction {
    /// Whether this disables the action with this key, `sourceId:actionId`. A source id may contain colons.
    pub fn disables(&self, key: &str) -> bool {
        let rest = key.strip_prefix(&self.source).and_then(|rest| rest.strip_prefix(':'));
        rest.is_some_and(|rest| self.action.as_deref().is_none_or(|action| action == rest))
    }
}

from_row!(inline DisabledAction, row => DisabledAction {
    source: row.try_get("source_id")?,
    action: Some(row.try_get::<String, _>("action_id")?).filter(|action| !action.is_empty()),
});

macro_rules! disabled_actions {
    ($rest:literal) => {
        concat!(
            "SELECT d.source_id, d.action_id FROM disabled_actions d WHERE d.org_id = $1
            AND d.user_id = COALESCE($2, (SELECT s.created_by FROM sessions s WHERE s.org_id = $1 AND s.id = $3),
                (SELECT k.user_id FROM api_keys k WHERE k.org_id = $1 AND k.id = $4)) ",
            $rest
        )
    };
}

impl Store {
    /// What a user has disabled, by source and action.
    pub async fn disabled_actions(
        &self,
        org: OrgId,
        chooser: Chooser,
    ) -> Result<Vec<DisabledAction>, StoreError> {
        const SQL: &str = disabled_actions!("ORDER BY d.source_id, d.action_id");
        let (org, [user, session, key]) = (org.uuid(), chooser.ids());
        Ok(list!(self, SQL, org, user, session, key)?)
    }

    /// What disables the action with this key: the source, or else the action alone.
    pub async fn disabled_action(
        &self,
        org: OrgId,
        chooser: Chooser,
        key: &str,
    ) -> Result<Option<DisabledAction>, StoreError> {
        const SQL: &str = disabled_actions!(
            "AND (($5 = d.source_id || ':' || d.action_id AND d.action_id <> '')
                OR (d.action_id = '' AND substr($5, 1, length(d.source_id) + 1) = d.source_id || ':'))
            ORDER BY d.action_id LIMIT 1"
        );
        let (org, [user, session, of_key], key) = (org.uuid(), chooser.ids(), storable(key.to_owned()));
        Ok(find!(self, SQL, org, user, session, of_key, key)?)
    }

    /// Disables a source or an action for the sessions that a user creates, or enables it again.
    pub async fn set_action_enabled(
        &self,
        (org, user): (OrgId, UserId),
        what: DisabledAction,
        enabled: bool,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const COUNT_DISABLED: &str =
            "SELECT count(*) FROM disabled_actions WHERE org_id = $1 AND user_id = $2";
        const INSERT_DISABLED: &str =
            "INSERT INTO disabled_actions (org_id, user_id, source_id, action_id, created_at)
            VALUES ($1, $2, $3, $4, $5) ON CONFLICT (org_id, user_id, source_id, action_id) DO NOTHING";
        const DELETE_DISABLED: &str = "DELETE FROM disabled_actions
            WHERE org_id = $1 AND user_id = $2 AND source_id = $3 AND action_id = $4";
        let (org, user): (Uuid, Uuid) = (org.uuid(), user.uuid());
        let DisabledAction { source, action } = what;
        let action = action.unwrap_or_default();
        administer!(self, tx => {
            if enabled {
                sqlx::query(DELETE_DISABLED).bind(org).bind(user).bind(source).bind(action).execute(&mut *tx).await?;
                return Ok(());
            }
            sqlx::query(INSERT_DISABLED).bind(org).bind(user).bind(source).bind(action).bind(at).execute(&mut *tx).await?;
            let count: i64 = sqlx::query_scalar(COUNT_DISABLED).bind(org).bind(user).fetch_one(&mut *tx).await?;
            if count > MAX_DISABLED {
                return Err(StoreError::Refused("a user may disable at most 500 sources and actions"));
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_disables_all_its_actions_and_an_action_only_itself() {
        let disabled = |source: &str, action: Option<&str>| DisabledAction {
            source: source.to_owned(),
            action: action.map(str::to_owned),
        };
        let cases = [
            (disabled("linear", None), "linear:create_issue", true),
            (disabled("linear", None), "linear2:create_issue", false),
            (disabled("linear", None), "linear", false),
            (disabled("linear", Some("create_issue")), "linear:create_issue", true),
            (disabled("linear", Some("create_issue")), "linear:create_issue2", false),
            (disabled("connector:1", None), "connector:1:post:it", true),
            (disabled("connector:1", Some("post:it")), "connector:1:post:it", true),
            (disabled("connector:1", None), "connector:12:post", false),
        ];
        for (disabled, key, expected) in cases {
            assert_eq!(disabled.disables(key), expected, "{disabled:?} {key}");
        }
    }
}
