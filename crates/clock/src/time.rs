//! The current time: the system clock, or a clock that a test advances manually.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, SubsecRound, Utc};

/// A source of time. Cheap to clone; clones of a manual clock share its time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System { started: Instant },
    Manual { start: i64, now: Arc<AtomicI64> },
}

impl Clock {
    /// The system clock.
    #[expect(clippy::disallowed_methods, reason = "this is the only place that reads the system clock")]
    pub fn system() -> Self {
        Self(Source::System { started: Instant::now() })
    }

    /// A clock that stands still until [`Clock::advance`] is called.
    pub fn manual(start: DateTime<Utc>) -> Self {
        let start = start.timestamp_micros();
        Self(Source::Manual { start, now: Arc::new(AtomicI64::new(start)) })
    }

    /// Wall-clock time, truncated to microseconds: the precision of both databases, so that a stored time
    /// equals the one that is read back.
    #[expect(clippy::disallowed_methods, reason = "this is the only place that reads the system clock")]
    pub fn now(&self) -> DateTime<Utc> {
        match &self.0 {
            Source::System { .. } => Utc::now().trunc_subsecs(6),
            Source::Manual { now, .. } => DateTime::from_timestamp_micros(now.load(Ordering::SeqCst))
                .unwrap_or(DateTime::<Utc>::MIN_UTC),
        }
    }

    /// Monotonic time since this clock was created; unaffected by changes of the wall clock.
    pub fn elapsed(&self) -> Duration {
        match &self.0 {
            Source::System { started } => started.elapsed(),
            Source::Manual { start, now } => {
                Duration::from_micros(now.load(Ordering::SeqCst).saturating_sub(*start).unsigned_abs())
            }
        }
    }

    /// Advances a manual clock; has no effect on the system clock.
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
    fn a_manual_clock_shares_its_time_with_its_clones() {
        let start = DateTime::from_timestamp_micros(1_700_000_000_000_000).unwrap();
        let clock = Clock::manual(start);
        let other = clock.clone();
        assert_eq!(clock.now(), start);
        other.advance(Duration::from_secs(61));
        assert_eq!((clock.now() - start).num_seconds(), 61);
        assert_eq!(clock.elapsed(), Duration::from_secs(61));
    }

    #[test]
    fn wall_clock_time_has_microsecond_precision() {
        assert_eq!(Clock::system().now().timestamp_subsec_nanos() % 1_000, 0);
    }
}
