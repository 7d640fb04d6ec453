//! Removing a hostile folder completely, however deep it is and whatever its modes are.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{TreeError, kind, look, names, open_folder, open_top};

/// How deep one descent goes; what lies deeper is first moved up to the top.
const DESCENT: usize = 32;

/// Removes a folder and all that is in it. What is not there is removed already, also when another process removes it
/// meanwhile: a sandbox may be ended by its gateway and by an operator at once.
pub(crate) fn remove(top: &Path) -> Result<(), TreeError> {
    let folder = match open_top(top) {
        Ok(folder) => folder,
        Err(TreeError::Io(std::io::ErrorKind::NotFound)) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut moved = 0;
    // Each round empties the top and may put folders from deep below into it.
    loop {
        let round = moved;
        clear(&folder, &folder, 0, &mut moved)?;
        if moved == round {
            break;
        }
    }
    Ok(or_gone(rustix::fs::unlinkat(CWD, top, AtFlags::REMOVEDIR))?)
}

fn or_gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    if removed == Err(Errno::NOENT) { Ok(()) } else { removed }
}

fn clear(top: &OwnedFd, folder: &OwnedFd, depth: usize, moved: &mut u64) -> Result<(), TreeError> {
    for name in names(folder)? {
        let Ok(stat) = look(folder, &name) else { continue };
        if kind(&stat) != FileType::Directory {
            or_gone(rustix::fs::unlinkat(folder, &name, AtFlags::empty()))?;
        } else if depth >= DESCENT {
            move_up(top, folder, &name, moved)?;
        } else {
            let inner = match open_for_removal(folder, &name) {
                Err(Errno::NOENT) => continue,
                opened => opened?,
            };
            clear(top, &inner, depth + 1, moved)?;
            or_gone(rustix::fs::unlinkat(folder, &name, AtFlags::REMOVEDIR))?;
        }
    }
    Ok(())
}

/// A folder without rights still belongs to us: it gets them back first.
fn open_for_removal(parent: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    if let Ok(stat) = look(parent, name)
        && stat.st_mode & 0o700 != 0o700
    {
        give_rights(parent, name)?;
    }
    open_folder(parent, name)
}

/// Through a handle: changing modes by name follows a link that has taken the folder's place meanwhile.
pub(super) fn give_rights(parent: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    rustix::fs::chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), Mode::RWXU)
}

fn move_up(top: &OwnedFd, folder: &OwnedFd, name: &CStr, moved: &mut u64) -> Result<(), TreeError> {
    // Moving a folder writes its `..`, so it needs rights on itself.
    drop(open_for_removal(folder, name)?);
    loop {
        *moved += 1;
        let fresh = CString::new(format!(".removing-{moved}")).unwrap_or_default();
        match rustix::fs::renameat_with(folder, name, top, &fresh, rustix::fs::RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return Ok(other?),
        }
    }
}
