//! `policy`: commands that inspect and change what the gate allows.

mod explain;
mod replay;
mod safety_controls;
mod status;

use std::path::{Path, PathBuf};

use gate::{RulesError, read_policy};
use policy::{Effect, Policy, PolicyError};
use serde_json::json;
use store::Store;

use crate::args::{GrantsCommand, OverrideCommand, PolicyCommand};
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn run(context: &Context, command: PolicyCommand) -> Result<(), Failure> {
    match command {
        PolicyCommand::Check { dir } => check(context, dir),
        PolicyCommand::Explain(args) => explain::run(context, &args).await,
        PolicyCommand::Diff { dirs } => diff(context, &dirs),
        PolicyCommand::Replay { dir, org } => replay::run(context, &dir, org.as_deref()).await,
        PolicyCommand::Lock { reason } => safety_controls::lock(context, true, &reason).await,
        PolicyCommand::Unlock { reason } => safety_controls::lock(context, false, &reason).await,
        PolicyCommand::Status => status::show(context).await,
        PolicyCommand::Grants(GrantsCommand::Ls { all }) => status::grants(context, all).await,
        PolicyCommand::Grants(GrantsCommand::Revoke { grant, reason }) => {
            safety_controls::revoke(context, &grant, &reason).await
        }
        PolicyCommand::Override(OverrideCommand::Grant(args)) => safety_controls::grant(context, &args).await,
    }
}

fn check(context: &Context, dir: Option<PathBuf>) -> Result<(), Failure> {
    let dir = dir.or_else(|| context.config.policy_dir.clone());
    let (first, others) = match read_policy(dir.as_deref()) {
        Ok(policy) => {
            let (pins, lanes) = (policy.pins(), policy.lanes().count());
            let value = json!({ "ok": true, "mistakes": [], "pins": pins, "lanes": lanes });
            let sentence = format!(
                "{lanes} lanes, {} roles and {} tools fit together; lanes@{} roles@{}",
                policy.roles().count(),
                policy.tools().count(),
                pins.lanes.git_blob,
                pins.roles.git_blob
            );
            context.out.result(&value, &sentence);
            return Ok(());
        }
        Err(RulesError::Wrong { first, others }) => (first, others),
        Err(unreadable) => return Err(invalid_policy(unreadable)),
    };
    let mistakes: Vec<&PolicyError> = [&first].into_iter().chain(&others).collect();
    let place = |file: &str| dir.as_ref().map_or_else(|| file.into(), |dir| dir.join(file));
    let rows: Vec<String> = mistakes
        .iter()
        .map(|mistake| format!("{}:{}: {}", place(mistake.file).display(), mistake.line, mistake.message))
        .collect();
    let values: Vec<_> = mistakes
        .iter()
        .map(|mistake| json!({ "file": place(mistake.file), "line": mistake.line, "message": mistake.message }))
        .collect();
    context.out.result(&json!({ "ok": false, "mistakes": values }), &rows.join("\n"));
    Err(Failure::failed(match mistakes.len() {
        1 => "there is a mistake in the policy".to_owned(),
        many => format!("there are {many} mistakes in the policy"),
    }))
}

fn diff(context: &Context, dirs: &[PathBuf]) -> Result<(), Failure> {
    let (old, new) = match dirs {
        [old, new] => (load(Some(old))?, load(Some(new))?),
        dirs => (load(None)?, load(dirs.first().map(PathBuf::as_path))?),
    };
    let changes = policy::diff(&old, &new);
    let effect = |effect: Effect| match effect {
        Effect::Loosens => "loosens",
        Effect::Tightens => "tightens",
        Effect::Changes => "changes",
    };
    let rows: Vec<_> = changes
        .iter()
        .map(|change| vec![effect(change.effect).to_owned(), change.subject.clone(), change.what.clone()])
        .collect();
    let values = changes.iter().map(|change| json!(change)).collect();
    context.out.list(values, &["EFFECT", "WHERE", "WHAT"], &rows);
    Ok(())
}

/// Loads the policy from a directory, or the built-in one.
fn load(dir: Option<&Path>) -> Result<Policy, Failure> {
    read_policy(dir).map_err(|error| match (error, dir) {
        (RulesError::Wrong { first, .. }, Some(dir)) => {
            let advice = format!("`proliferate policy check {}` shows all mistakes", dir.display());
            Failure::failed(format!("{}: {first}", dir.display())).and(&advice)
        }
        (other, _) => invalid_policy(other),
    })
}

/// The versions of the policy that a gateway has loaded last, if they are not those of this policy.
pub(crate) async fn other_policy_in_force(store: &Store, policy: &Policy) -> Option<String> {
    let record = store.last_policy_change().await.ok()??;
    let event = serde_json::from_str::<ledger::Event>(&record).ok()?;
    let (in_force, pins) = (event.policy_versions, policy.pins());
    let (lanes, roles) = (in_force.lanes.as_str(), in_force.roles.as_str());
    let same = (lanes, roles) == (&*pins.lanes.git_blob, &*pins.roles.git_blob);
    (!same).then(|| format!("lanes@{lanes} roles@{roles}"))
}

/// Describes a policy that cannot be loaded without naming the setting: the directory may come from the command line.
pub(crate) fn invalid_policy(error: RulesError) -> Failure {
    match error {
        RulesError::Unreadable { path, source } => {
            Failure::failed(format!("cannot read {}: {source}", path.display()))
        }
        wrong @ RulesError::Wrong { .. } => Failure::failed(wrong.to_string()),
    }
}
