//! The end of a sandbox's lifetime: the session saves its files and moves to another sandbox, or sleeps until
//! someone needs it. If the provider has no snapshots, the session only reconnects to the same sandbox.

use std::pin::Pin;
use std::time::Duration;

use chrono::TimeDelta;
use proto::socket::{ServerMessage, WireStatus};
use proto::{PauseReason, SessionStatus};
use sandbox::SandboxId;
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use super::{Over, Session, settled};
use crate::runtime::{SnapshotError, leave};

/// The status message while a session moves.
pub(super) const EXTENDING: &str = "Extending session...";
/// How long a running turn may continue before it is cancelled.
const GRACE: Duration = Duration::from_secs(30);
/// How many times we try to save the files, and the delay between attempts.
const SAVES: u32 = 3;
const AGAIN: TimeDelta = TimeDelta::minutes(5);

/// The progress of a move to another sandbox.
pub(super) enum Moving {
    /// Waits for the turn to end by itself. When the timer fires, the turn is cancelled.
    Waiting(Option<Pin<Box<Sleep>>>),
    /// Saves the files and ends the sandbox. The task returns the name of the next sandbox.
    Saving(JoinHandle<Result<SandboxId, SnapshotError>>),
    /// Boots the next sandbox.
    Booting,
}

/// An event during a move.
pub(super) enum Step {
    Late,
    Saved(Box<Result<SandboxId, SnapshotError>>),
}

/// Waits for the next event of a move, or forever if the session does not move.
pub(super) async fn step(moving: &mut Option<Moving>) -> Step {
    match moving {
        Some(Moving::Waiting(late)) => {
            settled(late).await;
            *late = None;
            Step::Late
        }
        Some(Moving::Saving(task)) => {
            let broken = |error: tokio::task::JoinError| Err(SnapshotError::NotRunning(error.to_string()));
            Step::Saved(Box::new(task.await.unwrap_or_else(broken)))
        }
        Some(Moving::Booting) | None => std::future::pending().await,
    }
}

impl Session {
    /// Sets the expiry timer anew from the wall clock, which may have been adjusted.
    pub(super) fn watch_expiry(&mut self) {
        let left = self.record.sandbox_expires_at.map(|at| at - self.services.clock.now());
        self.expiry = left.map(|left| Box::pin(tokio::time::sleep(left.to_std().unwrap_or_default())));
    }

    pub(super) async fn expire(&mut self) -> Result<(), Over> {
        self.expiry = None;
        // A failed boot may already have retired the old sandbox.
        let record = self.services.store.session(self.record.org_id, self.record.id).await?;
        self.record.sandbox_expires_at = record.and_then(|record| record.sandbox_expires_at);
        if !self.is_overdue() {
            self.watch_expiry();
            return Ok(());
        }
        // A boot or a move checks the expiry again when it is done.
        if self.boot.is_some() || self.moving.is_some() {
            return Ok(());
        }
        if !self.services.runtime.sandboxes.provider.capabilities().durable_snapshot {
            return self.connect_anew().await;
        }
        if self.turn.is_some() && self.agent.is_none() {
            // The agent may have continued the turn, so reconnect and read its history.
            self.launch(Duration::ZERO);
            return Ok(());
        }
        if self.is_up() {
            self.say_status(WireStatus::Migrating, EXTENDING).await?;
        }
        if self.turn.is_some() || self.works() {
            self.moving = Some(Moving::Waiting(Some(Box::pin(tokio::time::sleep(GRACE)))));
        } else {
            self.save();
        }
        Ok(())
    }

    /// Reconnects without touching the sandbox: either someone else runs and ends it, or it cannot be saved.
    async fn connect_anew(&mut self) -> Result<(), Over> {
        self.services.store.set_sandbox_expiry(&self.owner, None).await?;
        self.record.sandbox_expires_at = None;
        self.disconnect();
        count("disconnected");
        tracing::info!(session = %self.record.id, "the time of the sandbox is over; disconnected");
        if !self.is_wanted() {
            return self.sleep().await;
        }
        self.say_status(WireStatus::Resuming, "Reconnecting to coding agent...").await?;
        self.launch(Duration::ZERO);
        Ok(())
    }

    /// Saves the files and ends the sandbox. No turn may be running.
    pub(super) fn save(&mut self) {
        self.disconnect();
        self.moving = Some(Moving::Saving(tokio::spawn(leave(self.services.runtime.clone(), self.owner))));
    }

    pub(super) async fn stepped(&mut self, step: Step) -> Result<(), Over> {
        let saved = match step {
            Step::Late if self.turn.is_some() => {
                self.cancelled = true;
                self.abort();
                return Ok(());
            }
            Step::Late => {
                self.save();
                return Ok(());
            }
            Step::Saved(saved) => *saved,
        };
        self.moving = None;
        match saved {
            Ok(next) => {
                self.moved_to(&next);
                count("saved");
                if !self.stopping.is_empty() {
                    return self.stopped("").await;
                }
                self.go_on(Some(Moving::Booting)).await
            }
            Err(SnapshotError::Store(error)) => Err(error.into()),
            Err(error) if self.stopping.is_empty() => self.not_saved(&error).await,
            Err(error) => self.not_stopped(&error).await,
        }
    }

    pub(super) fn moved_to(&mut self, next: &SandboxId) {
        self.unsaved = 0;
        self.record.sandbox_id = Some(next.to_string());
        self.record.sandbox_expires_at = None;
    }

    /// Handles a failed save: the sandbox outlives its lifetime because it has the only copy of the files.
    async fn not_saved(&mut self, error: &SnapshotError) -> Result<(), Over> {
        count("failed");
        self.unsaved += 1;
        let again = (self.unsaved < SAVES).then(|| self.services.clock.now() + AGAIN);
        let then = match again {
            Some(_) => format!("saving is tried again in {} minutes", AGAIN.num_minutes()),
            None => format!("{SAVES} attempts failed, so it is not ended any more"),
        };
        tracing::error!(session = %self.record.id, %error, then, "a sandbox whose time is over could not be saved");
        self.services.store.set_sandbox_expiry(&self.owner, again).await?;
        self.record.sandbox_expires_at = again;
        self.watch_expiry();
        let message = format!("The session could not be saved: {error}. It keeps its sandbox; {then}.");
        self.say(vec![ServerMessage::Error { message }]).await?;
        self.go_on(None).await
    }

    /// Boots an agent if anyone needs one; otherwise the session sleeps.
    async fn go_on(&mut self, moving: Option<Moving>) -> Result<(), Over> {
        if !self.is_wanted() {
            return self.sleep().await;
        }
        self.moving = moving;
        self.launch(Duration::ZERO);
        let (status, message) = self.state();
        self.say_status(status, &message).await
    }

    /// Pauses the session. The next prompt or watcher wakes it.
    async fn sleep(&mut self) -> Result<(), Over> {
        if !self.is_up() {
            return Ok(());
        }
        let (paused, reason) = (SessionStatus::Paused, PauseReason::Inactivity);
        self.services.store.set_status(&self.owner, paused, Some(reason), self.services.clock.now()).await?;
        self.record.status = paused;
        self.say_status(WireStatus::Paused, "The time of the sandbox is over; a prompt wakes the session")
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

    fn is_wanted(&self) -> bool {
        self.is_up() && (!self.watchers.is_empty() || self.turn.is_some() || !self.queue.is_empty())
    }
}

fn count(outcome: &'static str) {
    metrics::counter!("proliferate_sandbox_expiries_total", "outcome" => outcome).increment(1);
}
