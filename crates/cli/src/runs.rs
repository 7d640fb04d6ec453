//! `runs`: the runs of automations, and what people do about them.

use client::Client;
use proto::http::{AssignRun, AutomationRunDetail, AutomationRunEntry, ResolveRun};
use proto::{AutomationRunId, UserId};
use serde_json::json;

use crate::args::{RunsArgs, RunsCommand};
use crate::automations;
use crate::clean::{clean, shortened};
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect;
use crate::lookup::{self, Candidate, pick};
use crate::output::line;

/// The most recent runs, among which the beginning of an id is searched.
const MAX_SEARCHED_RUNS: u32 = 100;
const MAX_REASON_CHARS: usize = 60;
const TABLE_HEADER: [&str; 6] = ["ID", "AUTOMATION", "STATUS", "TRIGGER", "QUEUED", "REASON"];

pub(crate) async fn run(context: &Context, args: RunsArgs) -> Result<(), Failure> {
    let client = connect(context, args.gateway).await?;
    match args.command {
        RunsCommand::Ls { automation, status, limit } => {
            let automation = match automation {
                Some(named) => Some(automations::find(&client, &named).await?),
                None => None,
            };
            let runs = client.automation_runs(automation, status, limit).await?.runs;
            let rows: Vec<_> = runs.iter().map(|run| row(context, run)).collect();
            context.out.list(runs.iter().map(|run| json!(run)).collect(), &TABLE_HEADER, &rows);
        }
        RunsCommand::Show { run } => {
            let id = find(&client, &run).await?;
            show(context, &client.automation_run(id).await?);
        }
        RunsCommand::Cancel { run } => {
            let run = client.cancel_automation_run(find(&client, &run).await?).await?;
            context.out.result(&json!(run), &format!("{} is {}", run.id, run.status));
        }
        RunsCommand::Rerun { run } => {
            let run = client.rerun_automation_run(find(&client, &run).await?).await?;
            context.out.result(&json!(run), &format!("started {}", run.id));
        }
        RunsCommand::Assign { run, to, nobody } => {
            let id = find(&client, &run).await?;
            let user_id = match to {
                Some(named) => Some(Some(find_member(&client, &named).await?)),
                None if nobody => Some(None),
                None => None,
            };
            let run = client.assign_automation_run(id, &AssignRun { user_id }).await?;
            let whom = run.assigned_to.map_or_else(|| "nobody".to_owned(), |user| user.to_string());
            context.out.result(&json!(run), &format!("{id} is assigned to {whom}"));
        }
        RunsCommand::Resolve { run, outcome, comment } => {
            let id = find(&client, &run).await?;
            let run = client.resolve_automation_run(id, &ResolveRun { outcome, comment }).await?;
            context.out.result(&json!(run), &format!("{id} is {}", run.status));
        }
    }
    Ok(())
}

/// The id of the run that begins with this text. A complete id is returned without a lookup.
async fn find(client: &Client, named: &str) -> Result<AutomationRunId, Failure> {
    match named.parse() {
        Ok(id) => Ok(id),
        Err(_) => pick(lookup::RUN, named, &candidates(client).await?),
    }
}

pub(crate) async fn candidates(client: &Client) -> Result<Vec<Candidate<AutomationRunId>>, Failure> {
    let runs = client.automation_runs(None, None, MAX_SEARCHED_RUNS).await?.runs.into_iter();
    Ok(runs.map(|run| Candidate::new(run.id, Vec::new())).collect())
}

async fn find_member(client: &Client, named: &str) -> Result<UserId, Failure> {
    let members = client.members().await?.members.into_iter();
    let members: Vec<_> = members.map(|one| Candidate::new(one.user_id, [one.email, one.name])).collect();
    pick(lookup::USER, named, &members)
}

fn row(context: &Context, run: &AutomationRunEntry) -> Vec<String> {
    let waiting = run.waiting_for.map(|what| format!(" (waits for {what})")).unwrap_or_default();
    vec![
        run.id.to_string(),
        clean(&run.automation_name),
        format!("{}{waiting}", run.status),
        run.trigger.to_string(),
        context.ago(run.queued_at),
        shortened(&clean(run.status_reason.as_deref().unwrap_or("-")), MAX_REASON_CHARS),
    ]
}

fn show(context: &Context, detail: &AutomationRunDetail) {
    let run = &detail.run;
    context.out.one(&json!(detail), &TABLE_HEADER, row(context, run));
    if context.out.is_json() {
        return;
    }
    if let Some(session) = run.session_id {
        line(&format!("session {session}: `proliferate session show {session}` has the conversation"));
    }
    if let Some(completion) = &run.completion {
        line(&format!("\n{}", completion.outcome));
        line(&clean(completion.summary_markdown.as_deref().unwrap_or_default()));
    }
    line("");
    let rows: Vec<_> = detail
        .events
        .iter()
        .map(|event| {
            let to = event.to.map(|status| status.to_string()).unwrap_or_default();
            let detail = clean(event.detail.as_deref().unwrap_or_default());
            vec![context.ago(event.at), event.kind.to_string(), to, event.actor.clone(), detail]
        })
        .collect();
    context.out.list(Vec::new(), &["AT", "EVENT", "STATUS", "BY", "DETAIL"], &rows);
}
