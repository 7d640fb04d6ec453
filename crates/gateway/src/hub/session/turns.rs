//! Prompts and turns: one at a time and in order. Each prompt becomes one turn, however often sending it is retried.

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

/// The maximum number and total size of queued prompts. Their contents are in the database.
const WAITING: usize = 100;
const WAITING_BYTES: u64 = 64 * 1024 * 1024;
/// How long a prompt's idempotency key is remembered.
const ONCE: TimeDelta = TimeDelta::hours(1);
/// The number of attempts to send a prompt, and the delay after the first failure.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(250);
/// The delay before we check whether an agent has stopped after an abort. The turn may not have started when the abort
/// arrived.
const AGAIN: Duration = Duration::from_secs(1);
/// The maximum number of abort requests per turn.
const ABORTS: u32 = 5;

/// The status of a turn's run, by the outcome of the turn.
pub(super) const fn run_status(outcome: TurnOutcome) -> RunStatus {
    match outcome {
        TurnOutcome::Ok => RunStatus::Completed,
        TurnOutcome::Cancelled => RunStatus::Cancelled,
        TurnOutcome::Error => RunStatus::Failed,
    }
}

impl Session {
    /// Accepts a prompt. When this returns, the prompt is on disk; it becomes a turn when it reaches the head of the
    /// queue.
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
        // The initial prompt always comes first, even if it was not due yet.
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

    /// Finds a recent prompt with the same idempotency key. The client may have lost our reply to it and retried.
    async fn same_prompt(&self, id: &str) -> Result<Option<String>, Over> {
        let since = self.services.clock.now() - ONCE;
        let known = self.services.store.prompts_since(self.record.id, since).await?;
        Ok(known.into_iter().find(|known| random_part(known) == random_part(id)))
    }

    /// Appends a prompt to the queue. A prompt whose id is already stored is appended only if it must be sent again.
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

    /// Queues the prompt that was given when the session was created. Its id is derived from the session, so that a
    /// crash between queueing and marking it does not queue it twice.
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

    /// Starts the next turn if an agent is connected and free.
    pub(super) async fn next_turn(&mut self) -> Result<(), Over> {
        let busy = self.turn.is_some() || self.dispatch.is_some() || self.aborting.is_some();
        if busy || self.agent.is_none() || self.moving.is_some() {
            return Ok(());
        }
        let Some(next) = self.queue.front() else { return Ok(()) };
        let Ok(memory) = self.services.memory.take(self.party(), next.bytes) else {
            // Other parties use the memory at the moment, so try again later.
            self.settling.get_or_insert_with(|| Box::pin(tokio::time::sleep(AGAIN)));
            return Ok(());
        };
        let prompt = self.services.store.unsettled_prompt(self.record.id, &next.id).await?;
        self.queue.pop_front();
        let Some(prompt) = prompt else { return Ok(()) };
        self.turn = Some(prompt.id.clone());
        self.services.gate.begin_turn(&self.record, &prompt.id, prompt.sender_id.as_deref()).await?;
        self.telemetry.start(self.services.clock.elapsed());
        // The prompt is marked and broadcast before it is sent. After a crash, the next owner finds it marked, and
        // sends it again only if it was never broadcast.
        self.services.store.set_prompt_state(&self.owner, &prompt.id, PromptState::Dispatched).await?;
        self.say(vec![ServerMessage::Message(spoken(&prompt))]).await?;
        self.hand_over(prompt, Some(memory));
        self.tell_queue().await
    }

    /// Sends a prompt to the agent in the background. The ids are derived from the prompt, so a second attempt starts
    /// no second turn. If there is no memory for the prompt, the next check of the agent's history finds it missing and
    /// sends it.
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

    /// Handles the result of sending a prompt.
    pub(super) async fn sent(&mut self, sent: Result<(), ApiError>) -> Result<(), Over> {
        self.dispatch = None;
        let lost = self.turn.clone().filter(|turn| sent.is_err() && *turn == self.initial_id());
        if let Err(error) = sent {
            tracing::warn!(session = %self.record.id, %error, "a prompt did not reach the agent");
            // While an agent is reconnecting, its history will show whether the prompt arrived.
            if self.agent.is_some()
                && let Some(translator) = &mut self.translator
            {
                let out = translator.give_up("Failed to send prompt", millis(&self.services));
                self.take(out).await?;
            }
        }
        self.abort();
        self.after_turn().await?;
        // The initial prompt is due again, with the next agent or before the next prompt.
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
            // A turn that continues without us is aborted as soon as we are connected again.
            return if self.agent.is_none() { self.wake().await } else { Ok(()) };
        }
        self.drop_prompts().await?;
        self.say(vec![ServerMessage::MessageCancelled { message_id: None }]).await
    }

    /// Sends an abort to the agent if the turn is cancelled, as soon as the agent is connected and has the prompt.
    pub(super) fn abort(&mut self) {
        let (true, None, None, Some(agent)) = (self.cancelled, &self.dispatch, &self.aborting, &self.agent)
        else {
            return;
        };
        let (client, session) = (agent.client.clone(), agent.session.clone());
        self.aborts += 1;
        self.aborting = Some(tokio::spawn(async move { client.abort(&session).await }));
    }

    /// Handles the result of an abort. Either the agent reports that the turn is over, or its history is checked later.
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

    /// Cancels the running turn, the queued prompts and the unsent initial prompt, so that no later owner sends them.
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

    /// Whether the agent is working on a turn or is about to.
    pub(super) fn works(&self) -> bool {
        self.dispatch.is_some()
            || self.aborting.is_some()
            || self.translator.as_ref().is_some_and(opencode::translate::Translator::is_busy)
    }

    /// Settles the turn and starts the next one, once the agent is free.
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

    /// Broadcasts the queue length if it has changed.
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

/// The ids of the prompt's parts, derived from the message's id so that every attempt sends the same ones.
fn part_ids(prompt: &store::Prompt) -> Vec<String> {
    let body = prompt.id.trim_start_matches("msg_");
    (0..=prompt.images.len()).map(|part| format!("prt_{body}{part:02}")).collect()
}

/// The prompt as a message for watchers: images first, then the text.
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
