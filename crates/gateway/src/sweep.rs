//! Periodic work for sessions that are not in memory: loads sessions that have unanswered prompts, an expired sandbox,
//! an expired question or an undelivered answer, or whose deletion was cut off, which then handle that themselves. Also
//! deletes old egress records. The work is idempotent and safe on several instances at once: each instance handles its own
//! sessions, and those of dead instances.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use clock::Clock;
use gate::DEAD_AFTER;
use store::{Store, StoreError};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::hub::{HubError, Hubs};
use crate::runtime::{Runtime, end_retired_sandboxes};

const TICK_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum number of sessions loaded for one reason in one tick.
const SESSIONS_PER_TICK: i64 = 100;
/// How often old egress records are deleted, in ticks.
const EGRESS_TICKS: u64 = 120;
/// How many egress records one transaction deletes.
const EGRESS_BATCH: u32 = 1000;

/// The parts of the gateway that the sweep uses.
pub(crate) struct SweepServices {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) hubs: Hubs,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) instance: String,
    /// How long egress records are kept.
    pub(crate) egress_keep: TimeDelta,
    /// Cancelled when the gateway stops.
    pub(crate) closing: CancellationToken,
}

/// Runs the sweep until the gateway closes.
pub(crate) async fn keep_sweeping(services: SweepServices) {
    if let Err(error) = end_retired_sandboxes(&services.runtime).await {
        tracing::warn!(%error, "cannot end all retired sandboxes; the next start tries again");
    }
    let mut ticks = tokio::time::interval(TICK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for count in 0_u64.. {
        tokio::select! {
            _ = ticks.tick() => {}
            () = services.closing.cancelled() => return,
        }
        if let Err(error) = load_sessions_with_prompts(&services).await {
            tracing::warn!(%error, "cannot find sessions with unanswered prompts; the next tick tries again");
        }
        if let Err(error) = load_expired_sessions(&services).await {
            tracing::warn!(%error, "cannot find expired sandboxes; the next tick tries again");
        }
        if let Err(error) = remove_deleted_sessions(&services).await {
            tracing::warn!(%error, "cannot find deleted sessions; the next tick tries again");
        }
        if let Err(error) = load_sessions_with_questions(&services).await {
            tracing::warn!(%error, "cannot find sessions with due questions; the next tick tries again");
        }
        if count.is_multiple_of(EGRESS_TICKS)
            && let Err(error) = delete_egress_records(&services).await
        {
            tracing::warn!(%error, "cannot delete old egress records; a later tick tries again");
        }
    }
}

/// Deletes old egress records in batches, so that no other writer waits for long.
async fn delete_egress_records(services: &SweepServices) -> Result<(), StoreError> {
    let before = services.clock.now() - services.egress_keep;
    while !services.closing.is_cancelled()
        && services.store.forget_egress_records(before, EGRESS_BATCH).await? == u64::from(EGRESS_BATCH)
    {}
    Ok(())
}

/// Loads sessions whose turns and prompts a dead instance has left unfinished. Accepted prompts must not wait until
/// someone opens the session.
async fn load_sessions_with_prompts(services: &SweepServices) -> Result<(), StoreError> {
    let gone = services.clock.now() - TimeDelta::from_std(DEAD_AFTER).unwrap_or_default();
    for id in services.store.sessions_with_prompts(&services.instance, gone, SESSIONS_PER_TICK).await? {
        if services.closing.is_cancelled() {
            return Ok(());
        }
        if services.hubs.is_alive(id) {
            continue;
        }
        let loaded = async { services.hubs.open(id).await?.wake().await };
        if let Err(error) = loaded.await {
            tracing::warn!(session = %id, %error, "cannot load a session with unanswered prompts");
        }
    }
    Ok(())
}

/// Loads sessions whose questions have expired, or whose agents have not got an answer yet.
async fn load_sessions_with_questions(services: &SweepServices) -> Result<(), StoreError> {
    let now = services.clock.now();
    let gone = now - TimeDelta::from_std(DEAD_AFTER).unwrap_or_default();
    let due =
        services.store.sessions_with_due_questions(now, &services.instance, gone, SESSIONS_PER_TICK).await?;
    for id in due {
        if services.closing.is_cancelled() {
            return Ok(());
        }
        if let Err(error) = services.hubs.open(id).await {
            tracing::warn!(session = %id, %error, "cannot load a session with a due question");
        }
    }
    Ok(())
}

/// Loads deleted sessions whose removal was cut off, which finishes it.
async fn remove_deleted_sessions(services: &SweepServices) -> Result<(), StoreError> {
    let gone = services.clock.now() - TimeDelta::from_std(DEAD_AFTER).unwrap_or_default();
    for id in services.store.deleted_sessions(&services.instance, gone, SESSIONS_PER_TICK).await? {
        if services.closing.is_cancelled() {
            return Ok(());
        }
        match services.hubs.open(id).await {
            Ok(_) | Err(HubError::Store(StoreError::Missing(_))) => {}
            Err(error) => tracing::warn!(session = %id, %error, "cannot remove a deleted session"),
        }
    }
    Ok(())
}

async fn load_expired_sessions(services: &SweepServices) -> Result<(), StoreError> {
    let now = services.clock.now();
    let gone = now - TimeDelta::from_std(DEAD_AFTER).unwrap_or_default();
    for id in services.store.expired_sessions(now, &services.instance, gone, SESSIONS_PER_TICK).await? {
        if services.closing.is_cancelled() {
            return Ok(());
        }
        if let Err(error) = services.hubs.open(id).await {
            tracing::warn!(session = %id, %error, "cannot load a session with an expired sandbox");
        }
    }
    Ok(())
}
