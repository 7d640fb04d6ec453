//! A timer that may be unset, as a field of a state.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// An unset timer never fires. A set one fires once.
#[derive(Default)]
pub(super) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    pub(super) fn after(delay: Duration) -> Self {
        Self(Some(Box::pin(sleep(delay))))
    }

    pub(super) fn set(&mut self, delay: Duration) {
        *self = Self::after(delay);
    }

    pub(super) fn set_if_unset(&mut self, delay: Duration) {
        if self.0.is_none() {
            self.set(delay);
        }
    }

    /// Waits until the timer fires, and unsets it.
    pub(super) async fn fired(&mut self) {
        match &mut self.0 {
            Some(sleep) => sleep.await,
            None => std::future::pending().await,
        }
        self.0 = None;
    }
}
