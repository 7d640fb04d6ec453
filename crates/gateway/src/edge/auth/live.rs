//! Credentials of connections that stay open. A request asks once who the caller is; a socket, a stream or a proxy lives on
//! after that, so it holds a [`LiveCredential`], which says when the credential has ended and what the caller is now.

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

/// How often all open credentials are looked up together. What ends one may be another process, so nobody tells us; a
/// connection is to end within a second.
const CHECK: Duration = Duration::from_millis(500);

/// Every credential that an open connection rests on.
#[derive(Default)]
pub struct LiveCredentials {
    open: Mutex<HashMap<Standing, Weak<CancellationToken>>>,
}

/// The credential of one open connection.
#[derive(Clone)]
pub struct LiveCredential(Basis);

#[derive(Clone)]
enum Basis {
    /// A member, and what is cancelled when the membership, the key or the login ends.
    Member(Standing, Arc<CancellationToken>),
    /// A service's token: nothing of it is stored, so nothing ends it before the connection.
    Service,
}

impl LiveCredentials {
    /// Notes a connection of this caller. `None`: sandboxes have connections of their own kind.
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

    /// Ends the connections whose credential does not hold any more.
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

    /// What the caller is now; `None` when the credential has ended. The expiry of a token does not matter here.
    pub async fn kind(&self, app: &AppState) -> Result<Option<CallerKind>, StoreError> {
        match &self.0 {
            Basis::Member(standing, _) => {
                Ok(app.store.role_now(*standing, app.clock.now()).await?.map(kind_of))
            }
            Basis::Service => Ok(Some(CallerKind::Service)),
        }
    }

    /// Whether work that waited may still begin.
    pub async fn holds(&self, app: &AppState) -> bool {
        matches!(self.kind(app).await, Ok(Some(_)))
    }
}

/// Looks until the gateway closes.
pub(crate) async fn keep_checking(app: AppState) {
    let mut ticks = tokio::time::interval(CHECK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = app.closing.cancelled() => return,
        }
        if let Err(error) = app.live_credentials.check(&app).await {
            // Commands are refused meanwhile: each looks its credential up.
            tracing::warn!(%error, "the credentials of open connections cannot be checked; it is tried again");
        }
    }
}
