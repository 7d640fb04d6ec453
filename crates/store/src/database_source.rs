//! The databases that agents of an organization may query, with the queries that its admins defined.

use chrono::{DateTime, Utc};
use proto::{DatabaseId, FreeForm, OrgId, UserId};
use sqlx::types::{Json, JsonValue};
use uuid::Uuid;

use crate::db::{find, list};
use crate::gate::administer;
use crate::row::{from_row, storable, storable_json, word};
use crate::{Store, StoreError};

/// A database of an organization.
#[derive(Clone, Debug, PartialEq)]
pub struct DatabaseSource {
    pub id: DatabaseId,
    pub org_id: OrgId,
    pub name: String,
    /// Where it is; names a secret of the organization.
    pub target: JsonValue,
    pub queries: JsonValue,
    pub free_form: FreeForm,
    pub limits: JsonValue,
    pub enabled: bool,
    pub created_by: Option<UserId>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// Changes to a database's settings; `None` leaves a setting as it is.
#[derive(Clone, Debug, Default)]
pub struct DatabaseChange {
    pub name: Option<String>,
    pub target: Option<JsonValue>,
    pub queries: Option<JsonValue>,
    pub free_form: Option<FreeForm>,
    pub limits: Option<JsonValue>,
    pub enabled: Option<bool>,
}

from_row!(inline DatabaseSource, row => DatabaseSource {
    id: row.try_get::<Uuid, _>("id")?.into(),
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    name: row.try_get("name")?,
    target: row.try_get::<Json<JsonValue>, _>("target")?.0,
    queries: row.try_get::<Json<JsonValue>, _>("queries")?.0,
    free_form: word(row.try_get("free_form")?)?,
    limits: row.try_get::<Json<JsonValue>, _>("limits")?.0,
    enabled: row.try_get("enabled")?,
    created_by: row.try_get::<Option<Uuid>, _>("created_by")?.map(Into::into),
    created_at: row.try_get("created_at")?,
    updated_at: row.try_get("updated_at")?,
});

impl Store {
    pub async fn create_database(&self, new: DatabaseSource) -> Result<(), StoreError> {
        const SQL: &str =
            "INSERT INTO databases (id, org_id, name, target, queries, free_form, limits, enabled, created_by,
            created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        administer!(self, tx => {
            sqlx::query(SQL)
                .bind(new.id.uuid()).bind(new.org_id.uuid()).bind(storable(new.name))
                .bind(Json(storable_json(new.target))).bind(Json(storable_json(new.queries)))
                .bind(new.free_form.as_str()).bind(Json(new.limits)).bind(new.enabled)
                .bind(new.created_by.map(UserId::uuid)).bind(new.created_at).bind(new.updated_at)
                .execute(&mut *tx).await?;
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this name of a database", "this organization"))
    }

    /// The databases of an organization, oldest first.
    pub async fn databases(&self, org: OrgId) -> Result<Vec<DatabaseSource>, StoreError> {
        const SQL: &str =
            "SELECT id, org_id, name, target, queries, free_form, limits, enabled, created_by, created_at, updated_at
            FROM databases WHERE org_id = $1 ORDER BY created_at, id";
        let org = org.uuid();
        Ok(list!(self, SQL, org)?)
    }

    pub async fn database(&self, org: OrgId, id: DatabaseId) -> Result<Option<DatabaseSource>, StoreError> {
        const SQL: &str =
            "SELECT id, org_id, name, target, queries, free_form, limits, enabled, created_by, created_at, updated_at
            FROM databases WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        Ok(find!(self, SQL, org, id)?)
    }

    pub async fn update_database(
        &self,
        org: OrgId,
        id: DatabaseId,
        change: DatabaseChange,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE databases SET name = COALESCE($3, name), target = COALESCE($4, target),
            queries = COALESCE($5, queries), free_form = COALESCE($6, free_form), limits = COALESCE($7, limits),
            enabled = COALESCE($8, enabled), updated_at = $9 WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        let DatabaseChange { name, target, queries, free_form, limits, enabled } = change;
        let json = |value: Option<JsonValue>| value.map(|value| Json(storable_json(value)));
        let (name, target, queries, limits) = (name.map(storable), json(target), json(queries), json(limits));
        let free_form = free_form.map(FreeForm::as_str);
        administer!(self, tx => {
            let done = sqlx::query(SQL).bind(org).bind(id).bind(name).bind(target).bind(queries).bind(free_form)
                .bind(limits).bind(enabled).bind(at).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this database")) } else { Ok(()) }
        })
        .map_err(|error: StoreError| error.on_constraint("this name of a database", "this database"))
    }

    /// Deletes a database as a source; the database itself stays.
    pub async fn delete_database(&self, org: OrgId, id: DatabaseId) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM databases WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        administer!(self, tx => {
            let done = sqlx::query(SQL).bind(org).bind(id).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this database")) } else { Ok(()) }
        })
    }
}
