//! `actions`: lists and changes which actions the agents of an organization may use.

use std::path::Path;

use gate::{NewMode, read_policy};
use gateway::{ActionKeyError, ActionKeys};
use policy::{ModeKey, ModeSetting};
use proto::{ActionMode, OrgId, iso};
use serde_json::{Value, json};
use store::{OrgActionMode, Store};

use crate::args::{ActionsCommand, ModesCommand, WhichOrg};
use crate::context::Context;
use crate::failure::Failure;
use crate::json_file::read_json;
use crate::policy::invalid_policy;

pub(crate) async fn run(context: &Context, command: ActionsCommand) -> Result<(), Failure> {
    let ActionsCommand::Modes(command) = command;
    match command {
        ModesCommand::Set { key, mode, conditions, two_person, org } => {
            let setting = setting(mode.into(), conditions.as_deref(), two_person)?;
            set(context, &key, &setting, org).await
        }
        ModesCommand::Unset { key, org } => unset(context, &key, org).await,
        ModesCommand::Ls { org } => ls(context, org).await,
    }
}

/// The setting that the options describe.
fn setting(mode: ActionMode, conditions: Option<&Path>, two_person: bool) -> Result<ModeSetting, Failure> {
    let mut value = match conditions {
        None => json!({}),
        Some(file) => read_json("--conditions", file)?,
    };
    let Value::Object(fields) = &mut value else {
        return Err(Failure::usage("--conditions: expected an object with rules and examples"));
    };
    fields.insert("else".to_owned(), mode.as_str().into());
    fields.insert("twoPerson".to_owned(), two_person.into());
    ModeSetting::parse(&value).map_err(|error| Failure::usage(error.to_string()))
}

async fn set(context: &Context, key: &ModeKey, setting: &ModeSetting, org: WhichOrg) -> Result<(), Failure> {
    let store = context.store().await?;
    let org = context.org(&store, org.org.as_deref()).await?;
    let warning = check_key(context, &store, org, key).await?;
    let new = NewMode { by: None, key, setting, invocation: None };
    context.governance(&store).set_mode(org, new).await?;
    let mode = setting.otherwise().as_str();
    let mut value = json!({ "key": key.as_str(), "mode": mode });
    let rules = if setting.conditions().is_some() { ", unless a rule matches" } else { "" };
    let two = if setting.two_person() { ", by two people" } else { "" };
    let text = warning.as_ref().map(|warning| format!("\nwarning: {warning}")).unwrap_or_default();
    if let Some(warning) = warning {
        value["warning"] = warning.into();
    }
    context.out.result(&value, &format!("{}: {mode}{rules}{two}{text}", key.as_str()));
    Ok(())
}

/// Refuses a mode for an action that cannot exist, which would protect nothing.
async fn check_key(
    context: &Context,
    store: &Store,
    org: OrgId,
    key: &ModeKey,
) -> Result<Option<String>, Failure> {
    let dir = context.config.policy_dir.as_deref();
    let policy = dir.map(|dir| read_policy(Some(dir))).transpose().map_err(invalid_policy)?;
    let checked = ActionKeys::new(store, policy.as_ref()).check(org, key).await;
    checked.map_err(|error| match error {
        ActionKeyError::Store(error) => error.into(),
        ActionKeyError::Unknown(problem) => Failure::usage(problem),
    })
}

async fn unset(context: &Context, key: &ModeKey, org: WhichOrg) -> Result<(), Failure> {
    let store = context.store().await?;
    let org = context.org(&store, org.org.as_deref()).await?;
    context.governance(&store).unset_mode(org, None, key).await?;
    let value = json!({ "key": key.as_str() });
    context.out.result(&value, &format!("{}: follows from the risk of the action again", key.as_str()));
    Ok(())
}

async fn ls(context: &Context, org: WhichOrg) -> Result<(), Failure> {
    let store = context.store().await?;
    let org = context.org(&store, org.org.as_deref()).await?;
    let modes = store.org_action_modes(org).await?;
    let row = |mode: &OrgActionMode| {
        let (changed, by) = (context.ago(mode.changed_at), mode.changed_by.clone());
        vec![mode.key.clone(), shown(mode), source(mode), changed, by]
    };
    let value = |mode: &OrgActionMode| {
        json!({ "key": mode.key, "mode": mode.value(), "source": source(mode),
            "changedAt": iso::text(&mode.changed_at), "changedBy": mode.changed_by })
    };
    let rows: Vec<_> = modes.iter().map(row).collect();
    let columns = ["KEY", "MODE", "SOURCE", "CHANGED", "BY"];
    context.out.list(modes.iter().map(value).collect(), &columns, &rows);
    Ok(())
}

/// Why the mode was set: by itself, or with the approval of an invocation.
fn source(mode: &OrgActionMode) -> String {
    mode.invocation.map_or_else(|| "set".to_owned(), |id| format!("approval {id}"))
}

fn shown(mode: &OrgActionMode) -> String {
    let rules = mode.conditions.as_ref().and_then(|conditions| conditions["rules"].as_array());
    let rules = rules.map_or(0, Vec::len);
    let rules = if rules > 0 { format!(" ({rules} rules)") } else { String::new() };
    let two = if mode.two_person { ", two people" } else { "" };
    format!("{}{rules}{two}", mode.mode)
}
