//! The bodies of `/v1/databases`: the databases that agents may query, and the queries that operators define.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ActionMode, DatabaseId, FreeForm, JsonObject, ModeSource, Risk};

/// Where a database is. The key names a platform secret of the organization.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "engine", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum DatabaseTarget {
    Postgres {
        host: String,
        #[serde(default = "postgres_port")]
        #[schema(default = 5432)]
        port: u16,
        database: String,
        /// A role that can only read.
        user: String,
        /// The secret with the password.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret_key: Option<String>,
        /// Whether to connect with TLS and to verify the certificate. Without TLS the host must be in
        /// `CONNECTOR_ALLOWED_HOSTS`.
        #[serde(default = "yes")]
        #[schema(default = true)]
        tls: bool,
    },
    Sqlite {
        /// Relative to the directory of the organization in `DATABASE_FILES_DIR`.
        file: String,
    },
}

const fn postgres_port() -> u16 {
    5432
}

const fn yes() -> bool {
    true
}

/// A query that is an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseQuery {
    /// The name of the action.
    pub name: String,
    /// For agents, who choose by it.
    pub description: String,
    /// One statement that returns rows. Its parameters are `$1`, `$2` with PostgreSQL, and `?1`, `?2` with SQLite.
    pub sql: String,
    /// In the order of the statement's parameters.
    #[serde(default)]
    pub parameters: Vec<QueryParameter>,
    #[serde(default = "read")]
    #[schema(default = "read")]
    pub risk: Risk,
}

const fn read() -> Risk {
    Risk::Read
}

/// A parameter of a query.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueryParameter {
    pub name: String,
    /// The JSON Schema of its values. An optional parameter that is absent has its `default`, or is NULL.
    #[schema(value_type = Object)]
    pub schema: JsonObject,
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub required: bool,
}

/// How much one query may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DatabaseLimits {
    pub timeout_ms: u32,
    pub max_rows: u32,
    /// The size of all rows as JSON.
    pub max_bytes: u32,
}

impl Default for DatabaseLimits {
    fn default() -> Self {
        Self { timeout_ms: 5000, max_rows: 500, max_bytes: 256 * 1024 }
    }
}

/// A new database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreateDatabase {
    pub name: String,
    pub target: DatabaseTarget,
    #[serde(default)]
    pub queries: Vec<DatabaseQuery>,
    /// Whether agents may execute statements of their own, with the action `query` and this risk.
    #[serde(default = "off")]
    #[schema(default = "off")]
    pub free_form: FreeForm,
    #[serde(default)]
    pub limits: DatabaseLimits,
}

const fn off() -> FreeForm {
    FreeForm::Off
}

/// Changes of a database. An absent field keeps its value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeDatabase {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<DatabaseTarget>,
    /// All queries, not only those that change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queries: Option<Vec<DatabaseQuery>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_form: Option<FreeForm>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<DatabaseLimits>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// A database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseEntry {
    pub id: DatabaseId,
    pub name: String,
    pub target: DatabaseTarget,
    pub queries: Vec<DatabaseQuery>,
    pub free_form: FreeForm,
    pub limits: DatabaseLimits,
    pub enabled: bool,
    #[serde(with = "crate::iso")]
    pub created_at: DateTime<Utc>,
    #[serde(with = "crate::iso")]
    pub updated_at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseList {
    pub databases: Vec<DatabaseEntry>,
}

/// Whether a database can be queried now, by a role that can only read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseCheck {
    pub ok: bool,
    /// Why not.
    pub error: Option<String>,
}

/// An action of a database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseActionEntry {
    pub name: String,
    pub risk_level: Risk,
    /// The key of its action mode.
    pub key: String,
    /// The mode for agents of the organization, without automations' own modes.
    pub mode: ActionMode,
    pub mode_source: ModeSource,
}

/// A database, its actions, and whether it can be queried now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseDetail {
    pub database: DatabaseEntry,
    pub actions: Vec<DatabaseActionEntry>,
    pub check: DatabaseCheck,
}
