//! Secret files: either complete or absent, fsynced before use, and readable by their owner only.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Creates a complete file. If another process was faster, its file wins.
pub fn make(file: &Path, content: &[u8]) -> io::Result<()> {
    let part = write_part(file, content)?;
    let linked = fs::hard_link(&part, file);
    fs::remove_file(&part)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sync_directory_of(file),
    }
}

/// Replaces a file atomically.
pub fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    rename(&write_part(file, content)?, file)
}

pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_directory_of(to)
}

/// Whether only its owner can read or write the file. A copy or a restored backup may have other permissions.
pub fn is_private(file: &Path) -> io::Result<bool> {
    let mode = fs::metadata(file)?.permissions().mode() & 0o777;
    Ok(mode == mode & 0o700)
}

fn write_part(file: &Path, content: &[u8]) -> io::Result<PathBuf> {
    let part = file.with_extension(format!("part{}", std::process::id()));
    let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    // A leftover file of a crash keeps its old mode, so set the mode explicitly.
    out.set_permissions(Permissions::from_mode(0o600))?;
    out.write_all(content)?;
    out.sync_all()?;
    Ok(part)
}

/// Fsyncs the directory of a file, which makes the file's name durable. Without this, a power cut may bring the old file
/// back, and what was encrypted or signed with the new one is lost.
fn sync_directory_of(file: &Path) -> io::Result<()> {
    File::open(file.parent().unwrap_or(Path::new("."))).and_then(|directory| directory.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn make_keeps_the_first_secret_and_replace_leaves_no_other_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.key");
        make(&file, b"first").unwrap();
        make(&file, b"second").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"first");
        replace(&file, b"third").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"third");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "a part of a file was left behind");
        assert!(is_private(&file).unwrap());
        for mode in [0o640, 0o604, 0o601] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            assert!(!is_private(&file).unwrap(), "{mode:o}");
        }
        assert!(make(&directory.path().join("absent/a.key"), b"x").is_err());
    }
}
