//! File work that may hang, as on a dead network mount: on a thread of its own, within a time limit.
//!
//! An async worker that waits for a file serves nobody, and neither `spawn_blocking` nor a runtime that ends lets go of a
//! thread that hangs. Nobody waits for these threads: the process ends without them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

/// Local files answer in milliseconds, and a mount that takes longer than this is as good as gone.
const LIMIT: Duration = Duration::from_secs(2);

/// Work on one place, one piece at a time: however often a place that hangs is tried, at most one thread hangs there.
#[derive(Clone, Default)]
pub struct FileWork {
    busy: Arc<AtomicBool>,
}

/// The place is busy until this is dropped, also when the work panics.
struct Busy(Arc<AtomicBool>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl FileWork {
    /// Does the work elsewhere and gives what it returns. Work that takes too long goes on there, and its result is lost.
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
            // Whoever asked may have given up.
            let _ = done.send(result);
        })?;
        match tokio::time::timeout(LIMIT, result).await {
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
    async fn a_place_that_hangs_holds_one_thread_and_nobody_else() {
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
        // The clock of the test stands still, so this is no matter of time.
        tokio::time::resume();
        assert_eq!(files.run(|| 2).await.unwrap(), 2);
        assert!(files.run(|| -> u8 { panic!("a test") }).await.is_err());
        assert_eq!(files.run(|| 3).await.unwrap(), 3, "a panic leaves the place free");
    }
}
