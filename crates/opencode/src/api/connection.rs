//! A connection that is polled by the task that waits for its response. Without a task of its own, received
//! data is available immediately, and a stream of many small pieces needs no task switches.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};

use parking_lot::Mutex;

type Work = Option<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// The future that drives a connection; it makes progress only within [`Connection::drive_until`]. The lock is
/// never contended; it only makes the owner `Sync`.
pub(super) struct Connection(Mutex<Work>);

impl Connection {
    pub(super) fn new(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Mutex::new(Some(Box::pin(work))))
    }

    /// Drives the connection until `wanted` completes.
    pub(super) async fn drive_until<T>(&mut self, wanted: impl Future<Output = T>) -> T {
        let mut wanted = pin!(wanted);
        let work = self.0.get_mut();
        poll_fn(|cx| {
            // The reader of the response sees how the connection ended.
            if work.as_mut().is_some_and(|work| work.as_mut().poll(cx).is_ready()) {
                *work = None;
            }
            wanted.as_mut().poll(cx)
        })
        .await
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}
