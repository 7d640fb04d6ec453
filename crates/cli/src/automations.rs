//! `automations`: agents that start by hand, by a webhook or by a schedule.

use client::Client;
use proto::AutomationId;
use proto::http::{
    AutomationEntry, ChangeAutomation, CreateAutomation, SetCron, SetWebhook, StartAutomationRun,
};
use serde_json::json;

use crate::args::{AutomationSettings, AutomationsArgs, AutomationsCommand};
use crate::configurations;
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect;
use crate::lookup::{self, Candidate, pick, refuse_taken};
use crate::output::{note, warn};
use crate::session::standard_input;

pub(crate) async fn run(context: &Context, args: AutomationsArgs) -> Result<(), Failure> {
    let client = connect(context, args.gateway).await?;
    match args.command {
        AutomationsCommand::Ls => ls(context, &client).await?,
        AutomationsCommand::Show { automation } => {
            let id = find(&client, &automation).await?;
            show(context, &client.automation(id).await?);
        }
        AutomationsCommand::New { name, settings } => {
            refuse_taken(lookup::AUTOMATION, &name, None, &candidates(&client).await?)?;
            let made = client.create_automation(&creation(&client, name, settings).await?).await?;
            report(context, &made, &format!("created {} ({})", made.name, made.id));
        }
        AutomationsCommand::Set { automation, name, settings } => {
            let id = find(&client, &automation).await?;
            if let Some(name) = &name {
                refuse_taken(lookup::AUTOMATION, name, Some(&id), &candidates(&client).await?)?;
            }
            let changed = client.change_automation(id, &change(&client, name, settings).await?).await?;
            report(context, &changed, &format!("changed {} ({id})", changed.name));
        }
        AutomationsCommand::Enable { automations } => enable(context, &client, &automations, true).await?,
        AutomationsCommand::Disable { automations } => enable(context, &client, &automations, false).await?,
        AutomationsCommand::Run { automation, context: payload } => {
            let id = find(&client, &automation).await?;
            let wrong = |error| Failure::usage(format!("--context must be a JSON object: {error}"));
            let payload = payload.map(|text| serde_json::from_str(&text)).transpose().map_err(wrong)?;
            let run = client.start_automation_run(id, &StartAutomationRun { context: payload }).await?;
            let sentence = format!("started {}; `proliferate runs show {}` shows it", run.id, run.id);
            context.out.result(&json!(run), &sentence);
        }
        AutomationsCommand::Rm { automations } => {
            let mut ids = Vec::new();
            for named in &automations {
                ids.push(find(&client, named).await?);
            }
            for id in &ids {
                client.remove_automation(*id).await?;
            }
            context.out.result(&json!({ "removed": ids }), &format!("removed {}", automations.join(", ")));
        }
    }
    Ok(())
}

/// The id of the automation with this name or id prefix. A complete id is returned without a lookup.
pub(crate) async fn find(client: &Client, named: &str) -> Result<AutomationId, Failure> {
    match named.parse() {
        Ok(id) => Ok(id),
        Err(_) => pick(lookup::AUTOMATION, named, &candidates(client).await?),
    }
}

pub(crate) async fn candidates(client: &Client) -> Result<Vec<Candidate<AutomationId>>, Failure> {
    let all = client.automations().await?.automations.into_iter();
    Ok(all.map(|one| Candidate::new(one.id, [one.name])).collect())
}

async fn creation(
    client: &Client,
    name: String,
    settings: AutomationSettings,
) -> Result<CreateAutomation, Failure> {
    let instructions = settings.instructions.clone();
    let instructions = instructions
        .ok_or_else(|| Failure::usage("--instructions is missing: say what the agent is to do"))?;
    let change = change(client, Some(name), settings).await?;
    Ok(CreateAutomation {
        name: change.name.unwrap_or_default(),
        instructions: change.instructions.unwrap_or(instructions),
        enabled: None,
        model: change.model.flatten(),
        configuration_id: change.configuration_id.flatten(),
        system_prompt: change.system_prompt.flatten(),
        webhook: change.webhook.flatten(),
        cron: change.cron.flatten(),
    })
}

async fn change(
    client: &Client,
    name: Option<String>,
    settings: AutomationSettings,
) -> Result<ChangeAutomation, Failure> {
    let AutomationSettings { instructions, model, configuration, system_prompt, webhook, cron, time_zone } =
        settings;
    let configuration = match configuration {
        Some(named) => Some(configurations::find(client, &named).await?),
        None => None,
    };
    let instructions = match instructions {
        Some(text) if text == "-" => Some(standard_input()?),
        given => given,
    };
    Ok(ChangeAutomation {
        name,
        instructions,
        enabled: None,
        model: model.map(Some),
        configuration_id: configuration.map(Some),
        system_prompt: system_prompt.map(Some),
        webhook: webhook.map(|scheme| Some(SetWebhook { scheme, secret: None })),
        cron: cron.map(|schedule| Some(SetCron { schedule, time_zone })),
    })
}

async fn enable(context: &Context, client: &Client, named: &[String], enabled: bool) -> Result<(), Failure> {
    let mut ids = Vec::new();
    for one in named {
        let id = find(client, one).await?;
        let change = ChangeAutomation { enabled: Some(enabled), ..ChangeAutomation::default() };
        client.change_automation(id, &change).await?;
        ids.push(id);
    }
    let verb = if enabled { "enabled" } else { "disabled" };
    context.out.result(&json!({ verb: ids }), &format!("{verb} {}", named.join(", ")));
    Ok(())
}

/// Prints a new or changed automation. The secret of its webhook is shown this once.
fn report(context: &Context, one: &AutomationEntry, sentence: &str) {
    context.out.result(&json!(one), sentence);
    if let Some(webhook) = one.webhook.as_ref().filter(|_| !context.out.is_json()) {
        note(&format!("requests go to {}", webhook.url));
        if let Some(secret) = &webhook.secret {
            warn(&format!("the secret that signs them is shown only now: {secret}"));
        }
    }
}

async fn ls(context: &Context, client: &Client) -> Result<(), Failure> {
    let all = client.automations().await?.automations;
    let rows: Vec<_> = all.iter().map(|one| row(context, one)).collect();
    context.out.list(all.iter().map(|one| json!(one)).collect(), &TABLE_HEADER, &rows);
    Ok(())
}

const TABLE_HEADER: [&str; 5] = ["ID", "NAME", "STATE", "TRIGGERS", "CHANGED"];

fn row(context: &Context, one: &AutomationEntry) -> Vec<String> {
    let webhook = one.webhook.as_ref().map(|webhook| format!("webhook {}", webhook.scheme));
    let cron = one.cron.as_ref().map(|cron| format!("cron {} {}", cron.schedule, cron.time_zone));
    let triggers: Vec<String> = [webhook, cron].into_iter().flatten().collect();
    let triggers = if triggers.is_empty() { "by hand".to_owned() } else { triggers.join(", ") };
    let state = if one.enabled { "enabled" } else { "disabled" };
    vec![one.id.to_string(), one.name.clone(), state.to_owned(), triggers, context.ago(one.updated_at)]
}

fn show(context: &Context, one: &AutomationEntry) {
    context.out.one(&json!(one), &TABLE_HEADER, row(context, one));
    if context.out.is_json() {
        return;
    }
    if let Some(webhook) = &one.webhook {
        note(&format!("requests go to {}", webhook.url));
    }
    if let Some(next) = one.cron.as_ref().and_then(|cron| cron.next_at) {
        note(&format!("the schedule fires {}", context.ago(next)));
    }
    context.out.result(&json!(null), &format!("\n{}", one.instructions));
}
