//! `databases`: the databases that agents of an organization may query, and the queries that are their actions.

use std::path::Path;

use client::Client;
use proto::http::{
    ChangeDatabase, CreateDatabase, DatabaseCheck, DatabaseDetail, DatabaseEntry, DatabaseLimits,
    DatabaseQuery, DatabaseTarget,
};
use proto::{DatabaseId, FreeForm};
use serde_json::{Value, json};

use crate::args::{DatabasesCommand, OneDatabase, Place, SettingsArgs, TargetArgs};
use crate::clean::one_line;
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect_to_org;
use crate::lookup::{Candidate, Kind, pick};
use crate::output::line;
use crate::session::standard_input;

const DATABASE_KIND: Kind = Kind("database", "proliferate databases ls");

pub(crate) async fn run(context: &Context, command: DatabasesCommand) -> Result<(), Failure> {
    match command {
        DatabasesCommand::Add { name, target, settings, dry_run, place } => {
            let new = creation(name, target, &settings)?;
            add(context, &connect(context, place).await?, &new, dry_run).await
        }
        DatabasesCommand::Ls { place } => ls(context, &connect(context, place).await?).await,
        DatabasesCommand::Show { database } => {
            let (client, id) = find(context, database).await?;
            show(context, &client.database(id).await?);
            Ok(())
        }
        DatabasesCommand::Check { database } => {
            let (client, id) = find(context, database).await?;
            report_check(context, &client.database(id).await?.check)
        }
        DatabasesCommand::Set { database, name, target, settings } => {
            let target = target.target()?;
            let queries = settings.queries.as_deref().map(read_queries).transpose()?;
            let (client, id) = find(context, database).await?;
            let present = client.database(id).await?.database.limits;
            let (free_form, limits) = (settings.free_form, settings.limits(present));
            let change = ChangeDatabase { name, target, queries, free_form, limits, enabled: None };
            report(context, &client.change_database(id, &change).await?, "changed");
            Ok(())
        }
        DatabasesCommand::Enable { database } => switch(context, database, true).await,
        DatabasesCommand::Disable { database } => switch(context, database, false).await,
        DatabasesCommand::Rm { database } => {
            let (client, id) = find(context, database).await?;
            client.remove_database(id).await?;
            context.out.result(&json!({ "removed": id }), &format!("removed {id}"));
            Ok(())
        }
    }
}

async fn connect(context: &Context, place: Place) -> Result<Client, Failure> {
    connect_to_org(context, place.gateway, place.org.org.as_deref()).await
}

fn creation(name: String, target: TargetArgs, settings: &SettingsArgs) -> Result<CreateDatabase, Failure> {
    let target = target.target()?.ok_or_else(|| Failure::usage("give --postgres URL or --sqlite FILE"))?;
    Ok(CreateDatabase {
        name,
        target,
        queries: settings.queries.as_deref().map(read_queries).transpose()?.unwrap_or_default(),
        free_form: settings.free_form.unwrap_or(FreeForm::Off),
        limits: settings.limits(DatabaseLimits::default()).unwrap_or_default(),
    })
}

/// Reads the queries of a file: a list, or an object with the field `queries`.
fn read_queries(file: &Path) -> Result<Vec<DatabaseQuery>, Failure> {
    let text = if file == Path::new("-") {
        standard_input()?
    } else {
        std::fs::read_to_string(file)
            .map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))?
    };
    let wrong = |error: String| Failure::usage(format!("{}: {error}", file.display()));
    let parsed = match policy::parse_yaml(&text).map_err(wrong)? {
        Value::Object(mut fields) => fields.remove("queries").unwrap_or_default(),
        list => list,
    };
    serde_json::from_value(parsed).map_err(|error| wrong(format!("not a list of queries: {error}")))
}

async fn add(context: &Context, client: &Client, new: &CreateDatabase, dry_run: bool) -> Result<(), Failure> {
    if dry_run {
        return report_check(context, &client.validate_database(new).await?);
    }
    let added = client.add_database(new).await?;
    report(context, &added, "added");
    Ok(())
}

/// Prints the outcome of a check, and fails if it failed.
fn report_check(context: &Context, check: &DatabaseCheck) -> Result<(), Failure> {
    match &check.error {
        None => {
            context.out.result(&json!(check), "the database can be queried, by a role that can only read");
            Ok(())
        }
        Some(error) => Err(Failure::failed(format!("the database cannot be used: {}", one_line(error)))),
    }
}

fn report(context: &Context, database: &DatabaseEntry, done: &str) {
    context.out.result(&json!(database), &format!("{done} {} ({})", one_line(&database.name), database.id));
}

async fn ls(context: &Context, client: &Client) -> Result<(), Failure> {
    let databases = client.databases().await?.databases;
    let row = |database: &DatabaseEntry| {
        vec![
            database.id.to_string(),
            one_line(&database.name),
            state(database).to_owned(),
            database.queries.len().to_string(),
            database.free_form.to_string(),
            one_line(&location(&database.target)),
        ]
    };
    let rows: Vec<_> = databases.iter().map(row).collect();
    let values = databases.iter().map(|database| json!(database)).collect();
    context.out.list(values, &["ID", "NAME", "STATE", "QUERIES", "FREE-FORM", "TARGET"], &rows);
    Ok(())
}

fn state(database: &DatabaseEntry) -> &'static str {
    if database.enabled { "enabled" } else { "disabled" }
}

fn location(target: &DatabaseTarget) -> String {
    match target {
        DatabaseTarget::Postgres { host, port, database, user, .. } => {
            format!("postgres://{user}@{host}:{port}/{database}")
        }
        DatabaseTarget::Sqlite { file } => format!("SQLite file {file}"),
    }
}

/// The database that a person named.
async fn find(context: &Context, named: OneDatabase) -> Result<(Client, DatabaseId), Failure> {
    let client = connect(context, named.place).await?;
    let all = client.databases().await?.databases.into_iter();
    let all: Vec<_> = all.map(|database| Candidate::new(database.id, [database.name])).collect();
    let id = pick(DATABASE_KIND, &named.database, &all)?;
    Ok((client, id))
}

fn show(context: &Context, detail: &DatabaseDetail) {
    if context.out.is_json() {
        context.out.result(&json!(detail), "");
        return;
    }
    let DatabaseDetail { database, actions, check } = detail;
    let (name, place) = (one_line(&database.name), one_line(&location(&database.target)));
    line(&format!("{name} ({}), {}: {place}", database.id, state(database)));
    if let Some(error) = &check.error {
        line(&format!("it cannot be queried: {}", one_line(error)));
    }
    for action in actions {
        line(&format!("  {} · {} · {}", one_line(&action.name), action.risk_level, action.mode));
        if let Some(query) = database.queries.iter().find(|query| query.name == action.name) {
            line(&format!("    {}", one_line(&query.description)));
        }
    }
}

async fn switch(context: &Context, database: OneDatabase, enabled: bool) -> Result<(), Failure> {
    let (client, id) = find(context, database).await?;
    let change = ChangeDatabase { enabled: Some(enabled), ..ChangeDatabase::default() };
    let changed = client.change_database(id, &change).await?;
    report(context, &changed, if enabled { "enabled" } else { "disabled" });
    Ok(())
}
