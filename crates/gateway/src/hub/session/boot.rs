//! Booting the agent: waking the session, retrying failed boots, and giving up after a few attempts.

use std::time::Duration;

use agent::Translator;
use proto::SessionStatus;
use proto::socket::{ServerMessage, WireStatus};
use tokio::sync::mpsc;

use super::phase::{Boot, BootPurpose, Connection, Phase};
use super::{End, Session};
use crate::admission::Refusal;
use crate::runtime::{Agent, Launch, LaunchError};

/// The number of consecutive boots that may fail before the session fails.
const MAX_BOOTS: u32 = 3;
/// The delay after the first failed boot; after the second it is twice as long. A sandbox that was killed takes a moment
/// to end, and cannot be started meanwhile.
const BOOT_PAUSE: Duration = Duration::from_millis(250);
const STAGE_QUEUE_CAPACITY: usize = 8;
/// The message when a session whose files were given up starts again.
const FROM_SNAPSHOT: &str = "Starting from the last snapshot: later files are gone";

impl Session {
    /// Makes sure that an agent is running or booting. If the session may not start one, this broadcasts the refusal
    /// instead of disconnecting the watchers, because a later attempt may succeed.
    pub(super) async fn wake(&mut self) -> Result<(), End> {
        match self.try_wake().await? {
            Ok(()) => Ok(()),
            Err(refusal) => self.broadcast(vec![ServerMessage::Error { message: refusal.to_string() }]).await,
        }
    }

    pub(super) async fn try_wake(&mut self) -> Result<Result<(), Refusal>, End> {
        if matches!(self.sandbox, Phase::Connected(_) | Phase::Booting(_)) {
            return Ok(Ok(()));
        }
        // A session that is only starting claims its slot again, since it may have lost it in the meantime.
        if self.record.status == SessionStatus::Running {
            let touched = self.services.store.touch(&self.owner, self.services.clock.now()).await;
            touched.map_err(End::before_change)?;
        } else {
            let started = self.services.admission.start(&self.owner, &self.record).await;
            if let Err(refusal) = started.map_err(End::before_change)? {
                return Ok(Err(refusal));
            }
            (self.record.status, self.record.stop_reason) = (SessionStatus::Starting, None);
        }
        // A session whose files are being saved boots its agent afterwards.
        if matches!(self.sandbox, Phase::Disconnected { .. }) {
            self.launch(Duration::ZERO, BootPurpose::Connect);
        }
        let (status, message) = self.state();
        let starts_anew = self.record.files_lost && self.record.sandbox_id.is_none();
        let message = if starts_anew { FROM_SNAPSHOT.to_owned() } else { message };
        self.broadcast_status(status, &message).await?;
        Ok(Ok(()))
    }

    /// Starts to boot an agent after a pause.
    pub(super) fn launch(&mut self, pause: Duration, purpose: BootPurpose) {
        let (stage_sender, stages) = mpsc::channel(STAGE_QUEUE_CAPACITY);
        let launch = Launch::new(
            self.services.runtime.clone(),
            self.services.repositories.clone(),
            self.owner,
            self.record.clone(),
            stage_sender,
        );
        let task = tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            launch.run().await
        });
        self.prepare_connectors();
        let resume = self.sandbox.take_resume();
        self.sandbox = Phase::Booting(Boot { task, stages, purpose, resume });
    }

    /// Asks the organization's connectors for their tools while the sandbox starts: the agent lists its tools first of all,
    /// and does not wait for a slow server.
    fn prepare_connectors(&self) {
        let (store, connectors) = (self.services.store.clone(), self.services.connectors.clone());
        let (session, org) = (self.record.id, self.record.org_id);
        tokio::spawn(async move {
            match store.connectors(org).await {
                Ok(found) => connectors.prepare_lists(found),
                Err(error) => tracing::debug!(%session, %error, "the connectors are not asked in advance"),
            }
        });
    }

    pub(super) async fn boot_ended(&mut self, result: Result<Agent, LaunchError>) -> Result<(), End> {
        let purpose = self.sandbox.end_boot();
        match result {
            Ok(agent) => self.connect(agent, purpose).await,
            Err(LaunchError::Store(error)) => Err(error.into()),
            Err(error) => {
                let reason = self.overuse_reason().await.unwrap_or_else(|| error.to_string());
                self.boot_failed(&reason, purpose).await
            }
        }
    }

    /// Connects the session to an agent that has booted, and continues the turn or starts the next one.
    async fn connect(&mut self, agent: Agent, purpose: BootPurpose) -> Result<(), End> {
        (self.failures.boots, self.failures.connected_at) = (0, self.services.clock.elapsed());
        self.record.status = SessionStatus::Running;
        self.record.sandbox_id = Some(agent.sandbox.to_string());
        self.record.agent_session_id = Some(agent.session.id.clone());
        self.record.sandbox_expires_at = agent.expires_at;
        self.watch_expiry();
        let (translator, unsent) = self.resume_translator(&agent).await?;
        let retiring = match purpose {
            BootPurpose::Retire(grace) => Some(grace),
            BootPurpose::Connect | BootPurpose::Move => None,
        };
        self.sandbox = Phase::Connected(Box::new(Connection { agent, translator, retiring }));
        if self.turn.is_running() {
            self.telemetry.start(self.services.clock.elapsed());
        }
        if let Some(prompt) = unsent {
            self.dispatch(prompt, None);
        }
        self.read_history();
        self.send_abort();
        self.broadcast_status(WireStatus::Running, "").await?;
        self.queue_initial_prompt().await?;
        self.deliver_answers().await?;
        self.after_turn().await
    }

    /// Returns the translator for a new connection, and the prompt of the running turn if no agent has received it.
    async fn resume_translator(
        &mut self,
        agent: &Agent,
    ) -> Result<(Box<dyn Translator>, Option<store::Prompt>), End> {
        let resume = self.sandbox.take_resume();
        let turn = self.turn.prompt().map(str::to_owned);
        let unsent = match (resume, turn) {
            (Some(translator), _) if agent.session.remembered => return Ok((translator, None)),
            // The agent that ran the turn is gone, with all output that it had not sent.
            (Some(mut lost), Some(_)) => {
                let now = self.services.clock.now().timestamp_millis();
                let out = lost.give_up("The agent was lost in the middle of its answer", now);
                self.apply(out).await?;
                None
            }
            // The prompt was broadcast, but no agent has received it.
            (None, Some(turn)) if !agent.session.remembered => {
                self.services.store.unsettled_prompt(self.record.id, &turn).await?
            }
            _ => None,
        };
        Ok((self.services.runtime.translator(&agent.session.id), unsent))
    }

    async fn boot_failed(&mut self, reason: &str, purpose: BootPurpose) -> Result<(), End> {
        self.failures.boots += 1;
        let attempt = self.failures.boots;
        tracing::warn!(session = %self.record.id, reason, attempt, "the agent could not be booted");
        if attempt < MAX_BOOTS && self.agent_is_awaited().await? {
            self.broadcast_status(WireStatus::Resuming, "Trying again to reach the coding agent...").await?;
            self.launch(BOOT_PAUSE * attempt, purpose);
            return Ok(());
        }
        self.fail(reason).await
    }
}
