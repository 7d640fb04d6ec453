//! `inbox`: lists what waits for a human.

use client::Client;
use proto::http::{InboxEntry, InboxItem, InboxQuery};
use serde_json::json;

use crate::args::InboxArgs;
use crate::clean::one_line;
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect;

pub(crate) async fn run(context: &Context, args: InboxArgs) -> Result<(), Failure> {
    let client = connect(context, args.gateway).await?;
    let entries = entries(&client).await?;
    let rows: Vec<_> = entries.iter().map(|entry| row(context, entry)).collect();
    let values = entries.iter().map(|entry| json!(entry)).collect();
    context.out.list(values, &["KIND", "ID", "SESSION", "TITLE", "SINCE", "DECIDE", "WHAT"], &rows);
    Ok(())
}

/// All that waits for a human, oldest first.
pub(crate) async fn entries(client: &Client) -> Result<Vec<InboxEntry>, Failure> {
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
