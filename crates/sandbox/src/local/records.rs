//! The provider's records on disk, from which it finds each sandbox again after a crash.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cgroup::Group;
use super::identity::Identity;
use crate::error::SandboxError;
use crate::spec::{Limits, SandboxId, SnapshotId};
use crate::tree;

const MAX_RECORD: u64 = 1024 * 1024;
const MAX_LOG_TAIL: u64 = 16 * 1024;
/// The log of PID 1 is truncated above this size; programs inside can write to it without limit.
pub(crate) const MAX_LOG: u64 = 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) version: u32,
    /// `None` without root.
    pub(crate) uid: Option<u32>,
    pub(crate) group: Group,
    /// `None` before PID 1 is known.
    pub(crate) identity: Option<Identity>,
    pub(crate) injected: BTreeSet<u16>,
    pub(crate) limits: Limits,
}

/// Records that a sandbox was stopped because it exceeded a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LimitExceeded {
    /// The resource that was exceeded.
    pub(crate) what: String,
    /// Whether the sandbox was restarted since.
    pub(crate) restarted: bool,
}

impl LimitExceeded {
    pub(crate) const DISK: &str = "disk";

    /// What happened and what to do, for the users of the sandbox.
    pub(crate) fn explain(&self, disk_bytes: u64) -> String {
        let mib = disk_bytes / (1024 * 1024);
        match self.what.as_str() {
            Self::DISK => format!(
                "the sandbox was stopped because its files took more than {mib} MiB. It starts again with a little more space: \
                 remove files now, or ask an operator to raise SANDBOX_DISK_MIB"
            ),
            what => format!(
                "the sandbox was stopped because it exceeded a limit: {what}. Its files are kept, and the next prompt starts it again"
            ),
        }
    }
}

/// The directories below the provider's root.
#[derive(Clone, Debug)]
pub(crate) struct Directories {
    root: PathBuf,
}

impl Directories {
    pub(crate) fn open(root: PathBuf) -> Result<Self, SandboxError> {
        let host = SandboxError::host("create the provider's directory");
        for directory in [root.clone(), root.join("sandboxes"), root.join("snapshots")] {
            private_directory(&directory).map_err(&host)?;
        }
        let directories = Self { root: fs::canonicalize(root).map_err(host)? };
        directories.sweep();
        Ok(directories)
    }

    /// Returns a lock to hold while a snapshot is made. Otherwise another process that opens these directories would
    /// delete the incomplete snapshot as a leftover of a crash.
    pub(crate) fn lock_for_snapshot(&self) -> io::Result<File> {
        let lock = self.snapshots_lock()?;
        lock.lock_shared()?;
        Ok(lock)
    }

    fn snapshots_lock(&self) -> io::Result<File> {
        File::create(self.root.join("snapshots.lock"))
    }

    /// Removes incomplete snapshots left by a crash, unless one is being made.
    fn sweep(&self) {
        let Ok(lock) = self.snapshots_lock() else { return };
        if lock.try_lock().is_err() {
            return;
        }
        let Ok(entries) = fs::read_dir(self.root.join("snapshots")) else { return };
        for entry in entries.flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                let _ = tree::remove(&entry.path());
            }
        }
    }

    pub(crate) fn uids(&self) -> PathBuf {
        self.root.join("uids")
    }

    /// Distinguishes this root from another one on the same host.
    pub(crate) fn mark(&self) -> String {
        let bytes = self.root.as_os_str().as_encoded_bytes();
        let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        format!("proliferate-{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, fnv))
    }

    pub(crate) fn sandbox(&self, id: &SandboxId) -> Directory {
        Directory(self.root.join("sandboxes").join(id.as_str()))
    }

    pub(crate) fn snapshot(&self, id: &SnapshotId) -> PathBuf {
        self.root.join("snapshots").join(id.as_str())
    }

    pub(crate) fn snapshot_draft(&self, id: &SnapshotId) -> PathBuf {
        self.root.join("snapshots").join(format!(".{id}"))
    }

    pub(crate) fn ids(&self) -> Result<Vec<SandboxId>, SandboxError> {
        let host = SandboxError::host("list the sandboxes");
        let mut ids = Vec::new();
        for entry in fs::read_dir(self.root.join("sandboxes")).map_err(&host)? {
            let name = entry.map_err(&host)?.file_name();
            ids.extend(name.to_str().and_then(|name| SandboxId::new(name).ok()));
        }
        ids.sort();
        Ok(ids)
    }
}

fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The directory of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn home(&self) -> PathBuf {
        self.0.join("home")
    }

    /// The home while it is assembled; a rename makes it the home atomically.
    pub(crate) fn home_draft(&self) -> PathBuf {
        self.0.join("home.draft")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// The file that records why the gateway last stopped the sandbox for exceeding a limit.
    fn overuse(&self) -> PathBuf {
        self.0.join("overuse.json")
    }

    pub(crate) fn record_overuse(&self, overuse: &LimitExceeded) -> io::Result<()> {
        let draft = self.0.join("overuse.draft");
        fs::write(&draft, serde_json::to_vec(overuse)?)?;
        fs::rename(draft, self.overuse())
    }

    pub(crate) fn last_overuse(&self) -> Option<LimitExceeded> {
        let mut body = Vec::new();
        File::open(self.overuse()).ok()?.take(MAX_RECORD).read_to_end(&mut body).ok()?;
        serde_json::from_slice(&body).ok()
    }

    pub(crate) fn clear_overuse(&self) {
        let _ = fs::remove_file(self.overuse());
    }

    pub(crate) fn create(&self) -> io::Result<()> {
        private_directory(&self.0)
    }

    pub(crate) fn open_log(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).open(self.log())
    }

    /// The last error line of the launcher or bubblewrap. Lines of programs inside are skipped, because they may
    /// contain anything.
    pub(crate) fn last_error_line(&self) -> Option<String> {
        let mut text = Vec::new();
        File::open(self.log()).ok()?.take(MAX_LOG_TAIL).read_to_end(&mut text).ok()?;
        let text = String::from_utf8_lossy(&text);
        let ours = |line: &&str| line.starts_with("bwrap: ") || line.starts_with("launcher: ");
        text.lines().rev().find(ours).map(|line| line.chars().filter(|c| !c.is_control()).take(300).collect())
    }

    pub(crate) fn save(&self, record: &Record) -> Result<(), SandboxError> {
        let host = SandboxError::host("write the sandbox's record");
        let body =
            serde_json::to_vec_pretty(record).map_err(|_| SandboxError::Records("it cannot be encoded"))?;
        let draft = self.0.join("state.draft");
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&draft).map_err(&host)?;
        // Not fsynced: a record describes processes, which do not survive a power failure either.
        file.write_all(&body).map_err(&host)?;
        fs::rename(&draft, self.0.join("state.json")).map_err(host)
    }

    /// `None` when the sandbox has no record: before its first start, during its removal, or when a power failure
    /// left an empty file.
    pub(crate) fn load(&self) -> Result<Option<Record>, SandboxError> {
        let file = match File::open(self.0.join("state.json")) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(SandboxError::host("read the sandbox's record")(error)),
        };
        let mut body = Vec::new();
        file.take(MAX_RECORD)
            .read_to_end(&mut body)
            .map_err(SandboxError::host("read the sandbox's record"))?;
        if body.is_empty() {
            return Ok(None);
        }
        let record: Record =
            serde_json::from_slice(&body).map_err(|_| SandboxError::Records("state.json is corrupt"))?;
        if record.version != 1 {
            return Err(SandboxError::Records("state.json has an unknown version"));
        }
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_snapshot_is_removed_only_when_unlocked() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Directories::open(directory.path().join("data")).unwrap();
        let directories = open();
        let draft = directories.snapshot_draft(&SnapshotId::new("snap-1").unwrap());
        let (one_lock, other_lock) =
            (directories.lock_for_snapshot().unwrap(), directories.lock_for_snapshot().unwrap());
        fs::create_dir(&draft).unwrap();
        open();
        assert!(draft.exists());
        drop(one_lock);
        open();
        assert!(draft.exists());
        drop(other_lock);
        open();
        assert!(!draft.exists());
    }
}
