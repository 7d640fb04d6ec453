//! Booting the agent: waking the session, retrying failed boots, and giving up after a few attempts.

use std::time::Duration;

use opencode::translate::Translator;
use proto::SessionStatus;
use proto::socket::{ServerMessage, WireStatus};
use store::StoreError;
use tokio::sync::mpsc;

use super::super::command::Refusal;
use super::expiry::Moving;
use super::{Boot, Over, Session};
use crate::llm::{org_budget_spent, session_budget_spent};
use crate::runtime::{Agent, Launch, LaunchError};

/// The number of consecutive boots that may fail before the session fails.
const BOOTS: u32 = 3;
const STAGES: usize = 8;

impl Session {
    /// Makes sure that an agent is running or booting. If the session may not start one, this broadcasts the refusal
    /// instead of disconnecting the watchers, because a later attempt may succeed.
    pub(super) async fn wake(&mut self) -> Result<(), Over> {
        match self.try_wake().await? {
            Ok(()) => Ok(()),
            Err(refusal) => self.say(vec![ServerMessage::Error { message: refusal.to_string() }]).await,
        }
    }

    pub(super) async fn try_wake(&mut self) -> Result<Result<(), Refusal>, Over> {
        if self.agent.is_some() || self.boot.is_some() {
            return Ok(Ok(()));
        }
        // A session that is only starting claims its slot again, since it may have lost it in the meantime.
        if self.record.status == SessionStatus::Running {
            self.services.store.touch(&self.owner, self.services.clock.now()).await?;
        } else {
            if let Err(refusal) = self.affordable().await? {
                return Ok(Err(refusal));
            }
            match self.services.store.start_session(&self.owner, self.services.clock.now()).await {
                Err(StoreError::SessionLimit { limit }) => return Ok(Err(Refusal::Sessions { limit })),
                started => started?,
            }
            (self.record.status, self.record.stop_reason) = (SessionStatus::Starting, None);
        }
        // A session that is moving to another sandbox boots its agent after the move.
        if self.moving.is_none() {
            self.launch(Duration::ZERO);
        }
        let (status, message) = self.state();
        self.say_status(status, &message).await?;
        Ok(Ok(()))
    }

    /// Whether the organization can pay for the session.
    async fn affordable(&self) -> Result<Result<(), Refusal>, Over> {
        let services = &self.services;
        let org = services.store.org_budget(self.record.org_id).await?;
        if let Some(budget) = org.budget_micros.filter(|_| org.is_exhausted()) {
            return Ok(Err(Refusal::Budget(org_budget_spent(budget))));
        }
        let price = services.llm.price_of(&services.budget.prices, self.record.agent_config.as_ref());
        Ok(org.budget_micros.map_or(Ok(()), |_| price.map(drop).map_err(Refusal::NoPrice)))
    }

    /// The reason why the session accepts no prompts even if it is awake: its budget or its organization's is spent.
    pub(super) async fn spent_budget(&self) -> Result<Option<Refusal>, Over> {
        let services = &self.services;
        let org = services.store.org_budget(self.record.org_id).await?;
        if let Some(budget) = org.budget_micros.filter(|_| org.is_exhausted()) {
            return Ok(Some(Refusal::Budget(org_budget_spent(budget))));
        }
        let own = self.record.budget_micros.or(services.budget.session_micros);
        let Some(budget) = own else { return Ok(None) };
        let spent = services.store.session_usage(self.record.org_id, self.record.id).await?.cost_micros;
        Ok((spent >= budget).then(|| Refusal::Budget(session_budget_spent(budget))))
    }

    pub(super) fn launch(&mut self, pause: Duration) {
        let (tell, stages) = mpsc::channel(STAGES);
        let launch = Launch::new(
            self.services.runtime.clone(),
            self.services.repositories.clone(),
            self.owner,
            self.record.clone(),
            tell,
        );
        let task = tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            launch.run().await
        });
        self.boot = Some(Boot { task, stages });
    }

    pub(super) async fn boot_news(&mut self, news: News) -> Result<(), Over> {
        let booted = match news {
            News::Stage(stage) => {
                let (status, _) = self.state();
                return self.say_status(status, stage).await;
            }
            News::Booted(booted) => *booted,
        };
        self.boot = None;
        match booted {
            Ok(agent) => self.have(agent).await,
            Err(LaunchError::Store(error)) => Err(error.into()),
            Err(error) => {
                let reason = self.ended_for().await.unwrap_or_else(|| error.to_string());
                self.have_not(&reason).await
            }
        }
    }

    async fn have(&mut self, agent: Agent) -> Result<(), Over> {
        let now = self.services.clock.now();
        (self.failures, self.had_at) = (0, self.services.clock.elapsed());
        self.record.status = SessionStatus::Running;
        self.record.sandbox_id = Some(agent.sandbox.to_string());
        self.record.agent_session_id = Some(agent.session.clone());
        self.record.sandbox_expires_at = agent.expires_at;
        self.watch_expiry();
        self.moving.take_if(|moving| matches!(moving, Moving::Booting));
        let lost = self.turn.is_some() && !agent.remembers;
        let mut unsent = None;
        if self.translator.is_none() || !agent.remembers {
            let old = self.translator.replace(Translator::new(&agent.session));
            match (&self.turn, old) {
                // The agent that ran the turn is gone, with all output that it had not sent.
                (Some(_), Some(mut old)) if lost => {
                    let out =
                        old.give_up("The agent was lost in the middle of its answer", now.timestamp_millis());
                    self.take(out).await?;
                }
                // The prompt was broadcast, but no agent has received it.
                (Some(turn), None) if lost => {
                    unsent = self.services.store.unsettled_prompt(self.record.id, turn).await?;
                }
                _ => {}
            }
        }
        self.agent = Some(agent);
        if self.turn.is_some() {
            self.telemetry.start(self.services.clock.elapsed());
        }
        if let Some(prompt) = unsent {
            self.hand_over(prompt, None);
        }
        self.catch_up();
        self.abort();
        self.say_status(WireStatus::Running, "").await?;
        self.initial_prompt().await?;
        self.after_turn().await
    }

    async fn have_not(&mut self, reason: &str) -> Result<(), Over> {
        self.failures += 1;
        tracing::warn!(session = %self.record.id, reason, attempt = self.failures, "no agent");
        if self.failures < BOOTS
            && (!self.watchers.is_empty() || !self.queue.is_empty() || self.turn.is_some())
        {
            self.say_status(WireStatus::Resuming, "Trying again to reach the coding agent...").await?;
            self.launch(Duration::ZERO);
            return Ok(());
        }
        self.fail(reason).await
    }
}

/// The progress of a boot.
pub(super) enum News {
    Stage(&'static str),
    Booted(Box<Result<Agent, LaunchError>>),
}

/// Waits for progress of the boot, or forever if there is none.
pub(super) async fn news(boot: &mut Option<Boot>) -> News {
    let Some(Boot { task, stages }) = boot else { return std::future::pending().await };
    tokio::select! {
        biased;
        Some(stage) = stages.recv() => News::Stage(stage),
        booted = task => News::Booted(Box::new(booted.unwrap_or_else(|error| Err(LaunchError::Broken(error.to_string()))))),
    }
}
