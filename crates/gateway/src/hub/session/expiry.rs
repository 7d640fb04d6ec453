//! The end of a sandbox's lifetime: the session saves its files and moves to another sandbox, or sleeps until
//! someone needs it. If the provider has no snapshots, the session only reconnects to the same sandbox.

use std::time::Duration;

use chrono::TimeDelta;
use proto::socket::{ServerMessage, WireStatus};
use proto::{PauseReason, SessionStatus};
use sandbox::SandboxId;

use super::phase::{BootPurpose, Phase, Save, StopReply};
use super::timer::Timer;
use super::turn::Turn;
use super::{End, Session};
use crate::runtime::{SnapshotError, retire_sandbox};

/// The status message while a session moves.
pub(super) const EXTENDING_MESSAGE: &str = "Extending session...";
/// How long a running turn may continue before it is cancelled.
const TURN_GRACE_PERIOD: Duration = Duration::from_secs(30);
/// How many times we try to save the files, and the delay between attempts.
const MAX_SAVES: u32 = 3;
const SAVE_RETRY: TimeDelta = TimeDelta::minutes(5);

impl Session {
    /// Sets the expiry timer anew from the wall clock, which may have been adjusted.
    pub(super) fn watch_expiry(&mut self) {
        let left = self.record.sandbox_expires_at.map(|at| at - self.services.clock.now());
        self.expiry = left.map(|left| Timer::after(left.to_std().unwrap_or_default())).unwrap_or_default();
    }

    pub(super) async fn expire(&mut self) -> Result<(), End> {
        // A failed boot may already have retired the old sandbox.
        let record = self.services.store.session(self.record.org_id, self.record.id).await?;
        self.record.sandbox_expires_at = record.and_then(|record| record.sandbox_expires_at);
        if !self.is_overdue() {
            self.watch_expiry();
            return Ok(());
        }
        // A boot or a move checks the expiry again when it is done.
        if self.sandbox.is_in_transition() {
            return Ok(());
        }
        if !self.services.runtime.sandboxes.provider.capabilities().durable_snapshot {
            return self.reconnect().await;
        }
        if self.turn.is_running() && self.sandbox.agent().is_none() {
            // The agent may have continued the turn, so reconnect and read its history.
            self.launch(Duration::ZERO, BootPurpose::Connect);
            return Ok(());
        }
        if self.is_up() {
            self.broadcast_status(WireStatus::Migrating, EXTENDING_MESSAGE).await?;
        }
        // Nobody knows when people answer. The answer continues the session in its next sandbox.
        if self.is_waiting_for_people() {
            return self.park().await;
        }
        let is_busy = self.turn.is_running() || self.agent_is_busy();
        match &mut self.sandbox {
            Phase::Connected(connection) if is_busy => {
                connection.retiring = Some(Timer::after(TURN_GRACE_PERIOD));
            }
            _ => self.save(Vec::new()),
        }
        Ok(())
    }

    /// Reconnects without touching the sandbox: either someone else runs and ends it, or it cannot be saved.
    async fn reconnect(&mut self) -> Result<(), End> {
        self.services.store.set_sandbox_expiry(&self.owner, None).await?;
        self.record.sandbox_expires_at = None;
        self.sandbox.disconnect();
        count("disconnected");
        tracing::info!(session = %self.record.id, "the time of the sandbox is over; disconnected");
        if !self.is_needed().await? {
            return self.pause().await;
        }
        self.broadcast_status(WireStatus::Resuming, "Reconnecting to coding agent...").await?;
        self.launch(Duration::ZERO, BootPurpose::Connect);
        Ok(())
    }

    /// Saves the files and ends the sandbox. No turn may be running. With `stop_replies`, the session stops afterwards.
    pub(super) fn save(&mut self, stop_replies: Vec<StopReply>) {
        self.sandbox.disconnect();
        let task = tokio::spawn(retire_sandbox(self.services.runtime.clone(), self.owner));
        let resume = self.sandbox.take_resume();
        self.sandbox = Phase::Saving(Save { task, stop_replies, resume });
    }

    /// Cancels the turn that keeps the session in a sandbox whose lifetime is over. Without a turn, the files are saved
    /// now, or after the boot.
    pub(super) async fn retirement_due(&mut self) -> Result<(), End> {
        if self.is_waiting_for_people() {
            return self.park().await;
        }
        match &mut self.turn {
            Turn::Running(turn) => {
                turn.cancellation.get_or_insert_default();
                self.send_abort();
            }
            Turn::Idle { .. } if self.sandbox.is_retiring() => self.save(Vec::new()),
            Turn::Idle { .. } => {}
        }
        Ok(())
    }

    /// Handles the end of a save: the session stops if someone asked for that, and otherwise moves.
    pub(super) async fn saved(&mut self, result: Result<SandboxId, SnapshotError>) -> Result<(), End> {
        let stop_replies = self.sandbox.end_save();
        match result {
            Ok(next) => {
                self.moved_to(&next);
                count("saved");
                if stop_replies.is_empty() {
                    return self.boot_or_pause(BootPurpose::Move).await;
                }
                self.finish_stop("", stop_replies).await
            }
            Err(SnapshotError::Store(error)) => Err(error.into()),
            Err(error) if stop_replies.is_empty() => self.save_failed(&error).await,
            Err(error) => self.stop_failed(&error, stop_replies).await,
        }
    }

    pub(super) fn moved_to(&mut self, next: &SandboxId) {
        self.failures.saves = 0;
        self.record.sandbox_id = Some(next.to_string());
        self.record.sandbox_expires_at = None;
    }

    /// Handles a failed save: the sandbox outlives its lifetime because it has the only copy of the files.
    async fn save_failed(&mut self, error: &SnapshotError) -> Result<(), End> {
        count("failed");
        // What the gate refuses now, for example because of the safety lock, it allows later.
        if !matches!(error, SnapshotError::Refused(_)) {
            self.failures.saves += 1;
        }
        let again = (self.failures.saves < MAX_SAVES).then(|| self.services.clock.now() + SAVE_RETRY);
        let then = match again {
            Some(_) => format!("saving is tried again in {} minutes", SAVE_RETRY.num_minutes()),
            None => format!("{MAX_SAVES} attempts failed, so it is not ended any more"),
        };
        tracing::error!(session = %self.record.id, %error, then, "a sandbox whose time is over could not be saved");
        self.services.store.set_sandbox_expiry(&self.owner, again).await?;
        self.record.sandbox_expires_at = again;
        self.watch_expiry();
        let message = format!("The session could not be saved: {error}. It keeps its sandbox; {then}.");
        self.broadcast(vec![ServerMessage::Error { message }]).await?;
        self.boot_or_pause(BootPurpose::Connect).await
    }

    /// Boots an agent if anyone needs one; otherwise the session sleeps.
    async fn boot_or_pause(&mut self, purpose: BootPurpose) -> Result<(), End> {
        if !self.is_needed().await? {
            return self.pause().await;
        }
        self.launch(Duration::ZERO, purpose);
        let (status, message) = self.state();
        self.broadcast_status(status, &message).await
    }

    /// Pauses the session. The next prompt or watcher wakes it.
    async fn pause(&mut self) -> Result<(), End> {
        if !self.is_up() {
            return Ok(());
        }
        let (paused, reason) = (SessionStatus::Paused, PauseReason::Inactivity);
        self.services.store.set_status(&self.owner, paused, Some(reason), self.services.clock.now()).await?;
        self.record.status = paused;
        self.broadcast_status(
            WireStatus::Paused,
            "The time of the sandbox is over; a prompt wakes the session",
        )
        .await
    }

    /// Whether the sandbox's lifetime is over. The session must not leave memory before it has handled that,
    /// because nothing may ever load it again.
    pub(super) fn is_overdue(&self) -> bool {
        self.record.sandbox_expires_at.is_some_and(|at| at <= self.services.clock.now())
    }

    /// Whether the session has a sandbox or is starting one.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.record.status, SessionStatus::Running | SessionStatus::Starting)
    }

    async fn is_needed(&self) -> Result<bool, End> {
        Ok(self.is_up() && self.agent_is_awaited().await?)
    }

    /// Whether the agent has work, or somebody waits for it.
    pub(super) async fn agent_is_awaited(&self) -> Result<bool, End> {
        Ok(self.turn.is_running() || !self.queue.is_empty() || self.has_client().await?)
    }
}

fn count(outcome: &'static str) {
    metrics::counter!("proliferate_sandbox_expiries_total", "outcome" => outcome).increment(1);
}
