//! Having an agent: boot, listen, lose, have again.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use opencode::api::ApiError;
use opencode::event::Event;
use opencode::history::History;
use opencode::translate::{Effect, Output, Translator};
use proto::socket::{ServerMessage, WireStatus};
use proto::{Outcome, PauseReason, PromptState, SessionStatus};
use store::{Ending, QueuedPrompt, StoreError};
use tokio::sync::mpsc;

use super::super::feed::Feed;
use super::{Boot, Over, Session, millis};
use crate::runtime::{Agent, Launch, LaunchError};

/// Events that are taken together: what one read of the stream gave, if it is not more.
const TOGETHER: usize = 512;
const TOGETHER_BYTES: usize = 1024 * 1024;
/// Boots that may fail one after the other before the session is given up.
const BOOTS: u32 = 3;
const STAGES: usize = 8;
/// How often to look whether slow readers have caught up.
const CATCHING_UP: Duration = Duration::from_millis(1);
/// Agents that may be lost one after the other, each sooner than this after it was had.
const LOSSES: u32 = 6;
const STEADY: Duration = Duration::from_mins(1);
/// Before the second attempt to have one again; each further pause is twice as long.
const PAUSE: Duration = Duration::from_millis(250);
/// When the agent's memory could not be read, it is asked again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// What came of listening to the agent.
pub(super) type Heard = Result<Vec<Bytes>, Option<ApiError>>;

impl Session {
    /// Makes sure that there is an agent, or will be.
    pub(super) async fn wake(&mut self) -> Result<(), Over> {
        if self.agent.is_some() || self.boot.is_some() {
            return Ok(());
        }
        if matches!(self.record.status, SessionStatus::Running | SessionStatus::Starting) {
            self.app.store.touch(&self.owner, self.app.clock.now()).await?;
        } else {
            match self.app.store.start_session(&self.owner, self.app.clock.now()).await {
                // It can be tried again when another one has ended; nobody has to be sent away.
                Err(error @ StoreError::SessionLimit { .. }) => {
                    return self.say(vec![ServerMessage::Error { message: error.to_string() }]).await;
                }
                started => started?,
            }
            (self.record.status, self.record.stop_reason) = (SessionStatus::Starting, None);
        }
        self.launch(Duration::ZERO);
        let (status, _) = self.state();
        self.say_status(status, "").await
    }

    fn launch(&mut self, pause: Duration) {
        let (tell, stages) = mpsc::channel(STAGES);
        let launch = Launch::new(self.app.clone(), self.owner, self.record.clone(), tell);
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
            Err(error) => self.have_not(&error.to_string()).await,
        }
    }

    async fn have(&mut self, agent: Agent) -> Result<(), Over> {
        let now = self.app.clock.now();
        (self.failures, self.had_at) = (0, self.app.clock.elapsed());
        self.record.status = SessionStatus::Running;
        self.record.sandbox_id = Some(agent.sandbox.to_string());
        self.record.agent_session_id = Some(agent.session.clone());
        let lost = self.turn.is_some() && !agent.remembers;
        if self.translator.is_none() || !agent.remembers {
            let old = self.translator.replace(Translator::new(&agent.session));
            // The agent that had the turn is gone, with all that it had not said.
            if let (true, Some(mut old)) = (lost, old) {
                let out =
                    old.give_up("The agent was lost in the middle of its answer", now.timestamp_millis());
                self.take(out).await?;
            }
        }
        self.agent = Some(agent);
        self.catch_up();
        self.abort();
        self.say_status(WireStatus::Running, "").await?;
        self.initial_prompt().await?;
        self.after_turn().await
    }

    /// Asks what was missed while nobody listened. An agent that does not answer holds nobody up.
    fn catch_up(&mut self) {
        let (Some(agent), Some(translator), Some(turn), None) =
            (&self.agent, &self.translator, &self.turn, &self.reading)
        else {
            return;
        };
        if translator.is_busy() {
            let (client, session, turn) = (agent.client.clone(), agent.session.clone(), turn.clone());
            self.reading = Some(tokio::spawn(async move { client.history(&session, &turn).await }));
        }
    }

    /// What the agent remembers is here.
    pub(super) async fn remembered(&mut self, read: Result<History, ApiError>) -> Result<(), Over> {
        self.reading = None;
        match read {
            Ok(history) => self.reconcile(&history).await?,
            Err(error) => {
                tracing::warn!(session = %self.record.id, %error, "the agent's history cannot be read");
                self.settling = Some(Box::pin(tokio::time::sleep(ASK_AGAIN)));
            }
        }
        self.abort();
        self.after_turn().await
    }

    /// Says what was missed, and hands a prompt over again that never arrived.
    async fn reconcile(&mut self, history: &History) -> Result<(), Over> {
        let (Some(translator), Some(turn)) = (&mut self.translator, self.turn.clone()) else { return Ok(()) };
        if history.has(&turn) {
            let entries = history.entries().unwrap_or_default();
            let out = translator.reconcile(&entries, history.busy, millis(&self.app));
            return self.take(out).await;
        }
        if self.dispatch.is_some() {
            return Ok(());
        }
        match self.unsettled(&turn).await? {
            Some(prompt) if !self.cancelled => self.hand_over(prompt),
            _ => {
                let out = self.translator.as_mut().map(|translator| {
                    translator.give_up("The agent never got this prompt", millis(&self.app))
                });
                self.take(out.unwrap_or_default()).await?;
            }
        }
        Ok(())
    }

    async fn unsettled(&self, id: &str) -> Result<Option<QueuedPrompt>, Over> {
        let prompts = self.app.store.queued_prompts(self.record.id).await?;
        Ok(prompts.into_iter().find(|prompt| prompt.id == id))
    }

    async fn have_not(&mut self, reason: &str) -> Result<(), Over> {
        self.failures += 1;
        tracing::warn!(session = %self.record.id, reason, attempt = self.failures, "no agent");
        if self.failures < BOOTS && (self.watchers > 0 || !self.queue.is_empty() || self.turn.is_some()) {
            self.say_status(WireStatus::Resuming, "Trying again to reach the coding agent...").await?;
            self.launch(Duration::ZERO);
            return Ok(());
        }
        self.fail(reason).await
    }

    /// Gives the session up, until somebody prompts it again. Prompts that wait are kept for then.
    async fn fail(&mut self, reason: &str) -> Result<(), Over> {
        (self.failures, self.losses) = (0, 0);
        self.let_go();
        if let Some(translator) = &mut self.translator {
            let out = translator.give_up(reason, millis(&self.app));
            self.take(out).await?;
        }
        self.settle_turn().await?;
        self.interrupt().await?;
        let ending = Ending {
            status: SessionStatus::Failed,
            stop_reason: Some(reason.to_owned()),
            pause_reason: None,
            outcome: Some(Outcome::Failed),
            at: self.app.clock.now(),
        };
        self.app.store.end_session(&self.owner, ending).await?;
        (self.record.status, self.record.stop_reason) = (SessionStatus::Failed, Some(reason.to_owned()));
        self.say(vec![
            ServerMessage::Status { status: WireStatus::Error, message: reason.to_owned() },
            ServerMessage::Error { message: format!("Failed to initialize session: {reason}") },
        ])
        .await
    }

    /// Takes in what the agent said, all of one read together.
    pub(super) async fn agent_said(&mut self, heard: Heard) -> Result<(), Over> {
        let events = match heard {
            Ok(events) => events,
            Err(error) => return self.lost(error).await,
        };
        let Some(translator) = &mut self.translator else { return Ok(()) };
        let (now, mut all) = (millis(&self.app), Output::default());
        for data in &events {
            // What is no event of ours is none: the agent may say anything.
            let Ok(event) = Event::parse(data) else { continue };
            let out = translator.observe(&event, now);
            all.messages.extend(out.messages);
            all.effects.extend(out.effects);
        }
        self.take(all).await?;
        self.after_turn().await
    }

    /// Says and does what follows from the agent's words.
    pub(super) async fn take(&mut self, out: Output) -> Result<(), Over> {
        for effect in &out.effects {
            if let Effect::Interrupted { message } = effect {
                self.transcript.mark_interrupted(message);
            }
        }
        self.say(out.messages).await?;
        for effect in out.effects {
            let Some(agent) = &self.agent else { break };
            let (client, session) = (agent.client.clone(), self.record.id);
            match effect {
                Effect::Settle { after } => self.settling = Some(Box::pin(tokio::time::sleep(after))),
                Effect::RejectPermission { request } => {
                    tokio::spawn(async move {
                        if let Err(error) = client.reject_permission(&request).await {
                            tracing::warn!(%session, %error, "a permission could not be refused");
                        }
                    });
                }
                Effect::RejectQuestion { request } => {
                    tokio::spawn(async move {
                        if let Err(error) = client.reject_question(&request).await {
                            tracing::warn!(%session, %error, "a question could not be refused");
                        }
                    });
                }
                Effect::Interrupted { .. } => {}
            }
        }
        Ok(())
    }

    /// A turn seems to be over and did not say so: the agent's own memory tells.
    pub(super) async fn settle(&mut self) -> Result<(), Over> {
        self.settling = None;
        self.catch_up();
        self.after_turn().await
    }

    async fn lost(&mut self, error: Option<ApiError>) -> Result<(), Over> {
        let reason = error.map_or_else(|| "the agent ended its stream".to_owned(), |error| error.to_string());
        tracing::warn!(session = %self.record.id, reason, "the agent was lost");
        self.agent = None;
        if let Some(translator) = &mut self.translator {
            translator.stream_lost();
        }
        let steady = self.app.clock.elapsed().saturating_sub(self.had_at) > STEADY;
        self.losses = if steady { 1 } else { self.losses + 1 };
        if self.losses > LOSSES {
            return self.fail(&format!("The agent was lost {LOSSES} times in a row: {reason}")).await;
        }
        self.say_status(WireStatus::Resuming, "Reconnecting to coding agent...").await?;
        let pause = if self.losses > 1 { PAUSE * 2_u32.pow(self.losses - 2) } else { Duration::ZERO };
        self.launch(pause);
        Ok(())
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
            self.app.store.set_prompt_state(&self.owner, &turn, PromptState::Answered).await?;
        }
        Ok(())
    }

    /// Stops at once and says why. The sandbox stays, for when there is money again; a prompt then goes on with it.
    pub(super) async fn over_budget(&mut self) -> Result<(), Over> {
        const WHY: &str = "The budget of this session is used up";
        // Requests that were under way are refused one by one, and one of them is enough.
        if self.agent.is_none() {
            return Ok(());
        }
        self.dismiss(WHY).await?;
        let (paused, reason) = (SessionStatus::Paused, PauseReason::CreditLimit);
        self.app.store.set_status(&self.owner, paused, Some(reason), self.app.clock.now()).await?;
        self.record.status = paused;
        self.say(vec![
            ServerMessage::Error { message: WHY.to_owned() },
            ServerMessage::Status { status: WireStatus::Paused, message: WHY.to_owned() },
        ])
        .await
    }

    /// Has no agent any more: what it did is over, and what waited for it is not sent.
    async fn dismiss(&mut self, reason: &str) -> Result<(), Over> {
        self.let_go();
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
        let sandbox = crate::runtime::sandbox_of(&self.record);
        self.dismiss("The session was stopped").await?;
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
        self.record.sandbox_id = None;
        if let Ok(id) = sandbox
            && let Err(error) = self.app.sandboxes.provider.terminate(&id).await
        {
            tracing::error!(session = %self.record.id, %error, "the sandbox of a stopped session is left behind");
        }
        self.say_status(WireStatus::Stopped, "").await
    }
}

/// The next events of the agent, if there is one and nobody wants them to wait: all that one read gave, once those who
/// read have caught up.
pub(super) async fn next(agent: &mut Option<Agent>, feed: &Feed, wait: bool) -> Heard {
    let Some(agent) = agent.as_mut().filter(|_| !wait) else { return std::future::pending().await };
    while feed.is_held_back() {
        tokio::time::sleep(CATCHING_UP).await;
    }
    let first = loop {
        match agent.events.next().await {
            Ok(Some(first)) => break first,
            Ok(None) => return Err(None),
            // Only this event is lost.
            Err(error @ ApiError::Event(_)) => tracing::warn!(%error, "an event of the agent was left out"),
            Err(error) => return Err(Some(error)),
        }
    };
    let mut bytes = first.len();
    let mut events = vec![first];
    // An end or an error comes again with the next call.
    while events.len() < TOGETHER
        && bytes < TOGETHER_BYTES
        && let Some(Ok(Some(event))) = agent.events.next().now_or_never()
    {
        bytes += event.len();
        events.push(event);
    }
    Ok(events)
}

/// How far a boot is.
pub(super) enum News {
    Stage(&'static str),
    Booted(Box<Result<Agent, LaunchError>>),
}

/// What happens to a boot, if there is one.
pub(super) async fn news(boot: &mut Option<Boot>) -> News {
    let Some(Boot { task, stages }) = boot else { return std::future::pending().await };
    tokio::select! {
        biased;
        Some(stage) = stages.recv() => News::Stage(stage),
        booted = task => News::Booted(Box::new(booted.unwrap_or_else(|error| Err(LaunchError::Broken(error.to_string()))))),
    }
}
