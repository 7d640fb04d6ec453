//! What a transaction of the gate does, decided from what was there before it. Nothing here asks a database.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ledger::{AppendError, Chain, Entry, Head};
use proto::{ConfigurationId, OrgId, RunStatus};

use super::{Change, Effect, GateWrite, NewEvent, Ready, Written};
use crate::{Ended, NewArtifact, NewRun, Run, StoreError};

/// What was there before, of all that decides about these writes.
#[derive(Default)]
pub(super) struct Found {
    pub(super) runs: HashMap<(OrgId, String), Run>,
    pub(super) configurations: HashSet<(OrgId, ConfigurationId)>,
}

/// What there is to do.
#[derive(Default)]
pub(super) struct Plan<'a> {
    pub(super) results: Vec<Written>,
    pub(super) begins: Vec<(&'a NewRun, u64)>,
    pub(super) ends: Vec<End<'a>>,
    pub(super) takes: Vec<(OrgId, &'a str, &'a str)>,
    pub(super) governing: Vec<&'a Change>,
    pub(super) effects: Vec<&'a Effect>,
    pub(super) artifacts: Vec<&'a NewArtifact>,
    pub(super) events: Vec<Told<'a>>,
}

/// A run that ends, and where the events begin that tell it.
pub(super) struct End<'a> {
    pub(super) org: OrgId,
    pub(super) run_id: &'a str,
    pub(super) ended: &'a Ended,
    pub(super) position: u64,
}

/// An event that is told, with its record and the chain that it goes to.
pub(super) struct Told<'a> {
    pub(super) new: &'a NewEvent,
    /// No run says where it is.
    pub(super) unattached: bool,
    pub(super) chain: &'a Chain,
    pub(super) record: &'a str,
}

/// The runs that must be looked at.
pub(super) fn run_keys(writes: &[Arc<Ready>]) -> Vec<(OrgId, &str)> {
    let mut keys: Vec<_> = writes.iter().filter_map(|ready| ready.write.change.run()).collect();
    keys.extend(writes.iter().filter_map(|ready| ready.write.change.parent()));
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The configurations that must be looked at.
pub(super) fn configuration_keys(writes: &[Arc<Ready>]) -> Vec<(OrgId, ConfigurationId)> {
    let mut keys: Vec<_> =
        writes.iter().filter_map(|ready| ready.write.effect.as_ref()).map(Effect::key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// So many events of one write are found through its run: the view `events_of_runs` looks no further.
const TOGETHER: usize = 4;

/// Decides about each write by what was found. The first event goes to position `size`.
pub(super) fn plan<'a>(writes: &'a [Arc<Ready>], found: &Found, size: u64) -> Plan<'a> {
    let mut plan = Plan::default();
    for ready in writes {
        let Ready { write, records } = ready.as_ref();
        let result = judge(&mut plan, write, found, size);
        if matches!(result, Written::Done) {
            plan.artifacts.extend(&write.artifacts);
            for (index, (new, (chain, record))) in write.events.iter().zip(records).enumerate() {
                let unattached = index >= TOGETHER || !write.change.tells(new);
                plan.events.push(Told { new, unattached, chain, record });
            }
            if let Some(effect) = &write.effect {
                // Of two, the later one is what stays.
                plan.effects.retain(|earlier| earlier.key() != effect.key());
                plan.effects.push(effect);
            }
        }
        plan.results.push(result);
    }
    plan
}

fn judge<'a>(plan: &mut Plan<'a>, write: &'a GateWrite, found: &Found, size: u64) -> Written {
    let position = size + plan.events.len() as u64;
    let find = |org: OrgId, run: &str| found.runs.get(&(org, run.to_owned()));
    match &write.change {
        Change::Begin(run) => {
            if let Some(known) = find(run.org_id, &run.run_id) {
                return Written::Known(Box::new(known.clone()));
            }
            // A retry belongs to the run that it tries again, which has ended.
            let fits = |parent: &Run| {
                if run.retry_count > 0 {
                    parent.status.is_terminal()
                } else {
                    parent.status == RunStatus::Running
                }
            };
            let active = |parent: &String| find(run.org_id, parent).is_some_and(fits);
            // A run that is only told of needs no parent at work: it does nothing.
            let acts = run.end.is_none() || write.effect.is_some();
            if acts && !run.parent_run_id.as_ref().is_none_or(active) {
                return Written::ParentInactive;
            }
            if write.effect.as_ref().is_some_and(|effect| !found.configurations.contains(&effect.key())) {
                return Written::Gone;
            }
            plan.begins.push((run, position));
        }
        Change::End { org, run_id, instance, ended } => {
            let yours = |run: &Run| run.status == RunStatus::Running && run.instance == *instance;
            if !find(*org, run_id).is_some_and(yours) {
                return Written::NotYours;
            }
            plan.ends.push(End { org: *org, run_id, ended, position });
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

/// The chains that events go to.
pub(super) fn chain_names(events: &[Told<'_>]) -> Vec<String> {
    let mut names: Vec<_> = events.iter().map(|told| told.chain.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(str::to_owned).collect()
}

/// Where the ledger ends: what the heads and the tree say of it, and what its last events say.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) heads: HashMap<String, Head>,
    pub(crate) last_events: HashMap<String, Head>,
    pub(crate) events: u64,
}

impl Ends {
    /// The heads, if the last events agree with them. Nothing may be added to a ledger whose end was changed: the new
    /// events would make the change look older than it is.
    pub(crate) fn checked(self, size: u64) -> Result<HashMap<String, Head>, StoreError> {
        let problem = self.problem(size);
        if let Some(problem) = problem {
            tracing::error!(%problem, "the ledger was changed: nothing is recorded, so nothing is executed");
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

/// The links of all events, and where each chain ends after them.
pub(super) fn link(
    events: &[Told<'_>],
    mut heads: HashMap<String, Head>,
    size: u64,
) -> Result<(Vec<Entry>, HashMap<String, Head>), StoreError> {
    let failed = |error: AppendError| StoreError::NotCommitted(error.to_string());
    let mut entries = Vec::with_capacity(events.len());
    for (position, Told { chain, record, .. }) in (size..).zip(events) {
        let head = heads.get(chain.as_str()).copied();
        let entry = Entry::link(chain, head, position, (*record).to_owned()).map_err(failed)?;
        heads.insert(chain.as_str().to_owned(), entry.head());
        entries.push(entry);
    }
    Ok((entries, heads))
}
