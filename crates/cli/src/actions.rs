//! `actions`: lists and changes which actions the agents of an organization may use.

use policy::ModeKey;
use proto::{ActionMode, iso};
use serde_json::json;

use crate::args::{ActionsCommand, ModesCommand, WhichOrg};
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn run(context: &Context, command: ActionsCommand) -> Result<(), Failure> {
    let ActionsCommand::Modes(command) = command;
    match command {
        ModesCommand::Set { key, mode, org } => set(context, &key, mode.into(), org).await,
        ModesCommand::Ls { org } => ls(context, org).await,
    }
}

async fn set(context: &Context, key: &ModeKey, mode: ActionMode, org: WhichOrg) -> Result<(), Failure> {
    let store = context.store().await?;
    let org = context.org(&store, org.org.as_deref()).await?;
    context.governance(&store).set_mode(org, None, key, mode).await?;
    let value = json!({ "key": key.as_str(), "mode": mode.as_str() });
    context.out.result(&value, &format!("{}: {}", key.as_str(), mode.as_str()));
    Ok(())
}

async fn ls(context: &Context, org: WhichOrg) -> Result<(), Failure> {
    let store = context.store().await?;
    let org = context.org(&store, org.org.as_deref()).await?;
    let modes = store.org_action_modes(org).await?;
    let row = |mode: &store::OrgActionMode| {
        let (changed, by) = (context.ago(mode.changed_at), mode.changed_by.clone());
        vec![mode.key.clone(), mode.mode.to_string(), changed, by]
    };
    let value = |mode: &store::OrgActionMode| {
        json!({ "key": mode.key, "mode": mode.mode.as_str(), "changedAt": iso::text(&mode.changed_at),
            "changedBy": mode.changed_by })
    };
    let rows: Vec<_> = modes.iter().map(row).collect();
    context.out.list(modes.iter().map(value).collect(), &["KEY", "MODE", "CHANGED", "BY"], &rows);
    Ok(())
}
