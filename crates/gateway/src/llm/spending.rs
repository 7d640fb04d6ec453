//! Money that requests under way may cost. It is held until it is known what they did cost, for what is spent is known
//! only at their end: without it, many at once would all pass a budget that has room for one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::{OrgId, SessionId};

/// What is held in this process, in micro-dollars, by who pays.
#[derive(Clone, Debug, Default)]
pub struct Spending(Arc<Mutex<HashMap<Payer, i64>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Payer {
    Session(SessionId),
    Org(OrgId),
}

/// What is held for one request, until this is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    spending: Spending,
    payers: [Payer; 2],
    micros: i64,
    /// What was held for others before, by session and by organisation.
    beside: [i64; 2],
}

/// Whether a request may be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Room {
    Free,
    /// Others that are under way may need the rest; when they have ended there may be room again.
    Busy,
    /// The budget is spent.
    Gone,
}

impl Spending {
    /// Holds money for a request. What was spent must be asked for afterwards: then each earlier request is either held
    /// or spent, and never neither.
    pub(crate) fn hold(&self, session: SessionId, org: OrgId, micros: i64) -> Hold {
        let payers = [Payer::Session(session), Payer::Org(org)];
        let mut all = self.lock();
        let beside = payers.map(|payer| {
            let held = all.entry(payer).or_default();
            std::mem::replace(held, *held + micros)
        });
        drop(all);
        Hold { spending: self.clone(), payers, micros, beside }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Payer, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hold {
    pub(crate) fn room_of_session(&self, budget: i64, spent: i64) -> Room {
        self.room(budget, spent, self.beside[0])
    }

    pub(crate) fn room_of_org(&self, budget: i64, spent: i64) -> Room {
        self.room(budget, spent, self.beside[1])
    }

    /// One that is alone passes as long as anything is left: it could ask for no less. So a budget is exceeded by what
    /// one request costs, and no more.
    fn room(&self, budget: i64, spent: i64, beside: i64) -> Room {
        let left = budget.saturating_sub(spent);
        if left <= 0 {
            Room::Gone
        } else if beside > 0 && beside.saturating_add(self.micros) > left {
            Room::Busy
        } else {
            Room::Free
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut all = self.spending.lock();
        for payer in self.payers {
            if let Some(held) = all.get_mut(&payer) {
                *held -= self.micros;
                if *held == 0 {
                    all.remove(&payer);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_request_has_room_beside_what_is_held_and_alone_as_long_as_anything_is_left() {
        let spending = Spending::default();
        let (one, two) = (SessionId::from(Uuid::from_u128(1)), SessionId::from(Uuid::from_u128(2)));
        let org = OrgId::from(Uuid::from_u128(3));
        let first = spending.hold(one, org, 60);
        assert_eq!(first.room_of_session(50, 49), Room::Free, "alone");
        assert_eq!(first.room_of_session(50, 50), Room::Gone);
        let second = spending.hold(one, org, 40);
        assert_eq!(second.room_of_session(100, 0), Room::Free);
        assert_eq!(second.room_of_session(100, 1), Room::Busy);
        assert_eq!(second.room_of_session(100, 100), Room::Gone);
        let elsewhere = spending.hold(two, org, 10);
        assert_eq!(
            (elsewhere.room_of_session(5, 0), elsewhere.room_of_org(109, 0)),
            (Room::Free, Room::Busy)
        );
        drop((first, second, elsewhere));
        assert!(spending.lock().is_empty(), "nothing stays behind");
    }
}
