//! Integrations: the vendors that an organization has connected, and which of them a session or an automation may use.

use chrono::{DateTime, Utc};
use proto::{AutomationId, IntegrationId, IntegrationProvider, IntegrationStatus, OrgId, SessionId, UserId};
use uuid::Uuid;

use crate::db::{list, read};
use crate::gate::administer;
use crate::row::{from_row, storable, word};
use crate::{Store, StoreError};

/// A connected vendor. Its token is a secret of the vault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Integration {
    pub id: IntegrationId,
    pub org_id: OrgId,
    pub provider: IntegrationProvider,
    pub display_name: Option<String>,
    /// The name of the organization's secret that holds the token.
    pub secret_key: String,
    pub status: IntegrationStatus,
    pub created_by: Option<UserId>,
    pub created_at: DateTime<Utc>,
}

from_row!(inline Integration, row => Integration {
    id: row.try_get::<Uuid, _>("id")?.into(),
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    provider: word(row.try_get("provider")?)?,
    display_name: row.try_get("display_name")?,
    secret_key: row.try_get("secret_key")?,
    status: word(row.try_get("status")?)?,
    created_by: row.try_get::<Option<Uuid>, _>("created_by")?.map(Into::into),
    created_at: row.try_get("created_at")?,
});

/// The SELECT of integrations, followed by the rest of a query.
macro_rules! integrations {
    ($rest:literal) => {
        concat!(
            "SELECT i.id, i.org_id, i.provider, i.display_name, i.secret_key, i.status, i.created_by, i.created_at
            FROM integrations i ",
            $rest
        )
    };
}

/// Connects a new session: with the chosen integrations, else with those of its automation, else with all active ones.
macro_rules! connect_session {
    ($tx:ident, $session:expr, $org:expr, $automation:expr, $chosen:expr) => {{
        if let Some(mut chosen) = $chosen {
            chosen.sort_unstable();
            chosen.dedup();
            for id in chosen {
                let done = sqlx::query($crate::integration::CONNECT_ONE)
                    .bind($session)
                    .bind($org)
                    .bind(id)
                    .execute(&mut *$tx)
                    .await?;
                if done.rows_affected() == 0 {
                    return Err($crate::StoreError::Missing("this integration"));
                }
            }
        } else {
            sqlx::query($crate::integration::CONNECT_ALL)
                .bind($session)
                .bind($org)
                .bind($automation)
                .execute(&mut *$tx)
                .await?;
        }
    }};
}
pub(crate) use connect_session;

pub(crate) const CONNECT_ONE: &str = "INSERT INTO session_connections (session_id, integration_id, org_id)
    SELECT $1, i.id, i.org_id FROM integrations i WHERE i.org_id = $2 AND i.id = $3 AND i.status = 'active'";

pub(crate) const CONNECT_ALL: &str = "INSERT INTO session_connections (session_id, integration_id, org_id)
    SELECT $1, i.id, i.org_id FROM integrations i WHERE i.org_id = $2 AND i.status = 'active'
    AND (NOT EXISTS (SELECT 1 FROM automations a WHERE a.org_id = $2 AND a.id = $3 AND a.integrations_chosen)
        OR EXISTS (SELECT 1 FROM automation_connections c WHERE c.automation_id = $3 AND c.integration_id = i.id))";

impl Store {
    pub async fn create_integration(&self, new: Integration) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO integrations (id, org_id, provider, display_name, secret_key, status,
            created_by, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
        administer!(self, tx => {
            sqlx::query(SQL)
                .bind(new.id.uuid()).bind(new.org_id.uuid()).bind(new.provider.as_str())
                .bind(new.display_name.map(storable)).bind(new.secret_key).bind(new.status.as_str())
                .bind(new.created_by.map(UserId::uuid)).bind(new.created_at)
                .execute(&mut *tx).await?;
            Ok(())
        })
        .map_err(|error: StoreError| {
            error.on_constraint("an integration of this provider", "this organization")
        })
    }

    /// The integrations of an organization, oldest first.
    pub async fn integrations(&self, org: OrgId) -> Result<Vec<Integration>, StoreError> {
        const SQL: &str = integrations!("WHERE i.org_id = $1 ORDER BY i.created_at, i.id");
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).fetch_all(pool).await)?)
    }

    /// The active integrations that a session may use, or all active ones outside of any session.
    pub async fn usable_integrations(
        &self,
        org: OrgId,
        session: Option<SessionId>,
    ) -> Result<Vec<Integration>, StoreError> {
        const SQL: &str = integrations!(
            "WHERE i.org_id = $1 AND i.status = 'active' AND ($2 IS NULL OR EXISTS (SELECT 1
            FROM session_connections c WHERE c.session_id = $2 AND c.integration_id = i.id))
            ORDER BY i.created_at, i.id"
        );
        let (org, session) = (org.uuid(), session.map(SessionId::uuid));
        Ok(list!(self, SQL, org, session)?)
    }

    /// Enables or disables an integration. It keeps its connections.
    pub async fn set_integration_status(
        &self,
        org: OrgId,
        id: IntegrationId,
        status: IntegrationStatus,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE integrations SET status = $3 WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        administer!(self, tx => {
            let done = sqlx::query(SQL).bind(org).bind(id).bind(status.as_str()).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this integration")) } else { Ok(()) }
        })
    }

    /// Deletes an integration with its connections. Its secret stays.
    pub async fn delete_integration(&self, org: OrgId, id: IntegrationId) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM integrations WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        administer!(self, tx => {
            let done = sqlx::query(SQL).bind(org).bind(id).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this integration")) } else { Ok(()) }
        })
    }

    /// The integrations that somebody chose for the sessions of an automation; `None` if nobody did.
    pub async fn automation_integrations(
        &self,
        org: OrgId,
        automation: AutomationId,
    ) -> Result<Option<Vec<IntegrationId>>, StoreError> {
        const SELECT_CHOSEN: &str =
            "SELECT integrations_chosen FROM automations WHERE org_id = $1 AND id = $2";
        const SQL: &str = "SELECT c.integration_id FROM automation_connections c
            WHERE c.org_id = $1 AND c.automation_id = $2 ORDER BY c.integration_id";
        let (org, automation) = (org.uuid(), automation.uuid());
        let chosen: Option<bool> = read!(self, pool =>
            sqlx::query_scalar(SELECT_CHOSEN).bind(org).bind(automation).fetch_optional(pool).await)?;
        if !chosen.ok_or(StoreError::Missing("this automation"))? {
            return Ok(None);
        }
        let ids: Vec<Uuid> = read!(self, pool =>
            sqlx::query_scalar(SQL).bind(org).bind(automation).fetch_all(pool).await)?;
        Ok(Some(ids.into_iter().map(Into::into).collect()))
    }

    /// Chooses the integrations of an automation's later sessions; `None` means all that are active then.
    pub async fn set_automation_integrations(
        &self,
        org: OrgId,
        automation: AutomationId,
        chosen: Option<Vec<IntegrationId>>,
    ) -> Result<(), StoreError> {
        const SET_CHOSEN: &str =
            "UPDATE automations SET integrations_chosen = $3 WHERE org_id = $1 AND id = $2";
        const DELETE_CONNECTIONS: &str =
            "DELETE FROM automation_connections WHERE org_id = $1 AND automation_id = $2";
        const SQL: &str = "INSERT INTO automation_connections (automation_id, integration_id, org_id)
            SELECT $1, i.id, i.org_id FROM integrations i WHERE i.org_id = $2 AND i.id = $3";
        let (org, automation) = (org.uuid(), automation.uuid());
        let is_chosen = chosen.is_some();
        let mut ids: Vec<_> = chosen.into_iter().flatten().map(IntegrationId::uuid).collect();
        ids.sort_unstable();
        ids.dedup();
        administer!(self, tx => {
            let done = sqlx::query(SET_CHOSEN).bind(org).bind(automation).bind(is_chosen).execute(&mut *tx).await?;
            if done.rows_affected() == 0 {
                return Err(StoreError::Missing("this automation"));
            }
            sqlx::query(DELETE_CONNECTIONS).bind(org).bind(automation).execute(&mut *tx).await?;
            for id in ids {
                let done = sqlx::query(SQL).bind(automation).bind(org).bind(id).execute(&mut *tx).await?;
                if done.rows_affected() == 0 {
                    return Err(StoreError::Missing("this integration"));
                }
            }
            Ok(())
        })
    }
}
