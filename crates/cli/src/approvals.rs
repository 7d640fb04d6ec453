//! `approvals`: lists the actions that wait for a person, and approves or denies them.

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

use client::Client;
use proto::http::{ApproveInvocation, DenyInvocation, InboxEntry, InboxItem, Invocation, SetActionMode};
use proto::socket::OpenApproval;
use proto::{InvocationId, InvocationStatus, JsonObject, ModeSource};
use serde_json::{Value, json};

use crate::args::{ApprovalsArgs, ApprovalsCommand};
use crate::clean::{one_line, shortened};
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect;
use crate::inbox;
use crate::json_file::read_json;
use crate::output::{ask, json_line, line, note};

/// The reason of a mode that asks because nobody has reviewed the definition of the action as it is now.
const DEFINITION_DRIFT: &str = "definition_drift";
/// How often `watch` asks for new requests.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The length of the parameters in a list.
const MAX_PARAMETERS_CHARS: usize = 80;

pub(crate) async fn run(context: &Context, args: ApprovalsArgs) -> Result<(), Failure> {
    let client = connect(context, args.gateway).await?;
    match args.command {
        ApprovalsCommand::Ls => {
            let waiting = waiting(&client).await?;
            let rows: Vec<_> =
                waiting.iter().map(|(entry, approval)| row(context, entry, approval)).collect();
            let values = waiting.iter().map(|(entry, _)| json!(entry)).collect();
            let columns = ["INVOCATION", "SESSION", "ACTION", "RISK", "SINCE", "DECIDE", "PARAMS"];
            context.out.list(values, &columns, &rows);
        }
        ApprovalsCommand::Approve { invocation, params, request_hash, always, yes } => {
            let found = client.org_invocation(find(&client, &invocation).await?).await?;
            let is_seen = request_hash.is_some() || params.is_some();
            let request_hash = seen_hash(&found, request_hash)?;
            let params = params.as_deref().map(edited_params).transpose()?;
            if !is_seen && !confirm(&found, yes)? {
                return Err(Failure::failed("nothing was approved"));
            }
            approve(context, &client, (&found, always), ApproveInvocation { params, request_hash }).await?;
        }
        ApprovalsCommand::Deny { invocation, reason } => {
            let id = find(&client, &invocation).await?;
            let denied = client
                .deny_invocation(id, &DenyInvocation { reason })
                .await
                .map_err(|error| explain_lost_answer(error, id))?;
            context.out.result(&json!(denied), &format!("denied {}", name(&denied)));
        }
        ApprovalsCommand::Watch => watch(context, &client).await?,
    }
    Ok(())
}

async fn approve(
    context: &Context,
    client: &Client,
    (found, always): (&Invocation, bool),
    approval: ApproveInvocation,
) -> Result<(), Failure> {
    if always {
        check_plain_mode(client, found).await?;
    }
    let id = found.id;
    let approved =
        client.approve_invocation(id, &approval).await.map_err(|error| explain_lost_answer(error, id))?;
    let text = approved_text(&approved);
    if !always || approved.status == InvocationStatus::Pending {
        context.out.result(&json!(approved), &text);
        return Ok(());
    }
    let key = key(&approved);
    let mode = SetActionMode { key: key.clone(), mode: json!("allow"), invocation_id: Some(id) };
    client
        .set_action_mode(&mode)
        .await
        .map_err(|error| Failure::from(error).and(&format!("{text}, but the mode of {key} is as before")))?;
    let revocation = format!(
        "the mode of {key} is allow from here on: `proliferate actions modes unset {key}` revokes it"
    );
    let still_asked = still_asked(&approved).map(|why| format!("\n{}", one_line(&why))).unwrap_or_default();
    context.out.result(&json!(approved), &format!("{text}\n{}{still_asked}", one_line(&revocation)));
    Ok(())
}

/// Why people are asked about an action again although the organization allows it now.
fn still_asked(approved: &Invocation) -> Option<String> {
    if approved.mode_source == ModeSource::AutomationOverride {
        return Some(
            "the session's automation has a mode of its own for this action, which still asks".to_owned(),
        );
    }
    let unreviewed = approved.mode_reason.as_deref() == Some(DEFINITION_DRIFT);
    let connector = approved.integration.strip_prefix("connector:").unwrap_or_default();
    unreviewed.then(|| {
        format!(
            "people are asked until somebody has reviewed the definition of this action: `proliferate connectors \
             review {connector} --all`"
        )
    })
}

/// Prints the parameters if a list cuts them, and then asks if there is somebody to answer: whether to approve.
fn confirm(found: &Invocation, yes: bool) -> Result<bool, Failure> {
    let params = found.params.to_string();
    if shortened(&params, MAX_PARAMETERS_CHARS) == params {
        return Ok(true);
    }
    note(&format!("{} is executed with {}", name(found), one_line(&params)));
    if yes || !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Ok(true);
    }
    ask("Approve it?")
}

fn edited_params(file: &Path) -> Result<JsonObject, Failure> {
    match read_json("--params", file)? {
        Value::Object(fields) => Ok(fields),
        _ => Err(Failure::usage("--params: expected a JSON object")),
    }
}

/// The hash of the parameters that the approver has seen. Those that the caller sent are in every list; edited ones must be
/// named, because they may differ from what the approver has read.
fn seen_hash(found: &Invocation, named: Option<String>) -> Result<Option<String>, Failure> {
    match (named, &found.request_hash) {
        (Some(named), Some(hash)) if named.len() >= 8 && hash.starts_with(&named) => Ok(Some(hash.clone())),
        (Some(named), _) => Ok(Some(named)),
        (None, Some(hash)) if found.edited => Err(Failure::failed(format!(
            "somebody has edited the parameters of {}: nothing was approved; they are {} now, which \
             `proliferate approvals approve {} --request-hash {hash}` approves",
            name(found),
            one_line(&found.params.to_string()),
            found.id
        ))),
        (None, hash) => Ok(hash.clone()),
    }
}

/// Refuses to replace a mode that says more than a word: `allow` would silently remove its conditions.
async fn check_plain_mode(client: &Client, found: &Invocation) -> Result<(), Failure> {
    let key = key(found);
    let modes = client.action_modes().await?.modes;
    if modes.iter().any(|set| set.key == key && set.mode.is_object()) {
        return Err(Failure::failed(format!(
            "the mode of {} has conditions or needs two people, which --always would remove: nothing was approved; \
             change the mode with `proliferate actions modes set`",
            one_line(&key)
        )));
    }
    Ok(())
}

fn key(invocation: &Invocation) -> String {
    format!("{}:{}", invocation.integration, invocation.action)
}

/// The actions that wait for approval, oldest first.
async fn waiting(client: &Client) -> Result<Vec<(InboxEntry, OpenApproval)>, Failure> {
    let entries = inbox::entries(client).await?.into_iter();
    Ok(entries
        .filter_map(|entry| match &entry.item {
            InboxItem::Approval(approval) => Some((entry.clone(), approval.clone())),
            InboxItem::Question(_) | InboxItem::Run(_) => None,
        })
        .collect())
}

/// The invocation with this complete id. Neither a name nor the beginning of an id is accepted: ids of requests that were
/// made within about a minute begin alike, so either could by now be another request, whose parameters nobody has read.
async fn find(client: &Client, named: &str) -> Result<InvocationId, Failure> {
    if let Ok(id) = named.parse() {
        return Ok(id);
    }
    let wanted = named.to_ascii_lowercase();
    let waiting = waiting(client).await?;
    let listed: Vec<String> = waiting
        .iter()
        .filter(|(_, approval)| approval.invocation_id.to_string().starts_with(&wanted))
        .map(|(_, approval)| format!("{}  {}", approval.invocation_id, one_line(&action(approval))))
        .collect();
    if wanted.is_empty() || listed.is_empty() {
        return Err(Failure::failed(format!(
            "there is no waiting invocation {named:?}: `proliferate approvals ls` shows them with their complete ids"
        )));
    }
    Err(Failure::usage(format!(
        "nothing was decided: {named:?} is only the beginning of an id, with which a newer request can begin too; \
         write the complete id:\n  {}",
        listed.join("\n  ")
    )))
}

/// Tells the person to look before deciding again if the gateway may have received the decision.
fn explain_lost_answer(error: client::Error, id: InvocationId) -> Failure {
    let sent = matches!(error, client::Error::Unreachable { sent: true, .. });
    let failure = Failure::from(error);
    if sent {
        return failure.and(&format!(
            "the gateway may have received the decision about {id}: `proliferate approvals ls` shows whether it still waits"
        ));
    }
    failure
}

fn action(approval: &OpenApproval) -> String {
    format!("{}:{}", approval.integration, approval.action)
}

fn name(invocation: &Invocation) -> String {
    one_line(&format!("{}:{} ({})", invocation.integration, invocation.action, invocation.id))
}

fn approved_text(invocation: &Invocation) -> String {
    let name = name(invocation);
    if invocation.status == InvocationStatus::Completed {
        return format!("executed {name}: {}", one_line(&invocation.result.to_string()));
    }
    if invocation.status == InvocationStatus::Pending {
        return format!("approved {name}: another owner or admin must approve it too");
    }
    format!("approved {name}: it is executed when its caller repeats it")
}

fn decides(entry: &InboxEntry) -> &'static str {
    match (entry.can_decide, entry.can_approve) {
        (true, Some(false)) => "deny only",
        (true, _) => "yes",
        (false, _) => "no",
    }
}

fn row(context: &Context, entry: &InboxEntry, approval: &OpenApproval) -> Vec<String> {
    vec![
        approval.invocation_id.to_string(),
        entry.session.as_ref().map_or_else(|| "-".to_owned(), |session| session.id.to_string()),
        one_line(&action(approval)),
        approval.risk_level.to_string(),
        context.ago(entry.since),
        decides(entry).to_owned(),
        one_line(&shortened(&approval.params.to_string(), MAX_PARAMETERS_CHARS)),
    ]
}

/// Why a person is asked about an action whose mode would not ask.
fn why_asked(approval: &OpenApproval) -> Option<String> {
    Some(match approval.mode_reason.as_deref()? {
        DEFINITION_DRIFT => format!(
            "nobody has reviewed the definition of this action as it is now: `proliferate connectors show {}` shows it",
            one_line(approval.integration.trim_start_matches("connector:"))
        ),
        reason => format!("asked because of {}", one_line(reason)),
    })
}

/// Prints each request once, as it appears.
async fn watch(context: &Context, client: &Client) -> Result<(), Failure> {
    let mut printed = BTreeSet::new();
    loop {
        for (entry, approval) in waiting(client).await? {
            if !printed.insert(approval.invocation_id) {
                continue;
            }
            if context.out.is_json() {
                json_line(&entry);
            } else {
                line(&shown(&entry, &approval));
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn shown(entry: &InboxEntry, approval: &OpenApproval) -> String {
    let session =
        entry.session.as_ref().map(|session| format!(" (session {})", session.id)).unwrap_or_default();
    let (id, risk) = (approval.invocation_id, approval.risk_level);
    let (action, params) = (one_line(&action(approval)), one_line(&approval.params.to_string()));
    let two = match approval.first_approved_by {
        Some(first) => format!("\n  approved by {first}, another person must approve it too"),
        None if approval.two_person => "\n  two people must approve it".to_owned(),
        None => String::new(),
    };
    let why = why_asked(approval).map(|why| format!("\n  {why}")).unwrap_or_default();
    format!("{id}{session}\n  {action} [{risk}]\n  {params}{why}{two}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_allows_an_action_for_good_is_told_why_it_is_asked_about_again() {
        let id = "00000000-0000-0000-0000-000000000001";
        let approved = |mode_source: &str, mode_reason: Option<&str>| -> Invocation {
            let invocation = json!({"id": id, "sessionId": null, "organizationId": id, "integrationId": null,
                "integration": format!("connector:{id}"), "action": "search", "riskLevel": "read", "mode": "require_approval",
                "modeSource": mode_source, "modeReason": mode_reason, "params": {}, "edited": false, "requestHash": null,
                "status": "completed", "result": null, "error": null, "deniedReason": null, "durationMs": 1,
                "twoPerson": false, "firstApprovedBy": null, "firstApprovedAt": null, "approvedBy": id,
                "approvedAt": null, "completedAt": null, "expiresAt": null, "createdAt": "2026-02-20T10:00:00.000Z"});
            serde_json::from_value(invocation).unwrap()
        };
        assert_eq!(still_asked(&approved("org_default", None)), None);
        let automation = still_asked(&approved("automation_override", None)).unwrap();
        assert!(automation.contains("the session's automation has a mode of its own"), "{automation}");
        let unreviewed = still_asked(&approved("inferred_default", Some(DEFINITION_DRIFT))).unwrap();
        assert!(unreviewed.ends_with(&format!("`proliferate connectors review {id} --all`")), "{unreviewed}");
    }
}
