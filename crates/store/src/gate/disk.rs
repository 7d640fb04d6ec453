//! Brings what the gate has committed to disk, beside the thread that commits: SQLite itself would do it at the end of
//! each commit, and nothing could be written meanwhile.

use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, SendError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use super::{Waiting, Written, answer};
use crate::StoreError;

/// Why the disk has refused to keep the log, if it has. What a disk has refused once may be lost although it takes the next,
/// so from then on nothing is written and nothing is promised, until a new start has looked at what is there.
#[derive(Clone, Default)]
pub(crate) struct Refused(Arc<OnceLock<String>>);

impl Refused {
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match self.0.get() {
            Some(why) => Err(StoreError::NotCommitted(why.clone())),
            None => Ok(()),
        }
    }

    fn because(&self, error: &io::Error) {
        let why = format!("the database's log does not reach the disk ({error}): start anew when it does");
        tracing::error!("{why}");
        let _ = self.0.set(why);
    }
}

/// Writes that are in the log of the file and must be on disk before anybody is told.
pub(super) struct Committed {
    pub(super) waiting: Vec<Waiting>,
    pub(super) result: Result<Vec<Written>, StoreError>,
}

impl Committed {
    /// What only looked has nothing to bring. What it saw was brought before it, as batches come one after the other.
    fn has_written(&self) -> bool {
        self.result.as_ref().is_ok_and(|results| results.iter().any(|one| matches!(one, Written::Done)))
    }

    /// Whether it was kept is not known. What was refused before that stays refused.
    fn in_doubt(self, why: &str) {
        match self.result {
            Ok(_) => {
                for done in self.waiting {
                    let error = sqlx::Error::Io(io::Error::other(why.to_owned()));
                    answer(vec![done], Err(StoreError::Failed(error)));
                }
            }
            refused => answer(self.waiting, refused),
        }
    }
}

/// The thread.
pub(super) struct Disk {
    /// Takes one batch at a time, so that what comes meanwhile shares the next.
    to: SyncSender<Batch>,
    thread: JoinHandle<()>,
}

struct Batch {
    /// Open since before the first commit: an error is told to those who have the file open when it happens.
    log: Arc<File>,
    all: Vec<Committed>,
}

impl Disk {
    pub(super) fn start(refused: Refused) -> Self {
        let (to, batches) = sync_channel(0);
        let thread = std::thread::spawn(move || work(&batches, &refused));
        Self { to, thread }
    }

    /// Hands over what is in the log; returns when the batch before it is on disk.
    pub(super) fn bring(&self, log: Arc<File>, all: Vec<Committed>) {
        if let Err(SendError(lost)) = self.to.send(Batch { log, all }) {
            for committed in lost.all {
                committed.in_doubt("the thread that brings the gate's writes to disk has ended");
            }
        }
    }

    /// Returns when everything was brought.
    pub(super) fn close(self) {
        drop(self.to);
        if self.thread.join().is_err() {
            tracing::error!("the thread that brings the gate's writes to disk fell over");
        }
    }
}

fn work(batches: &Receiver<Batch>, refused: &Refused) {
    while let Ok(Batch { log, all }) = batches.recv() {
        if all.iter().any(Committed::has_written)
            && let Err(error) = log.sync_data()
        {
            refused.because(&error);
        }
        for committed in all {
            match refused.check() {
                Ok(()) => answer(committed.waiting, committed.result),
                Err(error) => committed.in_doubt(&error.to_string()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn told_after(log: &File, refused: &Refused) -> Vec<Result<Written, StoreError>> {
        let disk = Disk::start(refused.clone());
        let mut told = Vec::new();
        for _ in 0..2 {
            let (done, answer) = oneshot::channel();
            let committed = Committed { waiting: vec![done], result: Ok(vec![Written::Done]) };
            disk.bring(Arc::new(log.try_clone().unwrap()), vec![committed]);
            told.push(answer);
        }
        disk.close();
        told.into_iter().map(|answer| answer.blocking_recv().unwrap()).collect()
    }

    #[test]
    fn nobody_is_told_before_the_log_is_on_disk_and_after_a_refusal_nothing_is_promised() {
        let refused = Refused::default();
        let log = tempfile::tempfile().unwrap();
        assert!(told_after(&log, &refused).iter().all(|result| matches!(result, Ok(Written::Done))));
        assert!(refused.check().is_ok());
        // Nothing that is written there is ever on disk, and it says so.
        let nowhere = File::open("/dev/null").unwrap();
        let in_doubt = |result: &Result<_, StoreError>| matches!(result, Err(StoreError::Failed(_)));
        assert!(told_after(&nowhere, &refused).iter().all(in_doubt));
        assert!(told_after(&log, &refused).iter().all(in_doubt), "the disk takes the next");
        assert!(matches!(refused.check(), Err(StoreError::NotCommitted(_))), "nothing more is written");
    }
}
