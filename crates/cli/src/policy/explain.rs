//! `policy explain`: evaluates a hypothetical call and prints the result of each check.

use std::collections::BTreeSet;

use gateway::config::{Config, Database};
use gateway::{StoredAction, is_of_organization, known_tool, stored_action};
use policy::{
    Action, ActorClass, Claim, Explanation, Flag, Grant, ModeDecision, ModeKey, Outcome, Policy, Request,
    Risk, RunState, WriteMode, apply_drift, full_name, resolve_mode,
};
use serde_json::json;

use super::{load, other_policy_in_force};
use crate::args::{ExplainArgs, RiskArg, WriteArg};
use crate::clean::clean;
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
    let stored = stored(context, &policy, args).await?;
    let mut notes = notes(&policy, args, stored.as_ref());
    let stored = stored.and_then(Result::ok);
    let mut request = request(&policy, args, stored.as_ref());
    request.mode = mode(context, &policy, args, &request.action).await?.map(|mode| match &stored {
        Some(StoredAction { unreviewed: true, .. }) => apply_drift(mode, None, "unreviewed"),
        _ => mode,
    });
    let explained = policy::explain(&policy, &request);
    if args.org.is_some() {
        notes.push(format!("modes from {}", database(&context.config)));
    }
    if context.out.is_json() {
        let mut value = json!(explained);
        value["policy"] = json!({ "from": place, "pins": policy.pins() });
        value["notes"] = json!(notes);
        json_line(&value);
    } else {
        print(context, &explained);
        line(&format!("explained from {place}"));
        for note in notes {
            line(&clean(&note));
        }
    }
    Ok(())
}

/// The database that this shell names.
fn database(config: &Config) -> String {
    match &config.database {
        Database::Sqlite => config.sqlite_file().display().to_string(),
        Database::Postgres(_) => "the database of DATABASE_URL".to_owned(),
    }
}

/// The action of a connector or database as the organization has it, or why it has not.
async fn stored(
    context: &Context,
    policy: &Policy,
    args: &ExplainArgs,
) -> Result<Option<Result<StoredAction, String>>, Failure> {
    let (Some(key), Some(org)) = (key_of_organization(policy, args), args.org.as_deref()) else {
        return Ok(None);
    };
    let store = context.store().await?;
    let org = context.org(&store, Some(org)).await?;
    Ok(stored_action(&store, org, &key).await?)
}

/// The key of an action of a connector or a database, which no policy file names.
fn key_of_organization(policy: &Policy, args: &ExplainArgs) -> Option<ModeKey> {
    let tool = args.tool.as_ref()?;
    let operation = args.operation.as_ref().unwrap_or(tool);
    if known_tool(policy, tool, operation).is_some() {
        return None;
    }
    full_name(tool, operation).parse().ok().filter(is_of_organization)
}

/// What the explanation assumes.
fn notes(policy: &Policy, args: &ExplainArgs, stored: Option<&Result<StoredAction, String>>) -> Vec<String> {
    match stored {
        Some(Ok(StoredAction { assumption, .. })) => assumption.iter().cloned().collect(),
        Some(Err(problem)) if args.risk.is_some() => {
            vec![format!("{problem}: the call is explained as if it were there")]
        }
        Some(Err(problem)) => vec![problem.clone()],
        None if key_of_organization(policy, args).is_some() => vec![
            "without --org nobody knows whether this tool exists and its definition was reviewed; an unreviewed \
             one of a connector needs approval"
                .to_owned(),
        ],
        None => Vec::new(),
    }
}

/// The settings of this shell need not be those that the gateway was started with.
async fn warn_of_another(context: &Context, policy: &Policy, place: &str) {
    let Ok(store) = context.store().await else { return };
    if let Some(other) = other_policy_in_force(&store, policy).await {
        warn(&format!("a gateway last loaded {other}, which is not {place}: name its directory with --dir"));
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

fn request(policy: &Policy, args: &ExplainArgs, stored: Option<&StoredAction>) -> Request {
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
        action: action(policy, args, stored),
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

fn action(policy: &Policy, args: &ExplainArgs, stored: Option<&StoredAction>) -> Action {
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
        None => {
            let known = known.as_ref().map(|tool| tool.risk);
            known.or(stored.map(|stored| stored.risk)).unwrap_or(Risk::Danger)
        }
    };
    // A hypothetical tool with a given risk counts as registered.
    let registered = known.is_some() || stored.is_some() || args.risk.is_some();
    Action::Tool { tool_name, operation, risk, registered, writes: known.and_then(|tool| tool.writes) }
}
