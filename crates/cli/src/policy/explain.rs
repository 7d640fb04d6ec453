//! `policy explain`: evaluates a hypothetical call and prints the result of each check.

use std::collections::BTreeSet;

use gateway::known_tool;
use policy::{
    Action, ActorClass, Claim, Explanation, Flag, Grant, ModeDecision, ModeKey, Outcome, Policy, Request,
    Risk, RunState, WriteMode, full_name, resolve_mode,
};
use serde_json::json;

use super::load;
use crate::args::{ExplainArgs, RiskArg, WriteArg};
use crate::context::Context;
use crate::failure::Failure;
use crate::json_file::read_json;
use crate::lookup::{AUTOMATION, automations, pick};
use crate::output::{GREEN, RED, YELLOW, json_line, line, warn};

pub(super) async fn run(context: &Context, args: &ExplainArgs) -> Result<(), Failure> {
    let dir = args.dir.as_ref().or(context.config.policy_dir.as_ref());
    let policy = load(dir.map(std::path::PathBuf::as_path))?;
    let place = dir.map_or_else(|| "the built-in policy".to_owned(), |dir| dir.display().to_string());
    if args.dir.is_none() {
        warn_of_another(context, &policy, &place).await;
    }
    let mut request = request(&policy, args);
    request.mode = mode(context, &policy, args, &request.action).await?;
    let explained = policy::explain(&policy, &request);
    if context.out.is_json() {
        json_line(&json!(explained));
    } else {
        print(context, &explained);
        line(&format!("explained from {place}"));
    }
    Ok(())
}

/// The settings of this shell need not be those that the gateway was started with.
async fn warn_of_another(context: &Context, policy: &Policy, place: &str) {
    let Ok(store) = context.store().await else { return };
    let Ok(Some(record)) = store.last_policy_change().await else { return };
    let Ok(event) = serde_json::from_str::<ledger::Event>(&record) else { return };
    let (in_force, pins) = (event.policy_versions, policy.pins());
    let (lanes, roles) = (in_force.lanes.as_str(), in_force.roles.as_str());
    if (lanes, roles) != (&*pins.lanes.git_blob, &*pins.roles.git_blob) {
        warn(&format!(
            "a gateway last loaded lanes@{lanes} roles@{roles}, which is not {place}: name its folder with --dir"
        ));
    }
}

fn print(context: &Context, explained: &Explanation) {
    let rows: Vec<_> = explained
        .steps
        .iter()
        .map(|step| {
            let (state, why) = step.failed.as_ref().map_or(("passed", ""), |why| ("failed", why));
            vec![step.check.as_str().to_owned(), state.to_owned(), step.rule_id.clone(), why.to_owned()]
        })
        .collect();
    context.out.list(Vec::new(), &["CHECK", "RESULT", "RULE", "WHY"], &rows);
    if let Some(decision) = &explained.mode {
        let reason = decision.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let two = if decision.two_person { ", two people must approve" } else { "" };
        line(&format!("mode {} ({}){reason}{two}", decision.mode.as_str(), decision.origin()));
    }
    let verdict = &explained.verdict;
    let (colour, word) = match verdict.outcome {
        Outcome::Allow => (GREEN, "allowed"),
        Outcome::Ask => (YELLOW, "needs approval"),
        Outcome::Deny => (RED, "denied"),
    };
    line(&format!("{colour}{word}{colour:#} by {}: {}", verdict.rule_id, verdict.reason));
}

fn request(policy: &Policy, args: &ExplainArgs) -> Request {
    // The policy defines the class of a role. An unknown role is denied whatever its class.
    let class = policy.role(&args.role).map_or(ActorClass::System, |role| role.class);
    let mut scope: BTreeSet<String> = args.scope.iter().cloned().collect();
    scope.insert("run_id".to_owned());
    if args.case.as_ref().is_some_and(|case| !case.is_empty()) {
        scope.insert("case_id".to_owned());
    }
    let minutes = policy.lane(&args.lane).and_then(|lane| lane.override_minutes).unwrap_or(1);
    let until = i64::try_from(minutes * 60).unwrap_or(i64::MAX);
    let described = || "as described".to_owned();
    let grant = Grant { ticket: described(), reason: described(), from: 0, until, now: 0 };
    Request {
        actor: Claim { actor_type: class, actor_id: described() },
        claimed: None,
        role: args.role.clone(),
        lane: args.lane.clone(),
        action: action(policy, args),
        scope,
        refs: Vec::new(),
        flags: args.flag.iter().map(Flag::new).collect(),
        run: RunState::New,
        demanded: None,
        mode: None,
        locked: args.locked,
        grant: args.granted.then_some(grant),
    }
}

/// The mode decision for a tool, if modes govern the tool.
async fn mode(
    context: &Context,
    policy: &Policy,
    args: &ExplainArgs,
    action: &Action,
) -> Result<Option<ModeDecision>, Failure> {
    let Action::Tool { tool_name, operation, risk, .. } = action else { return Ok(None) };
    let key = match known_tool(policy, tool_name, operation) {
        Some(tool) => tool.mode_key,
        // Only the gateway knows the tools of connectors and databases. Their names are the keys of their modes.
        None => full_name(tool_name, operation).parse::<ModeKey>().ok(),
    };
    let (Some(key), Some(org)) = (&key, args.org.as_deref()) else {
        return Ok(key.map(|_| ModeDecision::inferred(*risk)));
    };
    let store = context.store().await?;
    let org = context.org(&store, Some(org)).await?;
    let modes = store.action_modes_for(org, None, key.as_str()).await?;
    let automation = match &args.automation {
        Some(wanted) => {
            let id = pick(AUTOMATION, wanted, &automations(&store, org).await?)?;
            store.automation_modes(org, id).await?
        }
        None => None,
    };
    let params = args.params.as_ref().map(|file| read_json("--params", file)).transpose()?;
    Ok(Some(resolve_mode(key, automation.as_ref(), &modes.org, *risk, params.as_ref())))
}

fn action(policy: &Policy, args: &ExplainArgs) -> Action {
    if let Some(table) = &args.table {
        let mode = match args.mode {
            WriteArg::Append => WriteMode::Append,
            WriteArg::Upsert => WriteMode::Upsert,
        };
        return Action::Write { table: table.clone(), mode };
    }
    let tool_name = args.tool.clone().unwrap_or_default();
    let operation = args.operation.clone().unwrap_or_else(|| tool_name.clone());
    let known = known_tool(policy, &tool_name, &operation);
    let risk = match args.risk {
        Some(RiskArg::Read) => Risk::Read,
        Some(RiskArg::Write) => Risk::Write,
        Some(RiskArg::Danger) => Risk::Danger,
        None => known.as_ref().map_or(Risk::Danger, |tool| tool.risk),
    };
    // A hypothetical tool with a given risk counts as registered.
    let registered = known.is_some() || args.risk.is_some();
    Action::Tool { tool_name, operation, risk, registered, writes: known.and_then(|tool| tool.writes) }
}
