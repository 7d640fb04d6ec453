//! Prompts and turns: one at a time and in order. Each prompt becomes one turn, however often sending it is retried.

use std::time::Duration;

use agent::{AgentClient, AgentError, Prompt, prompt_id, random_part};
use chrono::TimeDelta;
use clock::Rng;
use proto::http::AgentConfig;
use proto::socket::{Message, MessageRole, MessageSource, Part, ServerMessage, TurnOutcome};
use proto::{PromptState, RunStatus};
use store::{NewPrompt, QueuedPrompt};

use super::super::command::{PromptOutcome, PromptRequest};
use super::phase::Phase;
use super::title::first_sentence;
use super::turn::{Request, Turn};
use super::{End, Session, millis};
use crate::admission::Refusal;
use crate::runtime::ModelList;
use shares::Held;

/// The sender of prompts that an automation sends.
const AUTOMATION: &str = "automation";
/// How long a prompt's idempotency key is remembered: as long as the answer of a request is stored under its key.
const DEDUPLICATION: TimeDelta = TimeDelta::hours(24);
/// The number of attempts to send a prompt, and the delay after the first failure.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(250);
/// The delay before we check whether an agent has stopped after an abort. The turn may not have started when the abort
/// arrived.
const CHECK: Duration = Duration::from_secs(1);
/// The text before each prompt after files of the session were given up, until the agent has answered one.
const FILES_LOST: &str = "(Note from the platform: this sandbox was started from the last snapshot. Files that were changed \
    after it are gone.)\n\n";
/// The maximum number of abort requests per turn.
const MAX_ABORTS: u32 = 5;

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
    pub(super) async fn prompt(&mut self, request: PromptRequest) -> Result<PromptOutcome, End> {
        if !self.queue.has_room(request.bytes()) {
            return Ok(PromptOutcome::Full);
        }
        let checked = self.services.admission.check_prompt(&self.record).await;
        if let Err(refusal) = checked.map_err(End::before_change)? {
            return Ok(PromptOutcome::Refused(refusal));
        }
        if let Err(refusal) = self.try_wake().await? {
            return Ok(PromptOutcome::Refused(refusal));
        }
        // The initial prompt always comes first, even if it was not due yet.
        self.queue_initial_prompt().await?;
        let rng = request.once.map_or_else(|| self.services.rng.clone(), Rng::seeded);
        let id = prompt_id(millis(&self.services), &rng);
        if request.once.is_some()
            && let Some(id) = self.same_prompt(&id).await?
        {
            return Ok(PromptOutcome::Queued { id });
        }
        self.queue_prompt(id.clone(), request).await?;
        self.next_turn().await?;
        self.broadcast_queue().await?;
        Ok(PromptOutcome::Queued { id })
    }

    /// Finds a recent prompt with the same idempotency key. The client may have lost our reply to it and retried.
    async fn same_prompt(&self, id: &str) -> Result<Option<String>, End> {
        let since = self.services.clock.now() - DEDUPLICATION;
        let known = self.services.store.prompts_since(self.record.id, since).await;
        let known = known.map_err(End::before_change)?;
        Ok(known.into_iter().find(|known| random_part(known) == random_part(id)))
    }

    /// Uses another model from the next prompt on. Refused if a budget applies and the model has no price.
    pub(super) async fn set_model(&mut self, model: String) -> Result<Result<(), Refusal>, End> {
        let known = self.record.agent_config.clone().unwrap_or_default();
        let config = AgentConfig { model_id: Some(model.clone()), ..known };
        if let Err(refusal) = self.services.admission.check_price(&self.record, &config).await? {
            return Ok(Err(refusal));
        }
        self.services.store.set_agent_config(&self.owner, &config).await.map_err(End::before_change)?;
        self.record.agent_config = Some(config);
        self.broadcast(vec![ServerMessage::ModelUpdate { model_id: model }]).await?;
        Ok(Ok(()))
    }

    /// Appends a prompt to the queue. A prompt whose id is already stored is appended only if it must be sent again.
    pub(super) async fn queue_prompt(&mut self, id: String, request: PromptRequest) -> Result<(), End> {
        let now = self.services.clock.now();
        let title = if self.record.title.is_none() { first_sentence(&request.content) } else { None };
        let new = NewPrompt {
            id: id.clone(),
            content: request.content,
            images: request.images,
            sender_id: request.sender,
            source: request.source,
            at: now,
        };
        let bytes = new.bytes();
        if !self.services.store.queue_prompt(&self.owner, new).await.map_err(End::before_change)? {
            let queued = self.services.store.queued_prompts(self.record.id).await;
            let queued = queued.map_err(End::before_change)?;
            if !queued.iter().any(|prompt| prompt.id == id && prompt.state == PromptState::Queued) {
                return Ok(());
            }
        }
        if self.queue.contains(&id) {
            return Ok(());
        }
        self.telemetry.prompted();
        self.queue.push(QueuedPrompt { id, state: PromptState::Queued, bytes });
        self.set_prompt_title(title).await
    }

    /// Queues the prompt that was given when the session was created. Its id is derived from the session, so that a
    /// crash between queueing and marking it does not queue it twice.
    pub(super) async fn queue_initial_prompt(&mut self) -> Result<(), End> {
        let (sender, source) = match (self.record.created_by, self.record.automation_id) {
            (Some(user), _) => (user.to_string(), MessageSource::Web),
            (None, Some(_)) => (AUTOMATION.to_owned(), MessageSource::Automation),
            // A service sends the prompts of its sessions itself.
            (None, None) => return Ok(()),
        };
        let (Some(content), None) = (self.record.initial_prompt.clone(), self.record.initial_prompt_sent_at)
        else {
            return Ok(());
        };
        if content.trim().is_empty() {
            return Ok(());
        }
        let (sender, source) = (Some(sender), Some(source));
        let request = PromptRequest { content, images: Vec::new(), sender, source, once: None };
        self.queue_prompt(self.initial_id(), request).await?;
        let now = self.services.clock.now();
        self.services.store.mark_initial_prompt(&self.owner, now).await?;
        self.record.initial_prompt_sent_at = Some(now);
        Ok(())
    }

    fn initial_id(&self) -> String {
        let (session, began) = (self.record.id.uuid(), self.record.started_at.timestamp_millis());
        prompt_id(began, &Rng::seeded(session.as_u64_pair().1))
    }

    /// Starts the next turn if an agent is connected and free.
    pub(super) async fn next_turn(&mut self) -> Result<(), End> {
        let is_free = self.sandbox.connection().is_some_and(|connection| connection.retiring.is_none());
        if !is_free || self.turn.is_running() {
            return Ok(());
        }
        let Some(next) = self.queue.front() else { return Ok(()) };
        let Ok(memory) = self.services.memory.take(self.party(), next.bytes) else {
            // Other parties use the memory at the moment, so try again later.
            self.turn.timer().set_if_unset(CHECK);
            return Ok(());
        };
        let prompt = self.services.store.unsettled_prompt(self.record.id, &next.id).await?;
        self.queue.pop();
        let Some(prompt) = prompt else { return Ok(()) };
        self.turn = Turn::start(prompt.id.clone());
        self.services.gate.begin_turn(&self.record, &prompt.id, prompt.sender_id.as_deref()).await?;
        self.telemetry.start(self.services.clock.elapsed());
        // The prompt is marked and broadcast before it is sent. After a crash, the next owner finds it marked, and
        // sends it again only if it was never broadcast.
        self.services.store.set_prompt_state(&self.owner, &prompt.id, PromptState::Dispatched).await?;
        self.broadcast(vec![ServerMessage::Message(message(&prompt))]).await?;
        self.dispatch(prompt, Some(memory));
        self.broadcast_queue().await
    }

    /// Sends a prompt to the agent in the background. A second attempt has the same id, so it starts no second
    /// turn. If there is no memory for the prompt, the next check of the agent's history finds it missing and
    /// sends it.
    pub(super) fn dispatch(&mut self, prompt: store::Prompt, memory: Option<Held>) {
        let party = self.party();
        let (Phase::Connected(connection), Turn::Running(turn)) = (&mut self.sandbox, &mut self.turn) else {
            return;
        };
        connection.translator.begin(&prompt.id);
        let taken = || self.services.memory.take(party, prompt.bytes()).ok();
        let Some(memory) = memory.or_else(taken) else {
            turn.check.set(CHECK);
            return;
        };
        let (client, session) = (connection.agent.client.clone(), connection.agent.session.id.clone());
        let (llm, config) = (self.services.runtime.llm.clone(), self.record.agent_config.clone());
        let models = ModelList::of(&self.services.runtime, &connection.agent, self.owner);
        let reload = turn.reload.clone();
        let note = if self.record.files_lost { FILES_LOST } else { "" };
        turn.request = Request::Prompt(tokio::spawn(async move {
            let model = llm.model_of(config.as_ref()).await;
            models.add(client.as_ref(), &model, &reload).await?;
            let model = model.qualified_id();
            let text = format!("{note}{}", prompt.content);
            let prompt = Prompt {
                id: &prompt.id,
                model: &model,
                effort: config.and_then(|config| config.reasoning_effort),
                text: &text,
                images: &prompt.images,
            };
            let sent = send(client.as_ref(), &session, &prompt).await;
            drop(memory);
            sent
        }));
    }

    /// Handles the result of sending a prompt.
    pub(super) async fn prompt_sent(&mut self, result: Result<(), AgentError>) -> Result<(), End> {
        let initial = self.initial_id();
        let is_lost_initial = result.is_err() && self.turn.prompt() == Some(&initial);
        if let Err(error) = result {
            tracing::warn!(session = %self.record.id, %error, "a prompt did not reach the agent");
            // While an agent is reconnecting, its history will show whether the prompt arrived.
            if let Phase::Connected(connection) = &mut self.sandbox {
                let reason = match &error {
                    AgentError::UnknownModel(_) => error.to_string(),
                    _ => "Failed to send prompt".to_owned(),
                };
                let out = connection.translator.give_up(&reason, millis(&self.services));
                self.apply(out).await?;
            }
        }
        self.send_abort();
        self.after_turn().await?;
        // The initial prompt is due again, with the next agent or before the next prompt.
        if is_lost_initial && self.turn.prompt() != Some(&initial) {
            self.services.store.roll_back_initial_prompt(&self.owner, &initial).await?;
            self.record.initial_prompt_sent_at = None;
        }
        Ok(())
    }

    pub(super) async fn cancel(&mut self) -> Result<(), End> {
        if let Turn::Running(turn) = &mut self.turn {
            turn.cancellation.get_or_insert_default();
            self.send_abort();
            // A turn that continues without us is aborted as soon as we are connected again.
            return if self.sandbox.agent().is_none() { self.wake().await } else { Ok(()) };
        }
        self.drop_prompts().await?;
        self.broadcast(vec![ServerMessage::MessageCancelled { message_id: None }]).await
    }

    /// Sends an abort to the agent if the turn is cancelled, as soon as the agent is connected and has the prompt.
    pub(super) fn send_abort(&mut self) {
        let (Some(agent), Turn::Running(turn)) = (self.sandbox.agent(), &mut self.turn) else { return };
        let (Some(cancellation), Request::None) = (&mut turn.cancellation, &turn.request) else { return };
        let (client, session) = (agent.client.clone(), agent.session.id.clone());
        cancellation.aborts += 1;
        turn.request = Request::Abort(tokio::spawn(async move { client.cancel(&session).await }));
    }

    /// Handles the result of an abort. Either the agent reports that the turn is over, or its history is checked later.
    pub(super) async fn abort_sent(&mut self, result: Result<(), AgentError>) -> Result<(), End> {
        if let Err(error) = result {
            tracing::warn!(session = %self.record.id, %error, "the agent did not accept an abort");
        }
        let cancellation = self.turn.running().and_then(|turn| turn.cancellation.as_ref());
        if cancellation.is_none_or(|cancellation| cancellation.aborts < MAX_ABORTS) {
            self.turn.timer().set_if_unset(CHECK);
        } else if let Some(translator) = self.sandbox.translator() {
            let out = translator.give_up("The agent did not react to the cancel", millis(&self.services));
            self.apply(out).await?;
        }
        self.after_turn().await
    }

    /// Cancels the queued prompts and the unsent initial prompt, so that no later owner sends them.
    pub(super) async fn drop_prompts(&mut self) -> Result<(), End> {
        for id in self.queue.clear() {
            self.services.store.set_prompt_state(&self.owner, &id, PromptState::Cancelled).await?;
        }
        if self.record.initial_prompt.is_some() && self.record.initial_prompt_sent_at.is_none() {
            let now = self.services.clock.now();
            self.services.store.mark_initial_prompt(&self.owner, now).await?;
            self.record.initial_prompt_sent_at = Some(now);
        }
        self.broadcast_queue().await
    }

    /// Whether the agent is working on a turn or is about to.
    pub(super) fn agent_is_busy(&mut self) -> bool {
        self.turn.has_request() || self.sandbox.translator().is_some_and(|translator| translator.is_busy())
    }

    /// Settles the turn and starts the next one, once the agent is free.
    pub(super) async fn after_turn(&mut self) -> Result<(), End> {
        if self.agent_is_busy() {
            return Ok(());
        }
        if let Some(turn) = self.turn.end() {
            let outcome = turn.outcome.unwrap_or(TurnOutcome::Ok);
            let is_cancelled = turn.cancellation.is_some();
            let status = if is_cancelled { RunStatus::Cancelled } else { run_status(outcome) };
            self.services.gate.end_turn(&self.record, &turn.prompt, status).await?;
            if is_cancelled {
                self.reject_questions_of(&turn.prompt).await?;
            } else if self.record.files_lost && outcome == TurnOutcome::Ok {
                self.set_files_lost(false).await?;
            }
            self.telemetry.stop(self.services.clock.elapsed());
            self.eviction.idle_since = self.services.clock.elapsed();
            self.services.store.set_prompt_state(&self.owner, &turn.prompt, PromptState::Answered).await?;
            self.services.store.touch(&self.owner, self.services.clock.now()).await?;
            self.flush().await?;
            self.prune().await?;
        }
        if self.sandbox.is_retiring() {
            self.save(Vec::new());
            return Ok(());
        }
        self.next_turn().await
    }

    /// Broadcasts the queue length if it has changed.
    pub(super) async fn broadcast_queue(&mut self) -> Result<(), End> {
        match self.queue.changed_len() {
            Some(length) => self.broadcast(vec![ServerMessage::Queue { length: length as u64 }]).await,
            None => Ok(()),
        }
    }
}

async fn send(client: &dyn AgentClient, session: &str, prompt: &Prompt<'_>) -> Result<(), AgentError> {
    let mut pause = PAUSE;
    for _ in 1..ATTEMPTS {
        match client.prompt(session, prompt).await {
            Ok(()) => return Ok(()),
            Err(error) => tracing::debug!(%error, "a prompt has to be sent again"),
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    client.prompt(session, prompt).await
}

/// The prompt as a message for watchers: images first, then the text.
fn message(prompt: &store::Prompt) -> Message {
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
