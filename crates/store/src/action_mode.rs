//! Action modes: whether an organization, or one of its automations, allows an action, denies it or requires approval.

use chrono::{DateTime, Utc};
use proto::{ActionMode, JsonObject, OrgId, SessionId};
use sqlx::types::Json;
use uuid::Uuid;

use crate::db::{find, read};
use crate::row::{from_row, word};
use crate::{Store, StoreError};

/// An organization's mode of one action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrgActionMode {
    pub org_id: OrgId,
    /// `sourceId:actionId`.
    pub key: String,
    pub mode: ActionMode,
    pub changed_by: String,
    pub changed_at: DateTime<Utc>,
}

/// The modes that decide one action.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActionModes {
    /// The organization's mode of this action; empty if it has none.
    pub org: JsonObject,
    /// All modes of the automation that started the session, if one did.
    pub automation: Option<JsonObject>,
}

struct Found {
    org: Option<String>,
    automation: Option<Json<JsonObject>>,
}

from_row!(inline Found, row => Found {
    org: row.try_get("org_mode")?,
    automation: row.try_get("automation_modes")?,
});

from_row!(OrgActionMode, row => OrgActionMode {
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    key: row.try_get("action_key")?,
    mode: word(row.try_get("mode")?)?,
    changed_by: row.try_get("changed_by")?,
    changed_at: row.try_get("changed_at")?,
});

impl Store {
    /// The modes that apply to an action, called in a session or outside of any.
    pub async fn action_modes_for(
        &self,
        org: OrgId,
        session: Option<SessionId>,
        key: &str,
    ) -> Result<ActionModes, StoreError> {
        const SQL: &str = "SELECT m.mode AS org_mode, a.action_modes AS automation_modes FROM organizations o
            LEFT JOIN action_modes m ON m.org_id = o.id AND m.action_key = $2
            LEFT JOIN sessions s ON s.org_id = o.id AND s.id = $3
            LEFT JOIN automations a ON a.org_id = s.org_id AND a.id = s.automation_id
            WHERE o.id = $1";
        let (org, session) = (org.uuid(), session.map(SessionId::uuid));
        let found: Option<Found> = find!(self, SQL, org, key, session)?;
        Ok(found.map_or_else(ActionModes::default, |found| ActionModes {
            org: found.org.map(|mode| (key.to_owned(), mode.into())).into_iter().collect(),
            automation: found.automation.map(|modes| modes.0),
        }))
    }

    /// All modes that apply to the actions of a session, or to those called outside of any.
    pub async fn all_action_modes(
        &self,
        org: OrgId,
        session: Option<SessionId>,
    ) -> Result<ActionModes, StoreError> {
        const SQL: &str = "SELECT NULL AS org_mode, a.action_modes AS automation_modes FROM sessions s
            JOIN automations a ON a.org_id = s.org_id AND a.id = s.automation_id
            WHERE s.org_id = $1 AND s.id = $2";
        let modes = self.org_action_modes(org).await?;
        let (org, session) = (org.uuid(), session.map(SessionId::uuid));
        let found: Option<Found> = find!(self, SQL, org, session)?;
        Ok(ActionModes {
            org: modes.into_iter().map(|mode| (mode.key, mode.mode.as_str().into())).collect(),
            automation: found.and_then(|found| found.automation).map(|modes| modes.0),
        })
    }

    /// All modes of an organization, by key.
    pub async fn org_action_modes(&self, org: OrgId) -> Result<Vec<OrgActionMode>, StoreError> {
        const SQL: &str = "SELECT org_id, action_key, mode, changed_by, changed_at FROM action_modes
            WHERE org_id = $1 ORDER BY action_key";
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org.uuid()).fetch_all(pool).await)?)
    }
}
