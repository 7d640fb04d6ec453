//! `preferences`: which actions the agents of the user's own sessions have.

use client::Client;
use proto::http::ActionPreference;
use serde_json::json;

use crate::args::{PreferencesArgs, PreferencesCommand, WhichActions};
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect;

pub(crate) async fn run(context: &Context, args: PreferencesArgs) -> Result<(), Failure> {
    let client = connect(context, args.gateway).await?;
    match args.command {
        PreferencesCommand::Ls => {
            let found = client.preferences().await?.preferences;
            let row = |entry: &ActionPreference| {
                let action = entry.action_id.clone().unwrap_or_else(|| "(all)".to_owned());
                vec![entry.source_id.clone(), action, "disabled".to_owned()]
            };
            let rows: Vec<_> = found.iter().map(row).collect();
            let values = found.iter().map(|entry| json!(entry)).collect();
            context.out.list(values, &["SOURCE", "ACTION", "STATUS"], &rows);
            Ok(())
        }
        PreferencesCommand::Disable { what } => set(context, &client, what, false).await,
        PreferencesCommand::Enable { what } => set(context, &client, what, true).await,
    }
}

async fn set(context: &Context, client: &Client, what: WhichActions, enabled: bool) -> Result<(), Failure> {
    let preference = ActionPreference { source_id: what.source, action_id: what.action, enabled };
    client.set_preference(&preference).await?;
    let name = match &preference.action_id {
        Some(action) => format!("{} {action}", preference.source_id),
        None => preference.source_id.clone(),
    };
    let state = if enabled { "enabled" } else { "disabled" };
    context.out.result(&json!(preference), &format!("{name} is {state} in the sessions that you create"));
    Ok(())
}
