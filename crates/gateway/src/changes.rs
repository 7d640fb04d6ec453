//! Changes: tells clients which sessions and entries of the inbox of their organization have changed. One task for each
//! organization that is followed compares what the database says now with what it said before. So it also sees what other
//! processes change, and what changes because time has passed.

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
const POLL: Duration = Duration::from_millis(500);
/// How many changes a slow reader may be behind before it is told to read everything again.
const BEHIND: usize = 32;

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
        match self.followed.lock().entry(org) {
            // Somebody else began meanwhile; their marks are older than ours, or of the same time.
            Entry::Occupied(begun) => Ok(begun.get().subscribe()),
            Entry::Vacant(free) => {
                let (sender, receiver) = broadcast::channel(BEHIND);
                free.insert(sender.clone());
                tokio::spawn(self.clone().keep_comparing(org, sender, marks));
                Ok(receiver)
            }
        }
    }

    /// Compares until nobody follows any more.
    async fn keep_comparing(
        self: Arc<Self>,
        org: OrgId,
        sender: Sender<Arc<OrgChange>>,
        mut known: ChangeMarks,
    ) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                () = self.closing.cancelled() => return,
            }
            if self.ends(org, &sender) {
                return;
            }
            match self.store.change_marks(org, self.clock.now()).await {
                Ok(marks) => {
                    let (sessions, inbox) = marks.since(&known);
                    known = marks;
                    if !sessions.is_empty() || !inbox.is_empty() {
                        // An error means that the last follower has just left.
                        let _ = sender.send(Arc::new(OrgChange { sessions, inbox }));
                    }
                }
                Err(error) => tracing::warn!(%org, %error, "changes cannot be read; it is tried again"),
            }
        }
    }

    /// Whether nobody follows an organization any more. Checked under the lock, so that nobody begins in between.
    fn ends(&self, org: OrgId, sender: &Sender<Arc<OrgChange>>) -> bool {
        let mut followed = self.followed.lock();
        let ends = sender.receiver_count() == 0;
        if ends {
            followed.remove(&org);
        }
        ends
    }
}
