//! The lists of tools that servers gave lately. At most one request per connector is in flight; the others wait for it.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use clock::Clock;
use lru::LruCache;
use mcp::Listing;
use parking_lot::Mutex;
use proto::ConnectorId;
use store::Connector;

use super::Unavailable;

/// How long a list is used.
const FRESH: Duration = Duration::from_mins(5);
/// How long a failure is used. Without this, every caller would wait for the timeout of a server that is down.
const FAILED: Duration = Duration::from_secs(15);
/// The maximum number of connectors whose lists are kept.
const KEPT: std::num::NonZeroUsize = std::num::NonZeroUsize::new(500).unwrap();

type Answer = Result<Arc<Listing>, Unavailable>;
type Slot = Arc<tokio::sync::Mutex<Option<(DateTime<Utc>, Answer)>>>;

pub(super) struct Listings {
    clock: Clock,
    /// The lists by connector and the time of its last change, because a changed connector has another server or
    /// credential.
    slots: Mutex<LruCache<(ConnectorId, DateTime<Utc>), Slot>>,
}

impl Listings {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, slots: Mutex::new(LruCache::new(KEPT)) }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.lock().len()
    }

    fn slot(&self, connector: &Connector) -> Slot {
        let key = (connector.id, connector.updated_at);
        self.slots.lock().get_or_insert(key, Slot::default).clone()
    }

    /// The list of the last minutes, or a new one.
    pub(super) async fn get(
        &self,
        connector: &Connector,
        list: impl AsyncFnOnce() -> Result<Listing, Unavailable>,
    ) -> Answer {
        let slot = self.slot(connector);
        let mut slot = slot.lock().await;
        let usable = |at: DateTime<Utc>, answer: &Answer| {
            let lasts = if answer.is_ok() { FRESH } else { FAILED };
            self.clock.now() - at < TimeDelta::from_std(lasts).unwrap_or_default()
        };
        match slot.as_ref() {
            Some((at, answer)) if usable(*at, answer) => answer.clone(),
            _ => {
                let answer = list().await.map(Arc::new);
                *slot = Some((self.clock.now(), answer.clone()));
                answer
            }
        }
    }

    /// A new list, which everybody uses from now on.
    pub(super) async fn refresh(
        &self,
        connector: &Connector,
        list: impl AsyncFnOnce() -> Result<Listing, Unavailable>,
    ) -> Answer {
        let slot = self.slot(connector);
        let mut slot = slot.lock().await;
        let answer = list().await.map(Arc::new);
        *slot = Some((self.clock.now(), answer.clone()));
        answer
    }
}
