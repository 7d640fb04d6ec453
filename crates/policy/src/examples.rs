//! Examples next to a rule that state what the rule is meant to do. A file whose rules do something else is
//! rejected.

use std::collections::BTreeSet;

use crate::decide::{Outcome, decide};
use crate::error::Mistake;
use crate::fields::{Fields, items, one_of};
use crate::lanes::{Lane, Prohibition, WriteMode};
use crate::modes::Risk;
use crate::policy::Policy;
use crate::request::{Action, ActorClass, Claim, Flag, Grant, Request, RunState};
use crate::yaml::Node;

/// An example call, and whether the rule is meant to match it.
#[derive(Clone, Debug)]
pub(crate) struct Example {
    line: usize,
    should_match: bool,
    role: String,
    lane: Option<String>,
    action: Action,
    scope: BTreeSet<String>,
    flags: BTreeSet<Flag>,
}

impl Example {
    pub(crate) fn read_all(fields: &mut Fields) -> Result<Vec<Self>, Mistake> {
        let mut found = Vec::new();
        let mut examples = fields.map("examples")?;
        for (key, should_match) in [("match", true), ("not_match", false)] {
            for node in examples.take(key).map_or(Ok(Vec::new()), |node| items(node, key))? {
                found.push(Self::read(node, should_match)?);
            }
        }
        examples.end()?;
        Ok(found)
    }

    fn read(node: Node, should_match: bool) -> Result<Self, Mistake> {
        let mut call = Fields::from_node(node, "an example")?;
        let line = call.line;
        let role = call.name("role")?.text;
        let in_lane = call.optional_text("lane", 80)?.map(|found| found.text);
        let action = action(&mut call)?;
        let scope = call.names("scope")?.into_iter().map(|name| name.text).collect();
        let flags = call.names("flags")?.into_iter().map(|name| Flag::new(name.text)).collect();
        call.end()?;
        Ok(Self { line, should_match, role, lane: in_lane, action, scope, flags })
    }

    /// The example of a lane is a complete call: it matches if the call is allowed.
    pub(crate) fn check_lane(&self, policy: &Policy, lane: &Lane) -> Result<(), Mistake> {
        if self.lane.is_some() {
            return Err(Mistake::new(
                self.line,
                "the example of a lane is always a call in that lane; remove `lane`",
            ));
        }
        let verdict = decide(policy, &self.request(policy, &lane.id, lane.override_minutes));
        match (self.should_match, verdict.outcome) {
            (true, Outcome::Ask | Outcome::Deny) => Err(Mistake::new(
                self.line,
                format!("this example should be allowed, but {}", verdict.reason),
            )),
            (false, Outcome::Allow) => {
                Err(Mistake::new(self.line, "this example should be denied, but is allowed"))
            }
            _ => Ok(()),
        }
    }

    /// The example of a prohibition matches if the prohibition applies, whatever other rules say.
    pub(crate) fn check_prohibition(&self, policy: &Policy, rule: &Prohibition) -> Result<(), Mistake> {
        let lane = self.lane.as_deref().unwrap_or("any");
        match (self.should_match, rule.matches(&self.request(policy, lane, None))) {
            (true, false) => Err(Mistake::new(self.line, "this example should be prohibited, but is not")),
            (false, true) => Err(Mistake::new(self.line, "this example should not be prohibited, but is")),
            _ => Ok(()),
        }
    }

    fn request(&self, policy: &Policy, lane: &str, override_minutes: Option<u64>) -> Request {
        let class = policy.role(&self.role).map_or(ActorClass::System, |role| role.class);
        Request {
            actor: Claim { actor_type: class, actor_id: "example".to_owned() },
            claimed: None,
            role: self.role.clone(),
            lane: lane.to_owned(),
            action: self.action.clone(),
            scope: self.scope.clone(),
            refs: Vec::new(),
            flags: self.flags.clone(),
            run: RunState::New,
            demanded: None,
            mode: None,
            locked: false,
            grant: override_minutes.map(|_| grant()),
        }
    }
}

/// Examples of an override lane have a valid grant.
fn grant() -> Grant {
    Grant { ticket: "EXAMPLE-1".to_owned(), reason: "example".to_owned(), from: 0, until: 60, now: 0 }
}

fn action(fields: &mut Fields) -> Result<Action, Mistake> {
    if let Some(table) = fields.optional_text("table", 80)? {
        let mode = fields.text("mode", 10)?;
        let mode = one_of(&mode, "mode", &[("append", WriteMode::Append), ("upsert", WriteMode::Upsert)])?;
        return Ok(Action::Write { table: table.text, mode });
    }
    let tool = fields.name("tool")?.text;
    let risk = match fields.optional_text("risk", 10)? {
        Some(found) => one_of(&found, "risk", &Risk::NAMES)?,
        None => Risk::Read,
    };
    Ok(Action::Tool { tool_name: tool.clone(), operation: tool, risk, registered: true, writes: None })
}
