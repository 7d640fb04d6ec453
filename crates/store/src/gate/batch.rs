//! The statements of one transaction of the gate, each for all of its writes at once.

use std::collections::HashMap;

use ledger::{AppendError, Chain, Entry, Head};
use proto::{OrgId, RunStatus};

use super::{Change, GateWrite, NewEvent, Written, moment};
use crate::{Ended, NewArtifact, NewRun, Run, StoreError};

type Runs = HashMap<(OrgId, String), Run>;

/// What there is to do, once it is known what was there before.
#[derive(Default)]
struct Plan<'a> {
    results: Vec<Written>,
    begins: Vec<&'a NewRun>,
    ends: Vec<(OrgId, &'a str, &'a Ended)>,
    takes: Vec<(OrgId, &'a str, &'a str)>,
    others: Vec<&'a Change>,
    artifacts: Vec<&'a NewArtifact>,
    events: Vec<&'a NewEvent>,
}

/// Decides about each write by the runs as they were.
fn plan<'a>(writes: &'a [GateWrite], runs: &Runs) -> Plan<'a> {
    let mut plan = Plan::default();
    for write in writes {
        let result = judge(&mut plan, &write.change, runs);
        if matches!(result, Written::Done) {
            plan.artifacts.extend(&write.artifacts);
            plan.events.extend(&write.events);
        }
        plan.results.push(result);
    }
    plan
}

fn judge<'a>(plan: &mut Plan<'a>, change: &'a Change, runs: &Runs) -> Written {
    let find = |org: OrgId, run: &str| runs.get(&(org, run.to_owned()));
    match change {
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
            if run.end.is_none() && !run.parent_run_id.as_ref().is_none_or(active) {
                return Written::ParentInactive;
            }
            plan.begins.push(run);
        }
        Change::End { org, run_id, instance, ended } => {
            let yours = |run: &Run| run.status == RunStatus::Running && run.instance == *instance;
            if !find(*org, run_id).is_some_and(yours) {
                return Written::NotYours;
            }
            plan.ends.push((*org, run_id, ended));
        }
        Change::Take { org, run_id, from, to } => {
            let theirs =
                |run: &Run| run.status == RunStatus::Running && run.instance.as_deref() == Some(from);
            if !find(*org, run_id).is_some_and(theirs) {
                return Written::NotYours;
            }
            plan.takes.push((*org, run_id, to));
        }
        Change::Lock(_) | Change::Grant(_) => plan.others.push(change),
        Change::Nothing => {}
    }
    Written::Done
}

/// All runs that decide about these writes.
fn keys(writes: &[GateWrite]) -> Vec<(OrgId, &str)> {
    let mut keys: Vec<_> = writes.iter().filter_map(|write| write.change.run()).collect();
    keys.extend(writes.iter().filter_map(|write| match &write.change {
        Change::Begin(run) => run.parent_run_id.as_deref().map(|parent| (run.org_id, parent)),
        _ => None,
    }));
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The links of all events, and where each chain ends after them.
fn link(
    events: &[&NewEvent],
    mut heads: HashMap<String, Head>,
    size: u64,
) -> Result<(Vec<Entry>, HashMap<String, Head>), StoreError> {
    let failed = |error: AppendError| StoreError::NotCommitted(error.to_string());
    let mut entries = Vec::with_capacity(events.len());
    for (position, event) in (size..).zip(events) {
        let chain: Chain = event.chain()?;
        let head = heads.get(chain.as_str()).copied();
        let entry = Entry::append(&chain, head, position, &event.event).map_err(failed)?;
        heads.insert(chain.as_str().to_owned(), entry.head());
        entries.push(entry);
    }
    Ok((entries, heads))
}

/// The statements, for one of the two databases: what differs is only a type that cannot be named in general.
macro_rules! statements {
    ($module:ident, $connection:ty, $database:ty) => {
        pub(super) mod $module {
            use ledger::Entry;
            use proto::OrgId;
            use sqlx::QueryBuilder;
            use sqlx::types::Json;

            use super::{
                Change, Ended, GateWrite, HashMap, Head, NewArtifact, NewEvent, NewRun, Run, Runs, StoreError,
                Written, keys, link, moment, plan,
            };
            use crate::ledger_event::{hash, whole};
            use crate::row::storable_json;

            type Sql = QueryBuilder<$database>;

            pub(in crate::gate) async fn run(
                tx: &mut $connection,
                writes: &[GateWrite],
            ) -> Result<Vec<Written>, StoreError> {
                // First of all: whoever changes this row writes alone.
                const SIZE: &str = "UPDATE ledger_tree SET size = size WHERE id = 1 RETURNING size";
                let size: i64 = sqlx::query_scalar(SIZE).fetch_one(&mut *tx).await?;
                let runs = find_runs(tx, &keys(writes)).await?;
                let plan = plan(writes, &runs);
                begin(tx, &plan.begins).await?;
                end(tx, &plan.ends).await?;
                take(tx, &plan.takes).await?;
                govern(tx, &plan.others).await?;
                keep(tx, &plan.artifacts).await?;
                append(tx, &plan.events, whole(size)?).await?;
                Ok(plan.results)
            }

            async fn find_runs(tx: &mut $connection, keys: &[(OrgId, &str)]) -> Result<Runs, StoreError> {
                if keys.is_empty() {
                    return Ok(Runs::new());
                }
                let mut sql = Sql::new(crate::run::runs!("WHERE (org_id, run_id) IN ("));
                sql.push_values(keys, |mut row, (org, run)| {
                    row.push_bind(org.uuid()).push_bind(*run);
                });
                let found: Vec<Run> = sql.push(")").build_query_as().fetch_all(&mut *tx).await?;
                Ok(found.into_iter().map(|run| ((run.org_id, run.run_id.clone()), run)).collect())
            }

            async fn begin(tx: &mut $connection, runs: &[&NewRun]) -> Result<(), StoreError> {
                if runs.is_empty() {
                    return Ok(());
                }
                let mut sql = Sql::new(
                    "INSERT INTO runs (org_id, run_id, run_kind, status, contract_version, lanes_version,
                    roles_version, parent_run_id, root_run_id, run_name, case_id, session_id, correlation_id, actor,
                    role_id, lane_id, tool, operation, request_hash, decision, instance, inputs, retry_count,
                    retry_reason, created_at, started_at, response_hash, outputs, error, outcome, answer,
                    completed_at) ",
                );
                sql.push_values(runs, |mut row, run| {
                    let (call, end) = (run.call.as_ref(), run.end.as_ref());
                    let status = end.map_or(run.status, |end| end.status);
                    let json = |value: &serde_json::Value| Json(storable_json(value.clone()));
                    row.push_bind(run.org_id.uuid()).push_bind(&run.run_id).push_bind(run.kind.as_str());
                    row.push_bind(status.as_str()).push_bind("v1").push_bind(&run.lanes_version);
                    row.push_bind(&run.roles_version).push_bind(run.parent_run_id.as_deref());
                    row.push_bind(&run.root_run_id).push_bind(run.run_name.as_deref());
                    row.push_bind(run.case_id.as_deref()).push_bind(run.session_id.map(|id| id.uuid()));
                    row.push_bind(run.correlation_id.as_deref()).push_bind(json(&run.actor));
                    row.push_bind(&run.role_id).push_bind(run.lane_id.as_deref());
                    row.push_bind(call.map(|call| call.tool.as_str()));
                    row.push_bind(call.map(|call| call.operation.as_str()));
                    row.push_bind(call.map(|call| call.request_hash.as_str()));
                    row.push_bind(call.map(|call| json(&call.decision)));
                    row.push_bind(call.map(|call| call.instance.as_str())).push_bind(json(&run.inputs));
                    row.push_bind(run.retry_count).push_bind(run.retry_reason.as_deref());
                    row.push_bind(run.created_at).push_bind(end.is_none().then_some(run.created_at));
                    row.push_bind(end.and_then(|end| end.response_hash.as_deref()));
                    row.push_bind(end.map_or_else(|| Json(serde_json::json!([])), |end| json(&end.outputs)));
                    row.push_bind(end.and_then(|end| end.error.as_ref().map(json)));
                    row.push_bind(end.map(|end| end.outcome.as_str()));
                    row.push_bind(end.and_then(|end| end.answer.as_ref().map(json)));
                    row.push_bind(end.map(|end| end.at));
                });
                sql.build().execute(&mut *tx).await?;
                Ok(())
            }

            async fn end(tx: &mut $connection, ends: &[(OrgId, &str, &Ended)]) -> Result<(), StoreError> {
                if ends.is_empty() {
                    return Ok(());
                }
                let mut sql = Sql::new(
                    "UPDATE runs SET status = v.column3, outcome = v.column4, error = v.column5, answer = v.column6,
                    response_hash = v.column7, outputs = v.column8, completed_at = v.column9 FROM (",
                );
                sql.push_values(ends, |mut row, (org, run, end)| {
                    row.push_bind(org.uuid()).push_bind(*run).push_bind(end.status.as_str());
                    row.push_bind(&end.outcome).push_bind(end.error.clone().map(storable_json).map(Json));
                    row.push_bind(end.answer.clone().map(storable_json).map(Json)).push_bind(end.response_hash.as_deref());
                    row.push_bind(Json(end.outputs.clone())).push_bind(end.at);
                });
                sql.push(") AS v WHERE runs.org_id = v.column1 AND runs.run_id = v.column2");
                sql.build().execute(&mut *tx).await?;
                Ok(())
            }

            /// Rare: after a crash, one call at a time.
            async fn take(tx: &mut $connection, takes: &[(OrgId, &str, &str)]) -> Result<(), StoreError> {
                for (org, run, to) in takes {
                    sqlx::query("UPDATE runs SET instance = $3 WHERE org_id = $1 AND run_id = $2")
                        .bind(org.uuid()).bind(*run).bind(*to).execute(&mut *tx).await?;
                }
                Ok(())
            }

            /// Rare: by hand.
            async fn govern(tx: &mut $connection, changes: &[&Change]) -> Result<(), StoreError> {
                for change in changes {
                    match change {
                        Change::Lock(lock) => {
                            sqlx::query(crate::safety::SET_LOCK).bind(lock.locked).bind(&lock.changed_by)
                                .bind(&lock.reason).bind(lock.changed_at).execute(&mut *tx).await?;
                        }
                        Change::Grant(grant) => {
                            sqlx::query(crate::safety::GRANT).bind(grant.id).bind(grant.org_id.uuid())
                                .bind(grant.user_id.uuid()).bind(&grant.ticket).bind(&grant.reason)
                                .bind(&grant.granted_by).bind(grant.valid_from).bind(grant.valid_until)
                                .execute(&mut *tx).await?;
                        }
                        _ => {}
                    }
                }
                Ok(())
            }

            async fn keep(tx: &mut $connection, artifacts: &[&NewArtifact]) -> Result<(), StoreError> {
                if artifacts.is_empty() {
                    return Ok(());
                }
                let mut sql = Sql::new("INSERT INTO artifact_contents (org_id, artifact_id, content) ");
                sql.push_values(artifacts, |mut row, new| {
                    row.push_bind(new.org_id.uuid()).push_bind(&new.artifact_id).push_bind(&new.content);
                });
                sql.push(" ON CONFLICT (org_id, artifact_id) DO NOTHING").build().execute(&mut *tx).await?;
                let mut sql = Sql::new(
                    "INSERT INTO artifacts (org_id, artifact_id, artifact_kind, hash_sha256, hash_source, scope,
                    case_id, content_type, byte_size, lineage, created_at) ",
                );
                sql.push_values(artifacts, |mut row, new| {
                    let scope = if new.case_id.is_some() { "case" } else { "system" };
                    let size = i64::try_from(new.content.len()).unwrap_or(i64::MAX);
                    row.push_bind(new.org_id.uuid()).push_bind(&new.artifact_id).push_bind(&new.kind);
                    row.push_bind(&new.hash).push_bind("bytes").push_bind(scope);
                    row.push_bind(new.case_id.as_deref()).push_bind(&new.content_type).push_bind(size);
                    row.push_bind(Json(new.lineage.clone())).push_bind(new.at);
                });
                sql.push(" ON CONFLICT (org_id, artifact_id) DO NOTHING").build().execute(&mut *tx).await?;
                Ok(())
            }

            /// Reads where the chains end, appends, and says where they end now: all in here, nothing is remembered.
            async fn append(tx: &mut $connection, events: &[&NewEvent], size: u64) -> Result<(), StoreError> {
                if events.is_empty() {
                    return Ok(());
                }
                let heads = find_heads(tx, events).await?;
                let (entries, heads) = link(events, heads, size)?;
                insert(tx, events, &entries).await?;
                let mut sql = Sql::new("INSERT INTO ledger_heads (chain, org_id, sequence, hash) ");
                let orgs: HashMap<_, _> =
                    events.iter().zip(&entries).map(|(new, entry)| (entry.chain.as_str(), new.org)).collect();
                sql.push_values(&heads, |mut row, (chain, head)| {
                    let org = orgs.get(chain.as_str()).copied().flatten().map(|org| org.uuid());
                    let sequence = i64::try_from(head.sequence).unwrap_or(i64::MAX);
                    row.push_bind(chain).push_bind(org).push_bind(sequence).push_bind(head.hash.to_string());
                });
                sql.push(" ON CONFLICT (chain) DO UPDATE SET sequence = excluded.sequence, hash = excluded.hash");
                sql.build().execute(&mut *tx).await?;
                let size = i64::try_from(size + entries.len() as u64).unwrap_or(i64::MAX);
                sqlx::query("UPDATE ledger_tree SET size = $1 WHERE id = 1").bind(size).execute(&mut *tx).await?;
                Ok(())
            }

            async fn find_heads(
                tx: &mut $connection,
                events: &[&NewEvent],
            ) -> Result<HashMap<String, Head>, StoreError> {
                let mut names = Vec::new();
                for event in events {
                    names.push(event.chain()?.as_str().to_owned());
                }
                names.sort_unstable();
                names.dedup();
                let mut sql = Sql::new("SELECT chain, sequence, hash FROM ledger_heads WHERE chain IN (");
                let mut list = sql.separated(", ");
                for name in &names {
                    list.push_bind(name);
                }
                let rows: Vec<(String, i64, String)> =
                    sql.push(")").build_query_as().fetch_all(&mut *tx).await?;
                let head = |(chain, sequence, text): (String, i64, String)| {
                    Ok((chain, Head { sequence: whole(sequence)?, hash: hash(&text)? }))
                };
                Ok(rows.into_iter().map(head).collect::<sqlx::Result<_>>()?)
            }

            async fn insert(
                tx: &mut $connection,
                events: &[&NewEvent],
                entries: &[Entry],
            ) -> Result<(), StoreError> {
                let mut times = Vec::with_capacity(events.len());
                for event in events {
                    times.push(moment(&event.event)?);
                }
                let mut sql = Sql::new(
                    "INSERT INTO ledger_events (chain, sequence, position, event_id, org_id, action_type, outcome,
                    run_id, case_id, record, prev_hash, hash, created_at) ",
                );
                let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
                sql.push_values(events.iter().zip(entries).zip(times), |mut row, ((new, entry), at)| {
                    let event = &new.event;
                    row.push_bind(entry.chain.as_str()).push_bind(number(entry.sequence));
                    row.push_bind(number(entry.position)).push_bind(event.event_id.as_str());
                    row.push_bind(new.org.map(|org| org.uuid())).push_bind(event.action_type.as_str());
                    row.push_bind(event.outcome.as_str()).push_bind(event.run_id.as_ref().map(|id| id.as_str()));
                    row.push_bind(event.case_id.as_ref().map(|id| id.as_str())).push_bind(&entry.record);
                    row.push_bind(entry.prev_hash.to_string()).push_bind(entry.hash.to_string()).push_bind(at);
                });
                sql.build().execute(&mut *tx).await?;
                Ok(())
            }
        }
    };
}

statements!(sqlite, sqlx::SqliteConnection, sqlx::Sqlite);
statements!(postgres, sqlx::PgConnection, sqlx::Postgres);
