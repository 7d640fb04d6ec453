//! `orgs`: whose data there is.

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
    context.store_or_new().await?.create_org(NewOrg { id, name: name.clone(), at }).await?;
    context.out.result(&json!({ "id": id }), &format!("organisation {id} ({name}) made"));
    Ok(())
}

async fn ls(context: &Context) -> Result<(), Failure> {
    let orgs = context.store().await?.orgs().await?;
    let rows: Vec<_> = orgs
        .iter()
        .map(|org| vec![org.id.to_string(), org.name.clone(), iso::text(&org.created_at)])
        .collect();
    let values = orgs
        .iter()
        .map(|org| json!({ "id": org.id, "name": org.name, "createdAt": iso::text(&org.created_at) }));
    context.out.list(values.collect(), &["ID", "NAME", "CREATED"], &rows);
    Ok(())
}

/// Changes what was named, and shows what holds then.
async fn limits(context: &Context, args: LimitsArgs) -> Result<(), Failure> {
    let store = context.store().await?;
    if args.budget.is_some() || args.sessions.is_some() {
        let now = store.org_budget(args.org).await?;
        let budget = args.budget.map_or(now.budget_micros, |limit| limit.0);
        let sessions = args.sessions.map_or(now.session_limit, |limit| limit.0);
        store.set_org_limits(args.org, budget, sessions).await?;
    }
    let now = store.org_budget(args.org).await?;
    if now.budget_micros.is_some() && !context.config.model_prices.cover_all() {
        note(
            "models without a price in MODEL_PRICES spend nothing of a budget; e.g. *=3/15 gives one to all",
        );
    }
    let value = json!({ "id": args.org, "budgetMicros": now.budget_micros, "spentMicros": now.spent_micros,
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

/// Micro-dollars as people write them; what is less than a cent is not hidden.
fn dollars(micros: i64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    let cents = text.len() - 4;
    let short = text.trim_end_matches('0').len().max(cents);
    text[..short].to_owned()
}

#[cfg(test)]
mod tests {
    use super::dollars;

    #[test]
    fn dollars_have_cents_and_more_where_it_matters() {
        for (micros, text) in [(0, "0.00"), (2_500_000, "2.50"), (100, "0.0001"), (12_345_678, "12.345678")] {
            assert_eq!(dollars(micros), text);
        }
    }
}
