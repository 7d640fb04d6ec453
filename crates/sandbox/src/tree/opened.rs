//! Opening what a sandbox may have taken the rights from. Its files are ours where the gateway is an ordinary user, so
//! rights are lent for as long as they are needed, and taken back as they were.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use super::{TreeError, kind, open_folder, open_top, unless_gone};

/// A handle of whatever has the name, for which no rights on it are needed.
pub(super) const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How many bytes of names are read at once.
const NAMES: usize = 32 * 1024;

/// An open folder. Its names are read bit by bit, as how many there are is the sandbox's choice.
pub(super) struct Opened {
    handle: OwnedFd,
    /// What it was before rights were lent.
    pub(super) stat: Stat,
    lent: bool,
}

impl Opened {
    /// Opens a folder of ours; only the last name of the path is checked not to be a link.
    pub(super) fn top(path: &Path) -> Result<Self, TreeError> {
        let folder = rustix::fs::open(path, HANDLE | OFlags::DIRECTORY, Mode::empty())?;
        let stat = rustix::fs::fstat(&folder)?;
        let lent = is_hidden(&stat);
        if lent {
            change_rights(&folder, Mode::RWXU)?;
        }
        Ok(Self { handle: open_top(path)?, stat, lent })
    }

    /// Opens a folder that was just looked at; `None` if it is none any more.
    pub(super) fn folder(parent: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> Result<Option<Self>, Errno> {
        let lent = is_hidden(stat);
        if lent && unless_gone(give_rights(parent, name))?.is_none() {
            return Ok(None);
        }
        let Some(handle) = unless_gone(open_folder(parent, name))? else { return Ok(None) };
        Ok(Some(Self { handle, stat: *stat, lent }))
    }

    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Shows every name once, where the kernel has put it: a copy of each would be a good part of what a look costs.
    pub(super) fn each_name(
        &self,
        mut visit: impl FnMut(&CStr) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        let mut buffer = Vec::with_capacity(NAMES);
        let mut names = RawDir::new(&self.handle, buffer.spare_capacity_mut());
        while let Some(entry) = names.next() {
            let entry = match entry {
                // The folder itself was removed meanwhile.
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

impl Drop for Opened {
    fn drop(&mut self) {
        if self.lent {
            put_back(&self.handle, rights(&self.stat));
        }
    }
}

/// A folder that can be listed and not searched hides what is in it as well.
fn is_hidden(stat: &Stat) -> bool {
    stat.st_mode & 0o500 != 0o500 && !rustix::process::geteuid().is_root()
}

/// Opens a file for reading if it is a plain one; a pipe that took its place does not block us.
pub(super) fn open_plain(parent: BorrowedFd<'_>, name: &CStr) -> Result<Option<(File, Stat)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let open = || rustix::fs::openat(parent, name, flags, Mode::empty());
    let opened = match open() {
        Err(Errno::ACCESS) => lend_reading(parent, name, open),
        other => other,
    };
    let Some(file) = unless_gone(opened)? else { return Ok(None) };
    let stat = rustix::fs::fstat(&file)?;
    Ok((kind(&stat) == FileType::RegularFile).then(|| (File::from(file), stat)))
}

fn lend_reading(
    parent: BorrowedFd<'_>,
    name: &CStr,
    open: impl Fn() -> Result<OwnedFd, Errno>,
) -> Result<OwnedFd, Errno> {
    let file = rustix::fs::openat(parent, name, HANDLE, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if kind(&stat) != FileType::RegularFile {
        return Err(Errno::NOENT);
    }
    change_rights(&file, rights(&stat) | Mode::RUSR)?;
    let opened = open();
    put_back(&file, rights(&stat));
    opened
}

/// Through a handle: changing modes by name follows a link that has taken the folder's place meanwhile.
pub(super) fn give_rights(parent: impl AsFd, name: &CStr) -> Result<(), Errno> {
    let folder = rustix::fs::openat(parent, name, HANDLE | OFlags::DIRECTORY, Mode::empty())?;
    change_rights(&folder, Mode::RWXU)
}

fn rights(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode & 0o7777)
}

pub(super) fn change_rights(handle: impl AsFd, rights: Mode) -> Result<(), Errno> {
    rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd()), rights)
}

fn put_back(handle: impl AsFd, rights: Mode) {
    if let Err(error) = change_rights(handle, rights) {
        tracing::warn!(kind = ?error.kind(), "a sandbox's file keeps the rights that it was lent");
    }
}
