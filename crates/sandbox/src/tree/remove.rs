//! Removing a hostile folder completely, however deep it is and whatever its modes are.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType};
use rustix::io::Errno;

use super::opened::give_rights;
use super::{TreeError, kind, look, open_folder, open_top, unless_gone};

/// How deep one descent goes; what lies deeper is first moved up to the top.
const DESCENT: usize = 32;
/// How many names are read at once; reading on after removing some of them may miss others.
const NAMES: usize = 1024;

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

fn names(folder: &OwnedFd) -> Result<Vec<CString>, TreeError> {
    let mut folder = Dir::read_from(folder)?;
    let names = std::iter::from_fn(|| next_name(&mut folder)).take(NAMES).collect::<Result<_, _>>();
    Ok(names?)
}

fn next_name(folder: &mut Dir) -> Option<Result<CString, Errno>> {
    loop {
        let name = match folder.read()? {
            Ok(entry) => entry.file_name().to_owned(),
            Err(error) => return Some(Err(error)),
        };
        if !matches!(name.to_bytes(), b"." | b"..") {
            return Some(Ok(name));
        }
    }
}

fn clear(top: &OwnedFd, folder: &OwnedFd, depth: usize, moved: &mut u64) -> Result<(), TreeError> {
    loop {
        let names = names(folder)?;
        if names.is_empty() {
            return Ok(());
        }
        clear_names(top, folder, &names, depth, moved)?;
    }
}

fn clear_names(
    top: &OwnedFd,
    folder: &OwnedFd,
    names: &[CString],
    depth: usize,
    moved: &mut u64,
) -> Result<(), TreeError> {
    for name in names {
        let Some(stat) = unless_gone(look(folder, name))? else { continue };
        if kind(&stat) != FileType::Directory {
            or_gone(rustix::fs::unlinkat(folder, name, AtFlags::empty()))?;
        } else if depth >= DESCENT {
            move_up(top, folder, name, moved)?;
        } else {
            let inner = match open_for_removal(folder, name) {
                Err(Errno::NOENT) => continue,
                opened => opened?,
            };
            clear(top, &inner, depth + 1, moved)?;
            or_gone(rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR))?;
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
