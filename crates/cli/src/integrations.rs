//! `integrations`: the vendors whose actions sessions of an organization can use.

use client::Client;
use proto::http::{AddIntegration, ChangeIntegration, IntegrationEntry};
use proto::{IntegrationId, IntegrationStatus};
use serde_json::json;

use crate::args::{IntegrationsArgs, IntegrationsCommand};
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect_to_org;
use crate::lookup::{self, Candidate, pick};

const TABLE_HEADER: [&str; 5] = ["ID", "PROVIDER", "NAME", "SECRET", "STATUS"];

pub(crate) async fn run(context: &Context, args: IntegrationsArgs) -> Result<(), Failure> {
    let client = connect_to_org(context, args.gateway, args.org.as_deref()).await?;
    match args.command {
        IntegrationsCommand::Ls => {
            let found = client.integrations().await?.integrations;
            let rows: Vec<_> = found.iter().map(row).collect();
            context.out.list(found.iter().map(|entry| json!(entry)).collect(), &TABLE_HEADER, &rows);
        }
        IntegrationsCommand::Add { provider, secret, name } => {
            let new = AddIntegration { provider, secret_key: secret, display_name: name };
            let entry = client.add_integration(&new).await?;
            context.out.result(&json!(entry), &format!("connected {} ({})", entry.provider, entry.id));
        }
        IntegrationsCommand::Enable { integrations } => {
            set_status(context, &client, &integrations, IntegrationStatus::Active).await?;
        }
        IntegrationsCommand::Disable { integrations } => {
            set_status(context, &client, &integrations, IntegrationStatus::Disabled).await?;
        }
        IntegrationsCommand::Rm { integrations } => {
            let ids = ids(&client, &integrations).await?;
            for id in &ids {
                client.remove_integration(*id).await?;
            }
            context.out.result(&json!({ "removed": ids }), &format!("removed {}", integrations.join(", ")));
        }
    }
    Ok(())
}

async fn set_status(
    context: &Context,
    client: &Client,
    named: &[String],
    status: IntegrationStatus,
) -> Result<(), Failure> {
    let ids = ids(client, named).await?;
    for id in &ids {
        client.change_integration(*id, &ChangeIntegration { status }).await?;
    }
    let done = json!({ "changed": ids, "status": status });
    context.out.result(&done, &format!("{} is {status} now", named.join(", ")));
    Ok(())
}

async fn ids(client: &Client, named: &[String]) -> Result<Vec<IntegrationId>, Failure> {
    let all = candidates(client).await?;
    named.iter().map(|named| pick(lookup::INTEGRATION, named, &all)).collect()
}

/// Every integration with its names: the vendor and the display name.
pub(crate) async fn candidates(client: &Client) -> Result<Vec<Candidate<IntegrationId>>, Failure> {
    let found = client.integrations().await?.integrations.into_iter();
    Ok(found
        .map(|entry| {
            let names = [entry.provider.to_string()].into_iter().chain(entry.display_name);
            Candidate::new(entry.id, names)
        })
        .collect())
}

fn row(entry: &IntegrationEntry) -> Vec<String> {
    vec![
        entry.id.to_string(),
        entry.provider.to_string(),
        entry.display_name.clone().unwrap_or_else(|| "-".to_owned()),
        entry.secret_key.clone(),
        entry.status.to_string(),
    ]
}
