//! When a sandbox's files have to be looked at, which takes about a microsecond for each: at 100,000 names not every time
//! that somebody asks, and with hundreds of thousands not every second.
//!
//! So every second a bound is made of what the last look found and of what the whole file system has come to hold since
//! *before* that look began. While the bound is within the limit, so are the files, whatever was written and by whom. When it
//! is not, the files are looked at at once. What frees of others hide within one second was taken from nobody, since the file
//! system then holds no more than before; it is found by the next look, which comes however low the bound is, at the latest
//! after the rest. So is what file systems tell late (btrfs) or not at all, names above all: where they tell no number of
//! files, and links, which have none.
//!
//! Who sits just below its limit and keeps writing makes the bound pass it every second. Looks still take a fifth of one core
//! at most: the rest that is left out before an urgent look is made up before the next one. Looks of all sandboxes
//! together take turns; see `watch`.

use std::path::Path;
use std::time::Duration;

use crate::tree::{MAX_ENTRIES, Size};

/// How often as long as a look takes nothing is looked at after it.
const REST: u32 = 4;
/// The same while nothing happens: a hundredth of a core.
const QUIET_REST: u32 = 99;
/// What a file system may come to hold, by somebody's logs for instance, before that is a reason to look sooner.
const NOTHING: u64 = 1 << 20;
/// File systems that tell at once what they hold: ext, XFS and those in memory.
const PROMPT: [u64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];

/// What a file system holds, by everybody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    size: Size,
    prompt: bool,
}

impl Used {
    pub(super) fn of(folder: &Path) -> Option<Self> {
        let found = rustix::fs::statfs(folder).ok()?;
        let block = u64::try_from(found.f_frsize).unwrap_or_default();
        let bytes = found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(block);
        // Where files are not numbered, both are 0, and no growth is ever seen.
        let names = found.f_files.saturating_sub(found.f_ffree);
        let prompt = u64::try_from(found.f_type).is_ok_and(|kind| PROMPT.contains(&kind));
        Some(Self { size: Size { bytes, names }, prompt })
    }
}

/// What a look found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// From before it began.
    pub(super) used: Option<Used>,
    pub(super) size: Size,
    /// Something is hidden from it, so the next one must not wait.
    pub(super) hidden: bool,
}

/// What was seen last, what has come since, and how much rest is due.
#[derive(Default)]
pub(super) struct Disk {
    seen: Option<Seen>,
    /// What the file system held a moment ago.
    used: Option<Used>,
    grown: Size,
    /// When the last look ended, how long it took, and the rest that was left out before it.
    ended: Duration,
    took: Duration,
    owed: Duration,
}

impl Disk {
    /// Whether it is time to look, given what the file system holds at this moment.
    pub(super) fn is_due(&mut self, used: Option<Used>, most: u64, now: Duration) -> bool {
        if let (Some(before), Some(used)) = (self.used, used) {
            // Only what is more counts: who frees makes no room for somebody else.
            let bytes = used.size.bytes.saturating_sub(before.size.bytes);
            let names = used.size.names.saturating_sub(before.size.names);
            self.grown.bytes = self.grown.bytes.saturating_add(bytes);
            self.grown.names = self.grown.names.saturating_add(names);
        }
        self.used = used;
        let Some(seen) = self.seen else { return true };
        let rested = now.saturating_sub(self.ended);
        let told = used.is_some_and(|used| used.prompt) && seen.used.is_some();
        let quiet = told && !seen.hidden && self.grown.bytes < NOTHING;
        let over = seen.size.bytes.saturating_add(self.grown.bytes) > most
            || seen.size.names.saturating_add(self.grown.names) > MAX_ENTRIES;
        rested >= self.took * if quiet { QUIET_REST } else { REST } || (over && rested >= self.owed)
    }

    /// Remembers a look. One that saw nothing changes only what rest is due.
    pub(super) fn looked(&mut self, seen: Option<Seen>, began: Duration, ended: Duration) {
        let rested = began.saturating_sub(self.ended);
        self.owed = (self.owed + self.took * REST).saturating_sub(rested);
        (self.ended, self.took) = (ended, ended.saturating_sub(began));
        if let Some(seen) = seen {
            (self.seen, self.used, self.grown) = (Some(seen), seen.used, Size::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MOST: u64 = 100 * MIB;

    fn holds(mib: u64, names: u64) -> Used {
        Used { size: Size { bytes: mib * MIB, names }, prompt: true }
    }

    fn at(tenths: u64) -> Duration {
        Duration::from_millis(tenths * 100)
    }

    /// One that has been looked at until now, which took two tenths of a second, with 1,000 MiB in its file system.
    fn looked_at(mib: u64) -> Disk {
        let mut disk = Disk::default();
        assert!(disk.is_due(Some(holds(1000, 5000)), MOST, at(0)), "before anything is known");
        let size = Size { bytes: mib * MIB, names: 10 };
        disk.looked(Some(Seen { used: Some(holds(1000, 5000)), size, hidden: false }), at(0), at(2));
        disk
    }

    #[test]
    fn while_nothing_grows_it_is_looked_at_seldom_and_otherwise_after_a_short_rest() {
        let mut disk = looked_at(10);
        assert!(!disk.is_due(Some(holds(1000, 5000)), MOST, at(190)));
        assert!(disk.is_due(Some(holds(1000, 5000)), MOST, at(200)), "but it is");
        let mut disk = looked_at(10);
        assert!(!disk.is_due(Some(holds(1002, 5000)), MOST, at(9)));
        assert!(disk.is_due(Some(holds(1002, 5000)), MOST, at(10)));
        // One that tells late has nothing to say, and neither has one that cannot be asked.
        for used in [Some(Used { prompt: false, ..holds(1000, 5000) }), None] {
            assert!(looked_at(10).is_due(used, MOST, at(10)));
        }
        let mut disk = looked_at(10);
        let size = Size { bytes: 10 * MIB, names: 10 };
        disk.looked(Some(Seen { used: Some(holds(1000, 5000)), size, hidden: true }), at(200), at(202));
        assert!(disk.is_due(Some(holds(1000, 5000)), MOST, at(210)), "something was hidden");
    }

    #[test]
    fn what_could_be_over_is_looked_at_at_once() {
        let mut disk = looked_at(80);
        assert!(!disk.is_due(Some(holds(1020, 5000)), MOST, at(3)), "a bound that holds");
        assert!(disk.is_due(Some(holds(1021, 5000)), MOST, at(4)));
        // What others free does not hide it.
        let mut disk = looked_at(80);
        assert!(!disk.is_due(Some(holds(1015, 5000)), MOST, at(3)));
        assert!(!disk.is_due(Some(holds(900, 5000)), MOST, at(4)));
        assert!(disk.is_due(Some(holds(906, 5000)), MOST, at(5)));
        assert!(looked_at(1).is_due(Some(holds(1000, 5000 + MAX_ENTRIES)), MOST, at(3)), "names");
    }

    #[test]
    fn one_that_stays_just_below_its_limit_costs_a_fifth_of_a_core_and_no_more() {
        let mut disk = looked_at(100);
        let (mut now, mut looking) = (2, 2);
        for mib in 1001..3000 {
            now += 1;
            let used = Some(holds(mib, 5000));
            if disk.is_due(used, MOST, at(now)) {
                let size = Size { bytes: 100 * MIB, names: 10 };
                disk.looked(Some(Seen { used, size, hidden: false }), at(now), at(now + 2));
                (now, looking) = (now + 2, looking + 2);
            }
        }
        assert!(looking * 5 <= now + 10 && looking * 6 > now, "{looking} of {now}");
    }

    #[test]
    fn a_file_system_says_what_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        let used = Used::of(dir.path()).unwrap();
        assert!(used.size.bytes > 0, "{used:?}");
        assert_eq!(Used::of(&dir.path().join("nowhere")), None);
    }
}
