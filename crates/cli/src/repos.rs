//! `repos`: the repositories that sessions of an organization work on.

use std::path::Path;

use client::Client;
use proto::RepoId;
use proto::http::{AddRepo, RepoEntry};
use serde_json::json;
use url::Url;

use crate::args::{ReposArgs, ReposCommand};
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect;
use crate::lookup::{self, Candidate, pick};

const TABLE_HEADER: [&str; 4] = ["ID", "NAME", "BRANCH", "URL"];

pub(crate) async fn run(context: &Context, args: ReposArgs) -> Result<(), Failure> {
    let client = connect(context, args.gateway).await?;
    match args.command {
        ReposCommand::Ls => {
            let repos = client.repos().await?.repos;
            let rows: Vec<_> = repos.iter().map(row).collect();
            context.out.list(repos.iter().map(|repo| json!(repo)).collect(), &TABLE_HEADER, &rows);
        }
        ReposCommand::Add { repo, name, branch } => {
            let new = AddRepo { url: repo_url(&repo)?, name, default_branch: branch };
            let repo = client.add_repo(&new).await?;
            context.out.result(&json!(repo), &format!("added {} ({})", repo.name, repo.id));
        }
        ReposCommand::Rm { repos } => {
            let all = candidates(&client).await?;
            let ids: Vec<RepoId> =
                repos.iter().map(|named| pick(lookup::REPO, named, &all)).collect::<Result<_, _>>()?;
            for id in &ids {
                client.remove_repo(*id).await?;
            }
            context.out.result(&json!({ "removed": ids }), &format!("removed {}", repos.join(", ")));
        }
    }
    Ok(())
}

/// Every repository with its names: the name and the address.
pub(crate) async fn candidates(client: &Client) -> Result<Vec<Candidate<RepoId>>, Failure> {
    let repos = client.repos().await?.repos.into_iter();
    Ok(repos.map(|repo| Candidate::new(repo.id, [repo.name].into_iter().chain(repo.url))).collect())
}

/// The address of a repository: as given, or the `file` address of a directory.
pub(crate) fn repo_url(text: &str) -> Result<String, Failure> {
    if text.contains("://") {
        return Ok(text.to_owned());
    }
    let directory = Path::new(text).canonicalize();
    let url = directory.ok().and_then(|directory| Url::from_file_path(directory).ok());
    let wrong =
        || Failure::usage(format!("{text:?} is neither https://host/path nor a directory of this machine"));
    url.map(|url| url.to_string()).ok_or_else(wrong)
}

/// Splits `REPO=DIRECTORY`. An address may have a `=` in its query, so only what follows the last one can be a directory.
pub(crate) fn split_directory(text: &str) -> Option<(&str, &str)> {
    text.rsplit_once('=').filter(|(_, directory)| !directory.is_empty() && !directory.contains('/'))
}

fn row(repo: &RepoEntry) -> Vec<String> {
    let url = repo.url.clone().unwrap_or_else(|| "-".to_owned());
    vec![repo.id.to_string(), repo.name.clone(), repo.default_branch.clone(), url]
}
