//! File operations that may hang, for example on a dead network mount. They run on a thread of their own, with a time
//! limit.
//!
//! An async worker that blocks on a file serves no other task. `spawn_blocking` does not help, because a runtime that
//! shuts down waits for its hung threads. Nobody waits for the threads here: the process exits without them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

/// The time limit. Local files answer in milliseconds; a mount that takes longer than this counts as unreachable.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// Runs operations on one location, one at a time, so that at most one thread hangs there however often it is tried.
#[derive(Clone, Default)]
pub struct FileWork {
    busy: Arc<AtomicBool>,
}

/// Marks the location as busy until it is dropped, even if the operation panics.
struct Busy(Arc<AtomicBool>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl FileWork {
    /// Runs an operation on its own thread and returns its result. One that exceeds the time limit continues there, and
    /// its result is lost.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let late = |why: &str| io::Error::new(io::ErrorKind::TimedOut, why.to_owned());
        if self.busy.swap(true, Ordering::AcqRel) {
            return Err(late("an earlier attempt still hangs"));
        }
        let busy = Busy(self.busy.clone());
        let (done, result) = oneshot::channel();
        std::thread::Builder::new().name("files".to_owned()).spawn(move || {
            let result = work();
            drop(busy);
            // The caller may have timed out.
            let _ = done.send(result);
        })?;
        match tokio::time::timeout(TIME_LIMIT, result).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) => Err(io::Error::other("the thread panicked")),
            Err(_) => Err(late("no answer within 2 seconds")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_hanging_file_blocks_one_thread_and_no_other_caller() {
        let files = FileWork::default();
        let (release, hanging) = mpsc::channel::<()>();
        let (ended, end) = oneshot::channel();
        let hangs = move || {
            let _ = hanging.recv();
            let _ = ended.send(());
        };
        assert_eq!(files.run(hangs).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let again = files.run(|| 1).await.unwrap_err();
        assert!(again.to_string().contains("still hangs"), "{again}");
        drop(release);
        end.await.unwrap();
        while files.busy.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // The clock of the test is paused, so this does not depend on timing.
        tokio::time::resume();
        assert_eq!(files.run(|| 2).await.unwrap(), 2);
        assert!(files.run(|| -> u8 { panic!("a test") }).await.is_err());
        assert_eq!(files.run(|| 3).await.unwrap(), 3, "a panic leaves the place free");
    }
}
