//! Compares two versions of the policy: rule by rule, and by replaying past decisions.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::decide::{Check, Outcome, Verdict, decide, rule_id};
use crate::lanes::{Lane, TableWrite};
use crate::modes::{DEFINITION_DRIFT, ModeDecision, ModeKey, ModeSource, Risk, apply_drift};
use crate::policy::Policy;
use crate::request::{Action, Request, RunState};
use crate::tools::HttpTool;

/// One difference between two policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    pub effect: Effect,
    /// The name of what changed, for example `lane platform.setup`, `role SERVICE` or `tool transcription.run`.
    pub subject: String,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The new policy allows more.
    Loosens,
    /// The new policy allows less.
    Tightens,
    /// The new policy allows something else; it is neither looser nor tighter.
    Changes,
}

/// A past decision as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastDecision {
    pub id: String,
    pub request: Request,
    pub outcome: Outcome,
    /// The rule that decided. Absent in decisions that earlier versions recorded.
    #[serde(default)]
    pub rule_id: Option<String>,
}

impl PastDecision {
    /// Whether the call was denied because of its version pins and not because of the policy's rules.
    fn was_denied_by_pins(&self) -> bool {
        let pinned = || self.request.demanded.is_some() || matches!(self.request.run, RunState::Active(_));
        let by_pins =
            self.rule_id.as_ref().map_or_else(pinned, |rule| *rule == rule_id(Check::Pins, None, None, None));
        self.outcome == Outcome::Deny && by_pins
    }
}

/// What a replay knows about a tool before it decides a recorded call under the candidate policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolFacts {
    pub risk: Risk,
    pub writes: Option<TableWrite>,
    /// The key of its mode; absent if only lanes govern the tool.
    pub mode_key: Option<ModeKey>,
}

/// A past decision that the candidate policy would make differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedVerdict {
    pub id: String,
    pub was: Outcome,
    pub now: Verdict,
}

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    pub flips: Vec<ChangedVerdict>,
    /// How many denials by version pins were skipped: a candidate always has other versions.
    pub pinned: usize,
}

/// Repeats past decisions under the `candidate` policy. `tool` looks a tool up by name and operation in the
/// candidate, because the recorded risk and writes come from the policy files of that time; it also gets the risk of a tool
/// that existed then, for tools that are in no policy file. Denials by version pins are skipped.
pub fn replay(
    candidate: &Policy,
    tool: impl Fn(&str, &str, Option<Risk>) -> Option<ToolFacts>,
    recorded: impl IntoIterator<Item = PastDecision>,
) -> Replay {
    let mut done = Replay::default();
    for recorded in recorded {
        if recorded.was_denied_by_pins() {
            done.pinned += 1;
            continue;
        }
        let PastDecision { id, mut request, outcome: was, .. } = recorded;
        request.demanded = None;
        if matches!(request.run, RunState::Active(_)) {
            request.run = RunState::New;
        }
        if let Action::Tool { tool_name, operation, risk, registered, writes } = &mut request.action {
            let known = tool(tool_name, operation, registered.then_some(*risk));
            *registered = known.is_some();
            *risk = known.as_ref().map_or(Risk::Danger, |known| known.risk);
            let recorded = request.mode.take();
            let governed = known.as_ref().is_some_and(|known| known.mode_key.is_some());
            request.mode = governed.then(|| mode_of_past_call(recorded, *risk));
            *writes = known.and_then(|known| known.writes);
        }
        let now = decide(candidate, &request);
        if now.outcome != was {
            done.flips.push(ChangedVerdict { id, was, now });
        }
    }
    done
}

/// Keeps a mode that somebody set. Recomputes an inferred mode from the candidate's risk, tightened as it was then: no
/// policy reviews a definition.
fn mode_of_past_call(recorded: Option<ModeDecision>, risk: Risk) -> ModeDecision {
    let inferred = ModeDecision::inferred(risk);
    match recorded {
        Some(recorded) if recorded.source != ModeSource::InferredDefault => recorded,
        Some(recorded) if recorded.reason.as_deref() == Some(DEFINITION_DRIFT) => {
            apply_drift(inferred, None, "unreviewed")
        }
        _ => inferred,
    }
}

/// The differences between two policies, loosening ones first.
pub fn diff(old: &Policy, new: &Policy) -> Vec<Change> {
    let mut changes = Vec::new();
    let lanes: BTreeSet<_> = old.lanes().chain(new.lanes()).map(|lane| lane.id.as_str()).collect();
    for id in lanes {
        diff_lane(&mut changes, id, old.lane(id), new.lane(id));
    }
    diff_roles(&mut changes, old, new);
    diff_prohibitions(&mut changes, old, new);
    diff_tools(&mut changes, old, new);
    changes.sort_by_key(|change| change.effect);
    changes
}

fn diff_lane(changes: &mut Vec<Change>, id: &str, old: Option<&Lane>, new: Option<&Lane>) {
    let subject = format!("lane {id}");
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, _) => {
            return changes.push(Change { effect: Effect::Loosens, subject, what: "added".to_owned() });
        }
        (_, None) => {
            return changes.push(Change { effect: Effect::Tightens, subject, what: "removed".to_owned() });
        }
    };
    let writes =
        |lane: &Lane| lane.writes.iter().map(|write| format!("{} {:?}", write.table, write.mode)).collect();
    let tools = |lane: &Lane| lane.tools.iter().map(ToString::to_string).collect();
    let flags =
        |flags: &BTreeSet<crate::request::Flag>| flags.iter().map(|flag| flag.as_str().to_owned()).collect();
    let mut compare = |name: &str, more: Effect, old: BTreeSet<String>, new: BTreeSet<String>| {
        diff_set(changes, &subject, name, more, (&old, &new));
    };
    compare("role", Effect::Loosens, old.roles.clone(), new.roles.clone());
    compare("tool", Effect::Loosens, tools(old), tools(new));
    compare("write", Effect::Loosens, writes(old), writes(new));
    compare("required scope field", Effect::Tightens, old.requires.clone(), new.requires.clone());
    compare("prohibition", Effect::Tightens, flags(&old.prohibits), flags(&new.prohibits));
    compare("permission", Effect::Loosens, flags(&old.permits), flags(&new.permits));
    let mut replaced =
        |effect, what: &str| changes.push(Change { effect, subject: subject.clone(), what: what.to_owned() });
    // An empty set means any risk, so the sets cannot be compared element by element.
    let covers =
        |a: &Lane, b: &Lane| a.risks.is_empty() || (!b.risks.is_empty() && a.risks.is_superset(&b.risks));
    match (covers(old, new), covers(new, old)) {
        (true, true) => {}
        (true, false) => replaced(Effect::Tightens, "fewer risks are allowed"),
        (false, true) => replaced(Effect::Loosens, "more risks are allowed"),
        (false, false) => replaced(Effect::Changes, "other risks are allowed"),
    }
    // A lane without a time box needs no grant, which is the loosest setting.
    let minutes = |lane: &Lane| lane.override_minutes.unwrap_or(u64::MAX);
    match minutes(new).cmp(&minutes(old)) {
        Ordering::Less => replaced(Effect::Tightens, "the time box of grants is shorter"),
        Ordering::Greater => replaced(Effect::Loosens, "the time box of grants is longer"),
        Ordering::Equal => {}
    }
}

/// `more` is the effect of an added element; a removed one has the opposite effect.
fn diff_set(
    changes: &mut Vec<Change>,
    subject: &str,
    name: &str,
    more: Effect,
    (old, new): (&BTreeSet<String>, &BTreeSet<String>),
) {
    let less = if more == Effect::Loosens { Effect::Tightens } else { Effect::Loosens };
    let added = new.difference(old).map(|item| (more, format!("{name} {item} added")));
    let removed = old.difference(new).map(|item| (less, format!("{name} {item} removed")));
    let change = |(effect, what)| Change { effect, subject: subject.to_owned(), what };
    changes.extend(added.chain(removed).map(change));
}

fn diff_roles(changes: &mut Vec<Change>, old: &Policy, new: &Policy) {
    // The lanes of a role are already compared with the lanes: both files must agree.
    let described =
        |policy: &Policy| policy.roles().map(|role| (role.id.clone(), role.class)).collect::<Vec<_>>();
    for (id, class) in described(old) {
        if new.role(&id).is_some_and(|role| role.class != class) {
            let what = "it is now for another class of actor".to_owned();
            changes.push(Change { effect: Effect::Changes, subject: format!("role {id}"), what });
        }
    }
    let ids = |policy: &Policy| policy.roles().map(|role| role.id.clone()).collect();
    diff_set(changes, "roles", "role", Effect::Loosens, (&ids(old), &ids(new)));
}

fn diff_prohibitions(changes: &mut Vec<Change>, old: &Policy, new: &Policy) {
    let texts = |policy: &Policy| {
        let text = |rule: &crate::lanes::Prohibition| {
            format!(
                "{} (roles {}, lanes {}, tools {})",
                rule.id,
                list(&rule.roles),
                list(&rule.lanes),
                list(&rule.tools)
            )
        };
        policy.prohibitions().iter().map(text).collect::<BTreeSet<_>>()
    };
    diff_set(changes, "prohibitions", "prohibition", Effect::Tightens, (&texts(old), &texts(new)));
}

fn list(patterns: &[crate::pattern::Pattern]) -> String {
    let mut texts: Vec<_> = patterns.iter().map(ToString::to_string).collect();
    texts.sort();
    if texts.is_empty() { "any".to_owned() } else { texts.join(" ") }
}

fn diff_tools(changes: &mut Vec<Change>, old: &Policy, new: &Policy) {
    let ids = |policy: &Policy| policy.tools().map(|tool| tool.name.clone()).collect();
    diff_set(changes, "tools", "tool", Effect::Loosens, (&ids(old), &ids(new)));
    for tool in old.tools() {
        let Some(other) = new.tool(&tool.name) else { continue };
        let mut differs = |effect, what: &str| {
            changes.push(Change { effect, subject: format!("tool {}", tool.name), what: what.to_owned() });
        };
        match other.risk.cmp(&tool.risk) {
            Ordering::Less => differs(Effect::Loosens, "its risk is lower"),
            Ordering::Greater => differs(Effect::Tightens, "its risk is higher"),
            Ordering::Equal => {}
        }
        // A different line number is not a change.
        let same = HttpTool { line: tool.line, risk: tool.risk, ..other.clone() } == *tool;
        if !same {
            differs(Effect::Changes, "its definition differs");
        }
    }
}
