//! `/v1/inbox`: approvals, questions and runs of automations that wait for a human.

use axum::Json;
use proto::http::{
    ErrorBody, Inbox, InboxEntry as WireEntry, InboxItem as WireItem, InboxQuery, InboxQuestion, InboxRun,
    InboxSession,
};
use proto::socket::OpenApproval;
use proto::{AutomationRef, UserId};
use store::{InboxCursor, InboxEntry, InboxFilter, InboxItem};

use super::auth::Caller;
use super::invocations::approver;
use super::params::Query;
use super::{ApiError, contract};
use crate::access::{Act, may};
use crate::app::AppState;

const DEFAULT_PAGE_SIZE: u32 = 50;
const MAX_PAGE: u32 = 100;

/// Lists what waits for a human in the organization, the oldest first. A service sees only what belongs to sessions.
#[utoipa::path(get, path = "/v1/inbox", tag = "sessions", params(InboxQuery),
    responses((status = 200, body = Inbox), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody)))]
pub(super) async fn list(
    app: AppState,
    caller: Caller,
    Query(query): Query<InboxQuery>,
) -> Result<Json<Inbox>, ApiError> {
    let (_, org) =
        contract::identity_and_organization(&app, &caller, query.organization_id.as_deref()).await?;
    let after = query.after.as_deref().map(str::parse::<InboxCursor>).transpose();
    let after = after.map_err(|error| ApiError::bad_request(error.to_string()))?;
    let limit = query.limit.unwrap_or(DEFAULT_PAGE_SIZE).clamp(1, MAX_PAGE);
    let of_organization = may(Act::ReadOrganization, caller.kind(), false);
    let filter = InboxFilter { org, of_organization, limit, after };
    let found = app.store.inbox(filter, app.clock.now()).await?;
    let full = found.len() == limit as usize;
    let next = found.last().filter(|_| full).map(|last| InboxCursor::after(last).to_string());
    let entries = found.into_iter().map(|entry| wire_entry(&caller, entry)).collect();
    Ok(Json(Inbox { entries, next }))
}

fn wire_entry(caller: &Caller, entry: InboxEntry) -> WireEntry {
    let (can_decide, can_approve) = (can_decide(caller, &entry), can_approve(caller, &entry.item));
    let InboxEntry { session, since, item } = entry;
    let item = match item {
        InboxItem::Approval { approval, .. } => WireItem::Approval(approval),
        InboxItem::Question { question, expires_at } => {
            WireItem::Question(InboxQuestion { question, expires_at })
        }
        InboxItem::Run { id, automation: (automation_id, automation_name), reason, assigned_to } => {
            WireItem::Run(InboxRun { run_id: id, automation_id, automation_name, reason, assigned_to })
        }
    };
    let session = session.map(|session| InboxSession {
        id: session.id,
        title: session.title,
        created_by: session.created_by,
        automation: session.automation.map(|(id, name)| AutomationRef { id, name }),
    });
    WireEntry { item, since, can_decide, can_approve, session }
}

/// Whether the caller may approve this item, for one that it may decide about.
fn can_approve(caller: &Caller, item: &InboxItem) -> Option<bool> {
    let InboxItem::Approval { by_key, approval, requester } = item else { return None };
    let by = decider(caller, *by_key)?;
    let OpenApproval { two_person, first_approved_by, .. } = *approval;
    Some(gate::Participants { requester: *requester, two_person, first_approved_by }.may_approve(by).is_ok())
}

/// The caller, if it may decide about approvals.
fn decider(caller: &Caller, by_key: bool) -> Option<UserId> {
    approver(caller, by_key).ok().filter(|_| may(Act::DecideInvocation, caller.kind(), false))
}

/// Whether the caller may approve or deny, answer or settle this entry, as the routes for that decide.
fn can_decide(caller: &Caller, entry: &InboxEntry) -> bool {
    match &entry.item {
        InboxItem::Approval { by_key, .. } => decider(caller, *by_key).is_some(),
        InboxItem::Question { .. } => {
            let creator = entry.session.as_ref().and_then(|session| session.created_by);
            let owns = matches!(caller, Caller::User(user) if creator.is_none_or(|by| by == user.id));
            may(Act::Prompt, caller.kind(), owns)
        }
        InboxItem::Run { .. } => may(Act::RunAutomation, caller.kind(), false),
    }
}
