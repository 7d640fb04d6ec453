//! Logins of devices without a browser (RFC 8628): a device waits for its API key until a member approves its code.

use chrono::{DateTime, Utc};
use proto::{OrgId, UserId};
use sqlx::FromRow;
use uuid::Uuid;

use crate::db::{read, write};
use crate::gate::administer;
use crate::key::INSERT_KEY;
use crate::{NewApiKey, Standing, Store, StoreError, TokenHash, UserCredential};

/// A device that wants to log in.
pub struct NewDeviceLogin {
    pub device_hash: TokenHash,
    pub user_code: String,
    pub client_name: String,
    pub at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
}

/// A device login that has neither expired nor been redeemed.
#[derive(Clone, Debug, FromRow)]
pub struct DeviceLogin {
    pub user_code: String,
    pub client_name: String,
    pub created_at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
    pub denied_at: Option<DateTime<Utc>>,
    org_id: Option<Uuid>,
    user_id: Option<Uuid>,
}

impl DeviceLogin {
    /// The member who has approved the login.
    pub fn approved_by(&self) -> Option<(OrgId, UserId)> {
        Some((self.org_id?.into(), self.user_id?.into()))
    }
}

impl Store {
    /// Stores a login, and deletes those that have expired. If `most` wait already, it replaces the oldest that nobody has
    /// approved: otherwise a crowd of them would keep out everybody else until they expire.
    pub async fn create_device_login(&self, new: NewDeviceLogin, most: i64) -> Result<(), StoreError> {
        const DELETE_EXPIRED: &str = "DELETE FROM device_logins WHERE expires_at <= $1";
        const COUNT_LOGINS: &str = "SELECT count(*) FROM device_logins";
        const DELETE_OLDEST: &str = "DELETE FROM device_logins WHERE device_hash = (SELECT device_hash
            FROM device_logins WHERE user_id IS NULL ORDER BY expires_at, device_hash LIMIT 1)";
        const SQL: &str =
            "INSERT INTO device_logins (device_hash, user_code, client_name, created_at, expires_at)
            VALUES ($1, $2, $3, $4, $5)";
        write!(self, Disk, tx => {
            sqlx::query(DELETE_EXPIRED).bind(new.at).execute(&mut *tx).await?;
            let waiting: i64 = sqlx::query_scalar(COUNT_LOGINS).fetch_one(&mut *tx).await?;
            if waiting >= most {
                let deleted = sqlx::query(DELETE_OLDEST).execute(&mut *tx).await?;
                if deleted.rows_affected() == 0 {
                    return Err(StoreError::Refused("too many devices wait for their keys"));
                }
            }
            sqlx::query(SQL)
                .bind(new.device_hash.to_vec()).bind(new.user_code).bind(new.client_name)
                .bind(new.at).bind(new.expires_at).execute(&mut *tx).await?;
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this code", "this member"))
    }

    /// The login that a person sees under this code.
    pub async fn device_login_by_user_code(
        &self,
        user_code: &str,
        now: DateTime<Utc>,
    ) -> Result<Option<DeviceLogin>, StoreError> {
        const SQL: &str = "SELECT user_code, client_name, created_at, expires_at, denied_at, org_id, user_id
            FROM device_logins WHERE user_code = $1 AND expires_at > $2";
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(user_code).bind(now).fetch_optional(pool).await)?)
    }

    /// The login of the device that polls, also if it has expired.
    pub async fn device_login(&self, hash: &TokenHash) -> Result<Option<DeviceLogin>, StoreError> {
        const SQL: &str = "SELECT user_code, client_name, created_at, expires_at, denied_at, org_id, user_id
            FROM device_logins WHERE device_hash = $1";
        let hash = hash.as_slice();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(hash).fetch_optional(pool).await)?)
    }

    /// Approves a waiting login for a member, or denies it if `by` is `None`. A login is decided once.
    pub async fn decide_device_login(
        &self,
        user_code: &str,
        by: Option<Standing>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str =
            "UPDATE device_logins SET org_id = $3, user_id = $4, denied_at = $5, key_hash = $6, login_hash = $7
            WHERE user_code = $1 AND expires_at > $2 AND user_id IS NULL AND denied_at IS NULL";
        let (org, user) = (by.map(|by| by.org_id.uuid()), by.map(|by| by.user_id.uuid()));
        let credential = by.map(|by| by.credential);
        let denied = by.is_none().then_some(now);
        let user_code = user_code.to_owned();
        write!(self, Disk, tx => {
            let done = sqlx::query(SQL)
                .bind(user_code).bind(now).bind(org).bind(user).bind(denied)
                .bind(credential.and_then(UserCredential::key_hash))
                .bind(credential.and_then(UserCredential::login_hash))
                .execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this login")) } else { Ok(()) }
        })
        .map_err(|error: StoreError| error.on_constraint("this login", "this member"))
    }

    /// Exchanges an approved login for an API key of the member who approved it. `false` if somebody else was faster, or if
    /// the credential that approved it has ended: otherwise a stolen key would outlive its revocation.
    pub async fn redeem_device_login(&self, hash: &TokenHash, key: NewApiKey) -> Result<bool, StoreError> {
        const DELETE_LOGIN: &str = "DELETE FROM device_logins
            WHERE device_hash = $1 AND org_id = $2 AND user_id = $3 AND expires_at > $4
            AND (key_hash IS NULL OR EXISTS (SELECT 1 FROM api_keys k
                WHERE k.key_hash = device_logins.key_hash AND k.revoked_at IS NULL))
            AND (login_hash IS NULL OR EXISTS (SELECT 1 FROM login_sessions l
                WHERE l.token_hash = device_logins.login_hash AND l.ended_at IS NULL AND l.expires_at > $4))";
        let hash = hash.to_vec();
        administer!(self, tx => {
            let taken = sqlx::query(DELETE_LOGIN)
                .bind(hash).bind(key.org_id.uuid()).bind(key.user_id.uuid()).bind(key.at)
                .execute(&mut *tx).await?;
            if taken.rows_affected() == 0 {
                return Ok(false);
            }
            sqlx::query(INSERT_KEY)
                .bind(key.id.uuid()).bind(key.org_id.uuid()).bind(key.user_id.uuid())
                .bind(key.name).bind(key.scope.as_str()).bind(key.hint).bind(key.key_hash.to_vec()).bind(key.at)
                .execute(&mut *tx).await?;
            Ok(true)
        })
        .map_err(|error: StoreError| error.on_constraint("this key", "this member"))
    }
}
