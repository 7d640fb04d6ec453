//! `configurations`: combinations of repositories that sessions start from.

use std::collections::BTreeMap;

use client::Client;
use proto::http::{ChangeConfiguration, ConfigurationEntry, CreateConfiguration, RepoPlace};
use proto::{ConfigurationId, RepoId};
use serde_json::json;

use crate::args::{ConfigurationsArgs, ConfigurationsCommand};
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect;
use crate::lookup::{self, Candidate, pick, refuse_taken};
use crate::output::line;
use crate::repos;

pub(crate) async fn run(context: &Context, args: ConfigurationsArgs) -> Result<(), Failure> {
    let client = connect(context, args.gateway).await?;
    match args.command {
        ConfigurationsCommand::Ls => ls(context, &client).await?,
        ConfigurationsCommand::Show { configuration } => {
            let id = find(&client, &configuration).await?;
            show(context, &client, &client.configuration(id).await?).await?;
        }
        ConfigurationsCommand::New { name, repos } => {
            refuse_taken(lookup::CONFIGURATION, &name, None, &candidates(&client).await?)?;
            let repos = places(&client, &repos).await?;
            let made = client.add_configuration(&CreateConfiguration { name, repos }).await?;
            context.out.result(&json!(made), &format!("created {} ({})", made.name, made.id));
        }
        ConfigurationsCommand::Rename { configuration, name } => {
            let id = find(&client, &configuration).await?;
            refuse_taken(lookup::CONFIGURATION, &name, Some(&id), &candidates(&client).await?)?;
            let change = ChangeConfiguration { name: Some(name), ..ChangeConfiguration::default() };
            let changed = client.change_configuration(id, &change).await?;
            context.out.result(&json!(changed), &format!("{id} is now {}", changed.name));
        }
        ConfigurationsCommand::Rm { configurations } => {
            let mut ids = Vec::new();
            for named in &configurations {
                ids.push(find(&client, named).await?);
            }
            for id in &ids {
                client.remove_configuration(*id).await?;
            }
            context.out.result(&json!({ "removed": ids }), &format!("removed {}", configurations.join(", ")));
        }
    }
    Ok(())
}

/// The id of the configuration with this name or id prefix. A complete id is returned without a lookup.
pub(crate) async fn find(client: &Client, named: &str) -> Result<ConfigurationId, Failure> {
    match named.parse() {
        Ok(id) => Ok(id),
        Err(_) => pick(lookup::CONFIGURATION, named, &candidates(client).await?),
    }
}

pub(crate) async fn candidates(client: &Client) -> Result<Vec<Candidate<ConfigurationId>>, Failure> {
    let all = client.configurations().await?.configurations.into_iter();
    Ok(all.map(|one| Candidate::new(one.id, [one.name])).collect())
}

async fn ls(context: &Context, client: &Client) -> Result<(), Failure> {
    let all = client.configurations().await?.configurations;
    let row = |one: &ConfigurationEntry| {
        let [kind, status] = [one.kind.to_string(), one.status.to_string()];
        vec![one.id.to_string(), one.name.clone(), kind, status, context.ago(one.updated_at)]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    let values = all.iter().map(|one| json!(one)).collect();
    context.out.list(values, &["ID", "NAME", "KIND", "STATUS", "CHANGED"], &rows);
    Ok(())
}

async fn show(context: &Context, client: &Client, one: &ConfigurationEntry) -> Result<(), Failure> {
    let columns = ["ID", "NAME", "KIND", "STATUS", "SNAPSHOT"];
    let snapshot = one.snapshot_id.clone().unwrap_or_else(|| "-".to_owned());
    let row =
        vec![one.id.to_string(), one.name.clone(), one.kind.to_string(), one.status.to_string(), snapshot];
    context.out.one(&json!(one), &columns, row);
    if context.out.is_json() || one.repos.is_empty() {
        return Ok(());
    }
    let known: BTreeMap<RepoId, String> =
        client.repos().await?.repos.into_iter().map(|repo| (repo.id, repo.name)).collect();
    let row = |place: &RepoPlace| {
        let name = known.get(&place.repo_id).cloned().unwrap_or_else(|| place.repo_id.to_string());
        vec![place.workspace_path.clone(), name]
    };
    line("");
    context.out.list(
        Vec::new(),
        &["DIRECTORY", "REPOSITORY"],
        &one.repos.iter().map(row).collect::<Vec<_>>(),
    );
    Ok(())
}

/// Finds the repositories of `REPO` or `REPO=DIRECTORY` and where they are placed.
async fn places(client: &Client, wanted: &[String]) -> Result<Vec<RepoPlace>, Failure> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let all = client.repos().await?.repos;
    let candidates: Vec<_> = all
        .iter()
        .map(|repo| Candidate::new(repo.id, [repo.name.clone()].into_iter().chain(repo.url.clone())))
        .collect();
    let mut places = Vec::new();
    for text in wanted {
        let (named, directory) = match repos::split_directory(text) {
            Some((named, directory)) => (named, Some(directory)),
            None => (text.as_str(), None),
        };
        let repo_id = pick(lookup::REPO, named, &candidates)?;
        let name =
            || all.iter().find(|repo| repo.id == repo_id).map(|repo| repo.name.clone()).unwrap_or_default();
        let workspace_path = match directory {
            Some(directory) => directory.to_owned(),
            None if wanted.len() == 1 => ".".to_owned(),
            None => name(),
        };
        places.push(RepoPlace { repo_id, workspace_path });
    }
    Ok(places)
}
