//! The clocks of a measurement: a monotonic one that all processes of the machine share, and the wall clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Monotonic nanoseconds, comparable between processes of one machine, unlike `Instant`.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec, and CLOCK_MONOTONIC exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub fn secs_since(start_ns: u64) -> f64 {
    now_ns().saturating_sub(start_ns) as f64 / 1e9
}

pub fn ns(secs: f64) -> u64 {
    (secs * 1e9) as u64
}

pub async fn sleep_until(at_ns: u64) {
    let left = at_ns.saturating_sub(now_ns());
    if left > 0 {
        tokio::time::sleep(Duration::from_nanos(left)).await;
    }
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

pub fn unix_secs() -> u64 {
    since_epoch().as_secs()
}

pub fn unix_ms() -> u64 {
    since_epoch().as_millis() as u64
}

/// Formats milliseconds since the Unix epoch as RFC 3339 in UTC (with H. Hinnant's civil-date algorithm).
pub fn iso(ms: u64) -> String {
    let (days, secs) = ((ms / 86_400_000) as i64 + 719_468, ms % 86_400_000 / 1000);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute, second) = (secs / 3600, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::iso;

    #[test]
    fn dates_handle_leap_years_and_year_ends() {
        assert_eq!(iso(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(iso(951_782_400_007), "2000-02-29T00:00:00.007Z");
        assert_eq!(iso(1_735_689_599_999), "2024-12-31T23:59:59.999Z");
    }
}
