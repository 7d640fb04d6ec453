//! Signs checkpoints of the ledger, and also writes them outside of the database: anyone who keeps one can prove later
//! whether records before it were changed.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use clock::{Clock, Rng};
use files::{FileWork, secret_file};
use ledger::{Checkpoint, CheckpointError, Event, KeyChange, PublicKey, SigningKey, Tree, keyed_hash};
use store::{KeptCheckpoint, Store, StoreError};
use tokio::sync::Mutex;

use super::GateError;
use crate::settings::GateSettings;

/// The name of the ledger in its checkpoints and keys.
const SIGNER_NAME: &str = "proliferate";
/// The number of leaves read per batch.
const LEAVES_PER_BATCH: i64 = 10_000;

/// The signing key's location, and the Merkle tree so far.
pub(super) struct Checkpoints {
    /// Read again for every checkpoint, so that a rotated key takes effect at once.
    key_file: PathBuf,
    parameters_key: [u8; 32],
    store: Store,
    clock: Clock,
    file: PathBuf,
    /// Runs file operations with a time limit, because the checkpoint directory or the key may be on a mount that hangs.
    files: FileWork,
    /// Whether the last write failed or hung.
    failing: AtomicBool,
    /// Whether the directory is unreachable.
    unreachable: AtomicBool,
    /// The tree, and the size of the last checkpoint.
    tree: Mutex<(Tree, u64)>,
}

/// The reason why there is no signing key.
#[derive(Debug, thiserror::Error)]
pub enum SigningKeyError {
    #[error("AUDIT_SIGNING_KEY: cannot use {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(
        "AUDIT_SIGNING_KEY: {} is missing, and the checkpoints of this ledger are signed by it: put it back from your \
         backup or from another gateway of this database. If it is lost for good, run `proliferate audit \
         replace-lost-key --reason …`, which the ledger records",
        path.display()
    )]
    Lost { path: PathBuf },
    #[error("AUDIT_SIGNING_KEY: {} can be read by others: run `chmod 600 {}`", path.display(), path.display())]
    Exposed { path: PathBuf },
    #[error("AUDIT_SIGNING_KEY: {} is no key: 64 hexadecimal digits are needed", path.display())]
    Damaged { path: PathBuf },
    #[error("AUDIT_CHECKPOINT_DIR: cannot make {}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
}

impl Checkpoints {
    pub(super) async fn open(
        settings: &GateSettings,
        store: &Store,
        clock: &Clock,
        rng: &Rng,
    ) -> Result<Self, GateError> {
        let files = FileWork::default();
        let (key_file, rng, opened) = (settings.audit_key_file.clone(), rng.clone(), settings.clone());
        let signed = !store.checkpoints().await?.is_empty();
        let path = key_file.clone();
        let seed = files.run(move || read_or_make_unless_lost(&opened, signed, &rng)).await;
        let seed = seed.map_err(|source| SigningKeyError::File { path, source })??;
        let path = settings.checkpoint_dir.clone();
        let opened = settings.clone();
        let prepared = files.run(move || prepare(&opened)).await;
        prepared.map_err(|source| SigningKeyError::Directory { path, source })??;
        Ok(Self::with_seed(settings, store, clock, &seed))
    }

    fn with_seed(settings: &GateSettings, store: &Store, clock: &Clock, seed: &[u8; 32]) -> Self {
        Self {
            key_file: settings.audit_key_file.clone(),
            parameters_key: *keyed_hash(seed, "parameters", b"").as_bytes(),
            store: store.clone(),
            clock: clock.clone(),
            file: checkpoint_file(settings),
            files: FileWork::default(),
            failing: AtomicBool::new(false),
            unreachable: AtomicBool::new(false),
            tree: Mutex::default(),
        }
    }

    /// The key for keyed hashes of guessable values.
    pub(super) fn parameters_key(&self) -> [u8; 32] {
        self.parameters_key
    }

    /// The number of events since the last checkpoint.
    pub(super) async fn due(&self) -> Result<u64, StoreError> {
        let size = self.store.ledger_size().await?;
        Ok(size.saturating_sub(self.tree.lock().await.1))
    }

    /// Checks whether the directory is reachable.
    pub(super) async fn probe(&self) {
        let file = self.file.clone();
        let found = self.files.run(move || file.parent().map(fs::metadata).transpose()).await;
        let found = found.and_then(|found| found);
        if let Err(error) = &found {
            tracing::error!(%error, "AUDIT_CHECKPOINT_DIR does not answer");
        }
        self.unreachable.store(found.is_err(), Ordering::Release);
    }

    /// Whether the directory is reachable and the last checkpoint was written to it.
    pub(super) fn is_writable(&self) -> bool {
        !self.failing.load(Ordering::Acquire) && !self.unreachable.load(Ordering::Acquire)
    }

    /// Signs the ledger in its current state. Writes nothing if there are no new events.
    pub(super) async fn write(&self) -> Result<(), CheckpointFailure> {
        let written = self.write_if_due().await;
        self.failing.store(written.is_err(), Ordering::Release);
        written
    }

    async fn write_if_due(&self) -> Result<(), CheckpointFailure> {
        let mut tree = self.tree.lock().await;
        // The key is read before the ledger, so that the ledger's last key change is at least as new as the file.
        let key_file = self.key_file.clone();
        let key = signing_key(&self.files.run(move || read_seed(&key_file)).await??);
        grow(&self.store, &mut tree.0).await?;
        if tree.1 == 0 {
            // Events that were signed before the last start need not be signed again.
            let last = self.store.checkpoints().await?.last().map_or(0, |last| last.size);
            tree.1 = u64::try_from(last).unwrap_or_default();
        }
        if tree.0.size() <= tree.1 {
            return Ok(());
        }
        if key_in_force(&self.store).await?.is_some_and(|in_force| in_force != *key.public()) {
            return Err(CheckpointFailure::Retired { path: self.key_file.clone() });
        }
        let checkpoint = Checkpoint::sign(&key, &tree.0);
        let (file, text) = (self.file.clone(), format!("{checkpoint}\n"));
        let size = i64::try_from(checkpoint.size).unwrap_or(i64::MAX);
        self.store
            .keep_checkpoint(KeptCheckpoint {
                size,
                root: checkpoint.root.to_string(),
                key_id: hex::encode(key.public().id()),
                note: checkpoint.to_string(),
                at: self.clock.now(),
            })
            .await?;
        self.files.run(move || append(&file, &text)).await??;
        tree.1 = tree.0.size();
        Ok(())
    }
}

/// The reason why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointFailure {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("AUDIT_CHECKPOINT_DIR: the file outside of the database: {0}")]
    File(#[from] io::Error),
    #[error("AUDIT_CHECKPOINT_DIR: {}: {source}", path.display())]
    Damaged { path: PathBuf, source: CheckpointError },
    #[error(transparent)]
    Key(#[from] SigningKeyError),
    #[error(
        "AUDIT_SIGNING_KEY: {} is not the key that the ledger names since the last change: if \
         `proliferate audit rotate-key` broke off, run it again; else put the present key there",
        path.display()
    )]
    Retired { path: PathBuf },
}

/// The key that the ledger's last key change names. `None` if the key never changed.
pub(super) async fn key_in_force(store: &Store) -> Result<Option<PublicKey>, StoreError> {
    let record = store.last_key_change().await?;
    let notes = record.and_then(|record| serde_json::from_str::<Event>(&record).ok()?.notes);
    Ok(notes.and_then(|notes| {
        let changed = KeyChange::verify(notes.as_str()).map(|change| change.new);
        // A lost key cannot sign its replacement, so that event contains only the new key.
        changed.or_else(|| notes.as_str().parse().ok())
    }))
}

/// Whether this is the key that currently signs, according to the ledger. Without a key in question, the answer is
/// `true`.
pub async fn signs_now(store: &Store, key: Option<&PublicKey>) -> Result<bool, StoreError> {
    let in_force = key_in_force(store).await?;
    Ok(key.is_none_or(|key| in_force.is_none_or(|in_force| in_force == *key)))
}

/// Signs the ledger in its current state, unless its newest checkpoint already covers it. Returns `false` if there is
/// no key, in which case only a gateway can sign.
pub async fn sign_ledger(
    settings: &GateSettings,
    store: &Store,
    clock: &Clock,
) -> Result<bool, CheckpointFailure> {
    let path = settings.audit_key_file.clone();
    if !path.exists() {
        return Ok(false);
    }
    let newest = store.checkpoints().await?.last().map(|last| u64::try_from(last.size).unwrap_or_default());
    if newest < Some(store.ledger_size().await?) {
        make_directory(settings)?;
        Checkpoints::with_seed(settings, store, clock, &read_seed(&path)?).write().await?;
    }
    Ok(true)
}

/// The checkpoints that are stored outside of the database.
pub fn read_checkpoints(settings: &GateSettings) -> Result<Vec<Checkpoint>, CheckpointFailure> {
    let path = checkpoint_file(settings);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    match Checkpoint::parse_all(&text) {
        Err(CheckpointError::Empty) => Ok(Vec::new()),
        Err(source) => Err(CheckpointFailure::Damaged { path, source }),
        Ok(checkpoints) => Ok(checkpoints),
    }
}

/// The public key of the signing key here. `None` if there is no key yet.
pub fn audit_public_key(settings: &GateSettings) -> Result<Option<PublicKey>, SigningKeyError> {
    let path = settings.audit_key_file.clone();
    if !path.exists() {
        return Ok(None);
    }
    Ok(Some(signing_key(&read_seed(&path)?).public().clone()))
}

fn checkpoint_file(settings: &GateSettings) -> PathBuf {
    settings.checkpoint_dir.join("checkpoints.txt")
}

fn make_directory(settings: &GateSettings) -> Result<(), SigningKeyError> {
    let path = settings.checkpoint_dir.clone();
    fs::create_dir_all(&path).map_err(|source| SigningKeyError::Directory { path, source })
}

/// Creates the directory, and repairs the file that the last gateway left in it, so that checkpoints can be appended.
fn prepare(settings: &GateSettings) -> Result<(), SigningKeyError> {
    make_directory(settings)?;
    let path = checkpoint_file(settings);
    remove_partial_checkpoint(&path).map_err(|source| SigningKeyError::Directory { path, source })
}

/// Removes a partial checkpoint that a power cut left at the end of the file. It was never announced, and anything
/// appended after it could not be read.
fn remove_partial_checkpoint(file: &Path) -> io::Result<()> {
    let bytes = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        bytes => bytes?,
    };
    // The cut may be inside a multi-byte character.
    let text = String::from_utf8_lossy(&bytes);
    let whole = |text: &str| matches!(Checkpoint::parse_all(text), Ok(_) | Err(CheckpointError::Empty));
    if whole(&text) {
        // The next checkpoint starts on a new line.
        return if text.is_empty() || text.ends_with('\n') { Ok(()) } else { append(file, "\n") };
    }
    // Only the last checkpoint can be torn, and a torn one has no end. Any other damage was done by someone, and is
    // left for `audit verify` to report.
    let torn = |tail: &str| !(tail.contains("\n— ") && tail.ends_with('\n'));
    let mut ends = text.rmatch_indices("\n\n").map(|(place, end)| place + end.len()).chain([0]);
    let Some(kept) = ends.find(|end| whole(&text[..*end])).filter(|end| torn(&text[*end..])) else {
        return Ok(());
    };
    tracing::warn!(file = %file.display(), lost = bytes.len() - kept, "removed a partial checkpoint");
    let file = OpenOptions::new().write(true).open(file)?;
    file.set_len(kept as u64)?;
    file.sync_all()
}

fn append(file: &Path, text: &str) -> io::Result<()> {
    let mut out = OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    out.write_all(text.as_bytes())?;
    out.sync_all()
}

/// The signing key of a seed.
#[expect(clippy::expect_used, reason = "the name is a constant, and a test makes a key of it")]
pub(super) fn signing_key(seed: &[u8; 32]) -> SigningKey {
    SigningKey::from_seed(SIGNER_NAME, seed).expect("the name of the ledger is a valid one")
}

/// Extends the tree to the current end of the ledger.
pub(super) async fn grow(store: &Store, tree: &mut Tree) -> Result<(), StoreError> {
    loop {
        let hashes = store.ledger_hashes(tree.size(), LEAVES_PER_BATCH).await?;
        if hashes.is_empty() {
            return Ok(());
        }
        for hash in &hashes {
            tree.push(hash);
        }
    }
}

/// Reads the seed, or creates it for a ledger that was never signed. If the ledger was signed, a missing key is lost,
/// and another one must not silently replace it.
fn read_or_make_unless_lost(
    settings: &GateSettings,
    signed: bool,
    rng: &Rng,
) -> Result<[u8; 32], SigningKeyError> {
    let path = settings.audit_key_file.clone();
    let outside = fs::metadata(checkpoint_file(settings)).is_ok_and(|file| file.len() > 0);
    if (signed || outside) && !path.exists() {
        return Err(SigningKeyError::Lost { path });
    }
    read_or_make(&path, rng)
}

/// Reads the seed, or creates it once. If two processes create it at once, the first one wins.
pub(super) fn read_or_make(path: &Path, rng: &Rng) -> Result<[u8; 32], SigningKeyError> {
    if !path.exists() {
        let failed = |source| SigningKeyError::File { path: path.to_owned(), source };
        secret_file::make(path, hex::encode(rng.bytes::<32>()).as_bytes()).map_err(failed)?;
    }
    read_seed(path)
}

pub(super) fn read_seed(path: &Path) -> Result<[u8; 32], SigningKeyError> {
    let failed = |source| SigningKeyError::File { path: path.to_owned(), source };
    if !secret_file::is_private(path).map_err(failed)? {
        return Err(SigningKeyError::Exposed { path: path.to_owned() });
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    let bytes = hex::decode(text.trim()).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| SigningKeyError::Damaged { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_partial_checkpoint_is_removed_after_a_power_cut_and_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("checkpoints.txt");
        remove_partial_checkpoint(&file).unwrap();
        let checkpoint = format!("{}\n", Checkpoint::sign(&signing_key(&[7; 32]), &Tree::default()));
        let whole = checkpoint.repeat(2);
        for cut in 0..=checkpoint.len() {
            let torn = [whole.as_bytes(), &checkpoint.as_bytes()[..cut]].concat();
            fs::write(&file, &torn).unwrap();
            remove_partial_checkpoint(&file).unwrap();
            append(&file, &checkpoint).unwrap();
            let left = fs::read_to_string(&file).unwrap();
            let read = Checkpoint::parse_all(&left).unwrap();
            assert_eq!(read.len(), if cut + 2 >= checkpoint.len() { 4 } else { 3 }, "cut at {cut}: {left}");
        }
        // Damage elsewhere in the file must not be removed.
        let forged = whole.replacen("proliferate", "", 1);
        fs::write(&file, &forged).unwrap();
        remove_partial_checkpoint(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), forged);
    }

    #[test]
    fn a_key_is_generated_once_and_readable_by_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("audit.key");
        let first = read_or_make(&file, &Rng::system()).unwrap();
        assert_eq!(read_or_make(&file, &Rng::system()).unwrap(), first);
        assert_eq!(signing_key(&first).public().name(), SIGNER_NAME);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "a part of a file was left behind");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let error = read_or_make(&file, &Rng::system()).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        fs::remove_file(&file).unwrap();
        secret_file::make(&file, b"not a key").unwrap();
        assert!(matches!(read_or_make(&file, &Rng::system()), Err(SigningKeyError::Damaged { .. })));
    }
}
