//! Preserves hard links in a copy. Which names belong together is recorded in a directory next to the copy, not in
//! memory, because the sandbox decides how many there are.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, Stat};
use rustix::io::Errno;

use super::{TreeError, open_top, remove};

/// The directory of recorded links; removed on drop.
pub(super) struct Links {
    path: PathBuf,
    directory: OwnedFd,
}

impl Links {
    /// Creates the directory next to `copy`, where nobody else can reach it. Leftovers of a crash are removed.
    pub(super) fn create_for(copy: &Path) -> Result<Self, TreeError> {
        let mut path = copy.as_os_str().to_owned();
        path.push(".links");
        let path = PathBuf::from(path);
        remove(&path)?;
        rustix::fs::mkdir(&path, Mode::RWXU)?;
        Ok(Self { directory: open_top(&path)?, path })
    }

    /// Links `name` to the file if it was copied before; returns whether it was.
    pub(super) fn link_existing(&self, stat: &Stat, to: &OwnedFd, name: &CStr) -> Result<bool, Errno> {
        if !has_other_names(stat) {
            return Ok(false);
        }
        match rustix::fs::linkat(&self.directory, link_key(stat).as_c_str(), to, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(error) if must_copy(error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Records a copy for the other names of the file.
    pub(super) fn record(&self, stat: &Stat, to: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        if !has_other_names(stat) {
            return Ok(());
        }
        let link_key = link_key(stat);
        // A copy that has reached its maximum of links is replaced by this one.
        match rustix::fs::unlinkat(&self.directory, link_key.as_c_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        match rustix::fs::linkat(to, name, &self.directory, link_key.as_c_str(), AtFlags::empty()) {
            Err(error) if !must_copy(error) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            tracing::warn!(directory = %self.path.display(), %error, "could not remove a temporary directory of links");
        }
    }
}

fn has_other_names(stat: &Stat) -> bool {
    stat.st_nlink > 1
}

/// If the file was not recorded yet, has its maximum number of links, or the file system has no hard links or
/// forbids them, the name gets its own copy.
fn must_copy(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP)
}

/// Includes time and size, because in a running sandbox the inode number may already belong to another file.
fn link_key(stat: &Stat) -> CString {
    let Stat { st_dev, st_ino, st_size, st_mtime, st_mtime_nsec, .. } = stat;
    CString::new(format!("{st_dev:x}-{st_ino:x}-{st_size:x}-{st_mtime:x}-{st_mtime_nsec:x}"))
        .unwrap_or_default()
}
