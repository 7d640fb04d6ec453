//! Ensures that a directory which a sandbox needs to start exists, whatever the sandbox did to it before.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

use super::permissions::{HANDLE, set_permissions};
use super::{Owner, TreeError, kind, stat_entry};

/// Creates the directory `name` in `top` if it does not exist. Anything else with that name is renamed, so that
/// nothing is lost. Afterwards the owner can access both. No program inside may run meanwhile.
pub(crate) fn ensure_directory(top: &Path, name: &CStr, owner: Owner) -> Result<(), TreeError> {
    let top = rustix::fs::open(top, HANDLE | OFlags::DIRECTORY, Mode::empty())?;
    ensure_accessible(&top)?;
    match stat_entry(&top, name).map(|stat| kind(&stat)) {
        Ok(FileType::Directory) => {}
        Ok(_) => {
            move_aside(&top, name)?;
            make(&top, name, owner)?;
        }
        Err(Errno::NOENT) => make(&top, name, owner)?,
        Err(error) => return Err(error.into()),
    }
    Ok(ensure_accessible(&rustix::fs::openat(&top, name, HANDLE | OFlags::DIRECTORY, Mode::empty())?)?)
}

fn ensure_accessible(directory: &OwnedFd) -> Result<(), Errno> {
    let mode = rustix::fs::fstat(directory)?.st_mode & 0o7777;
    if mode & 0o700 == 0o700 { Ok(()) } else { set_permissions(directory, Mode::from_raw_mode(mode | 0o700)) }
}

fn make(top: &OwnedFd, name: &CStr, owner: Owner) -> Result<(), Errno> {
    rustix::fs::mkdirat(top, name, Mode::RWXU)?;
    let Some(owner) = owner else { return Ok(()) };
    let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
    rustix::fs::chownat(top, name, Some(uid), Some(gid), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
}

fn move_aside(top: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    for number in 1_u64.. {
        let aside = format!("{}.aside-{number}", name.to_string_lossy());
        let aside = CString::new(aside).unwrap_or_default();
        match rustix::fs::renameat_with(top, name, top, &aside, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return other,
        }
    }
    Ok(())
}
