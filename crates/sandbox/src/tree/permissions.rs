//! Opens files and directories whose permissions a sandbox has removed. If the gateway is an unprivileged user it owns
//! the files, so it grants itself the permissions temporarily and restores them afterwards.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use super::{TreeError, kind, none_if_gone, open_directory, open_top};

/// Flags for a handle (`O_PATH`), which needs no permissions on the file itself.
pub(super) const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The size of the buffer for directory entries in bytes.
const DIRECTORY_BUFFER_BYTES: usize = 32 * 1024;

/// An open directory. Its entries are read in parts, because the sandbox decides how many there are.
pub(super) struct OpenDirectory {
    handle: OwnedFd,
    /// The metadata before permissions were granted.
    pub(super) stat: Stat,
    granted: bool,
}

impl OpenDirectory {
    /// Opens a directory of ours; only the last component of the path must not be a symlink.
    pub(super) fn top(path: &Path) -> Result<Self, TreeError> {
        let directory = rustix::fs::open(path, HANDLE | OFlags::DIRECTORY, Mode::empty())?;
        let stat = rustix::fs::fstat(&directory)?;
        let granted = lacks_permissions(&stat);
        if granted {
            set_permissions(&directory, Mode::RWXU)?;
        }
        Ok(Self { handle: open_top(path)?, stat, granted })
    }

    /// Opens a directory that was just listed; `None` if it is no longer a directory.
    pub(super) fn directory(parent: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> Result<Option<Self>, Errno> {
        let granted = lacks_permissions(stat);
        if granted && none_if_gone(grant_permissions(parent, name))?.is_none() {
            return Ok(None);
        }
        let Some(handle) = none_if_gone(open_directory(parent, name))? else { return Ok(None) };
        Ok(Some(Self { handle, stat: *stat, granted }))
    }

    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Visits every name in the kernel's buffer: copying each would be a considerable part of the cost of a scan.
    pub(super) fn each_name(
        &self,
        mut visit: impl FnMut(&CStr) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        let mut buffer = Vec::with_capacity(DIRECTORY_BUFFER_BYTES);
        let mut names = RawDir::new(&self.handle, buffer.spare_capacity_mut());
        while let Some(entry) = names.next() {
            let entry = match entry {
                // The directory itself was removed meanwhile.
                Err(Errno::NOENT) => break,
                entry => entry?,
            };
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                visit(entry.file_name())?;
            }
        }
        Ok(())
    }
}

impl Drop for OpenDirectory {
    fn drop(&mut self) {
        if self.granted {
            restore_permissions(&self.handle, permissions(&self.stat));
        }
    }
}

/// A directory that can be listed but not searched also hides its content.
fn lacks_permissions(stat: &Stat) -> bool {
    stat.st_mode & 0o500 != 0o500 && !rustix::process::geteuid().is_root()
}

/// Opens a regular file for reading; does not block on a pipe that took its place.
pub(super) fn open_regular(parent: BorrowedFd<'_>, name: &CStr) -> Result<Option<(File, Stat)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let open = || rustix::fs::openat(parent, name, flags, Mode::empty());
    let opened = match open() {
        Err(Errno::ACCESS) => open_with_granted_read(parent, name, open),
        other => other,
    };
    let Some(file) = none_if_gone(opened)? else { return Ok(None) };
    let stat = rustix::fs::fstat(&file)?;
    Ok((kind(&stat) == FileType::RegularFile).then(|| (File::from(file), stat)))
}

fn open_with_granted_read(
    parent: BorrowedFd<'_>,
    name: &CStr,
    open: impl Fn() -> Result<OwnedFd, Errno>,
) -> Result<OwnedFd, Errno> {
    let file = rustix::fs::openat(parent, name, HANDLE, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if kind(&stat) != FileType::RegularFile {
        return Err(Errno::NOENT);
    }
    set_permissions(&file, permissions(&stat) | Mode::RUSR)?;
    let opened = open();
    restore_permissions(&file, permissions(&stat));
    opened
}

/// Uses a handle: chmod by name would follow a symlink that has replaced the directory meanwhile.
pub(super) fn grant_permissions(parent: impl AsFd, name: &CStr) -> Result<(), Errno> {
    let directory = rustix::fs::openat(parent, name, HANDLE | OFlags::DIRECTORY, Mode::empty())?;
    set_permissions(&directory, Mode::RWXU)
}

fn permissions(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode & 0o7777)
}

pub(super) fn set_permissions(handle: impl AsFd, permissions: Mode) -> Result<(), Errno> {
    rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd()), permissions)
}

fn restore_permissions(handle: impl AsFd, permissions: Mode) {
    if let Err(error) = set_permissions(handle, permissions) {
        tracing::warn!(kind = ?error.kind(), "could not restore the permissions of a sandbox's file");
    }
}
