//! What the provider keeps on disk of each sandbox, enough to find it again after a crash.

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
/// The log of PID 1 is cut when it grows above this; programs inside write to it as they like.
pub(crate) const MAX_LOG: u64 = 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) version: u32,
    /// `None` without root.
    pub(crate) uid: Option<u32>,
    pub(crate) group: Group,
    /// `None` from the moment before the start until PID 1 is known.
    pub(crate) identity: Option<Identity>,
    pub(crate) injected: BTreeSet<u16>,
    pub(crate) limits: Limits,
}

/// A sandbox was ended because it took too much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Overuse {
    /// What there was too much of.
    pub(crate) what: String,
    /// Whether it has been started again since.
    pub(crate) restarted: bool,
}

impl Overuse {
    pub(crate) const DISK: &str = "disk";

    /// What happened and what to do, for the people who use the sandbox.
    pub(crate) fn explain(&self, disk_bytes: u64) -> String {
        let mib = disk_bytes / (1024 * 1024);
        match self.what.as_str() {
            Self::DISK => format!(
                "the sandbox was ended because its files took more than {mib} MiB. It starts again with a little more room: \
                 remove files now, or ask an operator to raise SANDBOX_DISK_MIB"
            ),
            what => format!(
                "the sandbox was ended because it took too much: {what}. Its files are kept, and the next prompt starts it again"
            ),
        }
    }
}

/// The folders below the provider's root.
#[derive(Clone, Debug)]
pub(crate) struct Folders {
    root: PathBuf,
}

impl Folders {
    pub(crate) fn open(root: PathBuf) -> Result<Self, SandboxError> {
        let host = SandboxError::host("make the provider's folder");
        for folder in [root.clone(), root.join("sandboxes"), root.join("snapshots")] {
            private_folder(&folder).map_err(&host)?;
        }
        let folders = Self { root: fs::canonicalize(root).map_err(host)? };
        folders.sweep();
        Ok(folders)
    }

    /// To be held while a snapshot is made. Whoever opens these folders meanwhile, in another process as well, would take it
    /// for one that a crash has left.
    pub(crate) fn making_snapshot(&self) -> io::Result<File> {
        let lock = self.snapshots_lock()?;
        lock.lock_shared()?;
        Ok(lock)
    }

    fn snapshots_lock(&self) -> io::Result<File> {
        File::create(self.root.join("snapshots.lock"))
    }

    /// Removes snapshots that a crash left half made, if none is being made.
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

    /// Tells this root from another one on the same host.
    pub(crate) fn mark(&self) -> String {
        let bytes = self.root.as_os_str().as_encoded_bytes();
        let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        format!("proliferate-{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, fnv))
    }

    pub(crate) fn sandbox(&self, id: &SandboxId) -> Folder {
        Folder(self.root.join("sandboxes").join(id.as_str()))
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

fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The folder of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn home(&self) -> PathBuf {
        self.0.join("home")
    }

    /// Files that are being put together; they become the home in one step.
    pub(crate) fn home_draft(&self) -> PathBuf {
        self.0.join("home.draft")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// Why the gateway ended the sandbox the last time that it took too much.
    fn overuse(&self) -> PathBuf {
        self.0.join("overuse.json")
    }

    pub(crate) fn note_overuse(&self, overuse: &Overuse) -> io::Result<()> {
        let draft = self.0.join("overuse.draft");
        fs::write(&draft, serde_json::to_vec(overuse)?)?;
        fs::rename(draft, self.overuse())
    }

    pub(crate) fn last_overuse(&self) -> Option<Overuse> {
        let mut body = Vec::new();
        File::open(self.overuse()).ok()?.take(MAX_RECORD).read_to_end(&mut body).ok()?;
        serde_json::from_slice(&body).ok()
    }

    pub(crate) fn forget_overuse(&self) {
        let _ = fs::remove_file(self.overuse());
    }

    pub(crate) fn create(&self) -> io::Result<()> {
        private_folder(&self.0)
    }

    pub(crate) fn open_log(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).open(self.log())
    }

    /// What the launcher or bubblewrap said last. Lines of programs inside are left out: they may say anything.
    pub(crate) fn complaint(&self) -> Option<String> {
        let mut text = Vec::new();
        File::open(self.log()).ok()?.take(MAX_LOG_TAIL).read_to_end(&mut text).ok()?;
        let text = String::from_utf8_lossy(&text);
        let ours = |line: &&str| line.starts_with("bwrap: ") || line.starts_with("launcher: ");
        text.lines().rev().find(ours).map(|line| line.chars().filter(|c| !c.is_control()).take(300).collect())
    }

    pub(crate) fn save(&self, record: &Record) -> Result<(), SandboxError> {
        let host = SandboxError::host("write the sandbox's record");
        let body =
            serde_json::to_vec_pretty(record).map_err(|_| SandboxError::Records("it cannot be written"))?;
        let draft = self.0.join("state.draft");
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&draft).map_err(&host)?;
        // Not synced: a record is about processes, and a power cut ends those too.
        file.write_all(&body).map_err(&host)?;
        fs::rename(&draft, self.0.join("state.json")).map_err(host)
    }

    /// `None` when the sandbox has no record, which is so before its first start, in the middle of its removal, and
    /// when a power cut left an empty one.
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
            serde_json::from_slice(&body).map_err(|_| SandboxError::Records("state.json is garbled"))?;
        if record.version != 1 {
            return Err(SandboxError::Records("state.json is of another version"));
        }
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_snapshot_that_nobody_makes_is_half_made() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Folders::open(folder.path().join("data")).unwrap();
        let folders = open();
        let draft = folders.snapshot_draft(&SnapshotId::new("snap-1").unwrap());
        let (making, also) = (folders.making_snapshot().unwrap(), folders.making_snapshot().unwrap());
        fs::create_dir(&draft).unwrap();
        open();
        assert!(draft.exists());
        drop(making);
        open();
        assert!(draft.exists());
        drop(also);
        open();
        assert!(!draft.exists());
    }
}
