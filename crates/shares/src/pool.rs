//! Limits on what is held at one time: slots, or bytes of memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::{Holder, OverShare, Party, ShareOwner};

/// The retry delay after a refusal. It is a guess, because nobody knows when the others release their part.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The total amount, and the share of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    pub name: &'static str,
    /// The unit. Empty for a plain number.
    pub unit: &'static str,
    pub total: u64,
    /// Zero if sessions have no share of their own.
    pub per_session: u64,
}

impl fmt::Display for PoolLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = |amount: u64| match self.unit {
            "bytes" => format!("{:.1} MiB", as_f64(amount) / (1024.0 * 1024.0)).replace(".0 ", " "),
            _ => amount.to_string(),
        };
        write!(f, "{}: {} in all", self.name, amount(self.total))?;
        match self.per_session {
            0 => write!(f, ", up to {} for one address", amount(self.total / 2)),
            session => {
                let org = amount(self.total / 2);
                write!(
                    f,
                    ", up to {org} for one organization and {} for one session, user or API key",
                    amount(session)
                )
            }
        }
    }
}

/// A resource of which a limited amount can be held at a time. The map has only current holders, so its size is
/// bounded too.
pub struct Pool {
    limits: PoolLimits,
    held: Mutex<Usage>,
}

#[derive(Default)]
struct Usage {
    total: u64,
    by: HashMap<Holder, u64>,
}

/// A part of a pool. Dropping it releases the amount.
pub struct Held {
    pool: Arc<Pool>,
    party: Party,
    amount: u64,
}

impl Pool {
    pub fn new(limits: PoolLimits) -> Arc<Self> {
        metrics::gauge!("proliferate_share_limit", "share" => limits.name).set(as_f64(limits.total));
        metrics::gauge!("proliferate_share_used", "share" => limits.name).set(0.0);
        Arc::new(Self { limits, held: Mutex::default() })
    }

    /// Takes `amount` for a caller, all of it or nothing.
    pub fn take(self: &Arc<Self>, party: Party, amount: u64) -> Result<Held, OverShare> {
        let mut held = Held { pool: Arc::clone(self), party, amount: 0 };
        held.grow(amount)?;
        Ok(held)
    }

    /// The amount that all holders have together.
    pub fn used(&self) -> u64 {
        self.lock().total
    }

    pub fn limits(&self) -> PoolLimits {
        self.limits
    }

    fn add(&self, party: Party, amount: u64) -> Result<(), OverShare> {
        let mut usage = self.lock();
        let refusal = party.holders().find_map(|holder| self.refusal(&usage, holder, amount));
        if let Some(whose) = refusal {
            drop(usage);
            return Err(OverShare::new(self.limits.name, whose, RETRY_AFTER));
        }
        usage.total += amount;
        for holder in party.holders() {
            *usage.by.entry(holder).or_default() += amount;
        }
        self.show(&usage);
        Ok(())
    }

    /// The owner of the share that is used up, if this holder cannot take `amount` more.
    fn refusal(&self, usage: &Usage, holder: Holder, amount: u64) -> Option<ShareOwner> {
        let own = usage.by.get(&holder).copied().unwrap_or_default();
        let free = self.limits.total.saturating_sub(usage.total);
        let most = match holder {
            Holder::Session(_) | Holder::User(_) | Holder::Key(_) => self.limits.per_session,
            // The first piece may use all that is free. Beyond it, at least as much must stay free as the holder
            // has.
            Holder::Org(_) | Holder::Services | Holder::Address(_) if own == 0 => free,
            Holder::Org(_) | Holder::Services | Holder::Address(_) => free.saturating_sub(amount),
        };
        if amount <= free && own.saturating_add(amount) <= most {
            return None;
        }
        let others_hold_it = own == 0 && amount > free;
        Some(if others_hold_it { ShareOwner::Everyone } else { holder.into() })
    }

    fn remove(&self, party: Party, amount: u64) {
        let mut usage = self.lock();
        usage.total -= amount;
        for holder in party.holders() {
            if let Some(own) = usage.by.get_mut(&holder) {
                *own -= amount;
                if *own == 0 {
                    usage.by.remove(&holder);
                }
            }
        }
        self.show(&usage);
    }

    fn show(&self, usage: &Usage) {
        metrics::gauge!("proliferate_share_used", "share" => self.limits.name).set(as_f64(usage.total));
    }

    fn lock(&self) -> MutexGuard<'_, Usage> {
        self.held.lock()
    }
}

impl Held {
    /// Takes more, or changes nothing if that is refused.
    pub fn grow(&mut self, more: u64) -> Result<(), OverShare> {
        if more > 0 {
            self.pool.add(self.party, more)?;
            self.amount += more;
        }
        Ok(())
    }

    /// Releases all but `amount`.
    pub fn shrink_to(&mut self, amount: u64) {
        let less = self.amount.saturating_sub(amount);
        if less > 0 {
            self.amount = amount;
            self.pool.remove(self.party, less);
        }
    }

    pub fn amount(&self) -> u64 {
        self.amount
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge, of amounts far below 2^53")]
fn as_f64(amount: u64) -> f64 {
    amount as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto::{OrgId, SessionId};
    use uuid::Uuid;

    use super::*;

    fn session(session: u128, org: u128) -> Party {
        Party::session(SessionId::from(Uuid::from_u128(session)), OrgId::from(Uuid::from_u128(org)))
    }

    fn pool(total: u64, per_session: u64) -> Arc<Pool> {
        Pool::new(PoolLimits { name: "slots", unit: "", total, per_session })
    }

    /// Takes one unit at a time until the pool refuses.
    fn take_all(pool: &Arc<Pool>, parties: &[Party]) -> (Vec<Held>, ShareOwner) {
        let mut held = Vec::new();
        loop {
            match pool.take(parties[held.len() % parties.len()], 1) {
                Ok(more) => held.push(more),
                Err(refusal) => return (held, refusal.whose),
            }
        }
    }

    #[test]
    fn a_session_gets_its_share_and_its_organization_half() {
        let pool = pool(64, 8);
        let (one, whose) = take_all(&pool, &[session(1, 1)]);
        assert_eq!((one.len(), whose), (8, ShareOwner::Session));
        let all: Vec<Party> = (1..100).map(|id| session(id, 1)).collect();
        drop(one);
        let (org, whose) = take_all(&pool, &all);
        assert_eq!((org.len(), whose), (32, ShareOwner::Org));
        drop(org);
        assert_eq!(pool.used(), 0);
        assert!(pool.lock().by.is_empty(), "holders are forgotten when they hold nothing");
    }

    #[test]
    fn a_new_organization_gets_a_share_although_others_hold_theirs() {
        let pool = pool(64, 64);
        let mut greedy = Vec::new();
        for org in 1..=6 {
            let (held, _) = take_all(&pool, &[session(org, org)]);
            assert!(!held.is_empty(), "organization {org}");
            greedy.push(held);
        }
        assert!(pool.take(session(99, 99), 1).is_ok());
    }

    #[test]
    fn a_refusal_takes_nothing_and_the_total_is_never_exceeded() {
        let pool = pool(100, 60);
        let mut held = pool.take(session(1, 1), 40).unwrap();
        assert_eq!(held.grow(21).unwrap_err().whose, ShareOwner::Session);
        assert_eq!(held.grow(15).unwrap_err().whose, ShareOwner::Org);
        assert_eq!(pool.take(session(2, 2), 61).map(|_| ()).unwrap_err().whose, ShareOwner::Everyone);
        assert_eq!((held.amount(), pool.used()), (40, 40));
        held.shrink_to(10);
        assert_eq!((held.amount(), pool.used()), (10, 10));
        held.shrink_to(50);
        assert_eq!(held.amount(), 10);
    }

    #[test]
    fn limits_are_described_for_people() {
        let memory = PoolLimits { name: "memory", unit: "bytes", total: 512 << 20, per_session: 64 << 20 };
        let described = "memory: 512 MiB in all, up to 256 MiB for one organization and 64 MiB for one session, \
             user or API key";
        assert_eq!(memory.to_string(), described);
        let before =
            PoolLimits { name: "memory before login", unit: "bytes", total: 9 << 19, per_session: 0 };
        assert_eq!(before.to_string(), "memory before login: 4.5 MiB in all, up to 2.2 MiB for one address");
    }

    proptest! {
        #[test]
        fn a_pool_holds_exactly_what_was_taken(takes in prop::collection::vec((0_u128..4, 0_u128..3, 0_u64..50, any::<bool>()), 0..60)) {
            let pool = pool(100, 40);
            let mut held = Vec::new();
            for (id, org, amount, give_back) in takes {
                if give_back && !held.is_empty() {
                    held.remove(0);
                }
                if let Ok(more) = pool.take(session(id, org), amount) {
                    held.push(more);
                }
                let sum: u64 = held.iter().map(Held::amount).sum();
                prop_assert_eq!(pool.used(), sum);
                prop_assert!(sum <= 100);
                prop_assert!(pool.lock().by.len() <= 2 * held.len());
            }
        }
    }
}
