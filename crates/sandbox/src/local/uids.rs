//! With root, each sandbox gets its own host user id, so that two sandboxes cannot affect each other even if the
//! isolation fails. Stopping a sandbox kills every process of its user id, so no other data directory of this host may
//! use the same id at the same time.
//!
//! An id is allocated by a file in the provider's own directory, which exists as long as the sandbox's files, and by a
//! file in a directory of the host that names the first one. Both are written under one lock of the host.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::identity;
use crate::error::SandboxError;
use crate::spec::SandboxId;

/// The directory through which the gateways of this host coordinate; like processes, it does not survive a reboot.
const HOST_DIRECTORY: &str = "/run/proliferate-uids";

#[derive(Debug)]
pub(crate) struct Uids {
    own: PathBuf,
    host: PathBuf,
    range: RangeInclusive<u32>,
}

impl Uids {
    pub(crate) fn open(own: &Path, range: RangeInclusive<u32>) -> Result<Self, SandboxError> {
        Self::open_with(own, PathBuf::from(HOST_DIRECTORY), range)
    }

    fn open_with(own: &Path, host: PathBuf, range: RangeInclusive<u32>) -> Result<Self, SandboxError> {
        // Lower ids belong to the host's own users, and 0 would be root.
        if *range.start() < 65_536 || range.is_empty() {
            return Err(SandboxError::BadSpec("the range of user ids must start at 65536 or above"));
        }
        let failed = SandboxError::host("create the directories of user ids");
        fs::create_dir_all(own).map_err(&failed)?;
        let own = own.canonicalize().map_err(&failed)?;
        match DirBuilder::new().mode(0o700).create(&host) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        // A directory of another user could be emptied by that user.
        let owner = fs::symlink_metadata(&host).map_err(&failed)?;
        if !owner.is_dir() || owner.uid() != rustix::process::geteuid().as_raw() {
            return Err(failed(ErrorKind::PermissionDenied.into()));
        }
        Ok(Self { own, host, range })
    }

    pub(crate) fn allocate(&self, id: &SandboxId) -> Result<u32, SandboxError> {
        let failed = SandboxError::host("allocate a user id");
        let _lock = self.lock()?;
        // A process that runs under an unallocated id of our range may be anybody's.
        let busy: BTreeSet<_> =
            identity::all_pids().into_iter().filter_map(|pid| self.uid_in_use(pid)).collect();
        for uid in self.range.clone().filter(|uid| !busy.contains(uid)) {
            if self.own_file(uid).exists() || self.holder(uid).is_some() {
                continue;
            }
            let written = self.write(uid, id);
            if written.is_err() {
                // A full disk leaves an empty file.
                let _ = fs::remove_file(self.host_file(uid));
                let _ = fs::remove_file(self.own_file(uid));
            }
            return written.map(|()| uid).map_err(failed);
        }
        Err(SandboxError::UidsExhausted)
    }

    /// Makes sure that an id that was allocated before, perhaps before a reboot, still belongs to this directory
    /// alone.
    pub(crate) fn reclaim(&self, uid: u32, id: &SandboxId) -> Result<(), SandboxError> {
        let failed = SandboxError::host("keep a user id");
        let _lock = self.lock()?;
        if self.holder(uid).is_some_and(|holder| holder != self.own_file(uid)) {
            return Err(SandboxError::Records("its user id is used by another gateway of this host"));
        }
        self.write(uid, id).map_err(failed)
    }

    fn write(&self, uid: u32, id: &SandboxId) -> std::io::Result<()> {
        fs::write(self.own_file(uid), id.as_str())?;
        fs::write(self.host_file(uid), self.own_file(uid).as_os_str().as_encoded_bytes())
    }

    /// Releases an id if it still belongs to this sandbox: a sweep may have released it already, and another
    /// sandbox may own it now.
    pub(crate) fn release(&self, uid: u32, id: &SandboxId) {
        self.release_if_owned_by(uid, Some(id));
    }

    fn release_if_owned_by(&self, uid: u32, owner: Option<&SandboxId>) {
        let _lock = self.lock();
        if self.owner(uid).as_ref() != owner {
            return;
        }
        let mine = self.holder(uid).is_some_and(|holder| holder == self.own_file(uid));
        let removed = fs::remove_file(self.own_file(uid));
        if mine {
            let _ = fs::remove_file(self.host_file(uid));
        }
        if let Err(error) = removed
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(uid, kind = ?error.kind(), "could not release a user id");
        }
    }

    /// Releases ids whose sandbox is gone, which a crash at the wrong moment leaves behind.
    pub(crate) fn sweep(&self, exists: impl Fn(&SandboxId) -> bool) {
        let Ok(entries) = fs::read_dir(&self.own) else { return };
        for uid in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            let owner = self.owner(uid);
            if !owner.as_ref().is_some_and(&exists) {
                self.release_if_owned_by(uid, owner.as_ref());
            }
        }
    }

    /// The sandbox that owns an id in this directory; `None` also when a full disk left an empty file.
    fn owner(&self, uid: u32) -> Option<SandboxId> {
        fs::read_to_string(self.own_file(uid)).ok().and_then(|text| SandboxId::new(text).ok())
    }

    /// The file that holds an id on this host; a file that was deleted with its data directory holds nothing.
    fn holder(&self, uid: u32) -> Option<PathBuf> {
        let text = fs::read(self.host_file(uid)).ok()?;
        let path = PathBuf::from(std::ffi::OsString::from(String::from_utf8(text).ok()?));
        path.exists().then_some(path)
    }

    /// The id of our range under which a process runs; zombies do not count.
    fn uid_in_use(&self, pid: i32) -> Option<u32> {
        let uid = identity::owner(pid).filter(|uid| self.range.contains(uid))?;
        let handle = identity::open(pid).ok()?;
        (!identity::has_exited(&handle)).then_some(uid)
    }

    fn lock(&self) -> Result<File, SandboxError> {
        let failed = SandboxError::host("lock the user ids of this host");
        let file = File::create(self.host.join("lock")).map_err(&failed)?;
        file.lock().map_err(failed)?;
        Ok(file)
    }

    fn own_file(&self, uid: u32) -> PathBuf {
        file_of_uid(&self.own, uid)
    }

    fn host_file(&self, uid: u32) -> PathBuf {
        file_of_uid(&self.host, uid)
    }
}

fn file_of_uid(directory: &Path, uid: u32) -> PathBuf {
    directory.join(uid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Gateways do not use such high ids, so processes of this host cannot interfere.
    fn id(name: &str) -> SandboxId {
        SandboxId::new(name).unwrap()
    }

    #[test]
    fn ids_are_unique_exhaustible_and_released() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("host");
        let open = |own: &str, range| Uids::open_with(&dir.path().join(own), host.clone(), range);
        let uids = open("uids", 3_900_000_000..=3_900_000_001).unwrap();
        let (a, b) = (id("a"), id("b"));
        assert_eq!((uids.allocate(&a).unwrap(), uids.allocate(&b).unwrap()), (3_900_000_000, 3_900_000_001));
        assert!(matches!(uids.allocate(&a), Err(SandboxError::UidsExhausted)));
        uids.release(3_900_000_000, &b);
        assert!(
            matches!(uids.allocate(&a), Err(SandboxError::UidsExhausted)),
            "the id of another sandbox was released"
        );
        uids.release(3_900_000_000, &a);
        assert_eq!(uids.allocate(&a).unwrap(), 3_900_000_000);
        uids.sweep(|id| *id == b);
        assert_eq!(uids.allocate(&a).unwrap(), 3_900_000_000);
        assert!(open("low", 0..=10).is_err());
    }

    #[test]
    fn data_directories_of_a_host_never_share_an_id() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("host");
        let open = |own: &str| {
            Uids::open_with(&dir.path().join(own), host.clone(), 3_900_000_000..=3_900_000_002).unwrap()
        };
        let (one, other) = (open("one"), open("other"));
        assert_eq!(
            (one.allocate(&id("a")).unwrap(), other.allocate(&id("a")).unwrap()),
            (3_900_000_000, 3_900_000_001)
        );
        // A reboot empties the host's directory, and the other gateway is the first to allocate an id.
        fs::remove_dir_all(&host).unwrap();
        let (one, other) = (open("one"), open("other"));
        other.reclaim(3_900_000_001, &id("a")).unwrap();
        assert_eq!(other.allocate(&id("b")).unwrap(), 3_900_000_000);
        assert!(matches!(one.reclaim(3_900_000_000, &id("a")), Err(SandboxError::Records(_))));
        // A data directory that was deleted holds nothing.
        fs::remove_dir_all(dir.path().join("other")).unwrap();
        one.reclaim(3_900_000_000, &id("a")).unwrap();
        assert_eq!(one.allocate(&id("c")).unwrap(), 3_900_000_001);
    }
}
