//! Connectors: remote MCP servers of an organization, and what its admins decided about their tools.

use chrono::{DateTime, Utc};
use proto::{ConnectorId, OrgId, Risk, UserId};
use sqlx::types::{Json, JsonValue};
use uuid::Uuid;

use crate::db::{find, list, read};
use crate::gate::administer;
use crate::row::{from_row, optional_word, storable, storable_json, word};
use crate::{Store, StoreError};

const SET_RISK: &str =
    "INSERT INTO connector_tools (connector_id, org_id, tool, risk) VALUES ($2, $1, $3, $4)
    ON CONFLICT (connector_id, tool) DO UPDATE SET risk = excluded.risk";

/// A connector.
#[derive(Clone, Debug, PartialEq)]
pub struct Connector {
    pub id: ConnectorId,
    pub org_id: OrgId,
    pub name: String,
    pub url: String,
    /// How to authenticate; names secrets of the organization.
    pub auth: JsonValue,
    pub default_risk: Risk,
    pub enabled: bool,
    pub created_by: Option<UserId>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// A change of a connector. `None` keeps a value.
#[derive(Clone, Debug, Default)]
pub struct ConnectorChange {
    pub name: Option<String>,
    pub url: Option<String>,
    pub auth: Option<JsonValue>,
    pub default_risk: Option<Risk>,
    pub enabled: Option<bool>,
    /// The risks of tools by name; `None` removes the one that was set.
    pub risks: Vec<(String, Option<Risk>)>,
}

/// The decision of an admin about one tool of a connector.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectorTool {
    pub tool: String,
    pub risk: Option<Risk>,
    pub pin: Option<ToolPin>,
}

/// A definition that an admin reviewed.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolPin {
    pub hash: String,
    pub definition: JsonValue,
    pub reviewed_by: String,
    pub reviewed_at: DateTime<Utc>,
}

from_row!(inline Connector, row => Connector {
    id: row.try_get::<Uuid, _>("id")?.into(),
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    name: row.try_get("name")?,
    url: row.try_get("url")?,
    auth: row.try_get::<Json<JsonValue>, _>("auth")?.0,
    default_risk: word(row.try_get("default_risk")?)?,
    enabled: row.try_get("enabled")?,
    created_by: row.try_get::<Option<Uuid>, _>("created_by")?.map(Into::into),
    created_at: row.try_get("created_at")?,
    updated_at: row.try_get("updated_at")?,
});

struct FoundPin {
    hash: Option<String>,
    definition: Option<Json<JsonValue>>,
    reviewed_by: Option<String>,
    reviewed_at: Option<DateTime<Utc>>,
}

from_row!(FoundPin, row => FoundPin {
    hash: row.try_get("hash")?,
    definition: row.try_get("definition")?,
    reviewed_by: row.try_get("reviewed_by")?,
    reviewed_at: row.try_get("reviewed_at")?,
});

impl FoundPin {
    fn pin(self) -> Option<ToolPin> {
        Some(ToolPin {
            hash: self.hash?,
            definition: self.definition?.0,
            reviewed_by: self.reviewed_by?,
            reviewed_at: self.reviewed_at?,
        })
    }
}

from_row!(ConnectorTool, row => ConnectorTool {
    tool: row.try_get("tool")?,
    risk: optional_word(row.try_get("risk")?)?,
    pin: <FoundPin as sqlx::FromRow<_>>::from_row(row)?.pin(),
});

impl Store {
    /// Creates a connector with the risks that were set for its tools.
    pub async fn create_connector(
        &self,
        new: Connector,
        risks: Vec<(String, Option<Risk>)>,
    ) -> Result<(), StoreError> {
        const SQL: &str =
            "INSERT INTO connectors (id, org_id, name, url, auth, default_risk, enabled, created_by, created_at,
            updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
        administer!(self, tx => {
            sqlx::query(SQL)
                .bind(new.id.uuid()).bind(new.org_id.uuid()).bind(storable(new.name)).bind(storable(new.url))
                .bind(Json(storable_json(new.auth))).bind(new.default_risk.as_str()).bind(new.enabled)
                .bind(new.created_by.map(UserId::uuid)).bind(new.created_at).bind(new.updated_at)
                .execute(&mut *tx).await?;
            for (tool, risk) in risks {
                sqlx::query(SET_RISK).bind(new.org_id.uuid()).bind(new.id.uuid()).bind(storable(tool))
                    .bind(risk.map(Risk::as_str)).execute(&mut *tx).await?;
            }
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this name of a connector", "this organization"))
    }

    /// The connectors of an organization, oldest first.
    pub async fn connectors(&self, org: OrgId) -> Result<Vec<Connector>, StoreError> {
        const SQL: &str =
            "SELECT id, org_id, name, url, auth, default_risk, enabled, created_by, created_at, updated_at
            FROM connectors WHERE org_id = $1 ORDER BY created_at, id";
        let org = org.uuid();
        Ok(list!(self, SQL, org)?)
    }

    pub async fn connector(&self, org: OrgId, id: ConnectorId) -> Result<Option<Connector>, StoreError> {
        const SQL: &str =
            "SELECT id, org_id, name, url, auth, default_risk, enabled, created_by, created_at, updated_at
            FROM connectors WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        Ok(find!(self, SQL, org, id)?)
    }

    /// The decisions of admins about the tools of a connector, by name.
    pub async fn connector_tools(
        &self,
        org: OrgId,
        id: ConnectorId,
    ) -> Result<Vec<ConnectorTool>, StoreError> {
        const SQL: &str = "SELECT tool, risk, hash, definition, reviewed_by, reviewed_at FROM connector_tools
            WHERE org_id = $1 AND connector_id = $2 ORDER BY tool";
        let (org, id) = (org.uuid(), id.uuid());
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(id).fetch_all(pool).await)?)
    }

    /// Changes a connector and the risks of its tools. If its address changes, nothing of it counts as reviewed.
    pub async fn update_connector(
        &self,
        org: OrgId,
        id: ConnectorId,
        change: ConnectorChange,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const UNPIN: &str = "UPDATE connector_tools SET hash = NULL, definition = NULL, reviewed_by = NULL, reviewed_at = NULL
            WHERE org_id = $1 AND connector_id = $2
            AND EXISTS (SELECT 1 FROM connectors c WHERE c.org_id = $1 AND c.id = $2 AND c.url <> $3)";
        const SQL: &str = "UPDATE connectors SET name = COALESCE($3, name), url = COALESCE($4, url),
            auth = COALESCE($5, auth), default_risk = COALESCE($6, default_risk), enabled = COALESCE($7, enabled),
            updated_at = $8 WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        let ConnectorChange { name, url, auth, default_risk, enabled, risks } = change;
        let (name, auth) = (name.map(storable), auth.map(|auth| Json(storable_json(auth))));
        let (url, risk) = (url.map(storable), default_risk.map(Risk::as_str));
        administer!(self, tx => {
            if let Some(url) = url.clone() {
                sqlx::query(UNPIN).bind(org).bind(id).bind(url).execute(&mut *tx).await?;
            }
            let done = sqlx::query(SQL).bind(org).bind(id).bind(name).bind(url).bind(auth).bind(risk).bind(enabled)
                .bind(at).execute(&mut *tx).await?;
            if done.rows_affected() == 0 {
                return Err(StoreError::Missing("this connector"));
            }
            for (tool, risk) in risks {
                sqlx::query(SET_RISK).bind(org).bind(id).bind(storable(tool)).bind(risk.map(Risk::as_str))
                    .execute(&mut *tx).await?;
            }
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this name of a connector", "this connector"))
    }

    /// Pins the definitions of tools that an admin reviewed, unless the address or the authentication of the connector is no
    /// longer the one that the definitions were listed with.
    pub async fn pin_connector_tools(
        &self,
        listed: &Connector,
        pins: Vec<(String, ToolPin)>,
    ) -> Result<(), StoreError> {
        // An update, because it also locks the row.
        const UNCHANGED: &str = "UPDATE connectors SET updated_at = updated_at
            WHERE org_id = $1 AND id = $2 AND url = $3 AND auth = $4";
        const SQL: &str = "INSERT INTO connector_tools (connector_id, org_id, tool, hash, definition, reviewed_by, reviewed_at)
            VALUES ($2, $1, $3, $4, $5, $6, $7)
            ON CONFLICT (connector_id, tool) DO UPDATE SET hash = excluded.hash, definition = excluded.definition,
            reviewed_by = excluded.reviewed_by, reviewed_at = excluded.reviewed_at";
        let (org, id) = (listed.org_id.uuid(), listed.id.uuid());
        let (url, auth) = (listed.url.clone(), Json(listed.auth.clone()));
        administer!(self, tx => {
            let unchanged = sqlx::query(UNCHANGED).bind(org).bind(id).bind(url).bind(auth).execute(&mut *tx).await?;
            if unchanged.rows_affected() == 0 {
                return Err(StoreError::Refused(
                    "this connector was changed or removed while its tools were listed: look at them again",
                ));
            }
            for (tool, pin) in pins {
                sqlx::query(SQL).bind(org).bind(id).bind(storable(tool)).bind(pin.hash)
                    .bind(Json(storable_json(pin.definition))).bind(pin.reviewed_by).bind(pin.reviewed_at)
                    .execute(&mut *tx).await?;
            }
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this tool", "this connector"))
    }

    /// Deletes a connector with what was decided about its tools.
    pub async fn delete_connector(&self, org: OrgId, id: ConnectorId) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM connectors WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        administer!(self, tx => {
            let done = sqlx::query(SQL).bind(org).bind(id).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this connector")) } else { Ok(()) }
        })
    }
}
