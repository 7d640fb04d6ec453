//! What the gate does on its own: it says that it is alive, notices operators' changes, gives up calls that died with
//! their instance, and signs the ledger. Idempotent, and harmless on several instances at once.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use ledger::{ActionType, Outcome, Target, TargetType, Text};
use policy::{ActorClass, Claim, Pins, Policy, full_name};
use proto::RunStatus;
use store::{Change, GateWrite, NewEvent, StoreError};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::process::Process;
use super::{DEAD_AFTER, Gate, GateSettings};

/// What an operator changes counts within a second.
const TICK: Duration = Duration::from_millis(500);
/// In ticks: how often it says that it is alive, and looks for calls of the dead.
const ALIVE: u32 = 10;
/// In ticks: how often it looks for instances of this machine that have died.
const REAP: u32 = 2;
/// In ticks: the longest time without a checkpoint while there is something to sign.
const SIGN: u64 = 600;
/// A checkpoint is signed at the latest after so many events.
const SIGN_EVENTS: u64 = 1_000;
const ORPHANS: i64 = 100;
/// So long a call that may be repeated waits for its caller to ask again.
const PATIENCE: Duration = Duration::from_mins(10);

/// Does it until the gateway closes. Each kind of work goes at its own pace: where one hangs, the others go on.
pub async fn keep_gate(gate: Arc<Gate>) {
    let (gate, closing) = (gate.as_ref(), &gate.closing);
    tokio::join!(
        every(closing, 1, |_| gate.follow_policy()),
        every(closing, ALIVE, |_| gate.stay_alive()),
        every(closing, REAP, |_| gate.reap_instances()),
        every(closing, 1, |count| gate.sign(count)),
        every(closing, 1, |_| gate.record_refusals(false)),
    );
}

/// Does something every so many ticks, until the gateway closes. It is given the number of the tick.
async fn every<W>(closing: &CancellationToken, ticks: u32, work: impl Fn(u64) -> W)
where
    W: Future<Output = Result<(), StoreError>>,
{
    let mut interval = tokio::time::interval(TICK * ticks);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for count in 0_u64.. {
        tokio::select! {
            _ = interval.tick() => {}
            () = closing.cancelled() => return,
        }
        if let Err(error) = work(count).await {
            tracing::warn!(%error, "the upkeep of the gate failed; it is tried again");
        }
    }
}

impl Gate {
    /// The first thing an instance does. Where the database has one user at a time, all others are dead.
    pub async fn come_alive(&self, settings: &GateSettings) -> Result<(), StoreError> {
        self.say_alive().await?;
        if settings.single_instance {
            self.store.forget_other_instances(&self.instance).await?;
        }
        let policy = self.rules.policy();
        let last = self.store.last_policy_change().await?;
        let known = last.as_deref().and_then(|record| serde_json::from_str::<ledger::Event>(record).ok());
        // All three files: also another definition of a tool is another policy.
        let told = known.and_then(|event| event.notes);
        if told.is_none_or(|told| told.as_str() != hashes(policy.pins())) {
            self.tell_policy(policy.pins(), Outcome::Success, "this policy is in force").await?;
        }
        self.lock.read(&self.store).await
    }

    async fn stay_alive(&self) -> Result<(), StoreError> {
        self.say_alive().await?;
        self.reap_orphans().await
    }

    async fn say_alive(&self) -> Result<(), StoreError> {
        let process = self.process.as_ref().map(Process::text);
        self.store.see_instance(&self.instance, process.as_deref(), self.clock.now()).await
    }

    /// Forgets instances that have died for certain, and gives up what they left.
    async fn reap_instances(&self) -> Result<(), StoreError> {
        let Some(own) = &self.process else { return Ok(()) };
        let others = self.store.instance_processes().await?;
        let dead: Vec<_> = others.iter().filter(|(_, process)| own.knows_dead(process)).collect();
        for (instance, _) in &dead {
            tracing::warn!(%instance, "an instance on this machine has died");
            self.store.forget_instance(instance).await?;
        }
        if dead.is_empty() { Ok(()) } else { self.reap_orphans().await }
    }

    /// Signs what is due: much, or anything once in a while, or after a failure.
    async fn sign(&self, count: u64) -> Result<(), StoreError> {
        self.checkpoints.probe().await;
        let due = self.checkpoints.due().await?;
        let failed = !self.checkpoints.is_writable();
        let sign = due >= SIGN_EVENTS || (due > 0 && (failed || count.is_multiple_of(SIGN)));
        if sign && let Err(error) = self.checkpoints.write().await {
            tracing::error!(%error, "no checkpoint of the ledger could be written; it is tried again");
        }
        Ok(())
    }

    async fn follow_policy(&self) -> Result<(), StoreError> {
        match self.rules.candidate().await {
            Ok(None) => Ok(()),
            Ok(Some(policy)) => self.adopt(policy).await,
            Err(error) => {
                // The old one stays in force; said once a second, since it needs somebody.
                tracing::error!(%error, "the policy on disk is not taken over");
                Ok(())
            }
        }
    }

    /// Recorded before it counts: no decision is made by a policy that the ledger does not know.
    async fn adopt(&self, policy: Policy) -> Result<(), StoreError> {
        self.tell_policy(policy.pins(), Outcome::Success, "another policy is in force").await?;
        tracing::info!(lanes = %policy.pins().lanes.git_blob, "another policy is in force");
        self.rules.replace(policy);
        Ok(())
    }

    async fn tell_policy(&self, pins: &Pins, outcome: Outcome, reason: &str) -> Result<(), StoreError> {
        let actor = Claim { actor_type: ActorClass::System, actor_id: "gateway".to_owned() };
        let mut new: NewEvent =
            self.audit.event(None, ActionType::PolicyChange, outcome, &actor, &pins.versions());
        new.event.outcome_reason = Some(Text::cut(reason));
        new.event.target = Some(Target {
            artifact_ref: None,
            name: Text::cut("policy"),
            operation: Some(Text::cut("load")),
            target_type: TargetType::Policy,
        });
        new.event.notes = Some(Text::cut(&hashes(pins)));
        let write = GateWrite::new(Change::Nothing, vec![new]);
        self.store.gate_write(write).await.map(drop)
    }

    /// Gives up calls of dead instances. One that may be repeated is left a while for its caller to ask again.
    async fn reap_orphans(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let delta = |time| TimeDelta::from_std(time).unwrap_or_default();
        for run in self.store.orphaned_calls(now - delta(DEAD_AFTER), ORPHANS).await? {
            let name = full_name(
                run.tool.as_deref().unwrap_or_default(),
                run.operation.as_deref().unwrap_or_default(),
            );
            let tool = self.sources.find(&self.rules.policy(), run.org_id, &name).await;
            // A source that cannot be asked now may know the tool later.
            let may_come_back = tool.map_or(true, |tool| tool.is_some_and(|tool| tool.work().replay_safe()));
            if run.status == RunStatus::Running && !(may_come_back && run.created_at > now - delta(PATIENCE))
            {
                self.give_up(&run).await?;
            }
        }
        Ok(())
    }
}

/// The three files, as the event of a change names them.
fn hashes(pins: &Pins) -> String {
    format!("sha256 lanes {} roles {} tools {}", pins.lanes.sha256, pins.roles.sha256, pins.tools.sha256)
}
