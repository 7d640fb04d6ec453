//! The decision: a list of checks, in the contract's order, that must all pass.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::lanes::{Lane, Prohibition};
use crate::modes::{Mode, ModeDecision, ModeSource};
use crate::policy::Policy;
use crate::request::{Action, ActorClass, Grant, Request, RunState};

/// What is shown for a name that is not in the policy: the caller's own words are never repeated.
const NO_LANE: &str = "no such lane";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Allow,
    Deny,
}

/// Yes or no, by which rule, and why. Rule and reason hold words of ours and of the policy only, never the caller's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub outcome: Outcome,
    /// At most 120 characters.
    pub rule_id: String,
    /// At most 200 characters.
    pub reason: String,
}

/// What is checked, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    Identity,
    Run,
    Pins,
    SafetyLock,
    Lane,
    Role,
    Override,
    Registered,
    Action,
    Risk,
    Scope,
    Flags,
    Prohibitions,
    Mode,
}

/// One check and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub check: Check,
    /// Why it failed, or nothing.
    pub failed: Option<String>,
    pub rule_id: String,
}

/// A verdict with every check behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    pub verdict: Verdict,
    /// The mode of the tool and where it comes from; absent where lanes alone govern it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeDecision>,
    pub steps: Vec<Step>,
}

/// Decides one request. The first check that fails gives rule and reason.
pub fn decide(policy: &Policy, request: &Request) -> Verdict {
    let mut failed = None;
    walk(policy, request, &mut |check, result| {
        failed = result.err().map(|denial| (check, denial));
        failed.is_none()
    });
    verdict(policy, request, failed)
}

/// Decides, and shows every check, also those after the first that fails.
pub fn explain(policy: &Policy, request: &Request) -> Explanation {
    let mut steps = Vec::new();
    let mut first = None;
    walk(policy, request, &mut |check, result| {
        let failed = result.as_ref().err().map(|denial| denial.reason.to_string());
        let rule_id =
            rule_id(check, policy.lane(&request.lane), request.mode.as_ref(), result.as_ref().err());
        steps.push(Step { check, failed, rule_id });
        if first.is_none() {
            first = result.err().map(|denial| (check, denial));
        }
        true
    });
    Explanation { verdict: verdict(policy, request, first), mode: request.mode.clone(), steps }
}

/// Why a check says no; `rule` where the policy has a name for it.
pub(crate) struct Denial<'a> {
    reason: Cow<'static, str>,
    rule: Option<&'a str>,
}

type Checked<'a> = Result<(), Denial<'a>>;

impl Denial<'_> {
    fn when(denied: bool, reason: &'static str) -> Result<(), Self> {
        if denied { Err(Self { reason: Cow::Borrowed(reason), rule: None }) } else { Ok(()) }
    }

    fn because(reason: String) -> Self {
        Self { reason: Cow::Owned(reason), rule: None }
    }
}

/// Makes the checks in order until `visit` has seen enough.
fn walk<'a>(policy: &'a Policy, request: &Request, visit: &mut dyn FnMut(Check, Checked<'a>) -> bool) {
    let lane = policy.lane(&request.lane);
    let in_lane = |check: fn(&'a Lane, &Request) -> Checked<'a>| {
        lane.map_or_else(|| Denial::when(true, NO_LANE), |lane| check(lane, request))
    };
    let _all_seen = visit(Check::Identity, identity(request))
        && visit(Check::Run, Denial::when(request.run == RunState::Inactive, "the run is not active"))
        && visit(Check::Pins, pins(policy, request))
        && visit(Check::SafetyLock, Denial::when(request.locked, "the global safety lock is engaged"))
        && visit(Check::Lane, Denial::when(lane.is_none(), NO_LANE))
        && visit(Check::Role, role(policy, lane, request))
        && visit(Check::Override, in_lane(grant))
        && visit(
            Check::Registered,
            Denial::when(is_unregistered(&request.action), "the tool is not available"),
        )
        && visit(Check::Action, in_lane(action))
        && visit(Check::Risk, in_lane(risk))
        && visit(Check::Scope, in_lane(scope))
        && visit(Check::Flags, flags(lane, request))
        && visit(Check::Prohibitions, prohibitions(policy, request))
        && visit(Check::Mode, mode(request));
}

fn identity<'a>(request: &Request) -> Checked<'a> {
    let length = request.actor.actor_id.chars().count();
    Denial::when(!(3..=120).contains(&length), "the caller has no identity")?;
    let other = request.claimed.as_ref().is_some_and(|claimed| *claimed != request.actor);
    Denial::when(other, "the actor is not the one that the credential belongs to")
}

fn pins<'a>(policy: &Policy, request: &Request) -> Checked<'a> {
    let pins = policy.pins();
    let run = matches!(&request.run, RunState::Active(versions) if !pins.are(versions));
    Denial::when(run, "the run is pinned to another version of the policy")?;
    let demanded = request.demanded.as_ref().is_some_and(|versions| !pins.are(versions));
    Denial::when(demanded, "another version of the policy is in force than the one demanded")
}

fn role<'a>(policy: &Policy, lane: Option<&Lane>, request: &Request) -> Checked<'a> {
    let Some(role) = policy.role(&request.role) else { return Denial::when(true, "no such role") };
    Denial::when(role.class != request.actor.actor_type, "the role is not for this kind of actor")?;
    let listed = lane.is_some_and(|lane| lane.roles.contains(&role.id) && role.lanes.contains(&lane.id));
    Denial::when(!listed, "the lane is not open to the caller's role")
}

fn grant<'a>(lane: &Lane, request: &Request) -> Checked<'a> {
    let Some(minutes) = lane.override_minutes else { return Ok(()) };
    let Some(Grant { ticket, reason, from, until, now }) = &request.grant else {
        return Denial::when(true, "the override lane needs a grant with ticket, reason and time box");
    };
    Denial::when(
        ticket.trim().is_empty() || reason.trim().is_empty(),
        "the grant lacks its ticket or its reason",
    )?;
    let longest = i64::try_from(minutes * 60).unwrap_or(i64::MAX);
    let lasts = until.checked_sub(*from).is_some_and(|seconds| (1..=longest).contains(&seconds));
    Denial::when(!lasts, "the grant lasts longer than the lane allows")?;
    Denial::when(now < from || now >= until, "the grant is not in force now")
}

fn is_unregistered(action: &Action) -> bool {
    matches!(action, Action::Tool { registered: false, .. })
}

fn action<'a>(lane: &Lane, request: &Request) -> Checked<'a> {
    let write = match &request.action {
        Action::Write { table, mode } => Some((table, *mode)),
        Action::Tool { writes, .. } => writes.as_ref().map(|write| (&write.table, write.mode)),
    };
    if let Some((table, mode)) = write {
        let listed = lane.writes.iter().any(|write| write.table == *table && write.mode == mode);
        Denial::when(!listed, "lane prohibits requested write")?;
    }
    let agent = request.actor.actor_type == ActorClass::Agent;
    let may_push = |name: &String| lane.refs.iter().any(|pattern| pattern.matches(name));
    Denial::when(agent && !request.refs.iter().all(may_push), "lane lets agents push to other refs only")?;
    match (&request.action, request.action.names()) {
        (Action::Write { .. }, _) => Ok(()),
        // A lane that lists writes and no tools is a write lane: the write is what it allows, whichever tool does it.
        _ if write.is_some() && lane.tools.is_empty() => Ok(()),
        (_, Some((tool, operation))) => {
            let listed =
                lane.tools.iter().any(|pattern| pattern.matches(tool) || pattern.matches(&operation));
            Denial::when(!listed, "lane prohibits requested tool")
        }
        (Action::Tool { .. }, None) => Denial::when(true, "lane prohibits requested tool"),
    }
}

fn risk<'a>(lane: &Lane, request: &Request) -> Checked<'a> {
    let outside = match &request.action {
        Action::Tool { risk, .. } => !lane.risks.is_empty() && !lane.risks.contains(risk),
        Action::Write { .. } => false,
    };
    Denial::when(outside, "lane prohibits the risk of the requested tool")
}

fn scope<'a>(lane: &Lane, request: &Request) -> Checked<'a> {
    match lane.requires.iter().find(|field| !request.scope.contains(*field)) {
        Some(missing) => Err(Denial::because(format!("lane requires the scope field {missing}"))),
        None => Ok(()),
    }
}

fn flags<'a>(lane: Option<&Lane>, request: &Request) -> Checked<'a> {
    for flag in &request.flags {
        let permitted =
            lane.is_some_and(|lane| lane.permits.contains(flag) && !lane.prohibits.contains(flag));
        if !permitted {
            let known = lane.and_then(|lane| lane.prohibits.get(flag));
            let reason = known.map_or("lane does not permit what the call would do".to_owned(), |flag| {
                format!("lane prohibits {}", flag.as_str())
            });
            return Err(Denial::because(reason));
        }
    }
    Ok(())
}

fn prohibitions<'a>(policy: &'a Policy, request: &Request) -> Checked<'a> {
    // Of several that fit, the one with the first name is shown, so that their order in the file means nothing.
    let fitting = policy.prohibitions().iter().filter(|rule| rule.fits(request));
    match fitting.min_by_key(|rule| &rule.id) {
        Some(Prohibition { id, reason, .. }) => {
            Err(Denial { reason: Cow::Owned(reason.clone()), rule: Some(id) })
        }
        None => Ok(()),
    }
}

/// The mode of a tool binds agents. Others are not asked about their own calls, so only a `deny` that somebody set
/// stops them, and not one that follows from the risk.
fn mode<'a>(request: &Request) -> Checked<'a> {
    let Some(ModeDecision { mode, source, .. }) = &request.mode else { return Ok(()) };
    let agent = request.actor.actor_type == ActorClass::Agent;
    let denied = *mode == Mode::Deny && (agent || *source != ModeSource::InferredDefault);
    Denial::when(
        denied,
        "the mode of the tool denies it; an admin can set another with `proliferate actions modes set`",
    )?;
    Denial::when(
        agent && *mode == Mode::RequireApproval,
        "the mode of the tool requires approval, and this version cannot ask for approvals yet; an admin can allow it \
         with `proliferate actions modes set`",
    )
}

impl Prohibition {
    pub(crate) fn fits(&self, request: &Request) -> bool {
        let role = self.roles.is_empty() || self.roles.iter().any(|role| role.matches(&request.role));
        let lane = self.lanes.is_empty() || self.lanes.iter().any(|lane| lane.matches(&request.lane));
        let tool = self.tools.is_empty()
            || request.action.names().is_some_and(|(tool, operation)| {
                self.tools.iter().any(|pattern| pattern.matches(tool) || pattern.matches(&operation))
            });
        role && lane && tool
    }
}

fn verdict(policy: &Policy, request: &Request, failed: Option<(Check, Denial<'_>)>) -> Verdict {
    let lane = policy.lane(&request.lane);
    match (failed, lane) {
        (Some((check, denial)), lane) => Verdict {
            outcome: Outcome::Deny,
            rule_id: rule_id(check, lane, request.mode.as_ref(), Some(&denial)),
            reason: denial.reason.into_owned(),
        },
        (None, Some(lane)) => Verdict {
            outcome: Outcome::Allow,
            rule_id: format!("lane:{}", lane.id),
            reason: passed(request.mode.as_ref()),
        },
        (None, None) => {
            Verdict { outcome: Outcome::Deny, rule_id: "lane".to_owned(), reason: NO_LANE.to_owned() }
        }
    }
}

/// Why a call is allowed: the lane, and the mode where one governs the tool.
fn passed(mode: Option<&ModeDecision>) -> String {
    let lane = "all checks of the lane passed";
    mode.map_or_else(
        || lane.to_owned(),
        |decision| format!("{lane}; mode {} ({})", decision.mode.as_str(), decision.source.as_str()),
    )
}

pub(crate) fn rule_id(
    check: Check,
    lane: Option<&Lane>,
    mode: Option<&ModeDecision>,
    denial: Option<&Denial<'_>>,
) -> String {
    if let Some(rule) = denial.and_then(|denial| denial.rule) {
        return format!("prohibition:{rule}");
    }
    if let (Check::Mode, Some(decision)) = (check, mode) {
        return format!("mode:{}:{}", decision.mode.as_str(), decision.source.as_str());
    }
    match (check, lane) {
        (
            Check::Identity
            | Check::Run
            | Check::Pins
            | Check::SafetyLock
            | Check::Prohibitions
            | Check::Mode,
            _,
        )
        | (_, None) => {
            format!("gate:{}", check.as_str())
        }
        (_, Some(lane)) => format!("lane:{}:{}", lane.id, check.as_str()),
    }
}

impl Check {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Run => "run",
            Self::Pins => "pins",
            Self::SafetyLock => "safety_lock",
            Self::Lane => "lane",
            Self::Role => "role",
            Self::Override => "override",
            Self::Registered => "registered",
            Self::Action => "action",
            Self::Risk => "risk",
            Self::Scope => "scope",
            Self::Flags => "flags",
            Self::Prohibitions => "prohibitions",
            Self::Mode => "mode",
        }
    }
}
