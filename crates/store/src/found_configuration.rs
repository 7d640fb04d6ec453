//! Configurations that the gateway finds or creates: for the organization's repositories, and for a user's directory.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use proto::{ConfigurationId, OrgId, RepoId, UserId};
use uuid::Uuid;

use crate::configuration::{INSERT_REPO_LINK, configurations};
use crate::gate::administer;
use crate::member::HOLD_ORG;
use crate::{Configuration, Store, StoreError};

/// The managed configuration to find or create.
#[derive(Clone, Debug)]
pub struct WantedManaged {
    pub org_id: OrgId,
    /// Exactly these repositories. If empty, any configuration matches, and a new one gets all repositories.
    pub repo_ids: Option<Vec<RepoId>>,
    /// The id of a new configuration.
    pub id: ConfigurationId,
    pub sandbox_provider: String,
    pub created_by: Option<UserId>,
    pub at: DateTime<Utc>,
}

/// The configuration of a user's directory to find or create.
#[derive(Clone, Debug)]
pub struct WantedCli {
    pub org_id: OrgId,
    pub user_id: UserId,
    pub local_path_hash: String,
    /// The directory's name, for people.
    pub display_name: Option<String>,
    /// The ids of a new configuration and its repository.
    pub id: ConfigurationId,
    pub repo_id: RepoId,
    pub sandbox_provider: String,
    pub at: DateTime<Utc>,
}

/// The configuration that was found or created.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundConfiguration {
    pub configuration: Configuration,
    pub is_new: bool,
}

/// The name of an unnamed directory.
const LOCAL_NAME: &str = "Local Directory";
const SELECT_CONFIGURATION: &str = configurations!("WHERE c.org_id = $1 AND c.id = $2");

/// Repositories that the gateway can clone.
const SELECT_REPOS: &str = "SELECT id, name FROM repos WHERE org_id = $1 AND source <> 'local'
    ORDER BY created_at, id";
/// The managed configurations, those with a snapshot first because they start faster.
const SELECT_LINKS: &str = "SELECT c.id, cr.repo_id FROM configurations c
    JOIN configuration_repos cr ON cr.configuration_id = c.id
    WHERE c.org_id = $1 AND c.kind = 'managed'
    ORDER BY CASE WHEN c.snapshot_id IS NULL THEN 1 ELSE 0 END, c.created_at, c.id";
const MAKE_MANAGED: &str =
    "INSERT INTO configurations (id, org_id, name, kind, status, sandbox_provider, created_by,
    created_at, updated_at) VALUES ($1, $2, 'Managed Configuration', 'managed', 'building', $3, $4, $5, $5)";

impl Store {
    /// Finds or creates a managed configuration. Of several concurrent callers, one creates it.
    /// `None`: the organization has no repositories at all.
    pub async fn find_or_create_managed(
        &self,
        wanted: WantedManaged,
    ) -> Result<Option<FoundConfiguration>, StoreError> {
        let org = wanted.org_id.uuid();
        let named = wanted.repo_ids.filter(|ids| !ids.is_empty());
        administer!(self, tx => {
            // No constraint makes a set of repositories unique, so callers take turns.
            sqlx::query(HOLD_ORG).bind(org).execute(&mut *tx).await?;
            let all: Vec<(Uuid, String)> = sqlx::query_as(SELECT_REPOS).bind(org).fetch_all(&mut *tx).await?;
            if all.is_empty() {
                return Ok(None);
            }
            let chosen = select_repos(all, named.as_deref())?;
            let links: Vec<(Uuid, Uuid)> = sqlx::query_as(SELECT_LINKS).bind(org).fetch_all(&mut *tx).await?;
            let exactly = named.is_some().then_some(chosen.as_slice());
            if let Some(id) = find_matching_configuration(&links, exactly) {
                let configuration = sqlx::query_as(SELECT_CONFIGURATION).bind(org).bind(id).fetch_one(&mut *tx).await?;
                return Ok(Some(FoundConfiguration { configuration, is_new: false }));
            }
            let id = wanted.id.uuid();
            sqlx::query(MAKE_MANAGED)
                .bind(id).bind(org).bind(wanted.sandbox_provider).bind(wanted.created_by.map(UserId::uuid))
                .bind(wanted.at).execute(&mut *tx).await?;
            let paths = workspace_paths(chosen.iter().map(|(_, name)| name.as_str()));
            for ((repo, _), path) in chosen.iter().zip(paths) {
                sqlx::query(INSERT_REPO_LINK).bind(id).bind(repo).bind(org).bind(path).execute(&mut *tx).await?;
            }
            let configuration = sqlx::query_as(SELECT_CONFIGURATION).bind(org).bind(id).fetch_one(&mut *tx).await?;
            Ok(Some(FoundConfiguration { configuration, is_new: true }))
        })
        .map_err(|error: StoreError| error.on_constraint("this configuration", "this organization or user"))
    }

    /// Finds or creates the configuration of a user's directory. Of several concurrent callers, one creates it.
    pub async fn find_or_create_cli(&self, wanted: WantedCli) -> Result<FoundConfiguration, StoreError> {
        const INSERT_CONFIGURATION: &str =
            "INSERT INTO configurations (id, org_id, name, kind, status, sandbox_provider, user_id,
            local_path_hash, created_by, created_at, updated_at)
            VALUES ($1, $2, $3, 'cli', 'pending', $4, $5, $6, $5, $7, $7)
            ON CONFLICT (org_id, user_id, local_path_hash) DO NOTHING";
        const INSERT_REPO: &str =
            "INSERT INTO repos (id, org_id, name, source, local_path_hash, default_branch, branch_given,
            is_private, added_by, created_at) VALUES ($1, $2, $3, 'local', $4, 'main', false, true, $5, $6)";
        const SELECT_BY_PATH: &str =
            configurations!("WHERE c.org_id = $1 AND c.user_id = $2 AND c.local_path_hash = $3");
        administer!(self, tx => {
            let (org, user, id) = (wanted.org_id.uuid(), wanted.user_id.uuid(), wanted.id.uuid());
            let (hash, name) = (wanted.local_path_hash, wanted.display_name.unwrap_or_else(|| LOCAL_NAME.to_owned()));
            let made = sqlx::query(INSERT_CONFIGURATION)
                .bind(id).bind(org).bind(&name).bind(wanted.sandbox_provider).bind(user).bind(&hash)
                .bind(wanted.at).execute(&mut *tx).await?;
            let is_new = made.rows_affected() == 1;
            if is_new {
                let repo = wanted.repo_id.uuid();
                sqlx::query(INSERT_REPO)
                    .bind(repo).bind(org).bind(&name).bind(&hash).bind(user).bind(wanted.at)
                    .execute(&mut *tx).await?;
                sqlx::query(INSERT_REPO_LINK).bind(id).bind(repo).bind(org).bind(".").execute(&mut *tx).await?;
            }
            let configuration = sqlx::query_as(SELECT_BY_PATH).bind(org).bind(user).bind(hash).fetch_one(&mut *tx).await?;
            Ok(FoundConfiguration { configuration, is_new })
        })
        .map_err(|error: StoreError| {
            error.on_constraint("this configuration or repository", "this organization or user")
        })
    }
}

/// Selects the wanted repositories. One of another organization does not exist here.
fn select_repos(
    all: Vec<(Uuid, String)>,
    wanted: Option<&[RepoId]>,
) -> Result<Vec<(Uuid, String)>, StoreError> {
    let Some(wanted) = wanted else { return Ok(all) };
    let wanted: BTreeSet<Uuid> = wanted.iter().map(|id| id.uuid()).collect();
    let chosen: Vec<_> = all.into_iter().filter(|(id, _)| wanted.contains(id)).collect();
    if chosen.len() == wanted.len() { Ok(chosen) } else { Err(StoreError::Missing("this repository")) }
}

/// The first configuration with exactly these repositories, or the first of all.
fn find_matching_configuration(links: &[(Uuid, Uuid)], exactly: Option<&[(Uuid, String)]>) -> Option<Uuid> {
    let Some(exactly) = exactly else { return links.first().map(|(configuration, _)| *configuration) };
    let wanted: BTreeSet<Uuid> = exactly.iter().map(|(repo, _)| *repo).collect();
    links
        .chunk_by(|one, other| one.0 == other.0)
        .find(|links| links.iter().map(|(_, repo)| *repo).collect::<BTreeSet<_>>() == wanted)
        .and_then(|links| links.first().map(|(configuration, _)| *configuration))
}

/// A directory for each repository: the workspace itself for a single one, else its short name, made unique.
fn workspace_paths<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Vec<String> {
    if names.len() == 1 {
        return vec![".".to_owned()];
    }
    let mut taken = BTreeSet::new();
    names
        .map(|name| {
            let short = short_name(name);
            let numbered = (2..).map(|number| format!("{short}-{number}"));
            let mut free =
                std::iter::once(short.clone()).chain(numbered).filter(|path| !taken.contains(path));
            let path = free.next().unwrap_or_default();
            taken.insert(path.clone());
            path
        })
        .collect()
}

/// The last part of a repository's name, made safe as a directory inside the workspace.
fn short_name(name: &str) -> String {
    let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let short: String = last.chars().map(safe).collect();
    let short = short.trim_start_matches(['.', '-']);
    if short.is_empty() { "repo".to_owned() } else { short.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_repository_gets_its_own_directory_in_the_workspace() {
        let paths = |names: &[&str]| workspace_paths(names.iter().copied());
        assert_eq!(paths(&["acme/app"]), ["."]);
        let many = ["acme/app", "other/app", "x/app-2", "../..", "a/.git", "a b", "", "c/"];
        assert_eq!(paths(&many), ["app", "app-2", "app-2-2", "repo", "git", "a-b", "repo-2", "c"]);
        assert!(paths(&[]).is_empty());
    }
}
