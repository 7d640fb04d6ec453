//! The ends of a session: stopped by somebody, out of money, or given up.

use proto::socket::{ServerMessage, WireStatus};
use proto::{Outcome, PauseReason, PromptState, RunStatus, SessionStatus};
use store::Ending;

use super::expiry::Moving;
use super::{Over, Session, millis};

impl Session {
    /// Gives the session up, until somebody prompts it again. Prompts that wait are kept for then.
    pub(super) async fn fail(&mut self, reason: &str) -> Result<(), Over> {
        (self.failures, self.losses, self.moving) = (0, 0, None);
        self.let_go();
        if let Some(translator) = &mut self.translator {
            let out = translator.give_up(reason, millis(&self.app));
            self.take(out).await?;
        }
        self.settle_turn().await?;
        self.interrupt().await?;
        self.telemetry.stop(self.app.clock.elapsed());
        self.flush().await?;
        let ending = Ending {
            status: SessionStatus::Failed,
            stop_reason: Some(reason.to_owned()),
            pause_reason: None,
            outcome: Some(Outcome::Failed),
            at: self.app.clock.now(),
        };
        self.app.store.end_session(&self.owner, ending).await?;
        (self.record.status, self.record.stop_reason) = (SessionStatus::Failed, Some(reason.to_owned()));
        self.halt().await;
        self.say(vec![
            ServerMessage::Status { status: WireStatus::Error, message: reason.to_owned() },
            ServerMessage::Error { message: format!("Failed to initialize session: {reason}") },
        ])
        .await
    }

    /// Nobody counts the sandbox of a session that was given up, so nothing may run in it. Its files stay for the next prompt.
    async fn halt(&mut self) {
        (self.agent, self.translator) = (None, None);
        let Ok(id) = crate::runtime::sandbox_of(&self.record) else { return };
        if let Err(error) = self.app.sandboxes.provider.halt(&id).await {
            tracing::error!(session = %self.record.id, %error, "the sandbox of a session that failed runs on");
        }
    }

    /// Ends whatever is on its way to the agent, which must not get it later.
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
            self.app.gate.end_turn(&self.record, &turn, RunStatus::Failed).await?;
            self.app.store.set_prompt_state(&self.owner, &turn, PromptState::Answered).await?;
        }
        Ok(())
    }

    /// Stops at once and says why. The sandbox stays, for when there is money again; a prompt then goes on with it.
    pub(super) async fn over_budget(&mut self, why: &str) -> Result<(), Over> {
        // Requests that were under way are refused one by one, and one of them is enough.
        if self.agent.is_none() {
            return Ok(());
        }
        self.dismiss(why).await?;
        let (paused, reason) = (SessionStatus::Paused, PauseReason::CreditLimit);
        self.app.store.set_status(&self.owner, paused, Some(reason), self.app.clock.now()).await?;
        self.record.status = paused;
        self.say(vec![
            ServerMessage::Error { message: why.to_owned() },
            ServerMessage::Status { status: WireStatus::Paused, message: why.to_owned() },
        ])
        .await
    }

    /// Has no agent any more: what it did is over, and what waited for it is not sent.
    async fn dismiss(&mut self, reason: &str) -> Result<(), Over> {
        self.let_go();
        self.moving.take_if(|moving| matches!(moving, Moving::Waiting(_)));
        if let Some(translator) = &mut self.translator {
            let out = translator.give_up(reason, millis(&self.app));
            self.take(out).await?;
        }
        // It may go on without us, so it is told to stop.
        if let (Some(agent), true) = (&self.agent, self.turn.is_some()) {
            let (client, session) = (agent.client.clone(), agent.session.clone());
            tokio::spawn(async move { client.abort(&session).await });
        }
        (self.agent, self.translator) = (None, None);
        self.settle_turn().await?;
        self.drop_prompts().await?;
        self.interrupt().await?;
        self.telemetry.stop(self.app.clock.elapsed());
        self.flush().await
    }

    /// Ends the session: its sandbox is gone afterwards, its conversation stays.
    pub(super) async fn stop(&mut self) -> Result<(), Over> {
        if let Some(boot) = self.boot.take() {
            boot.task.abort();
            // Only then can nothing of it come after the sandbox is removed.
            if let Ok(Ok(agent)) = boot.task.await {
                self.record.sandbox_id = Some(agent.sandbox.to_string());
            }
        }
        // Its end would wait for the copy anyway.
        if let Some(Moving::Saving(task)) = self.moving.take()
            && let Ok(Ok(next)) = task.await
        {
            self.moved_to(&next);
        }
        self.dismiss("The session was stopped").await?;
        let sandbox = crate::runtime::sandbox_of(&self.record);
        self.app.store.new_sandbox_generation(&self.owner, None).await?;
        let ending = Ending {
            status: SessionStatus::Stopped,
            stop_reason: Some("stopped".to_owned()),
            pause_reason: None,
            outcome: Some(Outcome::Completed),
            at: self.app.clock.now(),
        };
        self.app.store.end_session(&self.owner, ending).await?;
        self.record.status = SessionStatus::Stopped;
        (self.record.sandbox_id, self.record.sandbox_expires_at) = (None, None);
        if let Ok(id) = sandbox
            && let Err(error) = self.app.sandboxes.provider.terminate(&id).await
        {
            tracing::error!(session = %self.record.id, %error, "the sandbox of a stopped session is left behind");
        }
        self.say_status(WireStatus::Stopped, "").await
    }
}
