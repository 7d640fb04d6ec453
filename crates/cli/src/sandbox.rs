//! `sandbox`: manages sandboxes by hand. They are identical to those of sessions; `run` and `bench` need no gateway.

mod bench;
mod egress_summary;
mod terminal;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;

use egress::{Mode, Recorder, RuleError, Rules};
use gateway::runtime::{SandboxHandle, SandboxRequest, Sandboxes, proxy_of};
use sandbox::{Isolation, SandboxId, SandboxInfo, SandboxState};
use serde_json::json;

use self::egress_summary::EgressSummary;
use crate::args::SandboxCommand;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{BOLD, RED};

pub(crate) async fn run(context: &Context, command: SandboxCommand) -> Result<ExitCode, Failure> {
    if let SandboxCommand::Leaked { end } = command {
        return list_leaked(context, end);
    }
    let sandboxes = Sandboxes::open(&context.config, context.insecure, &context.rng)?;
    if sandboxes.provider.capabilities().isolation == Isolation::None && !context.out.is_json() {
        let _ = writeln!(
            anstream::stderr(),
            "{RED}{BOLD}no isolation:{BOLD:#}{RED:#} this runs as you, on this machine"
        );
    }
    match command {
        SandboxCommand::Run { offline, command } => {
            let mode = if offline { Mode::Offline } else { Mode::Open };
            let id = fresh_id(context)?;
            let (recorder, summary) = EgressSummary::of(&id, &context.config.data_dir);
            let handle = start(context, &sandboxes, id.clone(), mode, recorder).await?;
            let ended = terminal::run(&handle.inside, command).await;
            drop(handle);
            let terminated = sandboxes.provider.terminate(&id).await;
            summary.show(context.out).await;
            terminated?;
            ended
        }
        SandboxCommand::Exec { id, command } => {
            let inside = sandboxes.reach(&find(&sandboxes, &id).await?).await?;
            terminal::run(&inside, command).await
        }
        SandboxCommand::Ls => ls(context, &sandboxes).await,
        SandboxCommand::Halt { ids, .. } => halt(context, &sandboxes, ids).await,
        // Handled above, before the data directory is opened.
        SandboxCommand::Leaked { end } => list_leaked(context, end),
        SandboxCommand::Rm { ids } => rm(context, &sandboxes, ids).await,
        SandboxCommand::Bench { count } => bench::run(context, &sandboxes, count).await,
    }
}

/// A new sandbox id; its prefix `run-` shows that this command created it.
fn fresh_id(context: &Context) -> Result<SandboxId, Failure> {
    let bytes = context.rng.bytes::<8>();
    let name = bytes.iter().fold(String::from("run-"), |name, byte| format!("{name}{byte:02x}"));
    Ok(SandboxId::new(name)?)
}

async fn start(
    context: &Context,
    sandboxes: &Sandboxes,
    id: SandboxId,
    mode: Mode,
    recorder: impl Recorder,
) -> Result<SandboxHandle, Failure> {
    let request = SandboxRequest {
        id,
        env: BTreeMap::new(),
        snapshot: None,
        proxy: proxy_of(rules(context, mode)?, recorder, &context.clock),
        gateway: None,
        programs: BTreeMap::new(),
    };
    Ok(sandboxes.start(request).await?)
}

fn rules(context: &Context, mode: Mode) -> Result<Rules, Failure> {
    let private = &context.config.egress_allowed_hosts;
    let rules = private.iter().try_fold(Rules::new(mode), |rules, entry| rules.allow_private(entry));
    rules.map_err(|error: RuleError| Failure::usage(format!("EGRESS_ALLOWED_HOSTS: {error}")))
}

async fn ls(context: &Context, sandboxes: &Sandboxes) -> Result<ExitCode, Failure> {
    let mut found = sandboxes.provider.list().await?;
    found.sort_by(|one, other| one.id.cmp(&other.id));
    let state = |state| match state {
        SandboxState::Running => "running",
        SandboxState::Paused => "paused",
        SandboxState::Dead => "dead",
        SandboxState::Incomplete => "unmade",
        SandboxState::Unknown => "unknown",
    };
    let rows: Vec<_> =
        found.iter().map(|listed| vec![listed.id.to_string(), state(listed.state).to_owned()]).collect();
    let values = found.iter().map(|listed| json!({ "id": listed.id.as_str(), "state": state(listed.state) }));
    context.out.list(values.collect(), &["ID", "STATE"], &rows);
    Ok(ExitCode::SUCCESS)
}

/// Ends the processes of these sandboxes, or of all running ones, and keeps their files.
async fn halt(context: &Context, sandboxes: &Sandboxes, ids: Vec<String>) -> Result<ExitCode, Failure> {
    let ids = find_all(sandboxes, &ids).await?;
    let there = sandboxes.provider.list().await?;
    let wanted = |listed: &&SandboxInfo| {
        let runs = matches!(listed.state, SandboxState::Running | SandboxState::Paused);
        if ids.is_empty() { runs } else { ids.contains(&listed.id) }
    };
    let mut halted = Vec::new();
    for listed in there.iter().filter(wanted) {
        sandboxes.provider.halt(&listed.id).await?;
        halted.push(listed.id.as_str());
    }
    let text =
        if halted.is_empty() { "nothing runs".to_owned() } else { format!("ended {}", halted.join(", ")) };
    context.out.result(&json!({ "ended": halted }), &text);
    Ok(ExitCode::SUCCESS)
}

/// Lists or ends sandboxes that are in no data directory, which it finds by their processes.
fn list_leaked(context: &Context, end: bool) -> Result<ExitCode, Failure> {
    let found = sandbox::local::find_leaked_sandboxes();
    if end {
        for leaked in &found {
            leaked.end()?;
        }
    }
    let rows: Vec<_> = found
        .iter()
        .map(|leaked| vec![leaked.pid.to_string(), leaked.uid.to_string(), leaked.home.display().to_string()])
        .collect();
    let values = found
        .iter()
        .map(|leaked| json!({ "pid": leaked.pid, "uid": leaked.uid, "home": leaked.home, "ended": end }));
    context.out.list(values.collect(), &["PID", "UID", "HOME"], &rows);
    Ok(ExitCode::SUCCESS)
}

/// The sandbox with this name or name prefix. Fails if there is none: terminating a missing sandbox would succeed and
/// hide a typing mistake.
async fn find(sandboxes: &Sandboxes, wanted: &str) -> Result<SandboxId, Failure> {
    let all = sandboxes.provider.list().await?;
    if let Some(one) = all.iter().find(|listed| listed.id.as_str() == wanted) {
        return Ok(one.id.clone());
    }
    let begins = all.into_iter().map(|listed| listed.id).filter(|id| id.as_str().starts_with(wanted));
    match begins.collect::<Vec<_>>().as_slice() {
        [one] if !wanted.is_empty() => Ok(one.clone()),
        [] => Err(Failure::failed(format!(
            "there is no sandbox {wanted:?}: `proliferate sandbox ls` shows them"
        ))),
        many => {
            let all = many.iter().map(SandboxId::as_str).collect::<Vec<_>>().join(", ");
            Err(Failure::usage(format!("{wanted:?} can be any of these: {all}")))
        }
    }
}

async fn find_all(sandboxes: &Sandboxes, wanted: &[String]) -> Result<Vec<SandboxId>, Failure> {
    let mut found = Vec::new();
    for id in wanted {
        found.push(find(sandboxes, id).await?);
    }
    Ok(found)
}

async fn rm(context: &Context, sandboxes: &Sandboxes, ids: Vec<String>) -> Result<ExitCode, Failure> {
    let ids = find_all(sandboxes, &ids).await?;
    for id in &ids {
        sandboxes.provider.terminate(id).await?;
    }
    let names: Vec<_> = ids.iter().map(SandboxId::as_str).collect();
    context.out.result(&json!({ "removed": names }), &format!("removed {}", names.join(", ")));
    Ok(ExitCode::SUCCESS)
}
