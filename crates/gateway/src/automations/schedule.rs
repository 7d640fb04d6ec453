//! Cron lines with a time zone.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use store::CronFiring;

/// Missed firings are counted up to this number.
const MAX_MISSED: i64 = 1000;

/// The schedule of an automation: a cron line and a time zone.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    cron: Cron,
    zone: Tz,
}

/// Why a schedule is refused. Each names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScheduleError {
    #[error("cron.timeZone must be a name of the IANA database, such as Europe/Berlin")]
    TimeZone,
    #[error(
        "cron.schedule must have five fields: minute, hour, day of the month, month, day of the week ({0})"
    )]
    Syntax(String),
    #[error("cron.schedule never fires")]
    NeverFires,
}

impl Schedule {
    pub(crate) fn parse(schedule: &str, time_zone: &str) -> Result<Self, ScheduleError> {
        let zone = time_zone.parse().map_err(|_| ScheduleError::TimeZone)?;
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let cron = parser.parse(schedule).map_err(|error| ScheduleError::Syntax(error.to_string()))?;
        Ok(Self { cron, zone })
    }

    /// The first firing after this time.
    pub(crate) fn next_after(&self, after: DateTime<Utc>) -> Result<DateTime<Utc>, ScheduleError> {
        let local = after.with_timezone(&self.zone);
        let next = self.cron.find_next_occurrence(&local, false).map_err(|_| ScheduleError::NeverFires)?;
        Ok(next.to_utc())
    }

    /// The firing that was due, with the number of later ones that were missed, and the first one in the future.
    pub(crate) fn firing(&self, due: DateTime<Utc>, now: DateTime<Utc>) -> CronFiring {
        let (mut next, mut missed) = (self.next_after(due).ok(), 0);
        while let Some(at) = next.filter(|at| *at <= now) {
            missed += 1;
            next = self.next_after(if missed < MAX_MISSED { at } else { now }).ok();
        }
        CronFiring { due, next, missed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    }

    #[test]
    fn a_line_fires_in_its_own_time_zone() {
        let berlin = Schedule::parse("30 9 * * MON-FRI", "Europe/Berlin").unwrap();
        // In winter, in summer, and over a weekend.
        assert_eq!(berlin.next_after(at("2026-01-07T09:00:00Z")), Ok(at("2026-01-08T08:30:00Z")));
        assert_eq!(berlin.next_after(at("2026-07-08T07:00:00Z")), Ok(at("2026-07-08T07:30:00Z")));
        assert_eq!(berlin.next_after(at("2026-07-10T07:30:00Z")), Ok(at("2026-07-13T07:30:00Z")));
        let utc = Schedule::parse("*/15 * * * *", "UTC").unwrap();
        assert_eq!(utc.next_after(at("2026-01-07T09:15:00Z")), Ok(at("2026-01-07T09:30:00Z")));
    }

    #[test]
    fn the_hour_that_summer_time_repeats_or_skips_neither_stops_nor_doubles_a_daily_line() {
        let daily = Schedule::parse("30 2 * * *", "Europe/Berlin").unwrap();
        for (start, days) in [("2026-03-27T12:00:00Z", 4), ("2026-10-23T12:00:00Z", 4)] {
            let (mut now, end) = (at(start), at(start) + chrono::TimeDelta::days(days));
            let mut fired = Vec::new();
            while let Some(next) = daily.next_after(now).ok().filter(|next| *next < end) {
                fired.push(next);
                now = next;
            }
            assert!((3..=4).contains(&fired.len()), "{fired:?}");
            assert!(fired.windows(2).all(|two| two[1] - two[0] > chrono::TimeDelta::hours(20)), "{fired:?}");
        }
    }

    #[test]
    fn bad_lines_are_refused_with_the_name_of_the_field() {
        for line in ["", "* * * *", "* * * * * *", "61 * * * *", "* 25 * * *", "nonsense"] {
            let error = Schedule::parse(line, "UTC").unwrap_err();
            assert!(error.to_string().starts_with("cron.schedule must"), "{line}: {error}");
        }
        let error = Schedule::parse("* * * * *", "Mars/Olympus").unwrap_err();
        assert_eq!(error, ScheduleError::TimeZone);
        for never in ["0 0 30 2 *", "0 0 31 4,6,9,11 *"] {
            let line = Schedule::parse(never, "UTC").unwrap();
            assert_eq!(
                line.next_after(at("2026-01-01T00:00:00Z")),
                Err(ScheduleError::NeverFires),
                "{never}"
            );
        }
    }

    #[test]
    fn missed_firings_are_one_firing_with_a_count() {
        let hourly = Schedule::parse("0 * * * *", "UTC").unwrap();
        let (due, now) = (at("2026-01-07T09:00:00Z"), at("2026-01-07T12:30:00Z"));
        let next = Some(at("2026-01-07T13:00:00Z"));
        assert_eq!(hourly.firing(due, now), CronFiring { due, next, missed: 3 });
        assert_eq!(hourly.firing(due, due).missed, 0);
        let minutely = Schedule::parse("* * * * *", "UTC").unwrap();
        let years = at("2028-01-07T12:30:30Z");
        assert_eq!(
            minutely.firing(due, years),
            CronFiring { due, next: Some(at("2028-01-07T12:31:00Z")), missed: MAX_MISSED }
        );
    }
}
