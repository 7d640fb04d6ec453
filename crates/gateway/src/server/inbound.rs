//! Counts the bytes of incomplete messages from a WebSocket client.
//!
//! The WebSocket library buffers an unfinished frame where nobody else can see it, so bytes are counted as they leave
//! the connection.

use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use shares::Held;

/// The number of bytes each connection may buffer without a reservation: more than any message except prompts with
/// images.
const FREE_BYTES: u64 = 16 * 1024;
/// The step in which memory is reserved, to avoid taking a lock for every read.
const STEP_BYTES: u64 = 64 * 1024;
/// The size of the header and mask of a client's control frame.
const CONTROL_HEAD: u64 = 6;

/// The bytes of one connection since its last complete message. Counting starts when a socket asks for it, because
/// bodies of plain requests are counted where they are read.
#[derive(Clone, Default)]
pub(crate) struct Inbound(Arc<OnceLock<Mutex<InboundBytes>>>);

struct InboundBytes {
    bytes: u64,
    memory: Held,
    /// The share of memory is used up, and nothing more is read.
    over: bool,
}

impl Inbound {
    /// Starts counting against the holder of `memory`.
    pub(crate) fn count(&self, memory: Held) {
        let _already_counts = self.0.set(Mutex::new(InboundBytes { bytes: 0, memory, over: false }));
    }

    /// Counts bytes that have arrived. Returns `false` if there is no memory for them.
    pub(super) fn arrived(&self, bytes: usize) -> bool {
        let Some(mut counted) = self.lock() else { return true };
        counted.bytes += bytes as u64;
        let held = FREE_BYTES + counted.memory.amount();
        if counted.bytes > held {
            let missing = (counted.bytes - held).next_multiple_of(STEP_BYTES);
            counted.over |= counted.memory.grow(missing).is_err();
        }
        !counted.over
    }

    /// Resets the count after a message is complete and handled.
    pub(crate) fn completed(&self) {
        if let Some(mut counted) = self.lock() {
            counted.bytes = 0;
            counted.memory.shrink_to(0);
        }
    }

    /// Subtracts a ping or pong, which may arrive in the middle of a message.
    pub(crate) fn control(&self, payload: usize) {
        if let Some(mut counted) = self.lock() {
            counted.bytes = counted.bytes.saturating_sub(payload as u64 + CONTROL_HEAD);
        }
    }

    /// Whether reading stopped because the share of memory was used up.
    pub(crate) fn is_over(&self) -> bool {
        self.lock().is_some_and(|counted| counted.over)
    }

    fn lock(&self) -> Option<MutexGuard<'_, InboundBytes>> {
        Some(self.0.get()?.lock())
    }
}

#[cfg(test)]
mod tests {
    use proto::OrgId;
    use uuid::Uuid;

    use super::*;
    use shares::{Party, Pool, PoolLimits};

    #[test]
    fn only_an_unfinished_large_message_takes_memory() {
        let pool = Pool::new(PoolLimits { name: "memory", unit: "bytes", total: 1 << 20, per_session: 0 });
        let inbound = Inbound::default();
        assert!(inbound.arrived(1 << 30), "nothing is counted yet");
        inbound.count(pool.take(Party::org(OrgId::from(Uuid::nil())), 0).unwrap());
        assert!(inbound.arrived(16 * 1024));
        assert_eq!(pool.used(), 0);
        assert!(inbound.arrived(1));
        assert_eq!(pool.used(), STEP_BYTES);
        inbound.control(3);
        assert!(inbound.arrived(8) && inbound.arrived(300_000));
        assert!(pool.used() >= 300_000);
        inbound.completed();
        assert_eq!(pool.used(), 0);
        assert!(inbound.arrived(400_000) && !inbound.is_over());
        assert!(!inbound.arrived(400_000) && inbound.is_over(), "an organization gets half of the total");
        drop(inbound);
        assert_eq!(pool.used(), 0);
    }
}
