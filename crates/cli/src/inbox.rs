//! `inbox`: lists what waits for a human.

use std::collections::BTreeSet;
use std::time::Duration;

use client::{ChangeEvent, Client};
use proto::http::{InboxEntry, InboxItem, InboxQuery};
use serde_json::json;

use crate::args::InboxArgs;
use crate::clean::one_line;
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect;
use crate::output::{json_line, line};

/// The delay before the stream is opened again.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

pub(crate) async fn run(context: &Context, args: InboxArgs) -> Result<(), Failure> {
    let client = connect(context, args.gateway).await?;
    if args.watch {
        return watch(context, &client).await;
    }
    let entries = entries(&client).await?;
    let rows: Vec<_> = entries.iter().map(|entry| row(context, entry)).collect();
    let values = entries.iter().map(|entry| json!(entry)).collect();
    context.out.list(values, &["KIND", "ID", "SESSION", "TITLE", "SINCE", "DECIDE", "WHAT"], &rows);
    Ok(())
}

/// All that waits for a human, oldest first.
pub(crate) async fn entries(client: &Client) -> Result<Vec<InboxEntry>, client::Error> {
    let (mut entries, mut query) = (Vec::new(), InboxQuery { limit: Some(100), ..InboxQuery::default() });
    loop {
        let page = client.inbox(&query).await?;
        entries.extend(page.entries);
        query.after = page.next;
        if query.after.is_none() {
            return Ok(entries);
        }
    }
}

/// Prints each entry once, as it appears. Reconnects when the stream ends, for example because the gateway restarts.
async fn watch(context: &Context, client: &Client) -> Result<(), Failure> {
    let (mut printed, mut connected) = (BTreeSet::new(), false);
    loop {
        match follow(context, client, &mut printed, &mut connected).await {
            Err(error) if !(connected && error.is_transient()) => return Err(error.into()),
            Ok(()) | Err(_) => tokio::time::sleep(RECONNECT_DELAY).await,
        }
    }
}

/// Prints new entries until the stream ends.
async fn follow(
    context: &Context,
    client: &Client,
    printed: &mut BTreeSet<(String, String)>,
    connected: &mut bool,
) -> Result<(), client::Error> {
    let mut changes = client.changes().await?;
    *connected = true;
    while let Some(event) = changes.next().await? {
        if matches!(&event, ChangeEvent::Change(change) if change.inbox.is_empty()) {
            continue;
        }
        for entry in entries(client).await? {
            let row = row(context, &entry);
            if !printed.insert((row[1].clone(), row[2].clone())) {
                continue;
            }
            if context.out.is_json() {
                json_line(&entry);
            } else {
                line(&row.join("  "));
            }
        }
    }
    Ok(())
}

fn row(context: &Context, entry: &InboxEntry) -> Vec<String> {
    let (kind, id, what) = match &entry.item {
        InboxItem::Approval(approval) => {
            let what = format!("{} {} ({})", approval.integration, approval.action, approval.risk_level);
            ("approval", approval.invocation_id.to_string(), what)
        }
        InboxItem::Question(asked) => {
            let texts: Vec<&str> =
                asked.question.questions.iter().map(|item| item.question.as_str()).collect();
            ("question", asked.question.question_id.clone(), texts.join(" / "))
        }
        InboxItem::Run(run) => {
            let reason = run.reason.as_deref().unwrap_or("needs a human");
            ("run", run.run_id.to_string(), format!("{}: {reason}", run.automation_name))
        }
    };
    let session = entry.session.as_ref();
    vec![
        kind.to_owned(),
        one_line(&id),
        session.map_or_else(|| "-".to_owned(), |session| session.id.to_string()),
        session.and_then(|session| session.title.as_deref()).map_or_else(|| "-".to_owned(), one_line),
        context.ago(entry.since),
        if entry.can_decide { "yes" } else { "no" }.to_owned(),
        one_line(&what),
    ]
}
