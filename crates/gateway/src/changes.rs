//! Broadcasts the ids of changed sessions and inbox entries to the clients that follow an organization. One task for each
//! followed organization polls the database and compares each row with its previous state, because other processes and
//! expiring deadlines change rows without telling this process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use clock::Clock;
use parking_lot::Mutex;
use proto::{OrgId, SessionId};
use store::{ChangeMarks, InboxKey, Store, StoreError};
use tokio::sync::broadcast::{self, Receiver, Sender};
use tokio_util::sync::CancellationToken;

/// How often an organization that somebody follows is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How many changes a slow reader may be behind before it is told to read everything again.
const MAX_CHANGES_BEHIND: usize = 32;

/// What has changed within one poll.
#[derive(Debug)]
pub(crate) struct OrgChange {
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) inbox: Vec<InboxKey>,
}

/// The organizations that are followed.
pub struct Changes {
    store: Store,
    clock: Clock,
    closing: CancellationToken,
    followed: Mutex<HashMap<OrgId, Sender<Arc<OrgChange>>>>,
}

/// The end of a comparison that nobody follows, or that cannot go on: it is not found any more, so whoever follows next starts
/// another, and those who still follow are told that there will be no more changes.
struct Comparison {
    changes: Arc<Changes>,
    org: OrgId,
    sender: Sender<Arc<OrgChange>>,
}

impl Drop for Comparison {
    fn drop(&mut self) {
        let mut followed = self.changes.followed.lock();
        if followed.get(&self.org).is_some_and(|sender| sender.same_channel(&self.sender)) {
            followed.remove(&self.org);
        }
    }
}

impl Changes {
    pub(crate) fn new(store: Store, clock: Clock, closing: CancellationToken) -> Self {
        Self { store, clock, closing, followed: Mutex::default() }
    }

    /// Follows an organization: everything that changes after this returns is received.
    pub(crate) async fn follow(self: &Arc<Self>, org: OrgId) -> Result<Receiver<Arc<OrgChange>>, StoreError> {
        if let Some(sender) = self.followed.lock().get(&org) {
            return Ok(sender.subscribe());
        }
        let marks = self.store.change_marks(org, self.clock.now()).await?;
        let (sender, receiver) = match self.followed.lock().entry(org) {
            // Somebody else began meanwhile; their marks are older than ours, or of the same time.
            Entry::Occupied(begun) => return Ok(begun.get().subscribe()),
            Entry::Vacant(free) => {
                let (sender, receiver) = broadcast::channel(MAX_CHANGES_BEHIND);
                free.insert(sender.clone());
                (sender, receiver)
            }
        };
        // The lock is free by now: a runtime that shuts down drops the task at once, and its drop takes the lock.
        tokio::spawn(Comparison { changes: self.clone(), org, sender }.keep_comparing(marks));
        Ok(receiver)
    }
}

impl Comparison {
    /// Compares until nobody follows any more.
    async fn keep_comparing(self, mut known: ChangeMarks) {
        let Changes { store, clock, closing, .. } = &*self.changes;
        loop {
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = closing.cancelled() => return,
            }
            if self.ends() {
                return;
            }
            match store.change_marks(self.org, clock.now()).await {
                Ok(marks) => {
                    let (sessions, inbox) = marks.since(&known);
                    known = marks;
                    if !sessions.is_empty() || !inbox.is_empty() {
                        // An error means that the last follower has just left.
                        let _ = self.sender.send(Arc::new(OrgChange { sessions, inbox }));
                    }
                }
                Err(error) => {
                    tracing::warn!(org = %self.org, %error, "changes cannot be read; the next poll tries again");
                }
            }
        }
    }

    /// Whether nobody follows an organization any more. Checked under the lock, so that nobody begins in between.
    fn ends(&self) -> bool {
        let mut followed = self.changes.followed.lock();
        let ends = self.sender.receiver_count() == 0;
        if ends {
            followed.remove(&self.org);
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::broadcast::error::RecvError;

    use super::*;

    #[tokio::test]
    async fn followers_of_a_comparison_that_ends_are_told_and_can_follow_again() {
        let (dir, clock, closing) = (tempfile::tempdir().unwrap(), Clock::system(), CancellationToken::new());
        let store = Store::open_sqlite(&dir.path().join("a.db"), &clock).await.unwrap();
        let changes = Arc::new(Changes::new(store, clock, closing.clone()));
        let mut followed = changes.follow(uuid::Uuid::nil().into()).await.unwrap();
        closing.cancel();
        assert_eq!(followed.recv().await.err(), Some(RecvError::Closed));
        assert!(changes.followed.lock().is_empty());
    }
}
