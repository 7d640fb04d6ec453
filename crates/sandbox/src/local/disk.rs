//! Decides when to scan a sandbox's files to measure its disk usage. A scan takes about a microsecond per file: with
//! 100,000 files it is too slow to run on every request, and with several hundred thousand, every second.
//!
//! So every second this module computes an upper bound: the result of the last scan plus the growth of the entire
//! file system since *before* that scan. While the bound is within the limit, so is the sandbox, whoever wrote the
//! data. When the bound exceeds the limit, the files are scanned immediately. If others free space within the same
//! second, they hide growth of the sandbox from the bound. That is harmless, since the file system then holds no more
//! than before, and the next regular scan finds it. The same holds for file systems that report late (btrfs) or
//! incompletely, above all for the number of files and for hard links.
//!
//! A sandbox that stays just below its limit and keeps writing makes the bound exceed it every second. Scans still
//! take at most a fifth of one core: the pause that an urgent scan skips is added before the next one. The scans of
//! all sandboxes share a semaphore; see `watch`.

use std::path::Path;
use std::time::Duration;

use crate::tree::{MAX_ENTRIES, Size};

/// The pause after a scan, as a multiple of its duration.
const PAUSE_FACTOR: u32 = 4;
/// The pause while nothing changes: a hundredth of a core.
const QUIET_PAUSE_FACTOR: u32 = 99;
/// Growth of the file system below this, for example by logs of other programs, does not trigger an early scan.
const NEGLIGIBLE_GROWTH: u64 = 1 << 20;
/// File systems that report their usage immediately: ext, XFS and tmpfs.
const PROMPT_FILESYSTEMS: [u64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];

/// How much a file system holds, of all users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FilesystemUsage {
    size: Size,
    prompt: bool,
}

impl FilesystemUsage {
    pub(super) fn of(directory: &Path) -> Option<Self> {
        let found = rustix::fs::statfs(directory).ok()?;
        let block = u64::try_from(found.f_frsize).unwrap_or_default();
        let bytes = found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(block);
        // File systems without inode numbers report 0 for both, so growth is never seen.
        let names = found.f_files.saturating_sub(found.f_ffree);
        let prompt = u64::try_from(found.f_type).is_ok_and(|kind| PROMPT_FILESYSTEMS.contains(&kind));
        Some(Self { size: Size { bytes, names }, prompt })
    }
}

/// The result of a scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskScan {
    /// The usage of the file system before the scan.
    pub(super) used: Option<FilesystemUsage>,
    pub(super) size: Size,
    /// The scan could not see everything, so the next one must not wait.
    pub(super) incomplete: bool,
}

/// The last scan, the growth since then, and the pause that is due.
#[derive(Default)]
pub(super) struct ScanSchedule {
    scan: Option<DiskScan>,
    /// The usage of the file system at the last check.
    used: Option<FilesystemUsage>,
    grown: Size,
    /// When the last scan ended, how long it took, and the pause that was skipped before it.
    ended: Duration,
    took: Duration,
    skipped_pause: Duration,
}

impl ScanSchedule {
    /// Whether a scan is due, given the current usage of the file system.
    pub(super) fn is_due(&mut self, used: Option<FilesystemUsage>, most: u64, now: Duration) -> bool {
        if let (Some(before), Some(used)) = (self.used, used) {
            // Only growth counts: space freed by one user does not offset another's.
            let bytes = used.size.bytes.saturating_sub(before.size.bytes);
            let names = used.size.names.saturating_sub(before.size.names);
            self.grown.bytes = self.grown.bytes.saturating_add(bytes);
            self.grown.names = self.grown.names.saturating_add(names);
        }
        self.used = used;
        let Some(scan) = self.scan else { return true };
        let rested = now.saturating_sub(self.ended);
        let reports_growth = used.is_some_and(|used| used.prompt) && scan.used.is_some();
        let quiet = reports_growth && !scan.incomplete && self.grown.bytes < NEGLIGIBLE_GROWTH;
        let over = scan.size.bytes.saturating_add(self.grown.bytes) > most
            || scan.size.names.saturating_add(self.grown.names) > MAX_ENTRIES;
        rested >= self.took * if quiet { QUIET_PAUSE_FACTOR } else { PAUSE_FACTOR }
            || (over && rested >= self.skipped_pause)
    }

    /// Records a scan. A scan without a result only updates the pause.
    pub(super) fn record_scan(&mut self, scan: Option<DiskScan>, began: Duration, ended: Duration) {
        let rested = began.saturating_sub(self.ended);
        self.skipped_pause = (self.skipped_pause + self.took * PAUSE_FACTOR).saturating_sub(rested);
        (self.ended, self.took) = (ended, ended.saturating_sub(began));
        if let Some(scan) = scan {
            (self.scan, self.used, self.grown) = (Some(scan), scan.used, Size::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LIMIT_BYTES: u64 = 100 * MIB;

    fn holds(mib: u64, names: u64) -> FilesystemUsage {
        FilesystemUsage { size: Size { bytes: mib * MIB, names }, prompt: true }
    }

    fn at(tenths: u64) -> Duration {
        Duration::from_millis(tenths * 100)
    }

    /// A schedule whose last scan took 0.2 seconds and just ended, with 1,000 MiB in its file system.
    fn after_scan_of(mib: u64) -> ScanSchedule {
        let mut disk = ScanSchedule::default();
        assert!(disk.is_due(Some(holds(1000, 5000)), LIMIT_BYTES, at(0)), "the first scan must be due");
        let size = Size { bytes: mib * MIB, names: 10 };
        disk.record_scan(
            Some(DiskScan { used: Some(holds(1000, 5000)), size, incomplete: false }),
            at(0),
            at(2),
        );
        disk
    }

    #[test]
    fn scans_are_rare_without_growth_and_frequent_with_growth() {
        let mut disk = after_scan_of(10);
        assert!(!disk.is_due(Some(holds(1000, 5000)), LIMIT_BYTES, at(190)));
        assert!(
            disk.is_due(Some(holds(1000, 5000)), LIMIT_BYTES, at(200)),
            "a scan must be due after the long pause"
        );
        let mut disk = after_scan_of(10);
        assert!(!disk.is_due(Some(holds(1002, 5000)), LIMIT_BYTES, at(9)));
        assert!(disk.is_due(Some(holds(1002, 5000)), LIMIT_BYTES, at(10)));
        // A file system that reports late, or not at all, gives no reason to wait.
        for used in [Some(FilesystemUsage { prompt: false, ..holds(1000, 5000) }), None] {
            assert!(after_scan_of(10).is_due(used, LIMIT_BYTES, at(10)));
        }
        let mut disk = after_scan_of(10);
        let size = Size { bytes: 10 * MIB, names: 10 };
        disk.record_scan(
            Some(DiskScan { used: Some(holds(1000, 5000)), size, incomplete: true }),
            at(200),
            at(202),
        );
        assert!(
            disk.is_due(Some(holds(1000, 5000)), LIMIT_BYTES, at(210)),
            "an incomplete scan must be repeated soon"
        );
    }

    #[test]
    fn possible_overuse_is_scanned_immediately() {
        let mut disk = after_scan_of(80);
        assert!(
            !disk.is_due(Some(holds(1020, 5000)), LIMIT_BYTES, at(3)),
            "the bound is still within the limit"
        );
        assert!(disk.is_due(Some(holds(1021, 5000)), LIMIT_BYTES, at(4)));
        // Space freed by others does not hide the growth.
        let mut disk = after_scan_of(80);
        assert!(!disk.is_due(Some(holds(1015, 5000)), LIMIT_BYTES, at(3)));
        assert!(!disk.is_due(Some(holds(900, 5000)), LIMIT_BYTES, at(4)));
        assert!(disk.is_due(Some(holds(906, 5000)), LIMIT_BYTES, at(5)));
        assert!(
            after_scan_of(1).is_due(Some(holds(1000, 5000 + MAX_ENTRIES)), LIMIT_BYTES, at(3)),
            "too many files"
        );
    }

    #[test]
    fn staying_just_below_the_limit_costs_at_most_a_fifth_of_a_core() {
        let mut disk = after_scan_of(100);
        let (mut now, mut looking) = (2, 2);
        for mib in 1001..3000 {
            now += 1;
            let used = Some(holds(mib, 5000));
            if disk.is_due(used, LIMIT_BYTES, at(now)) {
                let size = Size { bytes: 100 * MIB, names: 10 };
                disk.record_scan(Some(DiskScan { used, size, incomplete: false }), at(now), at(now + 2));
                (now, looking) = (now + 2, looking + 2);
            }
        }
        assert!(looking * 5 <= now + 10 && looking * 6 > now, "{looking} of {now}");
    }

    #[test]
    fn filesystem_reports_its_usage() {
        let dir = tempfile::tempdir().unwrap();
        let used = FilesystemUsage::of(dir.path()).unwrap();
        assert!(used.size.bytes > 0, "{used:?}");
        assert_eq!(FilesystemUsage::of(&dir.path().join("nowhere")), None);
    }
}
