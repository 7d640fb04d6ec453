//! Fsyncs the WAL after the gate's commits, on a thread of its own. SQLite would fsync at the end of each commit, and nothing
//! could be written meanwhile.

use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, SendError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use crate::StoreError;
use crate::gate::{ReplySender, Written, reply};

/// Why an fsync failed, if one did. Pages of a failed fsync may be lost although the next fsync succeeds, so after a failure
/// nothing is written or acknowledged until a restart has read what is really on disk.
#[derive(Clone, Default)]
pub(crate) struct SyncFailure(Arc<OnceLock<String>>);

impl SyncFailure {
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match self.0.get() {
            Some(why) => Err(StoreError::NotCommitted(why.clone())),
            None => Ok(()),
        }
    }

    fn record(&self, error: &io::Error) {
        let why =
            format!("the database's WAL could not be fsynced ({error}): restart when the disk works again");
        tracing::error!("{why}");
        let _ = self.0.set(why);
    }
}

/// Writes that are committed to the WAL. Their callers get no reply before the WAL is on disk.
pub(super) struct CommittedBatch {
    pub(super) replies: Vec<ReplySender>,
    pub(super) result: Result<Vec<Written>, StoreError>,
}

impl CommittedBatch {
    /// A batch that changed nothing needs no fsync: what it read was fsynced with an earlier batch.
    fn has_written(&self) -> bool {
        self.result.as_ref().is_ok_and(|results| results.iter().any(|one| matches!(one, Written::Done)))
    }

    /// Replies that it is unknown whether the writes are kept. Writes that were refused stay refused.
    fn reply_unknown(self, why: &str) {
        match self.result {
            Ok(_) => {
                for sender in self.replies {
                    let error = sqlx::Error::Io(io::Error::other(why.to_owned()));
                    reply(vec![sender], Err(StoreError::Failed(error)));
                }
            }
            refused => reply(self.replies, refused),
        }
    }
}

/// The thread that fsyncs.
pub(super) struct WalSync {
    /// Takes one batch at a time, so that commits during an fsync share the next one.
    to: SyncSender<Batch>,
    thread: JoinHandle<()>,
}

struct Batch {
    /// Opened before the first commit: Linux reports a write error only to those who have the file open when it happens.
    wal: Arc<File>,
    commits: Vec<CommittedBatch>,
}

impl WalSync {
    pub(super) fn start(failure: SyncFailure) -> Self {
        let (to, batches) = sync_channel(0);
        let thread = std::thread::spawn(move || work(&batches, &failure));
        Self { to, thread }
    }

    /// Hands commits over; returns when the commits before them are on disk.
    pub(super) fn sync(&self, wal: Arc<File>, commits: Vec<CommittedBatch>) {
        if let Err(SendError(lost)) = self.to.send(Batch { wal, commits }) {
            for batch in lost.commits {
                batch.reply_unknown("the thread that fsyncs the gate's writes has ended");
            }
        }
    }

    /// Returns when everything is on disk.
    pub(super) fn close(self) {
        drop(self.to);
        if self.thread.join().is_err() {
            tracing::error!("the thread that fsyncs the gate's writes panicked");
        }
    }
}

fn work(batches: &Receiver<Batch>, failure: &SyncFailure) {
    while let Ok(Batch { wal, commits }) = batches.recv() {
        if commits.iter().any(CommittedBatch::has_written)
            && let Err(error) = wal.sync_data()
        {
            failure.record(&error);
        }
        for batch in commits {
            match failure.check() {
                Ok(()) => reply(batch.replies, batch.result),
                Err(error) => batch.reply_unknown(&error.to_string()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn replies_after(wal: &File, failure: &SyncFailure) -> Vec<Result<Written, StoreError>> {
        let sync = WalSync::start(failure.clone());
        let mut replies = Vec::new();
        for _ in 0..2 {
            let (sender, reply) = oneshot::channel();
            let batch = CommittedBatch { replies: vec![sender], result: Ok(vec![Written::Done]) };
            sync.sync(Arc::new(wal.try_clone().unwrap()), vec![batch]);
            replies.push(reply);
        }
        sync.close();
        replies.into_iter().map(|reply| reply.blocking_recv().unwrap()).collect()
    }

    #[test]
    fn replies_wait_for_the_fsync_and_after_a_failed_one_nothing_is_acknowledged() {
        let failure = SyncFailure::default();
        let wal = tempfile::tempfile().unwrap();
        assert!(replies_after(&wal, &failure).iter().all(|result| matches!(result, Ok(Written::Done))));
        assert!(failure.check().is_ok());
        // An fsync of this device fails.
        let nowhere = File::open("/dev/null").unwrap();
        let unknown = |result: &Result<_, StoreError>| matches!(result, Err(StoreError::Failed(_)));
        assert!(replies_after(&nowhere, &failure).iter().all(unknown));
        assert!(replies_after(&wal, &failure).iter().all(unknown), "although the next fsync succeeds");
        assert!(matches!(failure.check(), Err(StoreError::NotCommitted(_))), "nothing more is written");
    }
}
