//! A lock per session around reading and writing its environment. Two writers at once would each replace the list of files
//! that the other wrote, and the older values could be written last.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use proto::SessionId;
use tokio::sync::OwnedMutexGuard;

#[derive(Default)]
pub(super) struct EnvironmentLocks(Mutex<HashMap<SessionId, Arc<tokio::sync::Mutex<()>>>>);

impl EnvironmentLocks {
    pub(super) async fn lock(&self, session: SessionId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock();
            // Drop locks that nobody holds or waits for.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            locks.entry(session).or_default().clone()
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_session_has_one_writer_at_a_time_and_no_lock_stays() {
        let locks = EnvironmentLocks::default();
        let [one, other] = [1, 2].map(|number| uuid::Uuid::from_u128(number).into());
        let held = locks.lock(one).now_or_never().unwrap();
        assert!(locks.lock(one).now_or_never().is_none());
        assert!(locks.lock(other).now_or_never().is_some());
        drop(held);
        assert!(locks.lock(one).now_or_never().is_some());
        let _held = locks.lock(other).now_or_never().unwrap();
        assert_eq!(locks.0.lock().len(), 1);
    }
}
