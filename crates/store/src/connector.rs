//! Connectors: MCP servers of an organisation, and the definitions of their tools as somebody reviewed them.

use chrono::{DateTime, Utc};
use proto::{ConnectorId, OrgId, Risk, UserId};
use sqlx::types::{Json, JsonValue};

use crate::db::write;
use crate::{Store, StoreError};

/// An enabled connector to be made.
#[derive(Clone, Debug)]
pub struct NewConnector {
    pub id: ConnectorId,
    pub org_id: OrgId,
    pub name: String,
    pub url: String,
    /// How it is authenticated, as an object with a `type`.
    pub auth: JsonValue,
    pub default_risk: Risk,
    /// Tools that were reviewed with it.
    pub tools: Vec<ReviewedTool>,
    pub created_by: Option<UserId>,
    pub at: DateTime<Utc>,
}

/// A tool's definition as it was reviewed.
#[derive(Clone, Debug)]
pub struct ReviewedTool {
    pub tool: String,
    /// SHA-256 of the definition, in hexadecimal.
    pub definition_hash: String,
    /// Counts instead of the connector's default.
    pub risk: Option<Risk>,
}

impl Store {
    pub async fn create_connector(&self, new: NewConnector) -> Result<(), StoreError> {
        const SQL: &str =
            "INSERT INTO connectors (id, org_id, name, transport, url, auth, default_risk, enabled, created_by,
            created_at, updated_at) VALUES ($1, $2, $3, 'remote_http', $4, $5, $6, TRUE, $7, $8, $8)";
        const TOOL: &str =
            "INSERT INTO connector_tools (connector_id, org_id, tool, definition_hash, risk, reviewed_by,
            reviewed_at) VALUES ($1, $2, $3, $4, $5, $6, $7)";
        write!(self, Disk, tx => {
            let (id, org, by) = (new.id.uuid(), new.org_id.uuid(), new.created_by.map(UserId::uuid));
            sqlx::query(SQL)
                .bind(id).bind(org).bind(new.name).bind(new.url).bind(Json(new.auth))
                .bind(new.default_risk.as_str()).bind(by).bind(new.at).execute(&mut *tx).await?;
            for tool in new.tools {
                sqlx::query(TOOL)
                    .bind(id).bind(org).bind(tool.tool).bind(tool.definition_hash)
                    .bind(tool.risk.map(Risk::as_str)).bind(by).bind(new.at).execute(&mut *tx).await?;
            }
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this connector", "this organisation or user"))
    }
}
