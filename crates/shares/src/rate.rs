//! Limits on requests over time: a token bucket per holder.
//!
//! A bucket is stored as one number, the time at which it is full again (the generic cell rate algorithm). A full
//! bucket is the same as none, so only recent callers take memory.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use clock::Clock;

use parking_lot::{Mutex, MutexGuard};

use super::{Holder, OverShare, Party, keep_later_half};

/// The maximum number of buckets. Beyond it the fullest ones are evicted first, because that forgives their holders the
/// least.
const MAX_KEYS: usize = 10_000;

/// The quota of one holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub per_minute: u32,
    /// The maximum amount at once, after a quiet time.
    pub burst: u32,
}

/// The quotas of all kinds of holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimits {
    pub name: &'static str,
    /// The quota of one session, of one user, and of one API key.
    pub session: Quota,
    pub org: Quota,
    pub address: Quota,
}

/// A resource that can be requested at a limited rate.
pub struct Rate {
    limits: RateLimits,
    clock: Clock,
    /// The time at which each bucket is full again.
    full_at: Mutex<HashMap<Holder, Duration>>,
}

impl fmt::Display for RateLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, session, org, .. } = self;
        write!(
            f,
            "{name} a minute: {} per session, user or API key, {} per organization",
            session.per_minute, org.per_minute
        )?;
        write!(f, " (at once {} and {})", session.burst, org.burst)
    }
}

impl Quota {
    fn time_for(self, amount: u32) -> Duration {
        Duration::from_mins(1) * amount / self.per_minute.max(1)
    }
}

impl Rate {
    pub fn new(limits: RateLimits, clock: Clock) -> Self {
        Self { limits, clock, full_at: Mutex::default() }
    }

    /// Takes `amount` from all buckets of a caller, or from none.
    pub fn take(&self, party: Party, amount: u32) -> Result<(), OverShare> {
        let now = self.clock.elapsed();
        let mut full_at = self.lock();
        let after = |holder: Holder, full_at: &HashMap<Holder, Duration>| {
            let filled = full_at.get(&holder).copied().unwrap_or_default().max(now);
            filled + self.quota(holder).time_for(amount)
        };
        for holder in party.holders() {
            let quota = self.quota(holder);
            let empty_at = now + quota.time_for(quota.burst);
            let over = after(holder, &full_at).saturating_sub(empty_at);
            if over > Duration::ZERO {
                drop(full_at);
                return Err(OverShare::new(self.limits.name, holder.into(), over));
            }
        }
        for holder in party.holders() {
            let filled = after(holder, &full_at);
            full_at.insert(holder, filled);
        }
        if full_at.len() > MAX_KEYS {
            forget(&mut full_at, now);
        }
        Ok(())
    }

    pub fn limits(&self) -> RateLimits {
        self.limits
    }

    fn quota(&self, holder: Holder) -> Quota {
        match holder {
            Holder::Session(_) | Holder::User(_) | Holder::Key(_) => self.limits.session,
            Holder::Org(_) | Holder::Services => self.limits.org,
            Holder::Address(_) => self.limits.address,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Holder, Duration>> {
        self.full_at.lock()
    }
}

/// Evicts full buckets, and the fuller half if too many are still in use.
fn forget(full_at: &mut HashMap<Holder, Duration>, now: Duration) {
    full_at.retain(|_, full_at| *full_at > now);
    if full_at.len() > MAX_KEYS {
        keep_later_half(full_at, |full_at| *full_at);
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use proto::{OrgId, SessionId};
    use uuid::Uuid;

    use super::super::ShareOwner;
    use super::*;

    fn session(session: u128, org: u128) -> Party {
        Party::session(SessionId::from(Uuid::from_u128(session)), OrgId::from(Uuid::from_u128(org)))
    }

    fn rate() -> (Rate, Clock) {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let (session, org) = (Quota { per_minute: 60, burst: 5 }, Quota { per_minute: 120, burst: 8 });
        (Rate::new(RateLimits { name: "calls", session, org, address: session }, clock.clone()), clock)
    }

    #[test]
    fn a_burst_passes_and_then_one_at_a_time() {
        let (rate, clock) = rate();
        for _ in 0..5 {
            assert!(rate.take(session(1, 1), 1).is_ok());
        }
        let refusal = rate.take(session(1, 1), 1).unwrap_err();
        assert_eq!((refusal.whose, refusal.retry_after), (ShareOwner::Session, Duration::from_secs(1)));
        clock.advance(Duration::from_secs(1));
        assert!(rate.take(session(1, 1), 1).is_ok());
        assert!(rate.take(session(1, 1), 1).is_err());
        clock.advance(Duration::from_hours(1));
        assert!(rate.take(session(1, 1), 6).is_err(), "no more than the burst, however long it was quiet");
        assert!(rate.take(session(1, 1), 5).is_ok());
    }

    #[test]
    fn sessions_share_what_their_organization_may_and_another_is_not_touched() {
        let (rate, _) = rate();
        assert!(rate.take(session(1, 1), 5).is_ok());
        assert_eq!(rate.take(session(2, 1), 4).unwrap_err().whose, ShareOwner::Org);
        assert!(rate.take(session(2, 1), 3).is_ok(), "a refusal took nothing");
        assert!(rate.take(session(3, 2), 5).is_ok());
    }

    #[test]
    fn the_number_of_buckets_is_bounded() {
        let (rate, clock) = rate();
        for id in 0..u128::try_from(MAX_KEYS).unwrap() * 2 {
            assert!(rate.take(session(id, id), 5).is_ok());
            assert!(rate.lock().len() <= MAX_KEYS + 2);
        }
        clock.advance(Duration::from_hours(1));
        forget(&mut rate.lock(), clock.elapsed());
        assert!(rate.lock().is_empty(), "full buckets are forgotten");
    }
}
