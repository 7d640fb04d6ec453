//! The ways a session ends: someone stops it, its budget is spent, or it fails.

use std::time::Duration;

use proto::socket::{ServerMessage, WireStatus};
use proto::{Outcome, PauseReason, PromptState, RunStatus, SessionStatus};
use store::Ending;
use tokio::sync::oneshot;

use super::expiry::Moving;
use super::{Over, Session, millis};
use crate::runtime::SnapshotError;

impl Session {
    /// Fails the session until the next prompt. Queued prompts are kept for then.
    pub(super) async fn fail(&mut self, reason: &str) -> Result<(), Over> {
        (self.failures, self.losses, self.moving) = (0, 0, None);
        self.let_go();
        if let Some(translator) = &mut self.translator {
            let out = translator.give_up(reason, millis(&self.services));
            self.take(out).await?;
        }
        self.settle_turn().await?;
        self.interrupt().await?;
        self.telemetry.stop(self.services.clock.elapsed());
        self.flush().await?;
        let ending = Ending {
            status: SessionStatus::Failed,
            stop_reason: Some(reason.to_owned()),
            pause_reason: None,
            outcome: Some(Outcome::Failed),
            at: self.services.clock.now(),
        };
        self.services.store.end_session(&self.owner, ending).await?;
        (self.record.status, self.record.stop_reason) = (SessionStatus::Failed, Some(reason.to_owned()));
        self.halt().await;
        self.say(vec![
            ServerMessage::Status { status: WireStatus::Error, message: reason.to_owned() },
            ServerMessage::Error { message: format!("Failed to initialize session: {reason}") },
        ])
        .await
    }

    /// Stops the sandbox's processes. The sandbox of a failed session is no longer counted, so nothing may run in it.
    /// Its files stay for the next prompt.
    async fn halt(&mut self) {
        (self.agent, self.translator) = (None, None);
        let Ok(id) = crate::runtime::sandbox_of(&self.record) else { return };
        if let Err(error) = self.services.runtime.sandboxes.provider.halt(&id).await {
            tracing::error!(session = %self.record.id, %error, "the sandbox of a session that failed runs on");
        }
    }

    /// Aborts every request in flight to the agent, so that none arrives later.
    fn let_go(&mut self) {
        for task in [self.dispatch.take(), self.aborting.take()].into_iter().flatten() {
            task.abort();
        }
        if let Some(reading) = self.reading.take() {
            reading.abort();
        }
        (self.cancelled, self.aborts, self.settling) = (false, 0, None);
    }

    async fn settle_turn(&mut self) -> Result<(), Over> {
        if let Some(turn) = self.turn.take() {
            self.services.gate.end_turn(&self.record, &turn, RunStatus::Failed).await?;
            self.services.store.set_prompt_state(&self.owner, &turn, PromptState::Answered).await?;
        }
        Ok(())
    }

    /// Pauses the session at once and broadcasts why. The sandbox stays, so that a prompt can continue in it once there
    /// is budget again.
    pub(super) async fn over_budget(&mut self, why: &str) -> Result<(), Over> {
        // Each request in flight is refused separately. The first refusal has already paused the session.
        if self.agent.is_none() {
            return Ok(());
        }
        self.dismiss(why).await?;
        let (paused, reason) = (SessionStatus::Paused, PauseReason::CreditLimit);
        self.services.store.set_status(&self.owner, paused, Some(reason), self.services.clock.now()).await?;
        self.record.status = paused;
        self.say(vec![
            ServerMessage::Error { message: why.to_owned() },
            ServerMessage::Status { status: WireStatus::Paused, message: why.to_owned() },
        ])
        .await
    }

    /// Drops the agent: ends its turn and cancels the queued prompts.
    async fn dismiss(&mut self, reason: &str) -> Result<(), Over> {
        self.dismiss_agent(reason).await?;
        self.drop_prompts().await?;
        self.flush().await
    }

    /// Drops the agent and ends its turn. Queued prompts are kept.
    async fn dismiss_agent(&mut self, reason: &str) -> Result<(), Over> {
        self.let_go();
        self.moving.take_if(|moving| matches!(moving, Moving::Waiting(_)));
        if let Some(translator) = &mut self.translator {
            let out = translator.give_up(reason, millis(&self.services));
            self.take(out).await?;
        }
        // The agent may keep working without us, so it is told to abort.
        if let (Some(agent), true) = (&self.agent, self.turn.is_some()) {
            let (client, session) = (agent.client.clone(), agent.session.clone());
            tokio::spawn(async move { client.abort(&session).await });
        }
        (self.agent, self.translator) = (None, None);
        self.settle_turn().await?;
        self.interrupt().await?;
        self.telemetry.stop(self.services.clock.elapsed());
        self.flush().await
    }

    /// Saves the files and then ends the sandbox, as when its lifetime is over, so that a crash in between loses no
    /// files. [`Session::stopped`] or [`Session::not_stopped`] sends the reply.
    pub(super) async fn stop(&mut self, reply: oneshot::Sender<Result<(), String>>) -> Result<(), Over> {
        self.stopping.push(reply);
        // A save is already in progress.
        if matches!(self.moving, Some(Moving::Saving(_))) {
            return Ok(());
        }
        self.abandon_boot().await;
        // Prompts that arrive from here on belong to the time after the stop, and wake the session again.
        self.dismiss("The session was stopped").await?;
        if self.services.runtime.sandboxes.provider.capabilities().durable_snapshot {
            self.save();
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
        self.stopped("").await
    }

    /// Finishes the stop once the files are saved and the sandbox has ended.
    pub(super) async fn stopped(&mut self, message: &str) -> Result<(), Over> {
        self.dismiss_agent("The session was stopped").await?;
        let ending = Ending {
            status: SessionStatus::Stopped,
            stop_reason: Some("stopped".to_owned()),
            pause_reason: None,
            outcome: Some(Outcome::Completed),
            at: self.services.clock.now(),
        };
        self.services.store.end_session(&self.owner, ending).await?;
        self.record.status = SessionStatus::Stopped;
        self.record.sandbox_expires_at = None;
        for reply in self.stopping.drain(..) {
            let _ = reply.send(Ok(()));
        }
        self.say_status(WireStatus::Stopped, message).await?;
        if self.queue.is_empty() { Ok(()) } else { self.wake().await }
    }

    /// Handles a failed save: the sandbox that has the files keeps running, with its agent if it had one.
    pub(super) async fn not_stopped(&mut self, error: &SnapshotError) -> Result<(), Over> {
        tracing::error!(session = %self.record.id, %error, "a session could not be saved, so it was not stopped");
        for reply in self.stopping.drain(..) {
            let _ = reply.send(Err(error.to_string()));
        }
        let message = format!("The session was not stopped because its files could not be saved: {error}");
        self.say(vec![ServerMessage::Error { message }]).await?;
        if !self.is_up() {
            return Ok(());
        }
        self.launch(Duration::ZERO);
        let (status, message) = self.state();
        self.say_status(status, &message).await
    }

    /// Ends the session and its sandbox at once. Files that are in no snapshot are lost. The conversation stays.
    pub(super) async fn discard(&mut self) -> Result<(), Over> {
        self.abandon_boot().await;
        // Terminating the sandbox would wait for the copy in progress anyway.
        if let Some(Moving::Saving(task)) = self.moving.take()
            && let Ok(Ok(next)) = task.await
        {
            self.moved_to(&next);
        }
        self.dismiss("The session was stopped").await?;
        let sandbox = crate::runtime::sandbox_of(&self.record);
        self.services.store.new_sandbox_generation(&self.owner, None).await?;
        self.record.sandbox_id = None;
        if let Ok(id) = sandbox
            && let Err(error) = self.services.runtime.sandboxes.provider.terminate(&id).await
        {
            tracing::error!(session = %self.record.id, %error, "the sandbox of a stopped session is left behind");
        }
        self.stopped("What was not saved is gone").await
    }

    /// Aborts a boot, so that it can do nothing after its sandbox has ended.
    async fn abandon_boot(&mut self) {
        if let Some(boot) = self.boot.take() {
            boot.task.abort();
            if let Ok(Ok(agent)) = boot.task.await {
                self.record.sandbox_id = Some(agent.sandbox.to_string());
            }
        }
    }
}
