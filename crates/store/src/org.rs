//! Organizations, including the first one, which the first start creates.

use chrono::{DateTime, Utc};
use proto::{OrgId, UserId};
use sqlx::FromRow;

use crate::db::{Db, read};
use crate::gate::administer;
use crate::{Store, StoreError};

/// An organization as operators see it.
#[derive(Clone, Debug, FromRow)]
pub struct Org {
    #[sqlx(try_from = "uuid::Uuid")]
    pub id: OrgId,
    pub name: String,
    pub created_at: DateTime<Utc>,
}

/// A new organization.
pub struct NewOrg {
    pub id: OrgId,
    pub name: String,
    pub at: DateTime<Utc>,
}

/// The first organization and its owner, for an empty database.
pub struct FirstOwner {
    pub org: NewOrg,
    pub user: UserId,
    pub email: String,
}

const INSERT_ORG: &str = "INSERT INTO organizations (id, name, created_at) VALUES ($1, $2, $3)";

impl Store {
    pub async fn create_org(&self, org: NewOrg) -> Result<(), StoreError> {
        administer!(self, tx => {
            sqlx::query(INSERT_ORG).bind(org.id.uuid()).bind(org.name).bind(org.at).execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// All organizations, oldest first.
    pub async fn orgs(&self) -> Result<Vec<Org>, StoreError> {
        const SQL: &str = "SELECT id, name, created_at FROM organizations ORDER BY created_at, id";
        Ok(read!(self, pool => sqlx::query_as(SQL).fetch_all(pool).await)?)
    }

    /// Creates the first organization with its owner, unless there is one already. Of several concurrent callers,
    /// one gets `true`.
    pub async fn create_first_owner(&self, first: FirstOwner) -> Result<bool, StoreError> {
        const INSERT_FIRST_ORG: &str = "INSERT INTO organizations (id, name, created_at)
            SELECT $1, $2, $3 WHERE NOT EXISTS (SELECT 1 FROM organizations)";
        const INSERT_USER: &str = "INSERT INTO users (id, email, created_at) VALUES ($1, $2, $3)";
        const INSERT_OWNER: &str =
            "INSERT INTO members (org_id, user_id, name, role, created_at) VALUES ($1, $2, $3, 'owner', $4)";
        let is_postgres = matches!(self.db, Db::Postgres(_));
        let FirstOwner { org, user, email } = first;
        let email = email.to_lowercase();
        administer!(self, tx => {
            // SQLite has one writer; on PostgreSQL two transactions could both see an empty table.
            if is_postgres {
                sqlx::query("LOCK TABLE organizations IN EXCLUSIVE MODE").execute(&mut *tx).await?;
            }
            let made = sqlx::query(INSERT_FIRST_ORG).bind(org.id.uuid()).bind(org.name).bind(org.at).execute(&mut *tx).await?;
            if made.rows_affected() == 0 {
                return Ok(false);
            }
            sqlx::query(INSERT_USER).bind(user.uuid()).bind(&email).bind(org.at).execute(&mut *tx).await?;
            sqlx::query(INSERT_OWNER).bind(org.id.uuid()).bind(user.uuid()).bind(email).bind(org.at).execute(&mut *tx).await?;
            Ok(true)
        })
    }
}
