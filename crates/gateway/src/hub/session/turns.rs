//! Prompts and turns: one at a time, in order, each sent once however often it has to be tried.

use std::time::Duration;

use chrono::TimeDelta;
use clock::Rng;
use opencode::api::{ApiError, Client, Prompt};
use opencode::ids::{PromptIds, random_part};
use proto::socket::{Message, MessageRole, MessageSource, Part, ServerMessage, TurnOutcome};
use proto::{ModelId, PromptState, RunStatus};
use store::{NewPrompt, QueuedPrompt};

use super::super::command::{Asked, Prompted};
use super::expiry::Moving;
use super::{Over, Session, millis};
use crate::runtime::Door;
use shares::Held;

/// Prompts that may wait for their turn, and how large they may be in all. They wait in the database.
const WAITING: usize = 100;
const WAITING_BYTES: u64 = 64 * 1024 * 1024;
/// So long the key of a prompt stands for it.
const ONCE: TimeDelta = TimeDelta::hours(1);
/// Attempts to hand a prompt over, and the pause after the first that failed.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(250);
/// After this time an agent that was told to stop is asked whether it has; it may not have begun when it was told.
const AGAIN: Duration = Duration::from_secs(1);
/// So often it is told.
const ABORTS: u32 = 5;

/// How the run of a turn ends.
pub(super) const fn run_status(outcome: TurnOutcome) -> RunStatus {
    match outcome {
        TurnOutcome::Ok => RunStatus::Completed,
        TurnOutcome::Cancelled => RunStatus::Cancelled,
        TurnOutcome::Error => RunStatus::Failed,
    }
}

impl Session {
    /// Takes a prompt: it is on disk when this returns, and becomes a turn when its time comes.
    pub(super) async fn prompt(&mut self, asked: Asked) -> Result<Prompted, Over> {
        let waiting: u64 = self.queue.iter().map(|prompt| prompt.bytes).sum();
        if self.queue.len() >= WAITING || waiting.saturating_add(asked.bytes()) > WAITING_BYTES {
            return Ok(Prompted::Full);
        }
        if let Some(refusal) = self.spent_budget().await? {
            return Ok(Prompted::Refused(refusal));
        }
        if let Err(refusal) = self.try_wake().await? {
            return Ok(Prompted::Refused(refusal));
        }
        // What was to be said first comes first, also where its time has not come yet.
        self.initial_prompt().await?;
        let rng = asked.once.map_or_else(|| self.services.rng.clone(), Rng::seeded);
        let id = PromptIds::new(millis(&self.services), 0, &rng).message;
        if asked.once.is_some()
            && let Some(id) = self.same_prompt(&id).await?
        {
            return Ok(Prompted::Queued { id });
        }
        self.queue_up(id.clone(), asked).await?;
        self.next_turn().await?;
        self.tell_queue().await?;
        Ok(Prompted::Queued { id })
    }

    /// A prompt that came lately with the same key: its answer may have been lost on the way to the client.
    async fn same_prompt(&self, id: &str) -> Result<Option<String>, Over> {
        let since = self.services.clock.now() - ONCE;
        let known = self.services.store.prompts_since(self.record.id, since).await?;
        Ok(known.into_iter().find(|known| random_part(known) == random_part(id)))
    }

    /// Puts a prompt at the end of the queue, unless one of this id was ever there, or waits to be sent again.
    async fn queue_up(&mut self, id: String, asked: Asked) -> Result<(), Over> {
        let now = self.services.clock.now();
        let new = NewPrompt {
            id: id.clone(),
            content: asked.content,
            images: asked.images,
            sender_id: asked.sender,
            source: asked.source,
            at: now,
        };
        let bytes = new.bytes();
        if !self.services.store.queue_prompt(&self.owner, new).await? {
            let waiting = self.services.store.queued_prompts(self.record.id).await?;
            if !waiting.iter().any(|prompt| prompt.id == id && prompt.state == PromptState::Queued) {
                return Ok(());
            }
        }
        if self.queue.iter().any(|prompt| prompt.id == id) {
            return Ok(());
        }
        self.telemetry.prompted();
        self.queue.push_back(QueuedPrompt { id, state: PromptState::Queued, bytes });
        Ok(())
    }

    /// The session's first prompt, which was given when it was made. Its id is made of the session, so that whoever
    /// comes after a crash between queueing and marking it queues no second one.
    pub(super) async fn initial_prompt(&mut self) -> Result<(), Over> {
        let (Some(content), None, Some(user)) =
            (self.record.initial_prompt.clone(), self.record.initial_prompt_sent_at, self.record.created_by)
        else {
            return Ok(());
        };
        if content.trim().is_empty() {
            return Ok(());
        }
        let asked = Asked {
            content,
            images: Vec::new(),
            sender: Some(user.to_string()),
            source: Some(MessageSource::Web),
            once: None,
        };
        self.queue_up(self.initial_id(), asked).await?;
        let now = self.services.clock.now();
        self.services.store.mark_initial_prompt(&self.owner, now).await?;
        self.record.initial_prompt_sent_at = Some(now);
        Ok(())
    }

    fn initial_id(&self) -> String {
        let (session, began) = (self.record.id.uuid(), self.record.started_at.timestamp_millis());
        PromptIds::new(began, 0, &Rng::seeded(session.as_u64_pair().1)).message
    }

    /// Begins the next turn, if the agent is there and free.
    pub(super) async fn next_turn(&mut self) -> Result<(), Over> {
        let busy = self.turn.is_some() || self.dispatch.is_some() || self.aborting.is_some();
        if busy || self.agent.is_none() || self.moving.is_some() {
            return Ok(());
        }
        let Some(next) = self.queue.front() else { return Ok(()) };
        let Ok(memory) = self.services.memory.take(self.party(), next.bytes) else {
            // Others hold it for the moment.
            self.settling.get_or_insert_with(|| Box::pin(tokio::time::sleep(AGAIN)));
            return Ok(());
        };
        let prompt = self.services.store.unsettled_prompt(self.record.id, &next.id).await?;
        self.queue.pop_front();
        let Some(prompt) = prompt else { return Ok(()) };
        self.turn = Some(prompt.id.clone());
        self.services.gate.begin_turn(&self.record, &prompt.id, prompt.sender_id.as_deref()).await?;
        self.telemetry.start(self.services.clock.elapsed());
        // Marked and said before it is sent: whoever comes after a crash finds it marked, and sends it again only if
        // it was not said.
        self.services.store.set_prompt_state(&self.owner, &prompt.id, PromptState::Dispatched).await?;
        self.say(vec![ServerMessage::Message(spoken(&prompt))]).await?;
        self.hand_over(prompt, Some(memory));
        self.tell_queue().await
    }

    /// Sends a prompt to the agent in the background, under its own ids, so that a second attempt is no second turn. Where
    /// there is no memory for it, the agent is asked for it a little later, and it is sent then.
    pub(super) fn hand_over(&mut self, prompt: store::Prompt, memory: Option<Held>) {
        let party = self.party();
        let (Some(agent), Some(translator)) = (&self.agent, &mut self.translator) else { return };
        translator.begin(&prompt.id);
        let taken = || self.services.memory.take(party, prompt.bytes()).ok();
        let Some(memory) = memory.or_else(taken) else {
            self.settling = Some(Box::pin(tokio::time::sleep(AGAIN)));
            return;
        };
        let (client, session) = (agent.client.clone(), agent.session.clone());
        let config = self.record.agent_config.as_ref();
        let model = ModelId::parse_or_default(config.and_then(|config| config.model_id.as_deref()));
        let model = model.model().opencode_id;
        self.dispatch = Some(tokio::spawn(async move {
            let sent = send(client, session, model, prompt).await;
            drop(memory);
            sent
        }));
    }

    /// How the handing over went.
    pub(super) async fn sent(&mut self, sent: Result<(), ApiError>) -> Result<(), Over> {
        self.dispatch = None;
        let lost = self.turn.clone().filter(|turn| sent.is_err() && *turn == self.initial_id());
        if let Err(error) = sent {
            tracing::warn!(session = %self.record.id, %error, "a prompt did not reach the agent");
            // An agent that is being had again is asked whether it has it.
            if self.agent.is_some()
                && let Some(translator) = &mut self.translator
            {
                let out = translator.give_up("Failed to send prompt", millis(&self.services));
                self.take(out).await?;
            }
        }
        self.abort();
        self.after_turn().await?;
        // The first prompt is due again, with the next agent or before the next prompt.
        if let Some(first) = lost.filter(|first| self.turn.as_ref() != Some(first)) {
            self.services.store.roll_back_initial_prompt(&self.owner, &first).await?;
            self.record.initial_prompt_sent_at = None;
        }
        Ok(())
    }

    pub(super) async fn cancel(&mut self) -> Result<(), Over> {
        if self.turn.is_some() {
            self.cancelled = true;
            self.abort();
            // One that goes on without us is told as soon as it is found again.
            return if self.agent.is_none() { self.wake().await } else { Ok(()) };
        }
        self.drop_prompts().await?;
        self.say(vec![ServerMessage::MessageCancelled { message_id: None }]).await
    }

    /// Tells the agent that its turn is cancelled, as soon as it is there and has the prompt.
    pub(super) fn abort(&mut self) {
        let (true, None, None, Some(agent)) = (self.cancelled, &self.dispatch, &self.aborting, &self.agent)
        else {
            return;
        };
        let (client, session) = (agent.client.clone(), agent.session.clone());
        self.aborts += 1;
        self.aborting = Some(tokio::spawn(async move { client.abort(&session).await }));
    }

    /// The agent was told. It says that the turn is over, or it is asked.
    pub(super) async fn aborted(&mut self, told: Result<(), ApiError>) -> Result<(), Over> {
        self.aborting = None;
        if let Err(error) = told {
            tracing::warn!(session = %self.record.id, %error, "the agent did not take a cancel");
        }
        if self.aborts < ABORTS {
            self.settling.get_or_insert_with(|| Box::pin(tokio::time::sleep(AGAIN)));
        } else if let Some(translator) = &mut self.translator {
            let out = translator.give_up("The agent did not react to the cancel", millis(&self.services));
            self.take(out).await?;
        }
        self.after_turn().await
    }

    /// What runs, what waits and what was to come first will not be answered: no later owner may send it.
    pub(super) async fn drop_prompts(&mut self) -> Result<(), Over> {
        let waiting = std::mem::take(&mut self.queue).into_iter().map(|prompt| prompt.id);
        if let Some(turn) = &self.turn {
            self.services.gate.end_turn(&self.record, turn, RunStatus::Cancelled).await?;
        }
        for id in self.turn.take().into_iter().chain(waiting) {
            self.services.store.set_prompt_state(&self.owner, &id, PromptState::Cancelled).await?;
        }
        if self.record.initial_prompt.is_some() && self.record.initial_prompt_sent_at.is_none() {
            let now = self.services.clock.now();
            self.services.store.mark_initial_prompt(&self.owner, now).await?;
            self.record.initial_prompt_sent_at = Some(now);
        }
        self.tell_queue().await
    }

    /// Whether the agent is at work on a turn, or about to be.
    pub(super) fn works(&self) -> bool {
        self.dispatch.is_some()
            || self.aborting.is_some()
            || self.translator.as_ref().is_some_and(opencode::translate::Translator::is_busy)
    }

    /// When the agent is free again: the turn is settled and the next one begins.
    pub(super) async fn after_turn(&mut self) -> Result<(), Over> {
        if self.works() {
            return Ok(());
        }
        if let Some(prompt) = self.turn.take() {
            let outcome = self.outcome.take().unwrap_or(TurnOutcome::Ok);
            let status = if self.cancelled { RunStatus::Cancelled } else { run_status(outcome) };
            self.services.gate.end_turn(&self.record, &prompt, status).await?;
            (self.cancelled, self.aborts, self.settling) = (false, 0, None);
            self.telemetry.stop(self.services.clock.elapsed());
            self.idle_since = self.services.clock.elapsed();
            self.services.store.set_prompt_state(&self.owner, &prompt, PromptState::Answered).await?;
            self.services.store.touch(&self.owner, self.services.clock.now()).await?;
            self.flush().await?;
            self.rest().await?;
        }
        if matches!(self.moving, Some(Moving::Waiting(_))) {
            self.save();
            return Ok(());
        }
        self.next_turn().await
    }

    /// Tells how many prompts wait, where that has changed.
    async fn tell_queue(&mut self) -> Result<(), Over> {
        let waiting = self.queue.len();
        if std::mem::replace(&mut self.told_waiting, waiting) == waiting {
            return Ok(());
        }
        self.say(vec![ServerMessage::Queue { length: self.queue.len() as u64 }]).await
    }
}

async fn send(
    client: Client<Door>,
    session: String,
    model: &'static str,
    prompt: store::Prompt,
) -> Result<(), ApiError> {
    let ids = PromptIds { parts: part_ids(&prompt), message: prompt.id };
    let prompt = Prompt { ids: &ids, model, text: &prompt.content, images: &prompt.images };
    let mut pause = PAUSE;
    for _ in 1..ATTEMPTS {
        match client.prompt(&session, &prompt).await {
            Ok(()) => return Ok(()),
            Err(error) => tracing::debug!(%error, "a prompt has to be sent again"),
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    client.prompt(&session, &prompt).await
}

/// Made of the message's id, so that they are the same whenever it is sent.
fn part_ids(prompt: &store::Prompt) -> Vec<String> {
    let body = prompt.id.trim_start_matches("msg_");
    (0..=prompt.images.len()).map(|part| format!("prt_{body}{part:02}")).collect()
}

/// A prompt as everyone sees it: images first, then the text.
fn spoken(prompt: &store::Prompt) -> Message {
    let images = prompt.images.iter().map(|image| Part::Image { image: image.clone() });
    let text = Part::Text { text: prompt.content.clone(), part_id: None };
    Message {
        id: prompt.id.clone(),
        role: MessageRole::User,
        content: prompt.content.clone(),
        is_complete: true,
        created_at: prompt.created_at.timestamp_millis(),
        sender_id: prompt.sender_id.clone(),
        source: prompt.source,
        tool_calls: Vec::new(),
        parts: images.chain([text]).collect(),
        interrupted: false,
        error: None,
    }
}
