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
const LIST_LIFETIME: Duration = Duration::from_mins(5);
/// How long a list may be shown while its server takes long to list its tools anew.
const STALE_LIFETIME: Duration = Duration::from_hours(1);
/// How long a failure is used. Without this, every caller would wait for the timeout of a server that is down.
const FAILURE_LIFETIME: Duration = Duration::from_secs(15);
/// The maximum number of connectors whose lists are kept, and the memory of all of them.
const MAX_CACHED_CONNECTORS: std::num::NonZeroUsize = std::num::NonZeroUsize::new(5000).unwrap();
const MAX_MEMORY: usize = 64 * 1024 * 1024;

type Answer = Result<Arc<Listing>, Unavailable>;
/// A connector and the time of its last change, because a changed connector has another server or credential.
type Key = (ConnectorId, DateTime<Utc>);

#[derive(Default)]
struct Slot {
    kept: Mutex<Option<(DateTime<Utc>, Answer)>>,
    /// Held by whoever asks the server.
    asking: tokio::sync::Mutex<()>,
}

pub(super) struct Listings {
    clock: Clock,
    max_memory: usize,
    slots: Mutex<Slots>,
}

/// The slots of connectors with the memory that each takes.
struct Slots {
    by_key: LruCache<Key, (Arc<Slot>, usize)>,
    memory: usize,
}

impl Listings {
    pub(super) fn new(clock: Clock) -> Self {
        Self::within(MAX_MEMORY, clock)
    }

    fn within(max_memory: usize, clock: Clock) -> Self {
        let slots = Slots { by_key: LruCache::new(MAX_CACHED_CONNECTORS), memory: 0 };
        Self { clock, max_memory, slots: Mutex::new(slots) }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.lock().by_key.len()
    }

    fn slot(&self, key: Key) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if let Some((slot, _)) = slots.by_key.get(&key) {
            return slot.clone();
        }
        let slot = Arc::<Slot>::default();
        if let Some((_, (_, memory))) = slots.by_key.push(key, (slot.clone(), 0)) {
            slots.memory -= memory;
        }
        slot
    }

    /// Keeps an answer, and drops those that were used longest ago if all take too much memory.
    fn store_answer(&self, key: Key, slot: &Slot, answer: &Answer) {
        *slot.kept.lock() = Some((self.clock.now(), answer.clone()));
        let taken = answer.as_ref().map_or(0, |listing| listing.memory());
        let mut slots = self.slots.lock();
        let Some((_, memory)) = slots.by_key.get_mut(&key) else { return };
        let before = std::mem::replace(memory, taken);
        slots.memory = slots.memory - before + taken;
        while slots.memory > self.max_memory {
            let Some((_, (_, memory))) = slots.by_key.pop_lru() else { return };
            slots.memory -= memory;
        }
    }

    /// The answer that is kept, if it is not older than this.
    fn kept(&self, slot: &Slot, lasts: impl FnOnce(&Answer) -> Duration) -> Option<Answer> {
        let kept = slot.kept.lock();
        let (at, answer) = kept.as_ref()?;
        let lasts = TimeDelta::from_std(lasts(answer)).unwrap_or_default();
        (self.clock.now() - at < lasts).then(|| answer.clone())
    }

    fn fresh(&self, slot: &Slot) -> Option<Answer> {
        self.kept(slot, |answer| if answer.is_ok() { LIST_LIFETIME } else { FAILURE_LIFETIME })
    }

    /// The list of the last minutes, or a new one.
    pub(super) async fn get(
        &self,
        connector: &Connector,
        list: impl AsyncFnOnce() -> Result<Listing, Unavailable>,
    ) -> Answer {
        let key = (connector.id, connector.updated_at);
        let slot = self.slot(key);
        let _asking = slot.asking.lock().await;
        if let Some(answer) = self.fresh(&slot) {
            return answer;
        }
        let answer = list().await.map(Arc::new);
        self.store_answer(key, &slot, &answer);
        answer
    }

    /// The last list, for somebody who cannot wait for a new one. `None` if the server failed since, or the list is too old.
    pub(super) fn last(&self, connector: &Connector) -> Option<Arc<Listing>> {
        self.kept(&self.slot((connector.id, connector.updated_at)), |_| STALE_LIFETIME)?.ok()
    }

    /// Lists the tools for those who ask later, unless somebody asks already: several would wait one after the other for a
    /// server that hangs. A failure is not kept: the connector may not be set up completely.
    pub(super) async fn prepare(
        &self,
        connector: &Connector,
        list: impl AsyncFnOnce() -> Result<Listing, Unavailable>,
    ) {
        let key = (connector.id, connector.updated_at);
        let slot = self.slot(key);
        let Ok(_asking) = slot.asking.try_lock() else { return };
        if self.fresh(&slot).is_none()
            && let Ok(listing) = list().await
        {
            self.store_answer(key, &slot, &Ok(Arc::new(listing)));
        }
    }

    /// A new list, which everybody uses from now on.
    pub(super) async fn refresh(
        &self,
        connector: &Connector,
        list: impl AsyncFnOnce() -> Result<Listing, Unavailable>,
    ) -> Answer {
        let key = (connector.id, connector.updated_at);
        let slot = self.slot(key);
        let _asking = slot.asking.lock().await;
        let answer = list().await.map(Arc::new);
        self.store_answer(key, &slot, &answer);
        answer
    }
}

#[cfg(test)]
mod tests {
    use mcp::Definition;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn the_lists_used_longest_ago_are_dropped_when_all_take_too_much_memory() {
        let tool = json!({"name": "a", "description": "d".repeat(1000), "inputSchema": {}});
        let mut listing = Listing::default();
        listing.definitions.push(Definition::parse(tool).unwrap());
        let memory = listing.memory();
        let clock = Clock::system();
        let (at, listings) = (clock.now(), Listings::within(memory * 5 / 2, clock));
        let keys = [1, 2, 3].map(|number| (ConnectorId::from(uuid::Uuid::from_u128(number)), at));
        let answer = Ok(Arc::new(listing));
        for key in keys {
            for _ in 0..2 {
                let slot = listings.slot(key);
                listings.store_answer(key, &slot, &answer);
            }
        }
        let slots = listings.slots.lock();
        let kept = keys.map(|key| slots.by_key.contains(&key));
        assert_eq!((kept, slots.memory), ([false, true, true], memory * 2));
    }

    #[tokio::test]
    async fn preparing_a_list_does_not_wait_for_whoever_asks_the_server() {
        let clock = Clock::system();
        let (at, listings) = (clock.now(), Listings::new(clock));
        let connector = Connector {
            id: uuid::Uuid::from_u128(1).into(),
            org_id: uuid::Uuid::from_u128(2).into(),
            name: "slow".to_owned(),
            url: "https://mcp.example.com".to_owned(),
            auth: json!({"type": "none"}),
            default_risk: proto::Risk::Write,
            enabled: true,
            created_by: None,
            created_at: at,
            updated_at: at,
        };
        let slot = listings.slot((connector.id, at));
        let asking = slot.asking.lock().await;
        let asked = std::cell::Cell::new(0);
        let list = async || {
            asked.set(asked.get() + 1);
            Ok::<_, Unavailable>(Listing::default())
        };
        tokio::time::timeout(Duration::from_secs(10), listings.prepare(&connector, &list)).await.unwrap();
        assert_eq!(asked.get(), 0);
        drop(asking);
        listings.prepare(&connector, &list).await;
        assert_eq!(asked.get(), 1);
    }
}
