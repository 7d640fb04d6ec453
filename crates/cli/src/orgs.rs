//! `orgs`: whose data there is.

use proto::{OrgId, iso, text};
use serde_json::json;
use store::NewOrg;

use crate::args::OrgsCommand;
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn run(context: &Context, command: OrgsCommand) -> Result<(), Failure> {
    match command {
        OrgsCommand::Create { name } => create(context, name).await,
        OrgsCommand::Ls => ls(context).await,
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
