//! Compares all data of the gate that the API shows with the ledger: events with their columns, runs, artifacts, the
//! safety lock, grants, chain heads and checkpoints. Reports the first difference.

mod artifacts;
mod columns;
mod difference;
mod ends;
mod governed;
mod runs;

use std::collections::{HashMap, HashSet};

use ledger::{Checkpoint, Event, Fault, PublicKey, RecordProblem, Report, Verifier};
use proto::OrgId;
use store::{AuditReader, EventRow, RunRow, Store, StoreError};

pub use difference::Difference;
use governed::GovernanceState;
use runs::Runs;

/// The number of events read per batch.
const EVENTS_PER_BATCH: i64 = 5_000;

/// The result of a successful verification.
#[derive(Debug)]
pub struct Verification {
    pub report: Report,
    pub runs: u64,
    pub artifacts: u64,
}

/// The database does not agree with the ledger, or could not be read.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Ledger(#[from] Fault),
    #[error(transparent)]
    Row(#[from] Box<Difference>),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Verifies the database in its current state, even while a gateway is running. The caller has read `checkpoints`
/// before, from outside of the database. `progress` is called with the number of events so far.
pub async fn verify_database(
    store: &Store,
    checkpoints: Vec<Checkpoint>,
    key: Option<PublicKey>,
    progress: &dyn Fn(u64),
) -> Result<Verification, VerifyError> {
    let mut reader = store.audit_reader().await?;
    let rows = ends::own_checkpoints(&mut reader).await?;
    let mut verifier = Verifier::new(checkpoints.clone(), key);
    let outside: HashSet<String> = checkpoints.iter().map(ToString::to_string).collect();
    verifier.add_current(rows.values().filter(|row| !outside.contains(&row.to_string())).cloned());
    match verify(&mut reader, verifier, progress).await {
        Ok(done) => {
            ends::check_outside(&rows, &checkpoints, &done.report)?;
            Ok(done)
        }
        Err(VerifyError::Ledger(fault)) => Err(ends::explain_checkpoint_fault(fault, &rows, &checkpoints)),
        Err(error) => Err(error),
    }
}

async fn verify(
    reader: &mut AuditReader,
    verifier: Verifier,
    progress: &dyn Fn(u64),
) -> Result<Verification, VerifyError> {
    let mut pass =
        LedgerPass { verifier, governed: GovernanceState::default(), runs: Runs::default(), events: 0 };
    let mut limit = EVENTS_PER_BATCH;
    loop {
        match reader.events(pass.events, limit).await {
            // Read the rows one by one to find the damaged one.
            Err(error) if error.is_damaged() && limit > 1 => limit = 1,
            Err(error) if error.is_damaged() => {
                let problem = RecordProblem::Unreadable;
                return Err(Fault::Record { position: pass.events, event_id: None, problem }.into());
            }
            rows => {
                let rows = rows?;
                if rows.is_empty() {
                    break;
                }
                pass.page(reader, rows).await?;
                progress(pass.events);
            }
        }
    }
    let heads = pass.verifier.heads().map(|(chain, head)| (chain.as_str().to_owned(), *head)).collect();
    let report = pass.verifier.finish()?;
    ends::check_tree(reader, pass.events).await?;
    ends::check_heads(reader, heads).await?;
    let runs = pass.runs.finish(reader).await?;
    pass.governed.check(reader).await?;
    let artifacts = artifacts::check_all(reader).await?;
    Ok(Verification { report, runs, artifacts })
}

/// One pass through the ledger, and the state collected on it.
struct LedgerPass {
    verifier: Verifier,
    governed: GovernanceState,
    runs: Runs,
    events: u64,
}

impl LedgerPass {
    async fn page(&mut self, reader: &mut AuditReader, rows: Vec<EventRow>) -> Result<(), VerifyError> {
        let mut events: Vec<(EventRow, Event)> = Vec::with_capacity(rows.len());
        for row in rows {
            let event = self.verifier.push_event(row.entry.to_line().as_bytes())?;
            columns::check(&row, &event)?;
            self.governed.note(&row, &event);
            events.push((row, event));
        }
        let (from, to) = (self.events, self.events + events.len() as u64 - 1);
        let found = difference::readable("runs", reader.runs_of_events(from, to).await)?;
        let found: HashMap<(OrgId, String), RunRow> =
            found.into_iter().map(|row| ((row.run.org_id, row.run.run_id.clone()), row)).collect();
        for (row, event) in &events {
            self.runs.check(row, event, &found)?;
        }
        artifacts::check_kept(reader, &found).await?;
        self.events = to + 1;
        Ok(())
    }
}
