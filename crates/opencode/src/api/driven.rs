//! A connection that is worked on by whoever waits for its answer: without a task of its own, what has arrived is there
//! at once, and a stream of many small pieces costs no switching.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Mutex, PoisonError};

type Work = Option<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// The work of a connection; nothing moves on it but within [`Driven::until`]. Nobody ever waits for the lock, which only
/// lets others hold a reference to what holds this.
pub(super) struct Driven(Mutex<Work>);

impl Driven {
    pub(super) fn new(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Mutex::new(Some(Box::pin(work))))
    }

    /// Works on the connection until something that depends on it is there.
    pub(super) async fn until<T>(&mut self, wanted: impl Future<Output = T>) -> T {
        let mut wanted = pin!(wanted);
        let work = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        poll_fn(|cx| {
            // How it ended is seen by whoever reads.
            if work.as_mut().is_some_and(|work| work.as_mut().poll(cx).is_ready()) {
                *work = None;
            }
            wanted.as_mut().poll(cx)
        })
        .await
    }
}

impl fmt::Debug for Driven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driven")
    }
}
