//! Background work of the gate: sends heartbeats, picks up operators' changes, gives up calls that were orphaned by
//! dead instances, and signs the ledger. Idempotent, and safe on several instances at once.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use ledger::{ActionType, Outcome, Target, TargetType, Text};
use policy::{ActorClass, Claim, Pins, Policy, full_name};
use proto::RunStatus;
use store::{Change, GateWrite, NewEvent, Run, StoreError};
use tokio::time::{MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use super::process::Process;
use super::tool::ToolScope;
use super::{DEAD_AFTER, Gate, GateSettings};

/// The tick interval, so that an operator's change takes effect within a second.
const TICK_INTERVAL: Duration = Duration::from_millis(500);
/// The interval of heartbeats and of reaping orphaned calls, in ticks.
const TICKS_PER_HEARTBEAT: u32 = 10;
/// The interval of checks for dead instances on this machine, in ticks.
const TICKS_PER_INSTANCE_CHECK: u32 = 2;
/// The maximum time without a checkpoint while there are unsigned events, in ticks.
const MAX_TICKS_UNSIGNED: u64 = 600;
/// The number of unsigned events after which a checkpoint is signed at once.
const SIGN_EVENTS: u64 = 1_000;
const MAX_ORPHANS_PER_QUERY: i64 = 100;
/// How many sources are asked at once for the tools of orphaned calls, and how long one may take.
const ASKED_AT_ONCE: usize = 16;
const SOURCE_ANSWERS: Duration = Duration::from_secs(5);
/// How long an orphaned call that can be repeated waits for its caller to retry.
const WAIT_FOR_RETRY: Duration = Duration::from_mins(10);

/// Runs the background work until the gateway closes. Each kind of work has its own loop, so that one that hangs does
/// not delay the others.
pub async fn keep_gate(gate: Arc<Gate>) {
    let (gate, closing) = (gate.as_ref(), &gate.closing);
    tokio::join!(
        run_every(closing, 1, |_| gate.follow_policy()),
        run_every(closing, TICKS_PER_HEARTBEAT, |_| gate.say_alive()),
        run_every(closing, TICKS_PER_HEARTBEAT, |_| gate.reap_orphans()),
        run_every(closing, TICKS_PER_INSTANCE_CHECK, |_| gate.reap_instances()),
        run_every(closing, 1, |count| gate.sign(count)),
        run_every(closing, 1, |_| gate.record_refusals(false)),
        run_every(closing, TICKS_PER_INSTANCE_CHECK, |_| gate.expire_overdue()),
    );
}

/// Runs `work` every `ticks` ticks until the gateway closes. The argument of `work` is the number of the iteration.
async fn run_every<W>(closing: &CancellationToken, ticks: u32, work: impl Fn(u64) -> W)
where
    W: Future<Output = Result<(), StoreError>>,
{
    let mut interval = tokio::time::interval(TICK_INTERVAL * ticks);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for count in 0_u64.. {
        tokio::select! {
            _ = interval.tick() => {}
            () = closing.cancelled() => return,
        }
        if let Err(error) = work(count).await {
            tracing::warn!(%error, "the upkeep of the gate failed; the next tick tries again");
        }
    }
}

impl Gate {
    /// Registers this instance at its start. If the database has only one gateway at a time, all other instances are
    /// dead.
    pub async fn come_alive(&self, settings: &GateSettings) -> Result<(), StoreError> {
        self.say_alive().await?;
        if settings.single_instance {
            self.store.forget_other_instances(&self.instance.id).await?;
        }
        let policy = self.rules.policy();
        let last = self.store.last_policy_change().await?;
        let known = last.as_deref().and_then(|record| serde_json::from_str::<ledger::Event>(record).ok());
        // The hashes of all three files: a changed tool definition is also a changed policy.
        let told = known.and_then(|event| event.notes);
        if told.is_none_or(|told| told.as_str() != hashes(policy.pins())) {
            self.tell_policy(policy.pins(), Outcome::Success, "this policy is in force").await?;
        }
        self.lock.read(&self.store).await
    }

    async fn say_alive(&self) -> Result<(), StoreError> {
        let process = self.instance.process.as_ref().map(Process::text);
        self.store.see_instance(&self.instance.id, process.as_deref(), self.clock.now()).await
    }

    /// Removes instances that have certainly died, and gives up their calls.
    async fn reap_instances(&self) -> Result<(), StoreError> {
        let Some(own) = &self.instance.process else { return Ok(()) };
        let others = self.store.instance_processes().await?;
        let dead: Vec<_> = others.iter().filter(|(_, process)| own.knows_dead(process)).collect();
        for (instance, _) in &dead {
            tracing::warn!(%instance, "an instance on this machine has died");
            self.store.forget_instance(instance).await?;
        }
        if dead.is_empty() { Ok(()) } else { self.reap_orphans().await }
    }

    /// Signs a checkpoint if many events are unsigned, if any are after a while, or if the last attempt failed.
    async fn sign(&self, count: u64) -> Result<(), StoreError> {
        self.checkpoints.probe().await;
        let due = self.checkpoints.due().await?;
        let failed = !self.checkpoints.is_writable();
        let sign = due >= SIGN_EVENTS || (due > 0 && (failed || count.is_multiple_of(MAX_TICKS_UNSIGNED)));
        if sign && let Err(error) = self.checkpoints.write().await {
            tracing::error!(%error, "cannot write a checkpoint of the ledger; a later tick tries again");
        }
        Ok(())
    }

    async fn follow_policy(&self) -> Result<(), StoreError> {
        match self.rules.candidate().await {
            Ok(None) => Ok(()),
            Ok(Some(policy)) => self.adopt(policy).await,
            Err(error) => {
                // The old policy stays in force. The error is logged on every tick, because someone has to fix it.
                tracing::error!(%error, "cannot read the changed policy; the old one stays in force");
                Ok(())
            }
        }
    }

    /// Adopts a policy. The ledger records it before it takes effect, so that no decision is made by a policy that
    /// the ledger does not know.
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

    /// Ends the calls of dead instances as unknown, several at once, because each asks the source of its tool.
    async fn reap_orphans(&self) -> Result<(), StoreError> {
        let before = self.clock.now() - TimeDelta::from_std(DEAD_AFTER).unwrap_or_default();
        let orphans = self.store.orphaned_calls(before, MAX_ORPHANS_PER_QUERY).await?;
        let running = orphans.iter().filter(|run| run.status == RunStatus::Running);
        stream::iter(running).map(Ok).try_for_each_concurrent(ASKED_AT_ONCE, |run| self.reap(run)).await
    }

    /// Ends an orphaned call as unknown. A replay-safe call stays open for a while, so that its caller can retry.
    async fn reap(&self, run: &Run) -> Result<(), StoreError> {
        let patience = TimeDelta::from_std(WAIT_FOR_RETRY).unwrap_or_default();
        if run.created_at > self.clock.now() - patience && self.may_be_repeated(run).await {
            return Ok(());
        }
        self.give_up(run).await
    }

    /// A source that does not answer now may know the tool later.
    async fn may_be_repeated(&self, run: &Run) -> bool {
        let name =
            full_name(run.tool.as_deref().unwrap_or_default(), run.operation.as_deref().unwrap_or_default());
        let (policy, scope) = (self.rules.policy(), ToolScope { org: run.org_id, session: run.session_id });
        match timeout(SOURCE_ANSWERS, self.sources.find(&policy, scope, &name)).await {
            Ok(Ok(tool)) => tool.is_some_and(|tool| tool.work().replay_safe()),
            Ok(Err(_)) | Err(_) => true,
        }
    }
}

/// The hashes of the three files, as the event of a policy change has them.
fn hashes(pins: &Pins) -> String {
    format!("sha256 lanes {} roles {} tools {}", pins.lanes.sha256, pins.roles.sha256, pins.tools.sha256)
}
