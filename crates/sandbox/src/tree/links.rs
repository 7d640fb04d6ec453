//! Files with more than one name stay one file in a copy. Which names belong together is kept in a folder beside the copy, not
//! in memory, as how many there are is the sandbox's choice.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, Stat};
use rustix::io::Errno;

use super::{TreeError, open_top, remove};

/// The folder, which is gone when this is.
pub(super) struct Links {
    path: PathBuf,
    folder: OwnedFd,
}

impl Links {
    /// Nobody else can reach what is beside `copy`. What a crash has left there is removed.
    pub(super) fn beside(copy: &Path) -> Result<Self, TreeError> {
        let mut path = copy.as_os_str().to_owned();
        path.push(".links");
        let path = PathBuf::from(path);
        remove(&path)?;
        rustix::fs::mkdir(&path, Mode::RWXU)?;
        Ok(Self { folder: open_top(&path)?, path })
    }

    /// Gives what was copied already this name as well; says whether there was such a file.
    pub(super) fn give(&self, stat: &Stat, to: &OwnedFd, name: &CStr) -> Result<bool, Errno> {
        if !has_more(stat) {
            return Ok(false);
        }
        match rustix::fs::linkat(&self.folder, mark(stat).as_c_str(), to, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(error) if cannot(error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Remembers a copy for the other names of the file.
    pub(super) fn keep(&self, stat: &Stat, to: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        if !has_more(stat) {
            return Ok(());
        }
        let mark = mark(stat);
        // One that can have no more names makes room for this one.
        match rustix::fs::unlinkat(&self.folder, mark.as_c_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        match rustix::fs::linkat(to, name, &self.folder, mark.as_c_str(), AtFlags::empty()) {
            Err(error) if !cannot(error) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "a folder of links is left behind");
        }
    }
}

fn has_more(stat: &Stat) -> bool {
    stat.st_nlink > 1
}

/// Where there is no such file yet, where it has as many names as it can have, and where the file system knows no links or
/// forbids them, every name gets a file of its own.
fn cannot(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP)
}

/// With time and size: a number may be another file's by now, in a sandbox that is not stopped.
fn mark(stat: &Stat) -> CString {
    let Stat { st_dev, st_ino, st_size, st_mtime, st_mtime_nsec, .. } = stat;
    CString::new(format!("{st_dev:x}-{st_ino:x}-{st_size:x}-{st_mtime:x}-{st_mtime_nsec:x}"))
        .unwrap_or_default()
}
