//! Tickets: short-lived credentials of one user for one session, for clients that can only put a credential into a URL.

use chrono::{DateTime, Utc};
use proto::{OrgId, SessionId, TicketId, UserId};
use uuid::Uuid;

use crate::db::{long_before, read, write};
use crate::row::from_row;
use crate::{Standing, Store, StoreError, TokenHash, UserCredential};

/// The kind of connection that a ticket opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketKind {
    /// The session's WebSocket, once.
    Socket,
    /// The session's proxied ports, until it expires or is revoked.
    Proxy,
}

impl TicketKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::Proxy => "proxy",
        }
    }
}

/// A new ticket.
pub struct NewTicket {
    pub id: TicketId,
    pub session_id: SessionId,
    /// The member, and the credential with which the ticket was made: the ticket ends with that credential.
    pub standing: Standing,
    pub kind: TicketKind,
    pub token_hash: TokenHash,
    pub at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
}

/// The member and the session of a ticket.
#[derive(Clone, Copy, Debug)]
pub struct TicketOwner {
    pub session_id: SessionId,
    pub standing: Standing,
}

from_row!(TicketOwner, row => TicketOwner {
    session_id: row.try_get::<Uuid, _>("session_id")?.into(),
    standing: Standing {
        org_id: row.try_get::<Uuid, _>("org_id")?.into(),
        user_id: row.try_get::<Uuid, _>("user_id")?.into(),
        credential: UserCredential::from_columns(row.try_get("key_hash")?, row.try_get("login_hash")?),
    },
});

impl Store {
    pub async fn create_ticket(&self, ticket: NewTicket) -> Result<(), StoreError> {
        const DELETE_EXPIRED: &str = "DELETE FROM tickets WHERE org_id = $1 AND expires_at < $2";
        const SQL: &str = "INSERT INTO tickets
            (id, org_id, session_id, user_id, kind, token_hash, expires_at, key_hash, login_hash)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
        let Standing { org_id, user_id, credential } = ticket.standing;
        write!(self, Disk, tx => {
            sqlx::query(DELETE_EXPIRED).bind(org_id.uuid()).bind(long_before(ticket.at)).execute(&mut *tx).await?;
            sqlx::query(SQL)
                .bind(ticket.id.uuid()).bind(org_id.uuid()).bind(ticket.session_id.uuid())
                .bind(user_id.uuid()).bind(ticket.kind.as_str()).bind(ticket.token_hash.to_vec())
                .bind(ticket.expires_at)
                .bind(credential.key_hash()).bind(credential.login_hash())
                .execute(&mut *tx).await?;
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this ticket", "this session or member"))
    }

    /// Redeems a socket ticket: of two callers, one succeeds.
    pub async fn take_socket_ticket(
        &self,
        hash: &TokenHash,
        now: DateTime<Utc>,
    ) -> Result<Option<TicketOwner>, StoreError> {
        const SQL: &str = "UPDATE tickets SET used_at = $2
            WHERE token_hash = $1 AND kind = 'socket' AND used_at IS NULL AND revoked_at IS NULL AND expires_at > $2
            RETURNING org_id, session_id, user_id, key_hash, login_hash";
        let hash = hash.to_vec();
        write!(self, Disk, tx => {
            Ok(sqlx::query_as(SQL).bind(hash).bind(now).fetch_optional(&mut *tx).await?)
        })
    }

    /// The member and the session of a valid proxy ticket.
    pub async fn proxy_ticket(
        &self,
        hash: &TokenHash,
        now: DateTime<Utc>,
    ) -> Result<Option<TicketOwner>, StoreError> {
        const SQL: &str = "SELECT org_id, session_id, user_id, key_hash, login_hash FROM tickets
            WHERE token_hash = $1 AND kind = 'proxy' AND revoked_at IS NULL AND expires_at > $2";
        let hash = hash.as_slice();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(hash).bind(now).fetch_optional(pool).await)?)
    }

    /// Revokes a ticket of this user.
    pub async fn revoke_ticket(
        &self,
        org: OrgId,
        user: UserId,
        ticket: TicketId,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE tickets SET revoked_at = $4
            WHERE org_id = $1 AND user_id = $2 AND id = $3 AND revoked_at IS NULL";
        let (org, user, ticket) = (org.uuid(), user.uuid(), ticket.uuid());
        write!(self, Disk, tx => {
            let done = sqlx::query(SQL).bind(org).bind(user).bind(ticket).bind(now).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this ticket")) } else { Ok(()) }
        })
    }
}
