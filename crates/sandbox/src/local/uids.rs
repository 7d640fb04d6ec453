//! With root each sandbox gets a host user id of its own, so that two sandboxes are strangers to each other even if
//! a wall falls. An id is taken by making a file, which only one can do.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::identity;
use crate::error::SandboxError;
use crate::spec::SandboxId;

#[derive(Debug)]
pub(crate) struct Uids {
    folder: PathBuf,
    range: RangeInclusive<u32>,
}

impl Uids {
    pub(crate) fn open(folder: PathBuf, range: RangeInclusive<u32>) -> Result<Self, SandboxError> {
        // Below are the host's own users, and 0 would be root.
        if *range.start() < 65_536 || range.is_empty() {
            return Err(SandboxError::BadSpec("the range of user ids starts at 65536 or above"));
        }
        fs::create_dir_all(&folder).map_err(SandboxError::host("make the folder of user ids"))?;
        Ok(Self { folder, range })
    }

    pub(crate) fn take(&self, id: &SandboxId) -> Result<u32, SandboxError> {
        let host = SandboxError::host("take a user id");
        // Somebody else's processes under one of our ids mean a range that overlaps with another gateway's.
        let busy: BTreeSet<_> = identity::all_pids().into_iter().filter_map(|pid| self.living(pid)).collect();
        for uid in self.range.clone().filter(|uid| !busy.contains(uid)) {
            match File::create_new(self.folder.join(uid.to_string())) {
                Ok(mut file) => {
                    file.write_all(id.as_str().as_bytes()).map_err(host)?;
                    return Ok(uid);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(host(error)),
            }
        }
        Err(SandboxError::UidsExhausted)
    }

    /// The id of ours under which a process lives; one that is over and only not yet taken note of does not count.
    fn living(&self, pid: i32) -> Option<u32> {
        let uid = identity::owner(pid).filter(|uid| self.range.contains(uid))?;
        let handle = identity::open(pid).ok()?;
        (!identity::ended(&handle)).then_some(uid)
    }

    pub(crate) fn give_back(&self, uid: u32) {
        if let Err(error) = fs::remove_file(self.folder.join(uid.to_string()))
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(uid, kind = ?error.kind(), "a user id could not be given back");
        }
    }

    /// Gives back ids whose sandbox is gone, which a crash at the wrong moment leaves behind.
    pub(crate) fn sweep(&self, exists: impl Fn(&SandboxId) -> bool) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let owner = fs::read_to_string(entry.path()).ok().and_then(|text| SandboxId::new(text).ok());
            if !owner.is_some_and(|id| exists(&id)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_run_out_and_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let uids = Uids::open(dir.path().join("uids"), 200_000..=200_001).unwrap();
        let (a, b) = (SandboxId::new("a").unwrap(), SandboxId::new("b").unwrap());
        assert_eq!((uids.take(&a).unwrap(), uids.take(&b).unwrap()), (200_000, 200_001));
        assert!(matches!(uids.take(&a), Err(SandboxError::UidsExhausted)));
        uids.give_back(200_000);
        assert_eq!(uids.take(&a).unwrap(), 200_000);
        uids.sweep(|id| *id == b);
        assert_eq!(uids.take(&a).unwrap(), 200_000);
        assert!(Uids::open(dir.path().join("low"), 0..=10).is_err());
    }
}
