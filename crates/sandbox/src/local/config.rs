//! The operator's configuration of local sandboxes, and how well the host enforces the limits.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clock::Rng;

#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// The provider's data directory; nobody else writes there.
    pub root: PathBuf,
    /// A program whose `main` starts with [`super::hidden_main`], usually the gateway itself.
    pub helper: PathBuf,
    pub bwrap: PathBuf,
    /// The host user ids for sandboxes, used when the gateway is root.
    pub uids: RangeInclusive<u32>,
    /// Use control groups if the host offers them.
    pub cgroups: bool,
    /// The timeout for the start of PID 1.
    pub start_timeout: Duration,
    pub rng: Rng,
}

impl LocalConfig {
    pub fn new(root: PathBuf, helper: PathBuf) -> Self {
        Self {
            root,
            helper,
            bwrap: PathBuf::from("/usr/bin/bwrap"),
            uids: 200_000..=265_535,
            cgroups: true,
            start_timeout: Duration::from_secs(20),
            rng: Rng::system(),
        }
    }
}

/// How well a limit is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// Enforced by the kernel, immediately.
    Hard,
    /// Checked by the gateway every second.
    Soft,
    /// The limit is not enforced.
    None,
}

/// The limits that this host enforces, for `doctor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitsReport {
    pub memory: Enforcement,
    pub pids: Enforcement,
    pub cpu: Enforcement,
    pub disk: Enforcement,
    pub tmp: Enforcement,
    pub files: Enforcement,
}
