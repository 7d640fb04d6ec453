//! Action modes: whether an organization, or one of its automations, allows an action, denies it or requires approval.

use chrono::{DateTime, Utc};
use proto::{ActionMode, InvocationId, JsonObject, OrgId, SessionId};
use serde_json::json;
use sqlx::types::{Json, JsonValue};
use uuid::Uuid;

use crate::db::{find, list};
use crate::gate::administer;
use crate::row::{from_row, word};
use crate::{Store, StoreError};

/// An organization's mode of one action.
#[derive(Clone, Debug, PartialEq)]
pub struct OrgActionMode {
    pub org_id: OrgId,
    /// `sourceId:actionId`.
    pub key: String,
    /// The mode of all arguments that no rule matches.
    pub mode: ActionMode,
    /// Rules that choose another mode by the arguments, and examples.
    pub conditions: Option<JsonValue>,
    pub two_person: bool,
    /// The invocation whose approver set the mode.
    pub invocation: Option<InvocationId>,
    pub changed_by: String,
    pub changed_at: DateTime<Utc>,
}

impl OrgActionMode {
    /// The mode as it stands in a map of modes: a word, or an object if there is more than a word.
    pub fn value(&self) -> JsonValue {
        value(self.mode.as_str(), self.conditions.as_ref(), self.two_person)
    }
}

fn value(mode: &str, conditions: Option<&JsonValue>, two_person: bool) -> JsonValue {
    if conditions.is_none() && !two_person {
        return mode.into();
    }
    let part = |name: &str| Some((name.to_owned(), conditions?.get(name)?.clone()));
    let parts = ["rules", "examples"].into_iter().filter_map(part);
    let mode = [("else".to_owned(), json!(mode)), ("twoPerson".to_owned(), json!(two_person))];
    JsonValue::Object(mode.into_iter().chain(parts).collect())
}

/// The modes that decide one action.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActionModes {
    /// The organization's mode of this action; empty if it has none.
    pub org: JsonObject,
    /// All modes of the automation that started the session, if one did.
    pub automation: Option<JsonObject>,
}

/// A mode of the organization, if it has one for the action, and the modes of the automation.
struct Found {
    mode: Option<String>,
    conditions: Option<Json<JsonValue>>,
    two_person: Option<bool>,
    automation: Option<Json<JsonObject>>,
}

from_row!(inline Found, row => Found {
    mode: row.try_get("mode")?,
    conditions: row.try_get("conditions")?,
    two_person: row.try_get("two_person")?,
    automation: row.try_get("automation_modes")?,
});

struct AutomationModes(Json<JsonObject>);

from_row!(inline AutomationModes, row => AutomationModes(row.try_get("automation_modes")?));

from_row!(inline OrgActionMode, row => OrgActionMode {
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    key: row.try_get("action_key")?,
    mode: word(row.try_get("mode")?)?,
    conditions: row.try_get::<Option<Json<_>>, _>("conditions")?.map(|json| json.0),
    two_person: row.try_get("two_person")?,
    invocation: row.try_get::<Option<Uuid>, _>("invocation_id")?.map(Into::into),
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
        const SQL: &str = "SELECT m.mode, m.conditions, m.two_person, a.action_modes AS automation_modes
            FROM organizations o
            LEFT JOIN action_modes m ON m.org_id = o.id AND m.action_key = $2
            LEFT JOIN sessions s ON s.org_id = o.id AND s.id = $3
            LEFT JOIN automations a ON a.org_id = s.org_id AND a.id = s.automation_id
            WHERE o.id = $1";
        let (org, session) = (org.uuid(), session.map(SessionId::uuid));
        let found: Option<Found> = find!(self, SQL, org, key, session)?;
        Ok(found.map_or_else(ActionModes::default, |found| ActionModes {
            org: found
                .mode
                .map(|mode| {
                    let conditions = found.conditions.map(|json| json.0);
                    (key.to_owned(), value(&mode, conditions.as_ref(), found.two_person.unwrap_or_default()))
                })
                .into_iter()
                .collect(),
            automation: found.automation.map(|modes| modes.0),
        }))
    }

    /// All modes that apply to the actions of a session, or to those called outside of any.
    pub async fn all_action_modes(
        &self,
        org: OrgId,
        session: Option<SessionId>,
    ) -> Result<ActionModes, StoreError> {
        const SQL: &str = "SELECT a.action_modes AS automation_modes FROM sessions s
            JOIN automations a ON a.org_id = s.org_id AND a.id = s.automation_id
            WHERE s.org_id = $1 AND s.id = $2";
        let modes = self.org_action_modes(org).await?;
        let (org, session) = (org.uuid(), session.map(SessionId::uuid));
        let found: Option<AutomationModes> = find!(self, SQL, org, session)?;
        Ok(ActionModes {
            org: modes.into_iter().map(|mode| (mode.key.clone(), mode.value())).collect(),
            automation: found.map(|found| found.0.0),
        })
    }

    /// All modes of an organization, by key.
    pub async fn org_action_modes(&self, org: OrgId) -> Result<Vec<OrgActionMode>, StoreError> {
        const SQL: &str =
            "SELECT org_id, action_key, mode, conditions, two_person, invocation_id, changed_by,
            changed_at FROM action_modes WHERE org_id = $1 ORDER BY action_key";
        let org = org.uuid();
        Ok(list!(self, SQL, org)?)
    }

    /// Removes the mode of an action, so that it follows from the action's risk again.
    pub async fn unset_action_mode(&self, org: OrgId, key: &str) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM action_modes WHERE org_id = $1 AND action_key = $2";
        let (org, key) = (org.uuid(), key.to_owned());
        administer!(self, tx => {
            let done = sqlx::query(SQL).bind(org).bind(&key).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("the mode of this action")) } else { Ok(()) }
        })
    }
}
