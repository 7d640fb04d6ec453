//! Questions of the agent to people. A question is stored before it is broadcast, and an answer before the agent gets
//! it. If the agent that asked is gone by then, the answer becomes the next prompt.

use std::collections::BTreeSet;

use agent::AgentError;
use clock::Rng;
use proto::socket::{MessageSource, OpenQuestion, QuestionKind, QuestionState, ServerMessage};
use sha2::{Digest as _, Sha256};
use store::{NewQuestion, Settlement, StoredQuestion};
use tokio::task::JoinSet;

use super::super::command::{Answer, AnswerOutcome, PromptRequest};
use super::phase::Phase;
use super::timer::Timer;
use super::{End, Session, millis, redact};

/// The maximum number of open questions of a session. Further ones are rejected.
const MAX_OPEN: usize = 32;
const UNANSWERABLE: &str = "The agent asked a question and was refused: an option contains a secret or is too long, so nobody \
    could choose it. Tell the agent to ask with other options.";

/// The questions that are not finished.
pub(super) struct Questions {
    /// The open ones, the oldest first.
    open: Vec<StoredQuestion>,
    /// The settled questions whose outcome the agent does not have yet.
    undelivered: Vec<StoredQuestion>,
    deliveries: JoinSet<Delivery>,
    /// The ids of the questions in `deliveries`.
    in_flight: BTreeSet<String>,
}

/// The result of sending an outcome to the agent.
pub(super) struct Delivery {
    id: String,
    result: Result<(), AgentError>,
}

impl Questions {
    pub(super) fn new(open: Vec<StoredQuestion>, undelivered: Vec<StoredQuestion>) -> Self {
        Self { open, undelivered, deliveries: JoinSet::new(), in_flight: BTreeSet::new() }
    }

    /// The open questions as clients see them.
    pub(super) fn shown(&self) -> Vec<OpenQuestion> {
        self.open.iter().map(|stored| stored.question.clone()).collect()
    }

    pub(super) fn any_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Waits for a delivery to end, or forever.
    pub(super) async fn delivered(&mut self) -> Delivery {
        loop {
            match self.deliveries.join_next().await {
                Some(Ok(delivery)) => return delivery,
                // A task that panicked is tried again like one that failed.
                Some(Err(error)) => {
                    tracing::error!(%error, "an answer could not be delivered");
                    self.in_flight.clear();
                }
                None => std::future::pending().await,
            }
        }
    }

    fn take_open(&mut self, id: &str) -> Option<StoredQuestion> {
        let at = self.open.iter().position(|stored| stored.question.question_id == id)?;
        Some(self.open.remove(at))
    }
}

impl Session {
    /// Stores and broadcasts a question of the agent. One that nobody may answer is rejected at once.
    pub(super) async fn ask(&mut self, asked: OpenQuestion) -> Result<(), End> {
        let question = redact::question(&self.redactor().await?, asked.clone());
        if let Some(reason) = self.denial(&asked, &question).await? {
            self.reject_request(question.question_id, question.kind);
            return self.broadcast(vec![ServerMessage::Error { message: reason }]).await;
        }
        let asked_at = self.services.clock.now();
        let expires_at = asked_at + self.services.questions.lifetime;
        let prompt_id = self.turn.prompt().map(str::to_owned);
        let new =
            NewQuestion { question: question.clone(), prompt_id: prompt_id.clone(), asked_at, expires_at };
        // The same question again, for example after a reconnect.
        if !self.services.store.ask_question(&self.owner, new).await? {
            return Ok(());
        }
        self.questions.open.push(StoredQuestion {
            session_id: self.record.id,
            question: question.clone(),
            prompt_id,
            state: QuestionState::Open,
            answers: Vec::new(),
            answered_by: None,
            asked_at,
            expires_at,
        });
        self.broadcast(vec![ServerMessage::Question(question)]).await
    }

    /// The reason why a question is not put to people: policy denies the permission, or too many are open.
    async fn denial(&self, asked: &OpenQuestion, shown: &OpenQuestion) -> Result<Option<String>, End> {
        if self.questions.open.len() >= MAX_OPEN {
            return Ok(Some(format!(
                "The agent asked more than {MAX_OPEN} questions at once; one was rejected."
            )));
        }
        if asked.kind == QuestionKind::Question {
            let options = |question: &OpenQuestion| -> Vec<String> {
                let options = question.questions.iter().flat_map(|item| &item.options);
                options.map(|option| option.label.clone()).collect()
            };
            // The agent finds the chosen option by its label, which people would not see.
            return Ok((options(asked) != options(shown)).then(|| UNANSWERABLE.to_owned()));
        }
        let name = shown.questions.first().map(|item| item.header.as_str()).unwrap_or_default();
        // The ledger would keep the name forever, and policy cannot judge a part of it.
        if asked.questions.first().is_some_and(|item| item.header != name) {
            return Ok(Some(format!(
                "The agent asked for the permission \"{name}\", which no policy can name."
            )));
        }
        let denied = self.services.gate.judge_agent_permission(&self.record, name).await?;
        Ok(denied.map(|reason| {
            format!("The agent asked for the permission \"{name}\", and policy denies it: {reason}")
        }))
    }

    /// Rejects a request that was never put to people.
    pub(super) fn reject_request(&self, request: String, kind: QuestionKind) {
        let Some(agent) = self.sandbox.agent() else { return };
        let (client, session) = (agent.client.clone(), self.record.id);
        tokio::spawn(async move {
            if let Err(error) = client.reject(&request, kind).await {
                tracing::warn!(%session, %error, "a request of the agent could not be rejected");
            }
        });
    }

    /// Answers an open question.
    pub(super) async fn answer(&mut self, answer: Answer) -> Result<AnswerOutcome, End> {
        let found =
            self.questions.open.iter().find(|stored| stored.question.question_id == answer.question_id);
        let Some(stored) = found.cloned() else {
            let settled = self.services.store.question(self.record.id, &answer.question_id).await;
            let settled = settled.map_err(End::before_change)?;
            return Ok(match settled {
                None => AnswerOutcome::Unknown,
                Some(settled) if settled.answers == answer.answers => AnswerOutcome::Accepted,
                Some(_) => AnswerOutcome::Settled,
            });
        };
        if let Err(reason) = stored.question.check(&answer.answers) {
            return Ok(AnswerOutcome::Invalid(reason));
        }
        // If the agent that asked is gone, the answer is sent as a prompt, so the limits of prompts apply to it.
        if !self.agent_waits_for(&stored) {
            let checked = self.services.admission.check_prompt(&self.record).await;
            if let Err(refusal) = checked.map_err(End::before_change)? {
                return Ok(AnswerOutcome::Refused(refusal));
            }
            if let Err(refusal) = self.try_wake().await? {
                return Ok(AnswerOutcome::Refused(refusal));
            }
        }
        self.settle(&answer.question_id, QuestionState::Answered, answer.answers, Some(answer.by)).await?;
        Ok(AnswerOutcome::Accepted)
    }

    /// Whether the agent that asked may still wait: its turn is running.
    fn agent_waits_for(&self, stored: &StoredQuestion) -> bool {
        stored.prompt_id.is_some() && stored.prompt_id.as_deref() == self.turn.prompt()
    }

    /// Whether the running turn waits for people.
    pub(super) fn is_waiting_for_people(&self) -> bool {
        self.questions.open.iter().any(|stored| self.agent_waits_for(stored))
    }

    async fn settle(
        &mut self,
        id: &str,
        state: QuestionState,
        answers: Vec<Vec<String>>,
        by: Option<String>,
    ) -> Result<(), End> {
        let settlement = Settlement { state, answers: answers.clone(), by: by.clone(), delivered: false };
        let settled = self.services.store.settle_question(&self.owner, id, settlement).await;
        settled.map_err(End::before_change)?;
        if let Some(stored) = self.questions.take_open(id) {
            let settled =
                StoredQuestion { state, answers: answers.clone(), answered_by: by.clone(), ..stored };
            self.questions.undelivered.push(settled);
        }
        self.broadcast(vec![ServerMessage::QuestionAnswered { question_id: id.to_owned(), answers, by }])
            .await?;
        self.deliver_answers().await.map_err(End::after_change)
    }

    /// Sends settled outcomes to the agent. An answer whose agent is gone becomes a prompt.
    pub(super) async fn deliver_answers(&mut self) -> Result<(), End> {
        for stored in self.questions.undelivered.clone() {
            if self.questions.in_flight.contains(&stored.question.question_id) {
                continue;
            }
            if !self.agent_waits_for(&stored) {
                self.deliver_as_prompt(&stored).await?;
            } else if let Phase::Connected(connection) = &self.sandbox {
                let client = connection.agent.client.clone();
                self.questions.in_flight.insert(stored.question.question_id.clone());
                self.questions.deliveries.spawn(async move {
                    let id = stored.question.question_id.clone();
                    let kind = stored.question.kind;
                    let result = match stored.state {
                        QuestionState::Answered => client.answer(&id, kind, &stored.answers).await,
                        _ => client.reject(&id, kind).await,
                    };
                    Delivery { id, result }
                });
            } else {
                // The agent may still wait where we cannot reach it at the moment.
                self.wake().await?;
            }
        }
        Ok(())
    }

    /// Handles the result of sending an outcome to the agent.
    pub(super) async fn delivery_ended(&mut self, delivery: Delivery) -> Result<(), End> {
        self.questions.in_flight.remove(&delivery.id);
        let found =
            self.questions.undelivered.iter().find(|stored| stored.question.question_id == delivery.id);
        let Some(stored) = found.cloned() else { return Ok(()) };
        match delivery.result {
            Ok(()) => self.finish_delivery(&delivery.id).await,
            Err(AgentError::UnknownQuestion) => self.deliver_as_prompt(&stored).await,
            Err(error) => {
                tracing::warn!(session = %self.record.id, %error, "an answer did not reach the agent; it is sent again");
                Ok(())
            }
        }
    }

    async fn deliver_as_prompt(&mut self, stored: &StoredQuestion) -> Result<(), End> {
        if stored.state == QuestionState::Answered {
            let request = PromptRequest {
                content: prompt_text(stored),
                images: Vec::new(),
                sender: stored.answered_by.clone(),
                source: Some(MessageSource::Api),
                once: None,
            };
            self.queue_prompt(prompt_id(stored), request).await?;
            self.wake().await?;
        }
        self.finish_delivery(&stored.question.question_id).await?;
        self.next_turn().await?;
        self.broadcast_queue().await
    }

    async fn finish_delivery(&mut self, id: &str) -> Result<(), End> {
        self.services.store.mark_question_delivered(&self.owner, id).await?;
        self.questions.undelivered.retain(|stored| stored.question.question_id != id);
        Ok(())
    }

    /// The agent does not wait for this answer any more, for example because somebody answered at its own terminal.
    pub(super) async fn settled_by_agent(&mut self, id: &str) -> Result<(), End> {
        if self.questions.take_open(id).is_none() {
            return Ok(());
        }
        self.close_question(id).await
    }

    /// Rejects the questions of a turn that was cancelled.
    pub(super) async fn reject_questions_of(&mut self, prompt: &str) -> Result<(), End> {
        let of_turn = |stored: &StoredQuestion| stored.prompt_id.as_deref() == Some(prompt);
        let (closed, open) = std::mem::take(&mut self.questions.open).into_iter().partition(of_turn);
        self.questions.open = open;
        self.close_questions(closed).await
    }

    /// Rejects all questions, because somebody stops the session.
    pub(super) async fn reject_all_questions(&mut self) -> Result<(), End> {
        let closed = std::mem::take(&mut self.questions.open);
        self.close_questions(closed).await
    }

    async fn close_questions(&mut self, closed: Vec<StoredQuestion>) -> Result<(), End> {
        for stored in closed {
            self.close_question(&stored.question.question_id).await?;
        }
        Ok(())
    }

    async fn close_question(&mut self, id: &str) -> Result<(), End> {
        let settlement =
            Settlement { state: QuestionState::Rejected, answers: Vec::new(), by: None, delivered: true };
        self.services.store.settle_question(&self.owner, id, settlement).await?;
        let (question_id, answers) = (id.to_owned(), Vec::new());
        self.broadcast(vec![ServerMessage::QuestionAnswered { question_id, answers, by: None }]).await
    }

    /// Rejects the questions that nobody answered in time, and tries again what the agent did not get.
    pub(super) async fn tick_questions(&mut self) -> Result<(), End> {
        let now = self.services.clock.now();
        let expired = self.questions.open.iter().filter(|stored| stored.expires_at <= now);
        let expired: Vec<String> = expired.map(|stored| stored.question.question_id.clone()).collect();
        for id in expired {
            self.settle(&id, QuestionState::Rejected, Vec::new(), None).await?;
        }
        self.deliver_answers().await?;
        let grace = self.services.questions.idle_grace;
        let is_old = |stored: &StoredQuestion| self.agent_waits_for(stored) && now - stored.asked_at > grace;
        if self.eviction.watchers.is_empty() && self.questions.open.iter().any(is_old) {
            return self.park().await;
        }
        Ok(())
    }

    /// Ends a turn that only waits for people, saves the files and ends the sandbox. The questions stay open.
    pub(super) async fn park(&mut self) -> Result<(), End> {
        let can_save = self.services.runtime.sandboxes.provider.capabilities().durable_snapshot;
        let Phase::Connected(connection) = &mut self.sandbox else { return Ok(()) };
        if !can_save {
            return Ok(());
        }
        connection.retiring = Some(Timer::default());
        let out = connection.translator.close(millis(&self.services));
        self.apply(out).await?;
        self.after_turn().await
    }
}

/// The id of the prompt that an answer becomes. It is derived from the question, so that a crash does not queue it twice.
fn prompt_id(stored: &StoredQuestion) -> String {
    let digest = Sha256::digest(stored.question.question_id.as_bytes());
    let seed = digest.first_chunk().copied().map(u64::from_be_bytes).unwrap_or_default();
    agent::prompt_id(stored.asked_at.timestamp_millis(), &Rng::seeded(seed))
}

/// The text of the prompt that an answer becomes.
fn prompt_text(stored: &StoredQuestion) -> String {
    let answers = stored.question.questions.iter().zip(&stored.answers);
    let answers = answers.map(|(item, texts)| format!("\n{}\n→ {}\n", item.question, texts.join(", ")));
    let answers: String = answers.collect();
    format!("You were stopped while you waited for an answer. This is the answer:\n{answers}")
}
