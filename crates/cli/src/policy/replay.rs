//! `policy replay`: lists the recorded decisions that a candidate policy would change, for a review or for CI.

use std::path::Path;

use gateway::{is_of_organization, known_tool};
use policy::{ChangedVerdict, ModeKey, Outcome, PastDecision, Policy, Risk, ToolFacts, full_name};
use proto::OrgId;
use serde_json::json;
use store::{RecordedDecision, Store};

use super::load;
use crate::clean::clean;
use crate::context::Context;
use crate::failure::Failure;

/// The number of decisions read per query.
const DECISIONS_PER_QUERY: i64 = 1_000;

#[derive(Default)]
struct Replayed {
    decisions: usize,
    /// The number of decisions that another version recorded in a format unknown to this one.
    unreadable: usize,
    /// The number of denials caused by a version pin. They are not compared: no policy content could change them.
    pinned: usize,
    flips: Vec<(OrgId, ChangedVerdict)>,
}

impl Replayed {
    /// Describes the decisions that were not compared, as the end of a sentence.
    fn skipped_note(&self) -> String {
        match self.pinned {
            0 => String::new(),
            pinned => format!("; {pinned} denials by version pins are left out"),
        }
    }
}

pub(super) async fn run(context: &Context, dir: &Path, org: Option<&str>) -> Result<(), Failure> {
    let candidate = load(Some(dir))?;
    let store = context.store().await?;
    let orgs = match org {
        Some(org) => vec![context.org(&store, Some(org)).await?],
        None => store.orgs().await?.into_iter().map(|org| org.id).collect(),
    };
    let spinner = context.out.spinner("replaying decisions");
    let mut done = Replayed::default();
    for org in orgs {
        let progress = |count: usize| spinner.set_message(format!("replaying decisions: {count}"));
        replay(&store, &candidate, org, &mut done, progress).await?;
    }
    spinner.finish_and_clear();
    print(context, &done);
    let skipped_note = done.skipped_note();
    let Replayed { decisions, unreadable, flips, .. } = done;
    match (flips.len(), unreadable) {
        (0, 0) => Ok(()),
        (0, unreadable) => {
            Err(Failure::failed(format!("{unreadable} of {decisions} decisions cannot be read")))
        }
        (flips, _) => {
            Err(Failure::failed(format!("{flips} of {decisions} verdicts would flip{skipped_note}")))
        }
    }
}

async fn replay(
    store: &Store,
    candidate: &Policy,
    org: OrgId,
    done: &mut Replayed,
    progress: impl Fn(usize),
) -> Result<(), Failure> {
    let mut after = String::new();
    loop {
        let page = store.recorded_decisions(Some(org), &after, DECISIONS_PER_QUERY).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after.clone_from(&last.run_id);
        let all = page.len();
        let recorded: Vec<_> = page.into_iter().filter_map(read).collect();
        done.decisions += all;
        done.unreadable += all - recorded.len();
        let tool = |name: &str, operation: &str, recorded: Option<Risk>| {
            known_tool(candidate, name, operation).or_else(|| of_organization(name, operation, recorded))
        };
        let policy::Replay { flips, pinned } = policy::replay(candidate, tool, recorded);
        done.flips.extend(flips.into_iter().map(|flip| (org, flip)));
        done.pinned += pinned;
        progress(done.decisions);
    }
}

/// A tool of a connector or of a database. No policy file has it, so its risk is as recorded.
fn of_organization(name: &str, operation: &str, recorded: Option<Risk>) -> Option<ToolFacts> {
    let key: ModeKey = full_name(name, operation).parse().ok()?;
    let risk = recorded.filter(|_| is_of_organization(&key))?;
    Some(ToolFacts { risk, writes: None, mode_key: Some(key) })
}

fn read(RecordedDecision { run_id, mut decision }: RecordedDecision) -> Option<PastDecision> {
    decision.as_object_mut()?.insert("id".to_owned(), json!(run_id));
    serde_json::from_value(decision).ok()
}

fn print(context: &Context, done: &Replayed) {
    let word = |outcome: Outcome| match outcome {
        Outcome::Allow => "allow",
        Outcome::Ask => "ask",
        Outcome::Deny => "deny",
    };
    if context.out.is_json() {
        let flips: Vec<_> = done
            .flips
            .iter()
            .map(|(org, flip)| {
                json!({ "runId": flip.id, "orgId": org, "was": flip.was, "now": flip.now.outcome,
                    "ruleId": flip.now.rule_id, "reason": flip.now.reason })
            })
            .collect();
        let value = json!({ "decisions": done.decisions, "unreadable": done.unreadable,
            "pinned": done.pinned, "flips": flips });
        return context.out.result(&value, "");
    }
    if done.flips.is_empty() {
        let sentence = format!("none of {} verdicts would flip{}", done.decisions, done.skipped_note());
        return context.out.result(&json!(null), &sentence);
    }
    let row = |(org, flip): &(OrgId, ChangedVerdict)| {
        let verdict = &flip.now;
        let change = format!("{} → {}", word(flip.was), word(verdict.outcome));
        vec![clean(&flip.id), org.to_string(), change, verdict.rule_id.clone(), verdict.reason.clone()]
    };
    let rows: Vec<_> = done.flips.iter().map(row).collect();
    context.out.list(Vec::new(), &["RUN", "ORGANIZATION", "VERDICT", "RULE", "WHY"], &rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_of_connectors_and_databases_keep_their_recorded_risk() {
        let name = "db:0190f5d2-7c3e-7a11-8000-5b1f6c2d9e40:top_users";
        let facts = of_organization(name, name, Some(Risk::Read)).unwrap();
        assert_eq!((facts.risk, facts.mode_key.unwrap().as_str()), (Risk::Read, name));
        assert_eq!(of_organization(name, name, None), None, "it did not exist then");
        assert_eq!(of_organization("forecast.look", "forecast.look", Some(Risk::Read)), None);
        assert_eq!(of_organization("linear:nosuch", "linear:nosuch", Some(Risk::Read)), None);
    }
}
