//! Starts runs: by hand, by a webhook, by the schedule, or again.

use chrono::TimeDelta;
use proto::{AutomationRunId, JsonObject, OrgId, SessionId, TriggerEventId, TriggerKind, UserId};
use shares::{OverShare, Party};
use store::{
    Advanced, Automation, AutomationRun, CronFiring, FiringOutcome, NewTriggerEvent, RunAdvance, RunStep,
    StoreError, TriggerEvent,
};

use super::{Automations, Delivery};

/// How long a run may take, from the event that starts it.
const RUN_DEADLINE: TimeDelta = TimeDelta::hours(2);
/// The actor in the log of a run that no person started.
pub(super) const GATEWAY_ACTOR: &str = "gateway";

/// Why no run was started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FireError {
    #[error("this automation has too many runs that have not ended")]
    Full,
    #[error(transparent)]
    OverShare(#[from] OverShare),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The outcome of a webhook's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WebhookOutcome {
    pub(crate) event: TriggerEventId,
    /// `None` if the event was skipped.
    pub(crate) run: Option<AutomationRunId>,
    pub(crate) duplicate: bool,
}

impl Automations {
    /// Starts a run by hand.
    pub(crate) async fn start_by_hand(
        &self,
        automation: &Automation,
        user: UserId,
        context: Option<JsonObject>,
    ) -> Result<AutomationRunId, FireError> {
        let payload = context.map(|context| serde_json::Value::Object(context).to_string());
        let event = NewTriggerEvent {
            payload,
            actor: format!("user {user}"),
            ..self.event(automation, TriggerKind::Manual)
        };
        self.start_run(event).await
    }

    /// Repeats a run that has ended, with the same event.
    pub(crate) async fn rerun(
        &self,
        automation: &Automation,
        (run, event): (&AutomationRun, TriggerEvent),
        user: UserId,
    ) -> Result<AutomationRunId, FireError> {
        if !run.status.has_ended() {
            return Err(StoreError::Refused("this run has not ended: cancel it first").into());
        }
        let event = NewTriggerEvent {
            event_name: event.event_name,
            payload: event.payload,
            rerun_of: Some(run.id),
            actor: format!("user {user}"),
            ..self.event(automation, event.kind)
        };
        self.start_run(event).await
    }

    /// Starts a run for a webhook's request whose signature is right.
    pub(crate) async fn webhook(
        &self,
        automation: &Automation,
        delivery: Delivery,
        payload: String,
    ) -> Result<WebhookOutcome, FireError> {
        self.hooks.take(Party::org(automation.org_id), 1)?;
        let event = NewTriggerEvent {
            event_name: delivery.event_name,
            payload: Some(payload),
            deliveries: delivery.keys,
            ..self.event(automation, TriggerKind::Webhook)
        };
        let (id, run) = (event.id, event.run_id);
        match self.fire(event).await? {
            FiringOutcome::Started => Ok(WebhookOutcome { event: id, run: Some(run), duplicate: false }),
            FiringOutcome::Skipped => Ok(WebhookOutcome { event: id, run: None, duplicate: false }),
            FiringOutcome::Duplicate { event, run } => Ok(WebhookOutcome { event, run, duplicate: true }),
            FiringOutcome::Full | FiringOutcome::Stale => Err(FireError::Full),
        }
    }

    /// Takes a step of a run.
    pub(crate) async fn advance(
        &self,
        (org, run): (OrgId, AutomationRunId),
        step: RunStep,
        reason: Option<String>,
        actor: String,
    ) -> Result<Advanced, StoreError> {
        let at = self.clock.now();
        let advance = RunAdvance {
            org_id: org,
            run_id: run,
            step,
            session_id: None,
            reason,
            actor,
            outbox_id: self.rng.uuid(at),
            at,
        };
        let advanced = self.store.advance_run(advance).await?;
        self.changed.notify_one();
        Ok(advanced)
    }

    /// Records the session of a run.
    pub(super) async fn session_created(
        &self,
        run: &AutomationRun,
        session: SessionId,
    ) -> Result<Advanced, StoreError> {
        let at = self.clock.now();
        let advance = RunAdvance {
            org_id: run.org_id,
            run_id: run.id,
            step: RunStep::SessionCreated,
            session_id: Some(session),
            reason: None,
            actor: GATEWAY_ACTOR.to_owned(),
            outbox_id: self.rng.uuid(at),
            at,
        };
        self.store.advance_run(advance).await
    }

    /// Starts a run because its time has come.
    pub(super) async fn cron(&self, automation: &Automation, firing: CronFiring) -> Result<(), StoreError> {
        let event = NewTriggerEvent { firing: Some(firing), ..self.event(automation, TriggerKind::Cron) };
        self.fire(event).await.map(drop)
    }

    async fn start_run(&self, event: NewTriggerEvent) -> Result<AutomationRunId, FireError> {
        let run = event.run_id;
        match self.fire(event).await? {
            FiringOutcome::Started => Ok(run),
            FiringOutcome::Skipped => {
                Err(StoreError::Refused("this automation is disabled: enable it first").into())
            }
            FiringOutcome::Duplicate { .. } | FiringOutcome::Full | FiringOutcome::Stale => {
                Err(FireError::Full)
            }
        }
    }

    async fn fire(&self, event: NewTriggerEvent) -> Result<FiringOutcome, StoreError> {
        let (automation, kind) = (event.automation_id, event.kind);
        let fired = self.store.fire(event).await?;
        tracing::info!(%automation, %kind, ?fired, "an automation was triggered");
        metrics::counter!("proliferate_automation_triggers_total", "kind" => kind.as_str()).increment(1);
        self.changed.notify_one();
        Ok(fired)
    }

    fn event(&self, automation: &Automation, kind: TriggerKind) -> NewTriggerEvent {
        let now = self.clock.now();
        NewTriggerEvent {
            id: self.rng.uuid(now).into(),
            org_id: automation.org_id,
            automation_id: automation.id,
            kind,
            event_name: None,
            payload: None,
            firing: None,
            deliveries: Vec::new(),
            rerun_of: None,
            run_id: self.rng.uuid(now).into(),
            outbox_id: self.rng.uuid(now),
            actor: GATEWAY_ACTOR.to_owned(),
            at: now,
            deadline_at: now + RUN_DEADLINE,
        }
    }
}
