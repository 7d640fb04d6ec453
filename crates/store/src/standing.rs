//! The credential of an open connection, and whether it is still valid: the membership, and the key or login with which the
//! connection was opened.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use proto::{OrgId, Role, UserId};
use sqlx::QueryBuilder;
use uuid::Uuid;

use crate::db::read;
use crate::row::word;
use crate::{Store, StoreError, TokenHash};

/// The credential of a member. Keys and logins are known by their hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UserCredential {
    /// A signed token, which is stored nowhere: only the end of the membership invalidates it.
    Token,
    ApiKey(TokenHash),
    Login(TokenHash),
}

/// A member and a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    pub org_id: OrgId,
    pub user_id: UserId,
    pub credential: UserCredential,
}

/// The most values of one list in a statement; SQLite allows 32,766 parameters in all.
const VALUES_PER_QUERY: usize = 1000;

impl UserCredential {
    pub(crate) fn key_hash(self) -> Option<Vec<u8>> {
        if let Self::ApiKey(hash) = self { Some(hash.to_vec()) } else { None }
    }

    pub(crate) fn login_hash(self) -> Option<Vec<u8>> {
        if let Self::Login(hash) = self { Some(hash.to_vec()) } else { None }
    }

    /// Builds the credential from the columns of a row. A hash of another length matches no credential.
    pub(crate) fn from_columns(key: Option<Vec<u8>>, login: Option<Vec<u8>>) -> Self {
        let hash = |bytes: Vec<u8>| TokenHash::try_from(bytes).unwrap_or_default();
        match (key, login) {
            (Some(key), _) => Self::ApiKey(hash(key)),
            (None, Some(login)) => Self::Login(hash(login)),
            (None, None) => Self::Token,
        }
    }
}

impl Store {
    /// The member's role now; `None` once the membership, the key or the login has ended.
    pub async fn role_now(&self, standing: Standing, now: DateTime<Utc>) -> Result<Option<Role>, StoreError> {
        const SQL: &str = "SELECT m.role FROM members m WHERE m.org_id = $1 AND m.user_id = $2
            AND ($3 IS NULL OR EXISTS (SELECT 1 FROM api_keys k WHERE k.key_hash = $3 AND k.revoked_at IS NULL))
            AND ($4 IS NULL OR EXISTS (SELECT 1 FROM login_sessions l
            WHERE l.token_hash = $4 AND l.ended_at IS NULL AND l.expires_at > $5))";
        let (org, user) = (standing.org_id.uuid(), standing.user_id.uuid());
        let (key, login) = (standing.credential.key_hash(), standing.credential.login_hash());
        let found: Option<String> = read!(self, pool => sqlx::query_scalar(SQL)
            .bind(org).bind(user).bind(key).bind(login).bind(now).fetch_optional(pool).await)?;
        Ok(found.map(word).transpose()?)
    }

    /// Returns those of many credentials that have ended, with a few statements.
    pub async fn ended_standings(
        &self,
        all: &[Standing],
        now: DateTime<Utc>,
    ) -> Result<Vec<Standing>, StoreError> {
        let (mut members, mut keys, mut logins) = (HashSet::new(), HashSet::new(), HashSet::new());
        for some in all.chunks(VALUES_PER_QUERY) {
            members.extend(self.members_among(some).await?);
            keys.extend(self.keys_among(some).await?);
            logins.extend(self.logins_among(some, now).await?);
        }
        let ended = |standing: &&Standing| {
            let member = members.contains(&(standing.org_id.uuid(), standing.user_id.uuid()));
            let credential = match standing.credential {
                UserCredential::Token => true,
                UserCredential::ApiKey(hash) => keys.contains(hash.as_slice()),
                UserCredential::Login(hash) => logins.contains(hash.as_slice()),
            };
            !(member && credential)
        };
        Ok(all.iter().filter(ended).copied().collect())
    }

    async fn members_among(&self, some: &[Standing]) -> Result<Vec<(Uuid, Uuid)>, StoreError> {
        const SQL: &str = "SELECT org_id, user_id FROM members WHERE user_id IN (";
        let users: HashSet<Uuid> = some.iter().map(|standing| standing.user_id.uuid()).collect();
        Ok(read!(self, pool => {
            let mut query = QueryBuilder::new(SQL);
            list(&mut query, users);
            query.build_query_as().fetch_all(pool).await
        })?)
    }

    async fn keys_among(&self, some: &[Standing]) -> Result<Vec<Vec<u8>>, StoreError> {
        const SQL: &str = "SELECT key_hash FROM api_keys WHERE revoked_at IS NULL AND key_hash IN (";
        let hashes: Vec<_> = some.iter().filter_map(|standing| standing.credential.key_hash()).collect();
        if hashes.is_empty() {
            return Ok(Vec::new());
        }
        Ok(read!(self, pool => {
            let mut query = QueryBuilder::new(SQL);
            list(&mut query, hashes);
            query.build_query_scalar().fetch_all(pool).await
        })?)
    }

    async fn logins_among(&self, some: &[Standing], now: DateTime<Utc>) -> Result<Vec<Vec<u8>>, StoreError> {
        const SQL: &str = "SELECT token_hash FROM login_sessions WHERE ended_at IS NULL AND expires_at > ";
        let hashes: Vec<_> = some.iter().filter_map(|standing| standing.credential.login_hash()).collect();
        if hashes.is_empty() {
            return Ok(Vec::new());
        }
        Ok(read!(self, pool => {
            let mut query = QueryBuilder::new(SQL);
            query.push_bind(now).push(" AND token_hash IN (");
            list(&mut query, hashes);
            query.build_query_scalar().fetch_all(pool).await
        })?)
    }
}

/// Binds a list of values and closes its parenthesis.
fn list<'a, DB, T>(query: &mut QueryBuilder<DB>, values: impl IntoIterator<Item = T>)
where
    DB: sqlx::Database,
    T: sqlx::Encode<'a, DB> + sqlx::Type<DB> + 'a,
{
    let mut list = query.separated(", ");
    for value in values {
        list.push_bind(value);
    }
    query.push(")");
}
