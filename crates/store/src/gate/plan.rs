//! Plans a transaction of the gate from the rows that exist before it. Nothing here accesses a database.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use ledger::{AppendError, Chain, Entry, Head};
use proto::{ApiKeyId, AutomationRunId, ConfigurationId, OrgId, RunStatus, SessionId};
use uuid::Uuid;

use super::completion::{OpenRun, PlannedReport, Report};
use super::decision::{RequestEdit, WaitingState};
use super::open_transcript::StoredTranscript;
use super::{Change, Effect, GateWrite, NewEvent, PreparedWrite, RunCompletion, RunDecision, Written};
use crate::{Ended, NewArtifact, NewInvocation, NewRun, Run, StoreError};

/// The existing rows that decide about a batch of writes.
#[derive(Default)]
pub(crate) struct ExistingRows {
    pub(crate) runs: HashMap<(OrgId, String), Run>,
    pub(crate) configurations: HashSet<(OrgId, ConfigurationId)>,
    pub(crate) automation_runs: HashMap<(OrgId, AutomationRunId), OpenRun>,
    /// How far the decisions about waiting runs have come.
    pub(crate) waiting_states: HashMap<(OrgId, String), WaitingState>,
    /// The transcripts of the sessions whose agents report.
    pub(crate) transcripts: HashMap<(OrgId, SessionId), StoredTranscript>,
    /// How many runs of a session or an API key wait for approval.
    pub(crate) waiting: HashMap<(OrgId, Uuid), u64>,
}

/// The writes of a transaction, and the outcome of each.
#[derive(Default)]
pub(crate) struct Plan<'a> {
    pub(crate) results: Vec<Written>,
    pub(crate) begins: Vec<(&'a NewRun, u64)>,
    pub(crate) ends: Vec<PlannedEnd<'a>>,
    pub(crate) takes: Vec<(OrgId, &'a str, &'a str)>,
    /// Waiting runs that start, with their instance and time.
    pub(crate) starts: Vec<(&'a RunDecision, &'a String, DateTime<Utc>)>,
    pub(crate) decisions: Vec<(&'a RunDecision, WaitingState)>,
    /// Approved runs that wait for their callers, and until when.
    pub(crate) grants: Vec<(&'a RunDecision, DateTime<Utc>)>,
    /// The first of two approvals.
    pub(crate) first_approvals: Vec<&'a RunDecision>,
    pub(crate) edits: Vec<(&'a RunDecision, &'a RequestEdit)>,
    pub(crate) invocations: Vec<(&'a NewRun, &'a NewInvocation)>,
    pub(crate) governing: Vec<&'a Change>,
    pub(crate) effects: Vec<&'a Effect>,
    /// Reports that end runs of automations.
    pub(crate) completions: Vec<PlannedReport<'a>>,
    pub(crate) artifacts: Vec<&'a NewArtifact>,
    pub(crate) events: Vec<PlannedEvent<'a>>,
}

/// A run that ends, and the position of its first event there.
pub(crate) struct PlannedEnd<'a> {
    pub(crate) org: OrgId,
    pub(crate) run_id: &'a str,
    pub(crate) ended: &'a Ended,
    pub(crate) position: u64,
}

/// An event to append, with its record and its chain.
pub(crate) struct PlannedEvent<'a> {
    pub(crate) new: &'a NewEvent,
    /// No run references it by its position.
    pub(crate) unattached: bool,
    pub(crate) chain: &'a Chain,
    pub(crate) record: &'a str,
}

/// The runs that a plan must know.
pub(crate) fn run_keys(writes: &[Arc<PreparedWrite>]) -> Vec<(OrgId, &str)> {
    let mut keys: Vec<_> = writes.iter().filter_map(|prepared| prepared.write.change.run()).collect();
    keys.extend(writes.iter().filter_map(|prepared| prepared.write.change.parent()));
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The configurations that a plan must know.
pub(crate) fn configuration_keys(writes: &[Arc<PreparedWrite>]) -> Vec<(OrgId, ConfigurationId)> {
    let mut keys: Vec<_> = writes
        .iter()
        .filter_map(|prepared| prepared.write.effect.as_ref())
        .filter_map(Effect::configuration)
        .collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The runs of automations that a plan must know.
pub(crate) fn automation_run_keys(writes: &[Arc<PreparedWrite>]) -> Vec<(OrgId, AutomationRunId)> {
    let effects = writes.iter().filter_map(|prepared| prepared.write.effect.as_ref());
    let mut keys: Vec<_> = effects.filter_map(Effect::report).map(RunCompletion::key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The messages whose presence a plan must know, with their sessions.
pub(crate) fn reported_messages(writes: &[Arc<PreparedWrite>]) -> Vec<(OrgId, SessionId, Vec<String>)> {
    let effects = writes.iter().filter_map(|prepared| prepared.write.effect.as_ref());
    effects.filter_map(Effect::report).map(RunCompletion::messages).collect()
}

/// The waiting runs that a plan must know, in the order in which everybody locks their rows.
pub(crate) fn decided_keys(writes: &[Arc<PreparedWrite>]) -> Vec<(OrgId, &str)> {
    let decided = writes.iter().filter_map(|prepared| match &prepared.write.change {
        Change::Decide(decision) => Some((decision.org, decision.run_id.as_str())),
        _ => None,
    });
    let mut keys: Vec<_> = decided.collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The sessions and API keys whose waiting runs a plan must count, as of a time.
pub(crate) fn waiting_requesters(writes: &[Arc<PreparedWrite>]) -> Vec<(OrgId, Uuid, DateTime<Utc>)> {
    let waiting = writes.iter().filter_map(|prepared| match &prepared.write.change {
        Change::Begin(run) if run.waits => {
            let requester = requester(run, prepared.write.invocation.as_deref()?)?;
            Some((run.org_id, requester, run.created_at))
        }
        _ => None,
    });
    waiting.collect()
}

/// The session that requested a call, or else the API key.
fn requester(run: &NewRun, invocation: &NewInvocation) -> Option<Uuid> {
    run.session_id.map(SessionId::uuid).or(invocation.key_id.map(ApiKeyId::uuid))
}

/// A run references this many events of one write: the view `events_of_runs` reads no further.
const REFERENCED_EVENTS: usize = 4;

/// Decides each write by the existing rows. The first event gets the position `size`.
pub(crate) fn plan<'a>(writes: &'a [Arc<PreparedWrite>], existing: &ExistingRows, size: u64) -> Plan<'a> {
    let mut plan = Plan::default();
    for prepared in writes {
        let PreparedWrite { write, records } = prepared.as_ref();
        let result = decide(&mut plan, write, existing, size);
        if matches!(result, Written::Done) {
            if let (Change::Begin(run), Some(new)) = (&write.change, &write.invocation) {
                plan.invocations.push((run, new));
            }
            plan.artifacts.extend(&write.artifacts);
            for (index, (new, (chain, record))) in write.events.iter().zip(records).enumerate() {
                let unattached = index >= REFERENCED_EVENTS || !write.change.references(new);
                plan.events.push(PlannedEvent { new, unattached, chain, record });
            }
            if let Some(planned) = write.effect.as_ref().and_then(|effect| ending(effect, existing)) {
                plan.completions.push(planned);
            }
            if let Some(effect) = write.effect.as_ref().filter(|effect| effect.configuration().is_some()) {
                plan.effects.retain(|earlier| !earlier.is_replaced_by(effect));
                plan.effects.push(effect);
            }
        }
        plan.results.push(result);
    }
    plan
}

fn decide<'a>(plan: &mut Plan<'a>, write: &'a GateWrite, existing: &ExistingRows, size: u64) -> Written {
    let position = size + plan.events.len() as u64;
    let find = |org: OrgId, run: &str| existing.runs.get(&(org, run.to_owned()));
    match &write.change {
        Change::Begin(run) => {
            if let Some(known) = find(run.org_id, &run.run_id) {
                return Written::Known(Box::new(known.clone()));
            }
            // The parent of a retry is the run that it repeats, which has ended.
            let fits = |parent: &Run| {
                if run.retry_count > 0 {
                    parent.status.is_terminal()
                } else {
                    parent.status == RunStatus::Running
                }
            };
            let active = |parent: &String| find(run.org_id, parent).is_some_and(fits);
            // A run that is only recorded does nothing, so its parent need not be in flight.
            let acts = run.end.is_none() || write.effect.is_some();
            if acts && !run.parent_run_id.as_ref().is_none_or(active) {
                return Written::ParentInactive;
            }
            if write.effect.as_ref().is_some_and(|effect| !is_possible(effect, existing, plan)) {
                return Written::Gone;
            }
            if write.invocation.as_ref().is_some_and(|new| !may_wait(run, new, existing, plan)) {
                return Written::TooManyWaiting;
            }
            plan.begins.push((run, position));
        }
        Change::Decide(decision) => return decision.plan(plan, existing, position),
        Change::End { org, run_id, instance, ended } => {
            let owned = |run: &Run| run.status == RunStatus::Running && run.instance == *instance;
            if !find(*org, run_id).is_some_and(owned) {
                return Written::NotYours;
            }
            plan.ends.push(PlannedEnd { org: *org, run_id, ended, position });
        }
        Change::Take { org, run_id, from, to } => {
            let theirs =
                |run: &Run| run.status == RunStatus::Running && run.instance.as_deref() == Some(from);
            if !find(*org, run_id).is_some_and(theirs) {
                return Written::NotYours;
            }
            plan.takes.push((*org, run_id, to));
        }
        change @ (Change::Lock(_) | Change::Grant(_) | Change::SetMode(_) | Change::RevokeGrant { .. }) => {
            plan.governing.push(change);
        }
        Change::Nothing => {}
    }
    Written::Done
}

/// Whether whoever requests a run that waits for approval has fewer waiting ones than its limit.
fn may_wait(run: &NewRun, new: &NewInvocation, existing: &ExistingRows, plan: &Plan<'_>) -> bool {
    let (Some(waiting), Some(asks)) = (&new.waiting, requester(run, new)) else { return true };
    let before = existing.waiting.get(&(run.org_id, asks)).copied().unwrap_or_default();
    let same = |(earlier, invocation): &&(&NewRun, &NewInvocation)| {
        earlier.waits && earlier.org_id == run.org_id && requester(earlier, invocation) == Some(asks)
    };
    let together = plan.invocations.iter().filter(same).count();
    before + (together as u64) < waiting.limit
}

/// Whether the row that the effect changes exists in a state that allows it.
fn is_possible(effect: &Effect, existing: &ExistingRows, plan: &Plan<'_>) -> bool {
    if let Some(key) = effect.configuration() {
        return existing.configurations.contains(&key);
    }
    // Another report of the same run in this transaction comes first; this one is told that the run has ended.
    effect.report().is_some_and(|report| {
        report.against(existing.automation_runs.get(&report.key())) != Report::Refused
            && plan.completions.iter().all(|(earlier, ..)| earlier.key() != report.key())
    })
}

/// The run that an effect ends: the report, and the state of the run before. `None` for a report that was made before.
fn ending<'a>(effect: &'a Effect, existing: &ExistingRows) -> Option<PlannedReport<'a>> {
    let report = effect.report()?;
    let run = existing.automation_runs.get(&report.key())?;
    match report.against(Some(run)) {
        Report::Ends => {
            let before = existing.transcripts.get(&(report.org, report.session)).cloned()?;
            Some((report, run.clone(), before))
        }
        Report::Repeated | Report::Refused => None,
    }
}

/// The chains of these events.
pub(crate) fn chain_names(events: &[PlannedEvent<'_>]) -> Vec<String> {
    let mut names: Vec<_> = events.iter().map(|event| event.chain.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(str::to_owned).collect()
}

/// The end of the ledger, as the heads and the tree have it and as its last events have it.
#[derive(Default)]
pub(crate) struct LedgerTail {
    pub(crate) heads: HashMap<String, Head>,
    pub(crate) last_events: HashMap<String, Head>,
    pub(crate) events: u64,
}

impl LedgerTail {
    /// The heads, if the last events agree with them. Nothing may be appended to a ledger whose end was tampered with: the
    /// new events would make the change look older than it is.
    pub(crate) fn checked(self, size: u64) -> Result<HashMap<String, Head>, StoreError> {
        let problem = self.problem(size);
        if let Some(problem) = problem {
            tracing::error!(%problem, "the ledger was tampered with: nothing is recorded, so nothing is executed");
            return Err(StoreError::LedgerChanged(problem));
        }
        Ok(self.heads)
    }

    fn problem(&self, size: u64) -> Option<String> {
        if self.events != size {
            return Some(format!(
                "ledger_tree, column size: stored {size}, the last event makes it {}",
                self.events
            ));
        }
        let shown = |head: Option<&Head>| {
            head.map_or_else(|| "none".to_owned(), |head| format!("{} {}", head.sequence, head.hash))
        };
        let mut chains: Vec<_> = self.heads.keys().chain(self.last_events.keys()).collect();
        chains.sort_unstable();
        chains.into_iter().find_map(|chain| {
            let (head, last) = (self.heads.get(chain), self.last_events.get(chain));
            (head != last).then(|| {
                let (head, last) = (shown(head), shown(last));
                format!("ledger_heads chain={chain}, columns sequence and hash: stored {head}, the last event says {last}")
            })
        })
    }
}

/// Links all events into their chains, and returns the new head of each chain.
pub(crate) fn link(
    events: &[PlannedEvent<'_>],
    mut heads: HashMap<String, Head>,
    size: u64,
) -> Result<(Vec<Entry>, HashMap<String, Head>), StoreError> {
    let failed = |error: AppendError| StoreError::NotCommitted(error.to_string());
    let mut entries = Vec::with_capacity(events.len());
    for (position, PlannedEvent { chain, record, .. }) in (size..).zip(events) {
        let head = heads.get(chain.as_str()).copied();
        let entry = Entry::link(chain, head, position, (*record).to_owned()).map_err(failed)?;
        heads.insert(chain.as_str().to_owned(), entry.head());
        entries.push(entry);
    }
    Ok((entries, heads))
}
