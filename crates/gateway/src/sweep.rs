//! Periodic work for sessions that are not in memory: loads sessions that have unanswered prompts, an expired sandbox,
//! an expired question or an undelivered answer, which then handle that themselves. Also deletes old egress records. The work is idempotent and safe on
//! several instances at once: each instance handles its own sessions, and those of dead instances.

use std::time::Duration;

use chrono::TimeDelta;
use store::StoreError;
use tokio::time::MissedTickBehavior;

use crate::app::AppState;
use crate::runtime::end_retired_sandboxes;
use gate::DEAD_AFTER;

const TICK: Duration = Duration::from_secs(5);
/// The maximum number of sessions woken in one tick.
const TOGETHER: i64 = 100;
/// How often old egress records are deleted, in ticks, and the batch size.
const FORGET: u64 = 120;
const FORGOTTEN: u32 = 1000;

/// Runs the sweep until the gateway closes.
pub(crate) async fn keep_sweeping(app: AppState) {
    if let Err(error) = end_retired_sandboxes(&app.runtime).await {
        tracing::warn!(%error, "sandboxes that their sessions have left may be there; the next start looks again");
    }
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for count in 0_u64.. {
        tokio::select! {
            _ = ticks.tick() => {}
            () = app.closing.cancelled() => return,
        }
        if let Err(error) = wake_waiting(&app).await {
            tracing::warn!(%error, "sessions whose prompts wait cannot be found; it is tried again");
        }
        if let Err(error) = wake_expired(&app).await {
            tracing::warn!(%error, "sandboxes whose time is over cannot be found; it is tried again");
        }
        if let Err(error) = wake_for_questions(&app).await {
            tracing::warn!(%error, "sessions with due questions cannot be found; it is tried again");
        }
        if count.is_multiple_of(FORGET)
            && let Err(error) = forget_network(&app).await
        {
            tracing::warn!(%error, "old records of the network cannot be removed; it is tried again");
        }
    }
}

/// Deletes old egress records in batches, so that no other writer waits for long.
async fn forget_network(app: &AppState) -> Result<(), StoreError> {
    let before = app.clock.now() - app.config.egress_keep;
    while !app.closing.is_cancelled()
        && app.store.forget_egress_records(before, FORGOTTEN).await? == u64::from(FORGOTTEN)
    {}
    Ok(())
}

/// Loads sessions whose turns and prompts a dead instance has left unfinished. Accepted prompts must not wait until
/// someone opens the session.
async fn wake_waiting(app: &AppState) -> Result<(), StoreError> {
    let gone = app.clock.now() - TimeDelta::from_std(DEAD_AFTER).unwrap_or_default();
    for id in app.store.sessions_with_prompts(&app.instance, gone, TOGETHER).await? {
        if app.closing.is_cancelled() {
            return Ok(());
        }
        if app.hubs.is_alive(id) {
            continue;
        }
        let woken = async { app.hubs.open(id).await?.wake().await };
        if let Err(error) = woken.await {
            tracing::warn!(session = %id, %error, "a session whose prompts wait cannot be woken");
        }
    }
    Ok(())
}

/// Loads sessions whose questions have expired, or whose agents have not got an answer yet.
async fn wake_for_questions(app: &AppState) -> Result<(), StoreError> {
    let now = app.clock.now();
    let gone = now - TimeDelta::from_std(DEAD_AFTER).unwrap_or_default();
    for id in app.store.sessions_with_due_questions(now, &app.instance, gone, TOGETHER).await? {
        if app.closing.is_cancelled() {
            return Ok(());
        }
        if let Err(error) = app.hubs.open(id).await {
            tracing::warn!(session = %id, %error, "a session with a due question cannot be loaded");
        }
    }
    Ok(())
}

async fn wake_expired(app: &AppState) -> Result<(), StoreError> {
    let now = app.clock.now();
    let gone = now - TimeDelta::from_std(DEAD_AFTER).unwrap_or_default();
    for id in app.store.expired_sessions(now, &app.instance, gone, TOGETHER).await? {
        if app.closing.is_cancelled() {
            return Ok(());
        }
        if let Err(error) = app.hubs.open(id).await {
            tracing::warn!(session = %id, %error, "a session whose sandbox's time is over cannot be woken");
        }
    }
    Ok(())
}
