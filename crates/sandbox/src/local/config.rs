//! What the operator decides about local sandboxes, and what the host gives for it.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clock::Rng;

#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// The provider's folder; nobody else writes there.
    pub root: PathBuf,
    /// A program that begins with [`super::hidden_main`], usually the gateway's own.
    pub helper: PathBuf,
    pub bwrap: PathBuf,
    /// Host user ids for sandboxes, used when the gateway is root.
    pub uids: RangeInclusive<u32>,
    /// Use control groups where the host gives them.
    pub cgroups: bool,
    /// How long the start of PID 1 may take.
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

/// How well a limit is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// By the kernel, at once.
    Hard,
    /// By the gateway's look every second.
    Soft,
    /// Not at all.
    None,
}

/// What this host gives, for `doctor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitsReport {
    pub memory: Strength,
    pub pids: Strength,
    pub cpu: Strength,
    pub disk: Strength,
    pub tmp: Strength,
    pub files: Strength,
}
