//! Sends an organization's webhook a notification when an approval, a question or a run waits for a person. A task polls the
//! database for rows without a notification, so no other code must announce them and a restart loses none. It retries each
//! delivery until the receiver accepts it, and gives up after some hours. An invocation never waits for its notification.

mod message;
mod webhook;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use clock::{Clock, crash_point};
use parking_lot::Mutex;
use proto::{NotificationState, OrgId};
use store::{Notification, Store, StoreError};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use url::Url;

pub(crate) use message::test_message;
pub(crate) use webhook::{SECRET_NAME, URL_NAME, Webhook};

const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of notifications that are found, or delivered to one organization, in one tick.
const NOTIFICATIONS_PER_TICK: i64 = 50;
/// After this many attempts, about 70 minutes, a notification is given up.
const MAX_ATTEMPTS: i64 = 13;
/// The delay after the first attempt. It doubles with each one.
const FIRST_DELAY: TimeDelta = TimeDelta::seconds(1);
/// A run that ended earlier than this is not reported any more.
const MAX_RUN_AGE: TimeDelta = TimeDelta::days(1);
/// How long rows are kept, so that nothing is reported twice: longer than an approval or a question can wait.
const ROW_LIFETIME: TimeDelta = TimeDelta::days(60);
/// How often old rows are deleted, in ticks.
const TICKS_PER_CLEANUP: u64 = 3600;

/// What notifications depend on.
pub struct Notifications {
    store: Store,
    clock: Clock,
    webhook: Webhook,
    /// The page that a message links to.
    page: Url,
    in_flight: InFlight,
}

/// The organizations to which something is being delivered.
#[derive(Clone, Default)]
struct InFlight(Arc<Mutex<HashSet<OrgId>>>);

/// Marks an organization as being delivered to. Dropping it removes the mark even if the task panics; otherwise the
/// organization would get no more notifications.
struct Delivering {
    in_flight: InFlight,
    org: OrgId,
}

impl InFlight {
    /// `None` if something is being delivered to this organization already.
    fn begin(&self, org: OrgId) -> Option<Delivering> {
        self.0.lock().insert(org).then(|| Delivering { in_flight: self.clone(), org })
    }
}

impl Drop for Delivering {
    fn drop(&mut self) {
        self.in_flight.0.lock().remove(&self.org);
    }
}

/// Runs until the gateway closes.
pub(crate) async fn keep_notifying(notifications: Arc<Notifications>, closing: CancellationToken) {
    let mut ticks = tokio::time::interval(TICK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for count in 0_u64.. {
        tokio::select! {
            _ = ticks.tick() => {}
            () = closing.cancelled() => return,
        }
        if let Err(error) = notifications.start_work().await {
            tracing::warn!(%error, "notifications cannot be read; it is tried again");
        }
        let before = notifications.clock.now() - ROW_LIFETIME;
        if count.is_multiple_of(TICKS_PER_CLEANUP)
            && let Err(error) = notifications.store.forget_notifications(before).await
        {
            tracing::warn!(%error, "old notifications cannot be removed; it is tried again");
        }
    }
}

impl Notifications {
    pub(crate) fn new(store: Store, clock: Clock, webhook: Webhook, mut page: Url) -> Self {
        page.set_fragment(Some("inbox"));
        Self { store, clock, webhook, page, in_flight: InFlight::default() }
    }

    /// The client of an organization's webhook.
    pub(crate) const fn webhook(&self) -> &Webhook {
        &self.webhook
    }

    /// The page that a message links to.
    pub(crate) const fn page(&self) -> &Url {
        &self.page
    }

    /// Creates a notification for each row that has none, and starts deliveries for every organization that has one due.
    async fn start_work(self: &Arc<Self>) -> Result<(), StoreError> {
        let now = self.clock.now();
        let new = self.store.unreported(now, now - MAX_RUN_AGE, NOTIFICATIONS_PER_TICK).await?;
        if !new.is_empty() {
            self.store.add_notifications(new, now).await?;
            crash_point("notification-recorded");
        }
        for org in self.store.orgs_to_notify(now).await? {
            let Some(delivering) = self.in_flight.begin(org) else { continue };
            let this = self.clone();
            tokio::spawn(async move {
                let _delivering = delivering;
                if let Err(error) = this.deliver_due(org).await {
                    tracing::warn!(%org, %error, "notifications cannot be delivered; it is tried again");
                }
            });
        }
        Ok(())
    }

    /// Delivers what is due, in order, until an attempt fails: a receiver that is down gets one request at a time.
    async fn deliver_due(&self, org: OrgId) -> Result<(), StoreError> {
        for due in self.store.due_notifications(org, self.clock.now(), NOTIFICATIONS_PER_TICK).await? {
            if !self.deliver(&due).await? {
                break;
            }
        }
        Ok(())
    }

    /// Tries to deliver a notification. Returns whether the receiver accepted it, or did not need it any more.
    async fn deliver(&self, due: &Notification) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let Some(subject) = self.store.notification_subject(due, now).await? else {
            self.store.settle_notification(due, NotificationState::Dropped, None).await?;
            return Ok(true);
        };
        self.store.begin_notification(due, now + delay(due.attempts)).await?;
        let sent = self.webhook.send(due.org_id, &message::message(due, &subject, &self.page)).await;
        crash_point("notification-sent");
        let (outcome, state, error) = match sent {
            Ok(()) => ("sent", NotificationState::Sent, None),
            Err(error) if due.attempts + 1 >= MAX_ATTEMPTS => {
                ("given up", NotificationState::Failed, Some(error))
            }
            Err(error) => ("failed", NotificationState::Pending, Some(error)),
        };
        metrics::counter!("proliferate_notifications_total", "outcome" => outcome).increment(1);
        if let Some(error) = &error {
            tracing::warn!(org = %due.org_id, %error, attempts = due.attempts + 1, outcome, "a notification was not delivered");
        }
        let accepted = error.is_none();
        self.store.settle_notification(due, state, error.map(|error| error.to_string())).await?;
        Ok(accepted)
    }
}

/// How long the attempt after this many is delayed.
fn delay(attempts: i64) -> TimeDelta {
    let doublings = u32::try_from(attempts).unwrap_or(0).min(20);
    FIRST_DELAY * 2_i32.pow(doublings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_delivery_that_does_not_end_normally_does_not_block_the_next() {
        let (in_flight, org) = (InFlight::default(), uuid::Uuid::nil().into());
        let delivering = in_flight.begin(org).unwrap();
        assert!(in_flight.begin(org).is_none());
        let task = tokio::spawn(async move {
            let _delivering = delivering;
            std::future::pending::<()>().await;
        });
        task.abort();
        assert!(task.await.is_err());
        assert!(in_flight.begin(org).is_some());
    }
}
