//! Credentials of connections that stay open. A plain request is authenticated once. A socket, stream or proxy lives
//! longer than that, so it holds a [`LiveCredential`], which reports when the credential ends and the caller's current
//! role.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use store::{Standing, StoreError};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::Caller;
use super::caller::kind_of;
use crate::access::CallerKind;
use crate::app::AppState;

/// How often the credentials of all open connections are checked, in one query. Another process may revoke a credential
/// without notifying this one, and the connection must end within a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The credentials of all open connections.
#[derive(Default)]
pub struct LiveCredentials {
    open: Mutex<HashMap<Standing, Weak<CancellationToken>>>,
}

/// The credential of one open connection.
#[derive(Clone)]
pub struct LiveCredential(Basis);

#[derive(Clone)]
enum Basis {
    /// A member, and a token that is cancelled when the membership, the API key or the login ends.
    Member(Standing, Arc<CancellationToken>),
    /// A service's token. It is not stored, so it cannot be revoked while the connection is open.
    Service,
}

impl LiveCredentials {
    /// Registers a connection of this caller. `None` for a sandbox, which may not open such a connection.
    pub fn open(&self, caller: &Caller) -> Option<LiveCredential> {
        let standing = match caller {
            Caller::User(user) => user.standing(),
            Caller::Service { .. } => return Some(LiveCredential(Basis::Service)),
            Caller::Sandbox(_) => return None,
        };
        let mut open = self.lock();
        let known = open.get(&standing).and_then(Weak::upgrade).filter(|ended| !ended.is_cancelled());
        let ended = known.unwrap_or_default();
        open.insert(standing, Arc::downgrade(&ended));
        Some(LiveCredential(Basis::Member(standing, ended)))
    }

    /// Ends the connections whose credentials are no longer valid.
    async fn check(&self, app: &AppState) -> Result<(), StoreError> {
        let all: Vec<Standing> = {
            let mut open = self.lock();
            open.retain(|_, ended| ended.strong_count() > 0);
            open.keys().copied().collect()
        };
        if all.is_empty() {
            return Ok(());
        }
        let ended = app.store.ended_standings(&all, app.clock.now()).await?;
        let mut open = self.lock();
        for standing in ended {
            if let Some(token) = open.remove(&standing).and_then(|token| token.upgrade()) {
                token.cancel();
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Standing, Weak<CancellationToken>>> {
        self.open.lock()
    }
}

impl LiveCredential {
    /// Returns when the credential has ended.
    pub async fn ended(self) {
        match self.0 {
            Basis::Member(_, ended) => ended.cancelled().await,
            Basis::Service => std::future::pending().await,
        }
    }

    /// The caller's current kind; `None` if the credential has ended. The expiry of a token does not end a connection.
    pub async fn kind(&self, app: &AppState) -> Result<Option<CallerKind>, StoreError> {
        match &self.0 {
            Basis::Member(standing, _) => {
                Ok(app.store.role_now(*standing, app.clock.now()).await?.map(kind_of))
            }
            Basis::Service => Ok(Some(CallerKind::Service)),
        }
    }

    /// Whether the credential is still valid. Checked before queued work starts.
    pub async fn holds(&self, app: &AppState) -> bool {
        matches!(self.kind(app).await, Ok(Some(_)))
    }
}

/// Checks the credentials of open connections periodically, until the gateway shuts down.
pub(crate) async fn keep_checking(app: AppState) {
    let mut ticks = tokio::time::interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = app.process.closing.cancelled() => return,
        }
        if let Err(error) = app.credentials.live.check(&app).await {
            // Meanwhile commands are refused, because each of them looks up its credential.
            tracing::warn!(%error, "cannot check the credentials of open connections; the next tick tries again");
        }
    }
}
