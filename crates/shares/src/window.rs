//! A limit on the requests of one caller in any minute: a sliding window.
//!
//! A token bucket ([`super::Rate`]) with a full burst lets almost twice its quota through in the first minute. Where a
//! number per minute is a promise, the times of the requests are kept instead, so the quota must be small.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use clock::Clock;
use parking_lot::Mutex;

use super::{Holder, OverShare, Party, keep_later_half};

const WINDOW_LENGTH: Duration = Duration::from_mins(1);
/// The maximum number of callers. Beyond it, those that have been quiet the longest are forgotten first.
const MAX_KEYS: usize = 10_000;

/// Limits how many requests each session, user or API key may make in any minute.
pub struct Window {
    name: &'static str,
    per_minute: usize,
    clock: Clock,
    /// The times of the requests that were let through in the last minute, oldest first.
    passed: Mutex<HashMap<Holder, VecDeque<Duration>>>,
}

impl Window {
    pub fn new(name: &'static str, per_minute: usize, clock: Clock) -> Self {
        Self { name, per_minute, clock, passed: Mutex::default() }
    }

    /// Lets one request of a caller through, unless there were too many in the last minute, or another share refuses it,
    /// which `take_other` takes. A refused request takes nothing.
    pub fn take_with(
        &self,
        party: Party,
        take_other: impl FnOnce() -> Result<(), OverShare>,
    ) -> Result<(), OverShare> {
        let now = self.clock.elapsed();
        let mut passed = self.passed.lock();
        if let Some(times) = passed.get_mut(&party.first) {
            while times.front().is_some_and(|at| now.saturating_sub(*at) >= WINDOW_LENGTH) {
                times.pop_front();
            }
            if let Some(oldest) = times.front().filter(|_| times.len() >= self.per_minute) {
                let retry_after = (*oldest + WINDOW_LENGTH).saturating_sub(now);
                return Err(OverShare::new(self.name, party.first.into(), retry_after));
            }
        }
        take_other()?;
        passed.entry(party.first).or_default().push_back(now);
        if passed.len() > MAX_KEYS {
            forget(&mut passed, now);
        }
        Ok(())
    }
}

/// Forgets callers without a request in the last minute, and the half that has been quiet the longest if too many are left.
fn forget(passed: &mut HashMap<Holder, VecDeque<Duration>>, now: Duration) {
    let last = |times: &VecDeque<Duration>| times.back().copied().unwrap_or_default();
    passed.retain(|_, times| now.saturating_sub(last(times)) < WINDOW_LENGTH);
    if passed.len() > MAX_KEYS {
        keep_later_half(passed, last);
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use proto::{OrgId, SessionId};
    use uuid::Uuid;

    use super::super::ShareOwner;
    use super::*;

    fn session(session: u128) -> Party {
        Party::session(SessionId::from(Uuid::from_u128(session)), OrgId::from(Uuid::from_u128(1)))
    }

    fn take(window: &Window, party: Party) -> Result<(), OverShare> {
        window.take_with(party, || Ok(()))
    }

    fn window(per_minute: usize) -> (Window, Clock) {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        (Window::new("calls", per_minute, clock.clone()), clock)
    }

    #[test]
    fn no_minute_has_more_requests_than_the_quota() {
        let (window, clock) = window(3);
        let mut passed = Vec::new();
        for second in 0..300_u64 {
            if take(&window, session(1)).is_ok() {
                passed.push(second);
            }
            clock.advance(Duration::from_secs(1));
        }
        assert_eq!(passed, [0, 1, 2, 60, 61, 62, 120, 121, 122, 180, 181, 182, 240, 241, 242]);
    }

    #[test]
    fn a_refusal_says_when_the_oldest_request_leaves_the_window() {
        let (window, clock) = window(2);
        assert!(take(&window, session(1)).is_ok());
        clock.advance(Duration::from_secs(20));
        assert!(take(&window, session(1)).is_ok());
        clock.advance(Duration::from_secs(20));
        let refusal = take(&window, session(1)).unwrap_err();
        assert_eq!((refusal.whose, refusal.retry_after), (ShareOwner::Session, Duration::from_secs(20)));
        assert!(take(&window, session(2)).is_ok(), "another session");
        clock.advance(Duration::from_secs(20));
        assert!(take(&window, session(1)).is_ok());
        assert!(take(&window, session(1)).is_err());
    }

    #[test]
    fn a_request_that_another_share_refuses_takes_nothing() {
        let (window, _) = window(2);
        let refusal = OverShare::new("others", session(1).first.into(), Duration::from_secs(7));
        for _ in 0..3 {
            assert_eq!(window.take_with(session(1), || Err(refusal.clone())), Err(refusal.clone()));
        }
        assert!(take(&window, session(1)).is_ok());
        assert!(take(&window, session(1)).is_ok());
        let ended = window.take_with(session(1), || unreachable!("the other share is not touched"));
        assert_eq!(ended.unwrap_err().what, "calls");
    }

    #[test]
    fn callers_that_were_quiet_the_longest_are_forgotten_first() {
        let (window, clock) = window(1);
        let (quiet, recent) = (u128::try_from(MAX_KEYS).unwrap() - 20, 21);
        for id in 0..quiet {
            assert!(take(&window, session(id)).is_ok());
        }
        clock.advance(Duration::from_secs(1));
        for id in quiet..quiet + recent {
            assert!(take(&window, session(id)).is_ok());
        }
        assert_eq!(window.passed.lock().len(), (MAX_KEYS + 1).div_ceil(2));
        for id in quiet..quiet + recent {
            assert!(take(&window, session(id)).is_err(), "{id} has used its quota");
        }
    }

    #[test]
    fn the_number_of_callers_is_bounded() {
        let (window, clock) = window(1);
        for id in 0..u128::try_from(MAX_KEYS).unwrap() * 2 {
            assert!(take(&window, session(id)).is_ok());
            assert!(window.passed.lock().len() <= MAX_KEYS + 1);
        }
        clock.advance(WINDOW_LENGTH);
        forget(&mut window.passed.lock(), clock.elapsed());
        assert!(window.passed.lock().is_empty(), "callers that are quiet for a minute are forgotten");
    }
}
