//! `session new`: creates a session, from an empty workspace, a configuration or a repository.

use std::path::Path;
use std::process::{Command, ExitCode};

use client::{Client, Event, Watch};
use proto::http::{
    AddRepo, AgentConfig, CreateConfiguration, CreateSession, ExecCommand, ExecFrame, RepoEntry, RepoPlace,
    SubmittedSecret,
};
use proto::socket::ServerMessage;
use proto::{ClientType, ConfigurationId, SessionId, SessionType};
use serde_json::json;

use super::attach::AttachedSession;
use super::turns::Prompt;
use super::{env, key, send, work};
use crate::args::NewArgs;
use crate::configurations;
use crate::context::Context;
use crate::failure::Failure;
use crate::lookup::{self, Candidate, pick};
use crate::repos::repo_url;

pub(super) async fn create(context: &Context, client: Client, new: NewArgs) -> Result<ExitCode, Failure> {
    if new.prompt.as_deref().is_some_and(|prompt| prompt.trim().is_empty()) {
        return Err(Failure::usage("--prompt is empty: say what the agent is to do, or leave it out"));
    }
    check_branch(&new)?;
    let values = env::values(&new)?;
    let configuration_id = match (&new.configuration, &new.repo) {
        (Some(named), _) => Some(configurations::find(&client, named).await?),
        (None, Some(repo)) => Some(configuration_of(&client, &find_or_add(&client, repo).await?).await?),
        (None, None) => None,
    };
    // The session has its values and its branch before the agent gets its prompt.
    let is_prepared = new.branch.is_some() || !values.is_empty();
    let initial_prompt = new.prompt.clone().filter(|_| !is_prepared);
    let wanted = request(&new, configuration_id, initial_prompt);
    let made = client.create(&wanted, Some(&key(context))).await?;
    let id = made.session_id;
    let prepared = prepare(&client, id, values, new.branch.as_deref()).await;
    prepared.map_err(|failure| failure.and(&left_behind(id)))?;
    let value = json!({ "id": id, "status": made.status, "configurationId": made.configuration_id });
    context.out.result(&value, &id.to_string());
    let sent = match &new.prompt {
        Some(prompt) if is_prepared => Some(send(context, &client, id, prompt).await?),
        _ => None,
    };
    if new.attach {
        let attached = AttachedSession::open(context, client, id, false).await?;
        let prompt = sent.map(Prompt::Id).or(new.prompt.map(Prompt::Text));
        return attached.expecting(prompt).run().await;
    }
    if new.prompt.is_some() {
        boot(&client, id).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives a new session its values and its branch.
async fn prepare(
    client: &Client,
    id: SessionId,
    values: Vec<SubmittedSecret>,
    branch: Option<&str>,
) -> Result<(), Failure> {
    env::submit(client, id, values).await?;
    let Some(branch) = branch else { return Ok(()) };
    let _watching = work::wake(client, id).await?;
    check_out(client, id, branch).await
}

/// What to do about a session that exists, but is not as it was asked for.
fn left_behind(id: SessionId) -> String {
    format!(
        "the session {id} was made nevertheless: `proliferate session show {id}` shows it, `proliferate session rm {id}` \
         removes it"
    )
}

fn request(
    new: &NewArgs,
    configuration: Option<ConfigurationId>,
    initial_prompt: Option<String>,
) -> CreateSession {
    let model = new.model.clone().map(|id| AgentConfig { model_id: Some(id), ..AgentConfig::default() });
    CreateSession {
        organization_id: None,
        configuration_id: configuration.map(|id| id.to_string()),
        managed_configuration: None,
        cli_configuration: None,
        session_type: SessionType::Coding,
        client_type: ClientType::Cli,
        client_metadata: None,
        sandbox_mode: None,
        snapshot_id: None,
        initial_prompt,
        title: new.title.clone(),
        agent_config: model,
        system_prompt: None,
        automation_id: None,
        trigger_id: None,
        trigger_event_id: None,
        trigger_context: None,
        integration_ids: None,
        ssh_options: None,
    }
}

/// Boots a session so that it runs its first prompt: the first watcher boots it, and it keeps running after the
/// watcher disconnects.
async fn boot(client: &Client, id: SessionId) -> Result<(), Failure> {
    let mut stream = client.connect(id, Watch::default()).await?;
    while let Some(event) = stream.next().await {
        if matches!(event?, Event::Frame(frame) if matches!(frame.message, ServerMessage::Init { .. })) {
            break;
        }
    }
    Ok(())
}

/// The repository with this name, id or address; one with a new address is added, which only admins may do.
async fn find_or_add(client: &Client, named: &str) -> Result<RepoEntry, Failure> {
    let known = client.repos().await?.repos;
    let candidates: Vec<_> = known.iter().map(|repo| Candidate::new(repo.id, [repo.name.clone()])).collect();
    let is_address = named.contains("://") || Path::new(named).is_dir();
    let url = match pick(lookup::REPO, named, &candidates) {
        Ok(id) => {
            return known.into_iter().find(|repo| repo.id == id).ok_or_else(|| Failure::failed("it is gone"));
        }
        Err(failure) if !is_address => return Err(failure),
        Err(_) => match origin_of(named) {
            Some(origin) => origin,
            None => repo_url(named)?,
        },
    };
    let bare = |url: &str| url.trim_end_matches('/').trim_end_matches(".git").to_owned();
    let same = |repo: &&RepoEntry| repo.url.as_deref().is_some_and(|known| bare(known) == bare(&url));
    match known.iter().find(same) {
        Some(repo) => Ok(repo.clone()),
        None => Ok(client.add_repo(&AddRepo { url, name: None, default_branch: None }).await?),
    }
}

/// The https address that a local clone comes from.
fn origin_of(directory: &str) -> Option<String> {
    if directory.contains("://") {
        return None;
    }
    let asked = Command::new("git").args(["-C", directory, "remote", "get-url", "origin"]).output().ok()?;
    let origin = String::from_utf8(asked.stdout).ok().filter(|_| asked.status.success())?;
    https_origin(origin.trim())
}

/// Turns `git@host:path` into an address that the gateway can fetch with its own credential.
fn https_origin(origin: &str) -> Option<String> {
    if origin.starts_with("https://") || origin.starts_with("http://") {
        return Some(origin.to_owned());
    }
    let rest = origin.strip_prefix("ssh://").unwrap_or(origin);
    let (_, place) = rest.split_once('@')?;
    let (host, path) = place.split_once([':', '/'])?;
    Some(format!("https://{host}/{path}"))
}

/// A configuration with this repository alone, in the workspace itself. An existing one of the same name is used again.
async fn configuration_of(client: &Client, repo: &RepoEntry) -> Result<ConfigurationId, Failure> {
    for one in client.configurations().await?.configurations {
        if one.name == repo.name {
            let whole = client.configuration(one.id).await?;
            if matches!(whole.repos.as_slice(), [place] if place.repo_id == repo.id) {
                return Ok(one.id);
            }
        }
    }
    let repos = vec![RepoPlace { repo_id: repo.id, workspace_path: ".".to_owned() }];
    Ok(client.add_configuration(&CreateConfiguration { name: repo.name.clone(), repos }).await?.id)
}

fn check_branch(new: &NewArgs) -> Result<(), Failure> {
    let fine =
        |branch: &str| !branch.is_empty() && !branch.starts_with('-') && !branch.contains([' ', ':', '\n']);
    match &new.branch {
        Some(_) if new.repo.is_none() && new.configuration.is_none() => {
            Err(Failure::usage("--branch belongs to a repository: name one with --repo or --configuration"))
        }
        Some(branch) if !fine(branch) => Err(Failure::usage("--branch is not the name of a branch")),
        _ => Ok(()),
    }
}

/// Fetches and checks out a branch in the workspace, before the agent works there.
async fn check_out(client: &Client, id: SessionId, branch: &str) -> Result<(), Failure> {
    let refs = format!("+refs/heads/{branch}:refs/remotes/origin/{branch}");
    let tracked = format!("origin/{branch}");
    for command in [
        vec!["git", "fetch", "--quiet", "origin", &refs],
        // A clone of one branch tracks no others.
        vec!["git", "checkout", "--quiet", "--no-track", "-B", branch, &tracked],
    ] {
        let command = command.into_iter().map(str::to_owned).collect();
        let command = ExecCommand { command, cwd: None, stdin: None, timeout_seconds: None };
        let mut running = client.exec(id, &command).await?;
        let mut stderr = Vec::new();
        loop {
            match running.next().await? {
                Some(ExecFrame::Exit { exit_code: 0, .. }) => break,
                Some(ExecFrame::Stdout { .. }) => {}
                Some(ExecFrame::Stderr { data }) => stderr.extend(work::decoded(&data)?),
                Some(ExecFrame::Error { message }) => return Err(Failure::failed(message)),
                Some(ExecFrame::Exit { .. }) | None => {
                    let reason = String::from_utf8_lossy(&stderr);
                    let reason = format!("the branch {branch} cannot be checked out: {}", reason.trim());
                    return Err(Failure::failed(reason));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ssh_origin_becomes_an_https_address() {
        for (origin, address) in [
            ("git@example.com:team/one.git", Some("https://example.com/team/one.git")),
            ("ssh://git@example.com/team/one", Some("https://example.com/team/one")),
            ("https://example.com/a", Some("https://example.com/a")),
            ("/srv/git/one", None),
        ] {
            assert_eq!(https_origin(origin).as_deref(), address, "{origin}");
        }
    }
}
