//! Opens files beneath a root by handle: the kernel resolves each path once (`openat2`) and refuses to leave the
//! root.
//!
//! Swapping a directory for a symlink meanwhile has no effect, because we hold the directory itself and not its name.

use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, mkdirat, openat, openat2, statx,
};
use rustix::io::Errno;

use crate::protocol::{Code, Kind, Place, Refusal, Root, Stat};

/// The directories that requests are relative to, opened at the start.
pub(super) struct Roots {
    home: OwnedFd,
    workspace: OwnedFd,
    home_path: PathBuf,
    workspace_path: PathBuf,
}

/// Reading may follow symlinks that stay beneath the root; changing follows none.
const FOLLOW_SYMLINKS: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
const REFUSE_SYMLINKS: ResolveFlags = FOLLOW_SYMLINKS.union(ResolveFlags::NO_SYMLINKS);
const OPEN_DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Roots {
    pub(super) fn open(home: &Path, workspace: &Path) -> io::Result<Self> {
        let open = |path: &Path| openat(CWD, path, OPEN_DIRECTORY, Mode::empty());
        Ok(Self {
            home: open(home)?,
            workspace: open(workspace)?,
            home_path: home.to_owned(),
            workspace_path: workspace.to_owned(),
        })
    }

    fn handle(&self, root: Root) -> &OwnedFd {
        match root {
            Root::Home => &self.home,
            Root::Workspace => &self.workspace,
        }
    }

    pub(super) fn home(&self) -> &Path {
        &self.home_path
    }

    pub(super) fn workspace(&self) -> &Path {
        &self.workspace_path
    }

    /// The path of a program's working directory. It is not confined, because the program could go anywhere anyway.
    pub(super) fn path_of(&self, place: &Place) -> Result<PathBuf, Refusal> {
        let root = match place.root {
            Root::Home => &self.home_path,
            Root::Workspace => &self.workspace_path,
        };
        Ok(root.join(clean(&place.path)?))
    }

    /// Opens a file or directory for reading, without blocking on a fifo.
    pub(super) fn open_to_read(&self, place: &Place, directory: bool) -> Result<(File, Stat), Refusal> {
        let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        if directory {
            flags |= OFlags::DIRECTORY;
        }
        let path = clean(&place.path)?;
        let file = openat2(self.handle(place.root), or_dot(&path), flags, Mode::empty(), FOLLOW_SYMLINKS)
            .map_err(refusal)?;
        let stat = stat_of(&file).map_err(refusal)?;
        match (stat.kind, directory) {
            (Kind::File, false) | (Kind::Directory, true) => Ok((file.into(), stat)),
            (Kind::Directory, false) => Err(refusal(Errno::ISDIR)),
            _ => Err(Refusal::new(Code::NotAFile, "not a regular file")),
        }
    }

    /// Returns the metadata of a path, without following a symlink at its end.
    pub(super) fn stat(&self, place: &Place) -> Result<Stat, Refusal> {
        let path = clean(&place.path)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat2(self.handle(place.root), or_dot(&path), flags, Mode::empty(), FOLLOW_SYMLINKS);
        stat_of(found.map_err(refusal)?).map_err(refusal)
    }

    /// Opens the directory that contains a path and returns it with the last component. No symlink is followed.
    pub(super) fn parent(&self, place: &Place, make: bool) -> Result<(OwnedFd, String), Refusal> {
        let path = clean(&place.path)?;
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(Refusal::new(Code::BadRequest, "the root itself cannot be changed"));
        };
        let directory = path.parent().unwrap_or(Path::new(""));
        Ok((self.directory(place.root, directory, make)?, name.to_owned()))
    }

    pub(super) fn directory(&self, root: Root, path: &Path, make: bool) -> Result<OwnedFd, Refusal> {
        let direct = openat2(self.handle(root), or_dot(path), OPEN_DIRECTORY, Mode::empty(), REFUSE_SYMLINKS);
        match direct {
            Err(Errno::NOENT) if make => {}
            other => return other.map_err(refusal),
        }
        let mut at = openat2(self.handle(root), ".", OPEN_DIRECTORY, Mode::empty(), REFUSE_SYMLINKS)
            .map_err(refusal)?;
        for part in path.components() {
            let part = part.as_os_str();
            match mkdirat(&at, part, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(refusal(error)),
            }
            at = openat2(&at, part, OPEN_DIRECTORY | OFlags::NOFOLLOW, Mode::empty(), REFUSE_SYMLINKS)
                .map_err(refusal)?;
        }
        Ok(at)
    }
}

fn or_dot(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Returns a relative path without `.`; refuses `..`.
pub(super) fn clean(path: &str) -> Result<PathBuf, Refusal> {
    if path.len() > 4096 || path.contains('\0') {
        return Err(Refusal::new(Code::BadRequest, "not a path"));
    }
    let mut clean = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            _ => return Err(Refusal::new(Code::Escapes, "a path must be relative and must not contain ..")),
        }
    }
    Ok(clean)
}

pub(super) fn stat_of(file: impl AsFd) -> Result<Stat, Errno> {
    stat_at(file, "")
}

/// The metadata of the named entry itself (no symlink is followed), or of the handle if the name is empty.
pub(super) fn stat_at(directory: impl AsFd, name: impl rustix::path::Arg) -> Result<Stat, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
    let found = statx(directory, name, flags, StatxFlags::BASIC_STATS)?;
    let kind = match FileType::from_raw_mode(found.stx_mode.into()) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::Other,
    };
    let modified =
        found.stx_mtime.tv_sec.saturating_mul(1000) + i64::from(found.stx_mtime.tv_nsec / 1_000_000);
    Ok(Stat { kind, size: found.stx_size, mode: u32::from(found.stx_mode) & 0o7777, modified })
}

/// Translates an errno for the client.
pub(super) fn refusal(error: Errno) -> Refusal {
    let (code, text) = match error {
        Errno::NOENT => (Code::NotFound, "no such file or directory"),
        Errno::EXIST => (Code::Exists, "it already exists"),
        Errno::NOTDIR => (Code::NotADirectory, "it is not a directory"),
        Errno::ISDIR => (Code::IsADirectory, "it is a directory"),
        Errno::NOTEMPTY => (Code::NotEmpty, "the directory is not empty"),
        Errno::XDEV | Errno::LOOP | Errno::AGAIN => {
            (Code::Escapes, "the path follows a symlink or leaves its root")
        }
        Errno::NXIO | Errno::NODEV | Errno::OPNOTSUPP => (Code::NotAFile, "not a regular file"),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => (Code::Denied, "permission denied"),
        Errno::NAMETOOLONG | Errno::INVAL => (Code::BadRequest, "not a path"),
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => (Code::Limit, "no space is left"),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => (Code::Limit, "no resources are left"),
        other => return Refusal::new(Code::Io, format!("errno {}", other.raw_os_error())),
    };
    Refusal::new(code, text)
}

pub(super) fn io_refusal(error: &io::Error) -> Refusal {
    error.raw_os_error().map_or_else(
        || Refusal::new(Code::Io, error.kind().to_string()),
        |raw| refusal(Errno::from_raw_os_error(raw)),
    )
}
