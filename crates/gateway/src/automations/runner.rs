//! Carries out the outbox: creates the session of a queued run and prompts it, and ends the session of a run that has
//! ended. Every step can be repeated after a crash: the session is created under the key `run:{id}:session` and prompted
//! under `run:{id}:prompt`, and the state of the run says which step is next.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use clock::crash_point;
use parking_lot::Mutex;
use proto::http::AgentConfig;
use proto::socket::MessageSource;
use proto::{AutomationRunStatus, ClientType, SessionId, SessionStatus, SessionType};
use store::{Advanced, Automation, AutomationRun, OutboxEntry, OutboxStep, RunStep, StoreError};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::firing::GATEWAY_ACTOR;
use super::{Automations, prompt};
use crate::llm::ModelUnavailable;
use crate::sessions::{
    self, ConfigurationSource, PromptDraft, RequestContext, Requester, SessionDraft, SessionError,
    SessionServices, Title,
};

const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of rows handled in one tick.
const ROWS_PER_TICK: i64 = 50;
/// How many times starting a session is tried, and how long after a failure.
const MAX_ATTEMPTS: i64 = 5;
const RETRY_DELAY: TimeDelta = TimeDelta::seconds(5);
/// How long a run waits for a free session or budget before it is tried again.
const WAIT_FOR_CAPACITY: TimeDelta = TimeDelta::seconds(15);
/// How many times saving the files of a cancelled run is tried before they are given up.
const MAX_SAVES: i64 = 3;

/// Turns queued runs into sessions.
pub(crate) struct Runner {
    automations: Arc<Automations>,
    sessions: Arc<SessionServices>,
    /// The rows that are being handled.
    in_flight: Mutex<HashSet<Uuid>>,
}

/// The outcome of carrying out a row.
enum Progress {
    Done,
    /// The step did not fail, but cannot be carried out yet.
    Later(TimeDelta),
}

/// Why a row could not be handled.
#[derive(Debug, thiserror::Error)]
enum RunnerError {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Runs until the gateway closes.
pub(crate) async fn keep_running(runner: Arc<Runner>, closing: CancellationToken) {
    let mut ticks = tokio::time::interval(TICK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = runner.automations.changed.notified() => {}
            () = closing.cancelled() => return,
        }
        if let Err(error) = runner.settle_runs().await {
            tracing::warn!(%error, "cannot check the runs of automations; the next tick tries again");
        }
        if let Err(error) = runner.start_work().await {
            tracing::warn!(%error, "cannot read the outbox of automations; the next tick tries again");
        }
    }
}

impl Runner {
    pub(crate) fn new(automations: Arc<Automations>, sessions: Arc<SessionServices>) -> Self {
        Self { automations, sessions, in_flight: Mutex::default() }
    }

    /// Ends runs whose time is over, whose question nobody answered, or whose session is gone.
    async fn settle_runs(&self) -> Result<(), StoreError> {
        let (store, now) = (&self.automations.store, self.automations.clock.now());
        for run in store.runs_without_answer(now, ROWS_PER_TICK).await? {
            self.end_run(&run, RunStep::QuestionExpired, "nobody answered the agent's question").await?;
        }
        // This comes before the deadlines, because the deadline of a run whose agent waits stands still.
        for run in store.runs_that_wait_or_go_on(ROWS_PER_TICK).await? {
            let key = (run.org_id, run.id);
            match run.waiting_since {
                None => store.set_run_waiting(key, Some(now), run.deadline_at, now).await?,
                Some(since) => store.set_run_waiting(key, None, run.deadline_at + (now - since), now).await?,
            };
        }
        for run in store.overdue_runs(self.automations.clock.now(), ROWS_PER_TICK).await? {
            self.end_run(&run, RunStep::TimedOut, "the run did not end before its deadline").await?;
        }
        for run in store.runs_without_session(ROWS_PER_TICK).await? {
            let reason = match run.session_id {
                Some(session) => self.loss_reason(session).await?,
                None => continue,
            };
            self.end_run(&run, RunStep::SessionLost, &reason).await?;
        }
        Ok(())
    }

    /// Why a session cannot continue.
    async fn loss_reason(&self, session: SessionId) -> Result<String, StoreError> {
        let record = self.automations.store.session_any(session).await?;
        Ok(match record {
            None => "its session was deleted".to_owned(),
            Some(record) => match record.stop_reason {
                Some(reason) => format!("its session is {}: {reason}", record.status),
                None => format!("its session is {}", record.status),
            },
        })
    }

    async fn end_run(&self, run: &AutomationRun, step: RunStep, reason: &str) -> Result<(), StoreError> {
        let key = (run.org_id, run.id);
        let ended =
            self.automations.advance(key, step, Some(reason.to_owned()), GATEWAY_ACTOR.to_owned()).await?;
        tracing::info!(run = %run.id, ?ended, reason, "a run of an automation was ended");
        Ok(())
    }

    /// Starts handling every row that is due and not being handled.
    async fn start_work(self: &Arc<Self>) -> Result<(), StoreError> {
        for entry in self.automations.store.due_outbox(self.automations.clock.now(), ROWS_PER_TICK).await? {
            if self.in_flight.lock().insert(entry.id) {
                let this = self.clone();
                tokio::spawn(async move {
                    if let Err(error) = this.handle(&entry).await {
                        tracing::warn!(run = %entry.run_id, %error, "the outbox of automations cannot be written");
                    }
                    this.in_flight.lock().remove(&entry.id);
                });
            }
        }
        Ok(())
    }

    async fn handle(&self, entry: &OutboxEntry) -> Result<(), StoreError> {
        let store = &self.automations.store;
        let Some(run) = store.automation_run(entry.org_id, entry.run_id).await? else { return Ok(()) };
        let progress = match entry.step {
            OutboxStep::StartSession => self.start(&run).await,
            OutboxStep::EndSession => self.end(&run, entry.attempts).await,
        };
        let now = self.automations.clock.now();
        match progress {
            Ok(Progress::Done) => store.finish_outbox(entry.id).await,
            Ok(Progress::Later(after)) => store.postpone_outbox(entry.id, None, now + after).await,
            Err(error) => {
                tracing::warn!(run = %run.id, step = ?entry.step, %error, "a run of an automation is stuck");
                let starts = entry.step == OutboxStep::StartSession;
                if starts && (is_final(&error) || entry.attempts + 1 >= MAX_ATTEMPTS) {
                    return self.end_run(&run, RunStep::CannotStart, &error.to_string()).await;
                }
                store.postpone_outbox(entry.id, Some(&error.to_string()), now + RETRY_DELAY).await
            }
        }
    }

    /// Creates the session of a run and prompts it, as far as that has not happened.
    async fn start(&self, run: &AutomationRun) -> Result<Progress, RunnerError> {
        let automation = self.automations.store.automation(run.org_id, run.automation_id).await?;
        let Some(automation) = automation else { return Ok(Progress::Done) };
        let session = match (run.status, run.session_id) {
            (AutomationRunStatus::Queued, _) => match self.create_session(run, &automation).await {
                // Another session may end, and somebody may raise the limit: the deadline ends the wait.
                Err(RunnerError::Session(SessionError::Refused(_) | SessionError::KeyInFlight)) => {
                    return Ok(Progress::Later(WAIT_FOR_CAPACITY));
                }
                created => match created? {
                    Some(session) => session,
                    None => return Ok(Progress::Done),
                },
            },
            (AutomationRunStatus::Ready, Some(session)) => session,
            _ => return Ok(Progress::Done),
        };
        let key = (run.org_id, run.id);
        // Somebody may have cancelled the run while its session was created, and its time may be over.
        let now = self.automations.store.automation_run(run.org_id, run.id).await?;
        if now.is_none_or(|now| now.status != AutomationRunStatus::Ready) {
            return Ok(Progress::Done);
        }
        let draft = PromptDraft {
            content: prompt::text(run, &automation),
            images: Vec::new(),
            sender: "automation".to_owned(),
            source: MessageSource::Automation,
        };
        sessions::prompt(&self.sessions, &context(run, "prompt"), session, draft).await?;
        crash_point("automation-prompted");
        let advanced =
            self.automations.advance(key, RunStep::PromptSent, None, GATEWAY_ACTOR.to_owned()).await?;
        if let Advanced::Refused(AutomationRunStatus::Cancelled | AutomationRunStatus::TimedOut) = advanced {
            // The prompt may have started the session again after the end of the run had stopped it.
            return self.stop_session(session, false).await;
        }
        Ok(Progress::Done)
    }

    /// Creates the session of a run. Returns `None` if the run has ended meanwhile: then nothing refers to the session, and
    /// it is deleted.
    async fn create_session(
        &self,
        run: &AutomationRun,
        automation: &Automation,
    ) -> Result<Option<SessionId>, RunnerError> {
        let event = self.automations.store.trigger_event(run.org_id, run.trigger_event_id).await?;
        let configuration = match automation.settings.configuration_id {
            Some(id) => ConfigurationSource::Existing(id),
            None => ConfigurationSource::Scratch,
        };
        let model_id = automation.settings.model.clone();
        let draft = SessionDraft {
            title: Title::parse(&automation.settings.name).ok(),
            agent_config: model_id.map(|id| AgentConfig { model_id: Some(id), ..AgentConfig::default() }),
            automation_id: Some(automation.id),
            trigger_context: event.map(|event| prompt::trigger_context(run, event)),
            ..SessionDraft::new(SessionType::Coding, ClientType::Automation, configuration)
        };
        let created = sessions::create(&self.sessions, context(run, "session"), draft).await?;
        crash_point("automation-session-created");
        let advanced = self.automations.session_created(run, created.id).await?;
        crash_point("automation-ready");
        if matches!(advanced, Advanced::Refused(status) if status.has_ended()) {
            let requester = Requester::Automation(run.automation_id);
            sessions::delete(&self.sessions, run.org_id, created.id, &requester).await?;
            return Ok(None);
        }
        Ok(Some(created.id))
    }

    /// Ends the session of a run that has ended. What an agent that reported its outcome has not saved is given up; the
    /// files of a run that was cancelled or timed out are saved for whoever continues.
    async fn end(&self, run: &AutomationRun, attempts: i64) -> Result<Progress, RunnerError> {
        let Some(session) = run.session_id else { return Ok(Progress::Done) };
        let reported = run.completion_id.is_some();
        self.stop_session(session, reported || attempts >= MAX_SAVES).await
    }

    async fn stop_session(&self, session: SessionId, discard: bool) -> Result<Progress, RunnerError> {
        let record = self.automations.store.session_any(session).await?;
        let live = record
            .is_some_and(|record| !matches!(record.status, SessionStatus::Stopped | SessionStatus::Failed));
        if !live {
            return Ok(Progress::Done);
        }
        crash_point("automation-ending");
        sessions::stop(&self.sessions, session, discard).await?;
        self.sessions.hubs.evict(session);
        Ok(Progress::Done)
    }
}

/// Whether trying again cannot help.
fn is_final(error: &RunnerError) -> bool {
    matches!(
        error,
        RunnerError::Session(
            SessionError::Invalid(_)
                | SessionError::Forbidden(_)
                | SessionError::NoRepositories
                | SessionError::Model(
                    _,
                    ModelUnavailable::NotConfigured { .. } | ModelUnavailable::Unknown(_)
                )
                | SessionError::KeyMismatch
                | SessionError::Store(StoreError::Missing(_))
        )
    )
}

/// The request of a run, under a key that is the same however often the request is repeated.
fn context(run: &AutomationRun, what: &str) -> RequestContext {
    RequestContext {
        org: run.org_id,
        requester: Requester::Automation(run.automation_id),
        idempotency_key: Some(format!("run:{}:{what}", run.id)),
    }
}
