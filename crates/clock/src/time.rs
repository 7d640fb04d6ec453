//! What time it is: the machine's, or one that a test moves by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, SubsecRound, Utc};

/// A source of time; cheap to clone, all clones of a manual clock move together.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System { started: Instant },
    Manual { start: i64, now: Arc<AtomicI64> },
}

impl Clock {
    /// The machine's clock.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the machine's clock")]
    pub fn system() -> Self {
        Self(Source::System { started: Instant::now() })
    }

    /// A clock that stands still until [`Clock::advance`] moves it.
    pub fn manual(start: DateTime<Utc>) -> Self {
        let start = start.timestamp_micros();
        Self(Source::Manual { start, now: Arc::new(AtomicI64::new(start)) })
    }

    /// Wall time, cut to microseconds: the precision that both databases keep, so that what was written
    /// equals what is read back.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the machine's clock")]
    pub fn now(&self) -> DateTime<Utc> {
        match &self.0 {
            Source::System { .. } => Utc::now().trunc_subsecs(6),
            Source::Manual { now, .. } => DateTime::from_timestamp_micros(now.load(Ordering::SeqCst))
                .unwrap_or(DateTime::<Utc>::MIN_UTC),
        }
    }

    /// Time since this clock was made; never goes back, whatever is done to the wall clock.
    pub fn elapsed(&self) -> Duration {
        match &self.0 {
            Source::System { started } => started.elapsed(),
            Source::Manual { start, now } => {
                Duration::from_micros(now.load(Ordering::SeqCst).saturating_sub(*start).unsigned_abs())
            }
        }
    }

    /// Moves a manual clock forward; the machine's clock cannot be moved.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual { now, .. } = &self.0 {
            now.fetch_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_by_hand_and_with_its_clones() {
        let start = DateTime::from_timestamp_micros(1_700_000_000_000_000).unwrap();
        let clock = Clock::manual(start);
        let other = clock.clone();
        assert_eq!(clock.now(), start);
        other.advance(Duration::from_secs(61));
        assert_eq!((clock.now() - start).num_seconds(), 61);
        assert_eq!(clock.elapsed(), Duration::from_secs(61));
    }

    #[test]
    fn wall_time_has_no_more_than_microseconds() {
        assert_eq!(Clock::system().now().timestamp_subsec_nanos() % 1_000, 0);
    }
}
