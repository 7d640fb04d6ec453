//! `orgs`: manages organizations and their limits.

use gate::{AdminChange, Subject};
use gateway::config::dollars;
use proto::{OrgId, iso, text};
use serde_json::json;
use store::NewOrg;

use crate::args::{LimitsArgs, OrgsCommand};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::note;

pub(crate) async fn run(context: &Context, command: OrgsCommand) -> Result<(), Failure> {
    match command {
        OrgsCommand::Create { name } => create(context, name).await,
        OrgsCommand::Ls => ls(context).await,
        OrgsCommand::Limits(args) => limits(context, args).await,
    }
}

async fn create(context: &Context, name: String) -> Result<(), Failure> {
    if !text::is_line(&name, 200) {
        return Err(Failure::usage("--name must be one line of 1 to 200 characters"));
    }
    let at = context.clock.now();
    let id = OrgId::from(context.rng.uuid(at));
    let change = AdminChange::new(Subject::Organization, "create", format!("organization {id}"));
    let store = context.administer(&context.store_or_new().await?, id, &change).await?;
    store.create_org(NewOrg { id, name: name.clone(), at }).await?;
    context.out.result(&json!({ "id": id }), &format!("organization {id} ({name}) made"));
    Ok(())
}

async fn ls(context: &Context) -> Result<(), Failure> {
    let orgs = context.store().await?.orgs().await?;
    let rows: Vec<_> = orgs
        .iter()
        .map(|org| vec![org.id.to_string(), org.name.clone(), context.ago(org.created_at)])
        .collect();
    let values = orgs
        .iter()
        .map(|org| json!({ "id": org.id, "name": org.name, "createdAt": iso::text(&org.created_at) }));
    context.out.list(values.collect(), &["ID", "NAME", "CREATED"], &rows);
    Ok(())
}

/// Changes the limits that were given, and prints all limits afterwards.
async fn limits(context: &Context, args: LimitsArgs) -> Result<(), Failure> {
    let store = context.store().await?;
    let org = context.org(&store, Some(&args.org)).await?;
    if args.budget.is_some() || args.sessions.is_some() {
        let now = store.org_budget(org).await?;
        let budget = args.budget.map_or(now.budget_micros, |limit| limit.0);
        let sessions = args.sessions.map_or(now.session_limit, |limit| limit.0);
        let change = AdminChange::limits(budget, sessions);
        let store = context.administer(&store, org, &change).await?;
        store.set_org_limits(org, budget, sessions).await?;
    }
    let now = store.org_budget(org).await?;
    if now.budget_micros.is_some() && !context.config.model_prices.cover_all() {
        note(
            "while a budget holds, models without a price in MODEL_PRICES are refused; e.g. *=3/15 gives one to all",
        );
    }
    let value = json!({ "id": org, "budgetMicros": now.budget_micros, "spentMicros": now.spent_micros,
        "sessionLimit": now.session_limit });
    let or_none = |limit: Option<String>| limit.unwrap_or_else(|| "none".to_owned());
    let row = vec![
        or_none(now.budget_micros.map(dollars)),
        dollars(now.spent_micros),
        or_none(now.session_limit.map(|limit| limit.to_string())),
    ];
    context.out.one(&value, &["BUDGET", "SPENT", "SESSIONS"], row);
    Ok(())
}
