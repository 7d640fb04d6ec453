//! The data directory: private to our user, and served by one process at a time.

use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::Mutex;
use url::Url;

use files::FileWork;

/// The locked data directory. Another process may read and write its database, but not serve it.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    lock: File,
}

const LOCK_FILE: &str = "serving.lock";
/// A command asks for a few microseconds. Many of them, one after the other, must not keep a gateway from its lock.
const MAX_LOCK_TRIES: u32 = 1000;
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// The file with the address that the serving process listens on.
const ADDRESS_FILE: &str = "address";

/// The reason why the data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    #[error("cannot use the data dir {}: {source}. Choose a writable one with --data-dir.", path.display())]
    Unusable { path: PathBuf, source: io::Error },
    #[error("another proliferate serves the data dir {}: stop it, or choose another with --data-dir", path.display())]
    Served { path: PathBuf },
}

impl DataDir {
    /// Creates the directory if it does not exist, readable by its owner only.
    pub fn prepare(path: &Path) -> Result<(), DataDirError> {
        let unusable = |source| DataDirError::Unusable { path: path.to_owned(), source };
        if !path.is_dir() {
            // The mode is set at creation. With a later chmod, others could open the directory in between.
            DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        }
        Ok(())
    }

    /// Locks the directory for serving until the value is dropped or the process ends, in whatever way.
    pub fn hold(path: &Path) -> Result<Self, DataDirError> {
        Self::prepare(path)?;
        let unusable = |source| DataDirError::Unusable { path: path.to_owned(), source };
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join(LOCK_FILE))
            .map_err(unusable)?;
        if !take_lock(&lock, || std::thread::sleep(LOCK_RETRY_INTERVAL)).map_err(unusable)? {
            return Err(DataDirError::Served { path: path.to_owned() });
        }
        // A killed predecessor left its address, where another program may listen by now.
        forget_address(path).map_err(unusable)?;
        Ok(Self { path: path.to_owned(), lock })
    }
}

/// Takes the lock, unless a process serves the directory. Commands that ask who serves it hold a shared lock for a moment, so
/// a lock that can be shared is not that of a server.
fn take_lock(lock: &File, mut wait: impl FnMut()) -> io::Result<bool> {
    for _ in 0..MAX_LOCK_TRIES {
        match lock.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        match lock.try_lock_shared() {
            Ok(()) => lock.unlock()?,
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        wait();
    }
    Ok(false)
}

impl DataDir {
    /// Writes the file that tells commands on this machine where we listen. Without it, they send nothing.
    pub fn announce(&self, url: &Url) {
        let (file, draft) = (self.path.join(ADDRESS_FILE), self.path.join(".address"));
        let written = std::fs::write(&draft, url.as_str()).and_then(|()| std::fs::rename(&draft, &file));
        if let Err(error) = written {
            tracing::warn!(%error, file = %file.display(), "commands on this machine will need --url");
        }
    }

    /// The address of the process that serves this directory now. The file of a killed process does not count: another
    /// program may listen there, and must not be sent a token. So the address is read only while somebody holds the lock;
    /// whoever takes the lock removes an earlier address first.
    pub fn address(path: &Path) -> Option<Url> {
        is_served(path).then(|| std::fs::read_to_string(path.join(ADDRESS_FILE)).ok())??.parse().ok()
    }
}

/// Whether a process holds the lock of this directory. A shared lock is refused exactly while somebody does, which the table
/// in `/proc/locks` cannot promise: it changes between two reads.
fn is_served(path: &Path) -> bool {
    let Ok(lock) = File::open(path.join(LOCK_FILE)) else { return false };
    let tried = lock.try_lock_shared();
    let _ = lock.unlock();
    matches!(tried, Err(TryLockError::WouldBlock))
}

fn forget_address(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path.join(ADDRESS_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        let _ = forget_address(&self.path);
        // Closing the file is not enough: a process that another thread forks at this moment has it open, too.
        let _ = self.lock.unlock();
    }
}

/// The number of bytes written to test for free space: more than one block, but cheap.
const PROBE_BYTES: usize = 64 * 1024;

/// Checks whether the data directory has space left.
pub struct Space {
    file: PathBuf,
    /// Only one probe runs at a time, because it may hang.
    work: Mutex<FileWork>,
}

impl Space {
    pub(crate) fn of(data_dir: &Path) -> Self {
        Self { file: data_dir.join("space.probe"), work: Mutex::default() }
    }

    /// Probes the disk by writing to it: only a write detects quotas, read-only mounts and full disks.
    pub(crate) async fn check(&self) -> Result<(), String> {
        let (work, file) = (self.work.lock().await, self.file.clone());
        let tried = work.run(move || {
            let written = std::fs::write(&file, vec![0; PROBE_BYTES]);
            let removed = std::fs::remove_file(&file);
            written.and(removed)
        });
        tried.await.and_then(|tried| tried).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_data_dir_is_private_and_served_once() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("deep/er");
        let held = DataDir::hold(&path).unwrap();
        for made in [&*path, path.parent().unwrap()] {
            let mode = std::fs::metadata(made).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{} was open to others when it was made", made.display());
        }
        assert!(matches!(DataDir::hold(&path), Err(DataDirError::Served { .. })));
        drop(held);
        assert!(DataDir::hold(&path).is_ok());
    }

    #[test]
    fn an_address_counts_while_its_server_lives() {
        let parent = tempfile::tempdir().unwrap();
        let (path, url) = (parent.path().join("data"), Url::parse("http://127.0.0.1:7").unwrap());
        assert_eq!(DataDir::address(&path), None);
        let held = DataDir::hold(&path).unwrap();
        held.announce(&url);
        assert_eq!(DataDir::address(&path), Some(url.clone()));
        drop(held);
        assert_eq!(DataDir::address(&path), None);
        std::fs::write(path.join(ADDRESS_FILE), url.as_str()).unwrap();
        assert_eq!(DataDir::address(&path), None, "a killed one's address");
        let held = DataDir::hold(&path).unwrap();
        assert_eq!(DataDir::address(&path), None, "its successor has not said yet where it listens");
        held.announce(&url);
        // A lock that many others take and leave meanwhile hides no gateway.
        let missed = std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                for number in 0..200 {
                    let other = File::create(parent.path().join(number.to_string())).unwrap();
                    other.lock().unwrap();
                }
            });
            let missed = (0..200).filter(|_| DataDir::address(&path).is_none()).count();
            others.join().unwrap();
            missed
        });
        assert_eq!(missed, 0, "it was missed");
    }

    #[test]
    fn commands_that_ask_who_serves_keep_nobody_from_serving() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        drop(DataDir::hold(&path).unwrap());
        let open = || File::open(path.join(LOCK_FILE)).unwrap();
        let command = open();
        command.lock_shared().unwrap();
        assert!(take_lock(&open(), || command.unlock().unwrap()).unwrap(), "a command is not a server");
        command.lock_shared().unwrap();
        assert!(!take_lock(&open(), || {}).unwrap(), "the number of tries is bounded");
        command.unlock().unwrap();
        let _server = DataDir::hold(&path).unwrap();
        let mut waits = 0;
        assert!(!take_lock(&open(), || waits += 1).unwrap());
        assert_eq!(waits, 0, "a server is not waited for here");
    }

    #[test]
    fn a_file_at_the_path_of_the_data_dir_is_reported_in_one_sentence() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("file");
        std::fs::write(&path, "").unwrap();
        let error = DataDir::hold(&path).unwrap_err().to_string();
        assert!(error.contains("--data-dir") && error.contains("file"), "{error}");
    }
}
