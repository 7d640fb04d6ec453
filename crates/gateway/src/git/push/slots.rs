//! How many pushes one session may have in flight. Each is held in memory until its commits are known.

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};
use proto::SessionId;

const MAX_PER_SESSION: usize = 4;

/// The number of pushes in flight, by session.
#[derive(Default)]
pub(crate) struct PushSlots {
    in_flight: Mutex<HashMap<SessionId, usize>>,
}

/// One push in flight, until this is dropped.
pub(super) struct PushSlot<'a> {
    slots: &'a PushSlots,
    session: SessionId,
}

impl PushSlots {
    /// `None` if the session has too many pushes in flight.
    pub(super) fn acquire(&self, session: SessionId) -> Option<PushSlot<'_>> {
        let mut in_flight = self.lock();
        let count = in_flight.entry(session).or_default();
        if *count == MAX_PER_SESSION {
            return None;
        }
        *count += 1;
        Some(PushSlot { slots: self, session })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, usize>> {
        self.in_flight.lock()
    }
}

impl Drop for PushSlot<'_> {
    fn drop(&mut self) {
        let mut in_flight = self.slots.lock();
        let left = in_flight.get(&self.session).map_or(0, |count| count - 1);
        if left == 0 {
            in_flight.remove(&self.session);
        } else {
            in_flight.insert(self.session, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_a_bounded_number_of_pushes_in_flight_and_leaves_no_entry_behind() {
        let slots = PushSlots::default();
        let session = |number| SessionId::from(uuid::Uuid::from_u128(number));
        let mut held: Vec<_> = (0..MAX_PER_SESSION).map(|_| slots.acquire(session(1)).unwrap()).collect();
        assert!(slots.acquire(session(1)).is_none() && slots.acquire(session(2)).is_some());
        held.pop();
        assert!(slots.acquire(session(1)).is_some());
        drop(held);
        assert!(slots.lock().is_empty());
    }
}
