//! The ways a session ends: someone stops it, its budget is spent, or it fails.

use std::time::Duration;

use clock::crash_point;
use proto::socket::{ServerMessage, WireStatus};
use proto::{Outcome, PauseReason, PromptState, RunStatus, SessionStatus};
use sandbox::SandboxId;
use store::{NewEvent, SessionEnd, StoreError};

use super::phase::{BootPurpose, Phase, StopReply};
use super::timer::Timer;
use super::{End, Session, millis};
use crate::runtime::{SnapshotError, end_sandbox, end_sandboxes_of};

/// The stop reason of a session whose files were given up, and the message of such a stop.
const STOPPED_UNSAVED: &str = "stopped without saving";
const FILES_DISCARDED: &str = "What was not saved is gone";

impl Session {
    /// Fails the session until the next prompt. Queued prompts are kept for then.
    pub(super) async fn fail(&mut self, reason: &str) -> Result<(), End> {
        (self.failures.boots, self.failures.losses) = (0, 0);
        self.abort_requests();
        let now = millis(&self.services);
        if let Some(translator) = self.sandbox.translator() {
            let out = translator.give_up(reason, now);
            self.apply(out).await?;
        }
        self.end_failed_turn().await?;
        self.interrupt().await?;
        self.telemetry.stop(self.services.clock.elapsed());
        self.flush().await?;
        let ending = SessionEnd {
            status: SessionStatus::Failed,
            stop_reason: Some(reason.to_owned()),
            pause_reason: None,
            outcome: Some(Outcome::Failed),
            at: self.services.clock.now(),
        };
        self.services.store.end_session(&self.owner, ending).await?;
        (self.record.status, self.record.stop_reason) = (SessionStatus::Failed, Some(reason.to_owned()));
        self.halt().await;
        self.broadcast(vec![
            ServerMessage::Status { status: WireStatus::Error, message: reason.to_owned() },
            ServerMessage::Error { message: format!("Failed to initialize session: {reason}") },
        ])
        .await
    }

    /// Stops the sandbox's processes. The sandbox of a failed session is no longer counted, so nothing may run in it.
    /// Its files stay for the next prompt.
    async fn halt(&mut self) {
        self.sandbox.reset();
        let Ok(id) = crate::runtime::sandbox_of(&self.record) else { return };
        if let Err(error) = self.services.runtime.sandboxes.provider.halt(&id).await {
            tracing::error!(session = %self.record.id, %error, "the sandbox of a failed session keeps running");
        }
    }

    /// Aborts every request in flight to the agent, so that none arrives later.
    fn abort_requests(&mut self) {
        match self.turn.running_mut() {
            Some(turn) => turn.abort_requests(),
            None => *self.turn.timer() = Timer::default(),
        }
    }

    async fn end_failed_turn(&mut self) -> Result<(), End> {
        if let Some(turn) = self.turn.end() {
            self.services.gate.end_turn(&self.record, &turn.prompt, RunStatus::Failed).await?;
            self.services.store.set_prompt_state(&self.owner, &turn.prompt, PromptState::Answered).await?;
        }
        Ok(())
    }

    /// Pauses the session at once and broadcasts why. The sandbox stays, so that a prompt can continue in it once there
    /// is budget again.
    pub(super) async fn over_budget(&mut self, reason: &str) -> Result<(), End> {
        // Each request in flight is refused separately. The first refusal has already paused the session.
        if self.sandbox.agent().is_none() {
            return Ok(());
        }
        self.dismiss(reason).await?;
        let (paused, pause_reason) = (SessionStatus::Paused, PauseReason::CreditLimit);
        self.services
            .store
            .set_status(&self.owner, paused, Some(pause_reason), self.services.clock.now())
            .await?;
        self.record.status = paused;
        self.broadcast(vec![
            ServerMessage::Error { message: reason.to_owned() },
            ServerMessage::Status { status: WireStatus::Paused, message: reason.to_owned() },
        ])
        .await
    }

    /// Drops the agent: ends its turn and cancels the queued prompts.
    async fn dismiss(&mut self, reason: &str) -> Result<(), End> {
        self.dismiss_agent(reason).await?;
        self.drop_prompts().await?;
        self.flush().await
    }

    /// Drops the agent and ends its turn. Queued prompts are kept.
    async fn dismiss_agent(&mut self, reason: &str) -> Result<(), End> {
        self.abort_requests();
        let now = millis(&self.services);
        if let Some(translator) = self.sandbox.translator() {
            let out = translator.give_up(reason, now);
            self.apply(out).await?;
        }
        // The agent may keep working without us, so it is told to abort.
        if let (Some(agent), true) = (self.sandbox.agent(), self.turn.is_running()) {
            let (client, session) = (agent.client.clone(), agent.session.clone());
            tokio::spawn(async move { client.cancel(&session.id).await });
        }
        self.sandbox.reset();
        self.end_failed_turn().await?;
        self.interrupt().await?;
        self.telemetry.stop(self.services.clock.elapsed());
        self.flush().await
    }

    /// Saves the files and then ends the sandbox, as when its lifetime is over, so that a crash in between loses no
    /// files. [`Session::finish_stop`] or [`Session::stop_failed`] sends the reply.
    pub(super) async fn stop(&mut self, reply: StopReply) -> Result<(), End> {
        // A save that is already in progress ends with the stop.
        if let Phase::Saving(save) = &mut self.sandbox {
            save.stop_replies.push(reply);
            return Ok(());
        }
        self.abandon_boot().await;
        // Prompts that arrive from here on belong to the time after the stop, and wake the session again.
        self.dismiss("The session was stopped").await?;
        self.reject_all_questions().await?;
        if self.services.runtime.sandboxes.provider.capabilities().durable_snapshot {
            self.save(vec![reply]);
            return Ok(());
        }
        // Without snapshots, the files stay in the sandbox.
        let sandbox = crate::runtime::sandbox_of(&self.record);
        let name = self.record.sandbox_id.clone().filter(|name| *name != self.record.id.to_string());
        self.services.store.new_sandbox_generation(&self.owner, name.as_deref()).await?;
        self.record.sandbox_id = name;
        if let Ok(id) = sandbox
            && let Err(error) = self.services.runtime.sandboxes.provider.halt(&id).await
        {
            tracing::error!(session = %self.record.id, %error, "the sandbox of a stopped session runs on");
        }
        self.finish_stop("", vec![reply]).await
    }

    /// Finishes the stop once the files are saved and the sandbox has ended.
    pub(super) async fn finish_stop(&mut self, message: &str, replies: Vec<StopReply>) -> Result<(), End> {
        self.dismiss_agent("The session was stopped").await?;
        let reason = if message == FILES_DISCARDED { STOPPED_UNSAVED } else { "stopped" };
        let ending = SessionEnd {
            status: SessionStatus::Stopped,
            stop_reason: Some(reason.to_owned()),
            pause_reason: None,
            outcome: Some(Outcome::Completed),
            at: self.services.clock.now(),
        };
        self.services.store.end_session(&self.owner, ending).await?;
        (self.record.status, self.record.stop_reason) = (SessionStatus::Stopped, Some(reason.to_owned()));
        self.record.sandbox_expires_at = None;
        for reply in replies {
            let _ = reply.send(Ok(()));
        }
        self.broadcast_status(WireStatus::Stopped, message).await?;
        if self.queue.is_empty() { Ok(()) } else { self.wake().await }
    }

    /// Handles a failed save: the sandbox that has the files keeps running, with its agent if it had one.
    pub(super) async fn stop_failed(
        &mut self,
        error: &SnapshotError,
        replies: Vec<StopReply>,
    ) -> Result<(), End> {
        tracing::error!(session = %self.record.id, %error, "a session could not be saved, so it was not stopped");
        for reply in replies {
            let _ = reply.send(Err(error.to_string()));
        }
        let message = format!("The session was not stopped because its files could not be saved: {error}");
        self.broadcast(vec![ServerMessage::Error { message }]).await?;
        if !self.is_up() {
            return Ok(());
        }
        self.launch(Duration::ZERO, BootPurpose::Connect);
        let (status, message) = self.state();
        self.broadcast_status(status, &message).await
    }

    /// Ends the session and its sandbox at once. Files that are in no snapshot are lost, and the next agent is told so. The
    /// conversation stays. Returns the name of the sandbox if it could not be ended.
    pub(super) async fn discard(&mut self) -> Result<Option<SandboxId>, End> {
        self.abandon_boot().await;
        // Terminating the sandbox would wait for the copy in progress anyway.
        let mut replies = Vec::new();
        if let Phase::Saving(save) = &mut self.sandbox {
            let saved = (&mut save.task).await;
            replies = self.sandbox.end_save();
            if let Ok(Ok(next)) = saved {
                self.moved_to(&next);
            }
        }
        self.dismiss("The session was stopped").await?;
        self.reject_all_questions().await?;
        let sandbox = crate::runtime::sandbox_of(&self.record);
        self.set_files_lost(true).await?;
        self.services.store.new_sandbox_generation(&self.owner, None).await?;
        self.record.sandbox_id = None;
        let mut left = None;
        if let Ok(id) = sandbox
            && let Err(error) = end_sandbox(&self.services.runtime, &id).await
        {
            tracing::error!(session = %self.record.id, %error, "cannot end the sandbox of a stopped session");
            left = Some(id);
        }
        self.finish_stop(FILES_DISCARDED, replies).await?;
        Ok(left)
    }

    /// Records who deletes the session, and then removes it.
    pub(super) async fn delete(&mut self, event: NewEvent) -> Result<(), End> {
        let (store, now) = (self.services.store.recorded(event), self.services.clock.now());
        let deleted = store.delete_session(self.record.org_id, self.record.id, now).await;
        deleted.map_err(End::before_change)?;
        crash_point("session-deleted");
        self.remove().await
    }

    /// Ends a deleted session and its sandboxes, and removes its rows. While a sandbox cannot be ended, the row stays: it
    /// names the sandbox, and the sweep tries again.
    async fn remove(&mut self) -> Result<(), End> {
        let left = self.discard().await?;
        crash_point("session-discarded");
        if let Some(left) = left {
            self.services.store.new_sandbox_generation(&self.owner, Some(left.as_str())).await?;
            return Ok(());
        }
        if !self.end_sandboxes().await {
            return Ok(());
        }
        Ok(self.services.store.remove_session(self.record.org_id, self.record.id).await?)
    }

    /// Finishes a deletion that was cut off. The row may not name the sandbox any more.
    pub(super) async fn finish_deletion(&mut self) -> Result<(), StoreError> {
        // First, because this is tried again and again, and what follows is logged each time.
        if !self.end_sandboxes().await {
            return Ok(());
        }
        self.remove().await.or_else(End::into_store_error)
    }

    /// Ends all sandboxes of a deleted session, and returns whether that succeeded.
    async fn end_sandboxes(&self) -> bool {
        let ended = end_sandboxes_of(&self.services.runtime, &self.record).await;
        if let Err(error) = &ended {
            let session = self.record.id;
            tracing::error!(%session, %error, "cannot end the sandboxes of a deleted session; the sweep tries again");
        }
        ended.is_ok()
    }

    /// Records whether the next prompt must tell the agent that files are gone.
    pub(super) async fn set_files_lost(&mut self, lost: bool) -> Result<(), End> {
        self.services.store.set_files_lost(&self.owner, lost).await?;
        self.record.files_lost = lost;
        Ok(())
    }

    /// Aborts a boot, so that it can do nothing after its sandbox has ended.
    async fn abandon_boot(&mut self) {
        let Phase::Booting(boot) = &mut self.sandbox else { return };
        boot.task.abort();
        if let Ok(Ok(agent)) = (&mut boot.task).await {
            self.record.sandbox_id = Some(agent.sandbox.to_string());
        }
        self.sandbox.end_boot();
    }
}
