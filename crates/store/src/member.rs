//! Users and their memberships: who may act for which organization, in which role.

use chrono::{DateTime, Utc};
use proto::{OrgId, Role, UserId};
use sqlx::FromRow;
use uuid::Uuid;

use crate::db::read;
use crate::gate::administer;
use crate::invocation::{UNSTARTED_OF_MEMBER, expire_requests};
use crate::{Store, StoreError};

/// A user as a member of one organization.
#[derive(Clone, Debug, FromRow)]
pub struct Member {
    #[sqlx(try_from = "Uuid")]
    pub user_id: UserId,
    #[sqlx(try_from = "Uuid")]
    pub org_id: OrgId,
    pub email: String,
    /// The user's name in this organization, which other organizations neither see nor change.
    pub name: String,
    #[sqlx(try_from = "String")]
    pub role: Role,
    pub created_at: DateTime<Utc>,
}

/// A new membership. A new address also creates the user.
pub struct NewMember {
    pub user_id: UserId,
    pub email: String,
    pub name: String,
    pub org_id: OrgId,
    pub role: Role,
    pub at: DateTime<Utc>,
}

/// The SELECT of members, followed by the rest of a query.
macro_rules! members {
    ($rest:literal) => {
        concat!(
            "SELECT m.user_id, m.org_id, u.email, m.name, m.role, m.created_at
            FROM members m JOIN users u ON u.id = m.user_id JOIN organizations o ON o.id = m.org_id ",
            $rest
        )
    };
}

/// Locks the organization until the end of the transaction, so that two owners cannot remove each other at once.
pub(crate) const HOLD_ORG: &str = "UPDATE organizations SET name = name WHERE id = $1";
const SELECT_ROLE: &str = "SELECT role FROM members WHERE org_id = $1 AND user_id = $2";
const OTHER_OWNERS: &str =
    "SELECT count(*) FROM members WHERE org_id = $1 AND user_id <> $2 AND role = 'owner'";
const DELETE: &str = "DELETE FROM members WHERE org_id = $1 AND user_id = $2";

impl Store {
    /// Adds a member and returns the user's id: the given one, or that of the existing user with this address.
    pub async fn add_member(&self, new: NewMember) -> Result<UserId, StoreError> {
        const INSERT_USER: &str = "INSERT INTO users (id, email, created_at) VALUES ($1, $2, $3)
            ON CONFLICT (email) DO NOTHING";
        const SELECT_USER: &str = "SELECT id FROM users WHERE email = $1";
        const INSERT_MEMBER: &str =
            "INSERT INTO members (org_id, user_id, name, role, created_at) VALUES ($1, $2, $3, $4, $5)";
        let email = new.email.to_lowercase();
        administer!(self, tx => {
            sqlx::query(INSERT_USER).bind(new.user_id.uuid()).bind(&email).bind(new.at).execute(&mut *tx).await?;
            let user: Uuid = sqlx::query_scalar(SELECT_USER).bind(email).fetch_one(&mut *tx).await?;
            sqlx::query(INSERT_MEMBER)
                .bind(new.org_id.uuid()).bind(user).bind(new.name).bind(new.role.as_str()).bind(new.at)
                .execute(&mut *tx).await?;
            Ok(UserId::from(user))
        })
        .map_err(|error: StoreError| error.on_constraint("this membership", "this organization"))
    }

    /// The current membership of a user in an organization.
    pub async fn member(&self, org: OrgId, user: UserId) -> Result<Option<Member>, StoreError> {
        const SQL: &str = members!("WHERE m.org_id = $1 AND m.user_id = $2");
        let (org, user) = (org.uuid(), user.uuid());
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(user).fetch_optional(pool).await)?)
    }

    /// The memberships of a user, oldest first.
    pub async fn memberships(&self, user: UserId) -> Result<Vec<Member>, StoreError> {
        const SQL: &str = members!("WHERE m.user_id = $1 ORDER BY m.created_at, m.org_id");
        let user = user.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(user).fetch_all(pool).await)?)
    }

    /// The members of an organization, oldest first.
    pub async fn members(&self, org: OrgId) -> Result<Vec<Member>, StoreError> {
        const SQL: &str = members!("WHERE m.org_id = $1 ORDER BY m.created_at, m.user_id");
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).fetch_all(pool).await)?)
    }

    /// The first owner of the first organization, for whom operator commands act by default.
    pub async fn first_owner(&self) -> Result<Option<Member>, StoreError> {
        const SQL: &str =
            members!("WHERE m.role = 'owner' ORDER BY o.created_at, o.id, m.created_at, m.user_id LIMIT 1");
        Ok(read!(self, pool => sqlx::query_as(SQL).fetch_optional(pool).await)?)
    }

    /// Changes a member's role, or removes the member (`None`). The last owner cannot be changed or removed. What was
    /// requested with the API keys of a removed member and has not started expires.
    pub async fn change_member(
        &self,
        org: OrgId,
        user: UserId,
        role: Option<Role>,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SET: &str = "UPDATE members SET role = $3 WHERE org_id = $1 AND user_id = $2";
        let (org, user) = (org.uuid(), user.uuid());
        administer!(self, tx => {
            sqlx::query(HOLD_ORG).bind(org).execute(&mut *tx).await?;
            let now: Option<String> = sqlx::query_scalar(SELECT_ROLE).bind(org).bind(user).fetch_optional(&mut *tx).await?;
            let now = now.ok_or(StoreError::Missing("this member"))?;
            let others: i64 = sqlx::query_scalar(OTHER_OWNERS).bind(org).bind(user).fetch_one(&mut *tx).await?;
            if now == Role::Owner.as_str() && others == 0 && role != Some(Role::Owner) {
                return Err(StoreError::Refused("the last owner of an organization cannot be removed or demoted"));
            }
            if let Some(role) = role {
                sqlx::query(SET).bind(org).bind(user).bind(role.as_str()).execute(&mut *tx).await?;
            } else {
                expire_requests!(tx, UNSTARTED_OF_MEMBER, org, user, at);
                sqlx::query(DELETE).bind(org).bind(user).execute(&mut *tx).await?;
            }
            Ok(())
        })
    }

    /// Removes a member who is neither admin nor owner. `true` if one was removed.
    pub async fn remove_plain_member(
        &self,
        org: OrgId,
        user: UserId,
        at: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let (org, user) = (org.uuid(), user.uuid());
        administer!(self, tx => {
            sqlx::query(HOLD_ORG).bind(org).execute(&mut *tx).await?;
            let role: Option<String> = sqlx::query_scalar(SELECT_ROLE).bind(org).bind(user).fetch_optional(&mut *tx).await?;
            if role.as_deref() != Some(Role::Member.as_str()) {
                return Ok(false);
            }
            expire_requests!(tx, UNSTARTED_OF_MEMBER, org, user, at);
            sqlx::query(DELETE).bind(org).bind(user).execute(&mut *tx).await?;
            Ok(true)
        })
    }
}
