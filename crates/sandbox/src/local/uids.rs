//! With root each sandbox gets a host user id of its own, so that two sandboxes are strangers to each other even if
//! a wall falls. Whoever ends a sandbox ends every process of its id, so no other data folder of this host may use the
//! same one at the same time.
//!
//! An id is taken by a file in the provider's own folder, which stays as long as the sandbox's files do, and by one in
//! a folder of the host that names the first. Both are written under one lock of the host.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::identity;
use crate::error::SandboxError;
use crate::spec::SandboxId;

/// Where this host's gateways agree; gone after a reboot, like every process.
const HOST: &str = "/run/proliferate-uids";

#[derive(Debug)]
pub(crate) struct Uids {
    own: PathBuf,
    host: PathBuf,
    range: RangeInclusive<u32>,
}

impl Uids {
    pub(crate) fn open(own: &Path, range: RangeInclusive<u32>) -> Result<Self, SandboxError> {
        Self::between(own, PathBuf::from(HOST), range)
    }

    fn between(own: &Path, host: PathBuf, range: RangeInclusive<u32>) -> Result<Self, SandboxError> {
        // Below are the host's own users, and 0 would be root.
        if *range.start() < 65_536 || range.is_empty() {
            return Err(SandboxError::BadSpec("the range of user ids starts at 65536 or above"));
        }
        let failed = SandboxError::host("make the folders of user ids");
        fs::create_dir_all(own).map_err(&failed)?;
        let own = own.canonicalize().map_err(&failed)?;
        match DirBuilder::new().mode(0o700).create(&host) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        // Somebody else's folder could be emptied by somebody else.
        let owner = fs::symlink_metadata(&host).map_err(&failed)?;
        if !owner.is_dir() || owner.uid() != rustix::process::geteuid().as_raw() {
            return Err(failed(ErrorKind::PermissionDenied.into()));
        }
        Ok(Self { own, host, range })
    }

    pub(crate) fn take(&self, id: &SandboxId) -> Result<u32, SandboxError> {
        let failed = SandboxError::host("take a user id");
        let _lock = self.lock()?;
        // Processes under one of our ids that nobody has taken may be anybody's.
        let busy: BTreeSet<_> = identity::all_pids().into_iter().filter_map(|pid| self.living(pid)).collect();
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

    /// Makes sure that an id that was taken before, perhaps before a reboot, is still this folder's alone.
    pub(crate) fn keep(&self, uid: u32, id: &SandboxId) -> Result<(), SandboxError> {
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

    /// Lets an id go, if it is still this sandbox's: whoever swept before may have let it go already, and somebody else
    /// may have it by now.
    pub(crate) fn give_back(&self, uid: u32, id: &SandboxId) {
        self.let_go(uid, Some(id));
    }

    fn let_go(&self, uid: u32, owner: Option<&SandboxId>) {
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
            tracing::warn!(uid, kind = ?error.kind(), "a user id could not be given back");
        }
    }

    /// Gives back ids whose sandbox is gone, which a crash at the wrong moment leaves behind.
    pub(crate) fn sweep(&self, exists: impl Fn(&SandboxId) -> bool) {
        let Ok(entries) = fs::read_dir(&self.own) else { return };
        for uid in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            let owner = self.owner(uid);
            if !owner.as_ref().is_some_and(&exists) {
                self.let_go(uid, owner.as_ref());
            }
        }
    }

    /// Whose id it is in this folder; `None` also when a full disk left no name.
    fn owner(&self, uid: u32) -> Option<SandboxId> {
        fs::read_to_string(self.own_file(uid)).ok().and_then(|text| SandboxId::new(text).ok())
    }

    /// The file that holds an id on this host; one that is gone, with its data folder, holds nothing.
    fn holder(&self, uid: u32) -> Option<PathBuf> {
        let text = fs::read(self.host_file(uid)).ok()?;
        let path = PathBuf::from(std::ffi::OsString::from(String::from_utf8(text).ok()?));
        path.exists().then_some(path)
    }

    /// The id of ours under which a process lives; one that is over and only not yet taken note of does not count.
    fn living(&self, pid: i32) -> Option<u32> {
        let uid = identity::owner(pid).filter(|uid| self.range.contains(uid))?;
        let handle = identity::open(pid).ok()?;
        (!identity::ended(&handle)).then_some(uid)
    }

    fn lock(&self) -> Result<File, SandboxError> {
        let failed = SandboxError::host("lock the user ids of this host");
        let file = File::create(self.host.join("lock")).map_err(&failed)?;
        file.lock().map_err(failed)?;
        Ok(file)
    }

    fn own_file(&self, uid: u32) -> PathBuf {
        named(&self.own, uid)
    }

    fn host_file(&self, uid: u32) -> PathBuf {
        named(&self.host, uid)
    }
}

fn named(folder: &Path, uid: u32) -> PathBuf {
    folder.join(uid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    // No gateway takes ids as high as these, so whatever runs on this host is nobody's concern here.
    fn id(name: &str) -> SandboxId {
        SandboxId::new(name).unwrap()
    }

    #[test]
    fn ids_are_unique_run_out_and_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("host");
        let open = |own: &str, range| Uids::between(&dir.path().join(own), host.clone(), range);
        let uids = open("uids", 3_900_000_000..=3_900_000_001).unwrap();
        let (a, b) = (id("a"), id("b"));
        assert_eq!((uids.take(&a).unwrap(), uids.take(&b).unwrap()), (3_900_000_000, 3_900_000_001));
        assert!(matches!(uids.take(&a), Err(SandboxError::UidsExhausted)));
        uids.give_back(3_900_000_000, &b);
        assert!(matches!(uids.take(&a), Err(SandboxError::UidsExhausted)), "another's id was given back");
        uids.give_back(3_900_000_000, &a);
        assert_eq!(uids.take(&a).unwrap(), 3_900_000_000);
        uids.sweep(|id| *id == b);
        assert_eq!(uids.take(&a).unwrap(), 3_900_000_000);
        assert!(open("low", 0..=10).is_err());
    }

    #[test]
    fn two_data_folders_of_a_host_never_share_an_id() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("host");
        let open = |own: &str| {
            Uids::between(&dir.path().join(own), host.clone(), 3_900_000_000..=3_900_000_002).unwrap()
        };
        let (one, other) = (open("one"), open("other"));
        assert_eq!(
            (one.take(&id("a")).unwrap(), other.take(&id("a")).unwrap()),
            (3_900_000_000, 3_900_000_001)
        );
        // A reboot empties the host's folder, and the other one is first to take an id.
        fs::remove_dir_all(&host).unwrap();
        let (one, other) = (open("one"), open("other"));
        other.keep(3_900_000_001, &id("a")).unwrap();
        assert_eq!(other.take(&id("b")).unwrap(), 3_900_000_000);
        assert!(matches!(one.keep(3_900_000_000, &id("a")), Err(SandboxError::Records(_))));
        // A data folder that was deleted holds nothing.
        fs::remove_dir_all(dir.path().join("other")).unwrap();
        one.keep(3_900_000_000, &id("a")).unwrap();
        assert_eq!(one.take(&id("c")).unwrap(), 3_900_000_001);
    }
}
