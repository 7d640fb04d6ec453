//! The decision: a list of checks in the order of the contract, all of which must pass.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::lanes::{Lane, Prohibition};
use crate::mode_setting::Branch;
use crate::modes::{DEFINITION_DRIFT, Mode, ModeDecision, ModeSource};
use crate::policy::Policy;
use crate::request::{Action, ActorClass, Grant, Request, RunState};

/// Shown for a lane that is not in the policy. Verdicts never repeat names that the caller sent.
const NO_LANE: &str = "no such lane";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Allow,
    /// Lanes allow the call, and its mode requires that a person approves it.
    Ask,
    Deny,
}

/// A decision, the rule that made it, and the reason. Rule and reason contain only our own text and names
/// from the policy, never input from the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub outcome: Outcome,
    /// The id of the deciding rule, at most 120 characters.
    pub rule_id: String,
    /// The reason as a text for people, at most 200 characters.
    pub reason: String,
}

/// The checks, in the order in which they are made.
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
    /// Why the check failed, or `None` if it passed.
    pub failed: Option<String>,
    pub rule_id: String,
}

/// A verdict together with the result of every check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    pub verdict: Verdict,
    /// The tool's mode and its source; absent if only lanes govern the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeDecision>,
    pub steps: Vec<Step>,
}

/// Decides one request. The first failing check determines rule and reason.
pub fn decide(policy: &Policy, request: &Request) -> Verdict {
    let mut failed = None;
    walk(policy, request, &mut |check, result| {
        failed = result.err().map(|denial| (check, denial));
        failed.is_none()
    });
    verdict(policy, request, failed)
}

/// Decides one request and reports every check, including those after the first failure.
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

/// Why a check failed. `rule` is set if the policy names the rule.
pub(crate) struct Denial<'a> {
    reason: Cow<'static, str>,
    rule: Option<&'a str>,
}

type CheckResult<'a> = Result<(), Denial<'a>>;

impl Denial<'_> {
    fn deny_if(denied: bool, reason: &'static str) -> Result<(), Self> {
        if denied { Err(Self { reason: Cow::Borrowed(reason), rule: None }) } else { Ok(()) }
    }

    fn new(reason: String) -> Self {
        Self { reason: Cow::Owned(reason), rule: None }
    }
}

/// Runs the checks in order until `visit` returns false.
fn walk<'a>(policy: &'a Policy, request: &Request, visit: &mut dyn FnMut(Check, CheckResult<'a>) -> bool) {
    let lane = policy.lane(&request.lane);
    let in_lane = |check: fn(&'a Lane, &Request) -> CheckResult<'a>| {
        lane.map_or_else(|| Denial::deny_if(true, NO_LANE), |lane| check(lane, request))
    };
    let _all_seen = visit(Check::Identity, identity(request))
        && visit(Check::Run, Denial::deny_if(request.run == RunState::Inactive, "the run is not active"))
        && visit(Check::Pins, pins(policy, request))
        && visit(Check::SafetyLock, Denial::deny_if(request.locked, "the global safety lock is engaged"))
        && visit(Check::Lane, Denial::deny_if(lane.is_none(), NO_LANE))
        && visit(Check::Role, role(policy, lane, request))
        && visit(Check::Override, in_lane(grant))
        && visit(
            Check::Registered,
            Denial::deny_if(is_unregistered(&request.action), "the tool is not available"),
        )
        && visit(Check::Action, in_lane(action))
        && visit(Check::Risk, in_lane(risk))
        && visit(Check::Scope, in_lane(scope))
        && visit(Check::Flags, flags(lane, request))
        && visit(Check::Prohibitions, prohibitions(policy, request))
        && visit(Check::Mode, mode(request));
}

fn identity<'a>(request: &Request) -> CheckResult<'a> {
    let length = request.actor.actor_id.chars().count();
    Denial::deny_if(!(3..=120).contains(&length), "the caller has no identity")?;
    let other = request.claimed.as_ref().is_some_and(|claimed| *claimed != request.actor);
    Denial::deny_if(other, "the actor in the request is not the owner of the credential")
}

fn pins<'a>(policy: &Policy, request: &Request) -> CheckResult<'a> {
    let pins = policy.pins();
    let run = matches!(&request.run, RunState::Active(versions) if !pins.match_versions(versions));
    Denial::deny_if(run, "the run is pinned to another version of the policy")?;
    let demanded = request.demanded.as_ref().is_some_and(|versions| !pins.match_versions(versions));
    Denial::deny_if(demanded, "the policy in force is not the version that the caller demands")
}

fn role<'a>(policy: &Policy, lane: Option<&Lane>, request: &Request) -> CheckResult<'a> {
    let Some(role) = policy.role(&request.role) else { return Denial::deny_if(true, "no such role") };
    Denial::deny_if(role.class != request.actor.actor_type, "the role is not for this kind of actor")?;
    let listed = lane.is_some_and(|lane| lane.roles.contains(&role.id) && role.lanes.contains(&lane.id));
    Denial::deny_if(!listed, "the lane is not open to the caller's role")
}

fn grant<'a>(lane: &Lane, request: &Request) -> CheckResult<'a> {
    let Some(minutes) = lane.override_minutes else { return Ok(()) };
    let Some(Grant { ticket, reason, from, until, now }) = &request.grant else {
        return Denial::deny_if(true, "the override lane needs a grant with ticket, reason and time box");
    };
    Denial::deny_if(
        ticket.trim().is_empty() || reason.trim().is_empty(),
        "the grant has no ticket or no reason",
    )?;
    let longest = i64::try_from(minutes * 60).unwrap_or(i64::MAX);
    let lasts = until.checked_sub(*from).is_some_and(|seconds| (1..=longest).contains(&seconds));
    Denial::deny_if(!lasts, "the grant lasts longer than the lane allows")?;
    Denial::deny_if(now < from || now >= until, "the grant is not in force now")
}

fn is_unregistered(action: &Action) -> bool {
    matches!(action, Action::Tool { registered: false, .. })
}

fn action<'a>(lane: &Lane, request: &Request) -> CheckResult<'a> {
    let write = match &request.action {
        Action::Write { table, mode } => Some((table, *mode)),
        Action::Tool { writes, .. } => writes.as_ref().map(|write| (&write.table, write.mode)),
    };
    if let Some((table, mode)) = write {
        let listed = lane.writes.iter().any(|write| write.table == *table && write.mode == mode);
        Denial::deny_if(!listed, "lane prohibits requested write")?;
    }
    let agent = request.actor.actor_type == ActorClass::Agent;
    let may_push = |name: &String| lane.refs.iter().any(|pattern| pattern.matches(name));
    Denial::deny_if(
        agent && !request.refs.iter().all(may_push),
        "lane does not let agents push to this ref",
    )?;
    match (&request.action, request.action.names()) {
        (Action::Write { .. }, _) => Ok(()),
        // A lane that lists writes but no tools allows these writes by any tool.
        _ if write.is_some() && lane.tools.is_empty() => Ok(()),
        (_, Some((tool, operation))) => {
            let listed =
                lane.tools.iter().any(|pattern| pattern.matches(tool) || pattern.matches(&operation));
            Denial::deny_if(!listed, "lane prohibits requested tool")
        }
        (Action::Tool { .. }, None) => Denial::deny_if(true, "lane prohibits requested tool"),
    }
}

fn risk<'a>(lane: &Lane, request: &Request) -> CheckResult<'a> {
    let outside = match &request.action {
        Action::Tool { risk, .. } => !lane.risks.is_empty() && !lane.risks.contains(risk),
        Action::Write { .. } => false,
    };
    Denial::deny_if(outside, "lane prohibits the risk of the requested tool")
}

fn scope<'a>(lane: &Lane, request: &Request) -> CheckResult<'a> {
    match lane.requires.iter().find(|field| !request.scope.contains(*field)) {
        Some(missing) => Err(Denial::new(format!("lane requires the scope field {missing}"))),
        None => Ok(()),
    }
}

fn flags<'a>(lane: Option<&Lane>, request: &Request) -> CheckResult<'a> {
    for flag in &request.flags {
        let permitted =
            lane.is_some_and(|lane| lane.permits.contains(flag) && !lane.prohibits.contains(flag));
        if !permitted {
            let known = lane.and_then(|lane| lane.prohibits.get(flag));
            let reason = known
                .map_or("lane does not permit what the call would do beyond its case".to_owned(), |flag| {
                    format!("lane prohibits {}", flag.as_str())
                });
            return Err(Denial::new(reason));
        }
    }
    Ok(())
}

fn prohibitions<'a>(policy: &'a Policy, request: &Request) -> CheckResult<'a> {
    // If several match, report the one with the smallest id, so that the order in the file has no effect.
    let fitting = policy.prohibitions().iter().filter(|rule| rule.matches(request));
    match fitting.min_by_key(|rule| &rule.id) {
        Some(Prohibition { id, reason, .. }) => {
            Err(Denial { reason: Cow::Owned(reason.clone()), rule: Some(id) })
        }
        None => Ok(()),
    }
}

/// A tool's mode applies to agents. Humans and services are not asked for approval of their own calls, so
/// only a `deny` that somebody set applies to them, not one that was inferred from the risk.
fn mode<'a>(request: &Request) -> CheckResult<'a> {
    let Some(decision) = &request.mode else { return Ok(()) };
    let ModeDecision { mode, source, reason, .. } = decision;
    let agent = request.actor.actor_type == ActorClass::Agent;
    let denied = *mode == Mode::Deny && (agent || *source != ModeSource::InferredDefault);
    let origin = decision.origin();
    if denied {
        return Err(Denial::new(format!(
            "the mode of the tool is deny ({origin}); an admin can change it with `proliferate actions modes set`"
        )));
    }
    let asks = agent && *mode == Mode::RequireApproval;
    Denial::deny_if(
        asks && reason.as_deref() == Some(DEFINITION_DRIFT),
        "nobody has reviewed the tool's definition as it is now, so it requires approval; an admin can review it with \
         `proliferate connectors review`",
    )?;
    if asks {
        return Err(Denial::new(format!(
            "the mode of the tool requires approval ({origin}); an admin can allow it with `proliferate actions modes set`"
        )));
    }
    Ok(())
}

impl Prohibition {
    pub(crate) fn matches(&self, request: &Request) -> bool {
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
            outcome: if asks(check, request) { Outcome::Ask } else { Outcome::Deny },
            rule_id: rule_id(check, lane, request.mode.as_ref(), Some(&denial)),
            reason: denial.reason.into_owned(),
        },
        (None, Some(lane)) => Verdict {
            outcome: Outcome::Allow,
            rule_id: format!("lane:{}", lane.id),
            reason: allow_reason(request.mode.as_ref()),
        },
        (None, None) => {
            Verdict { outcome: Outcome::Deny, rule_id: "lane".to_owned(), reason: NO_LANE.to_owned() }
        }
    }
}

/// Mode is the last check, so whatever fails there has passed all others.
fn asks(check: Check, request: &Request) -> bool {
    let mode = request.mode.as_ref().map(|decision| decision.mode);
    check == Check::Mode && mode == Some(Mode::RequireApproval)
}

/// Why a call is allowed: its lane, and its mode if it has one.
fn allow_reason(mode: Option<&ModeDecision>) -> String {
    let lane = "all checks of the lane passed";
    mode.map_or_else(
        || lane.to_owned(),
        |decision| format!("{lane}; mode {} ({})", decision.mode.as_str(), decision.origin()),
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
        let branch = match decision.branch {
            None => String::new(),
            Some(Branch::Rule(number)) => format!(":rule-{number}"),
            Some(Branch::Else) => ":else".to_owned(),
        };
        return format!("mode:{}:{}{branch}", decision.mode.as_str(), decision.source.as_str());
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
