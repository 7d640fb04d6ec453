//! `/v1/inbox`: approvals, questions and runs of automations that wait for a human.

use axum::Json;
use proto::AutomationRef;
use proto::http::{
    ErrorBody, Inbox, InboxEntry as WireEntry, InboxItem as WireItem, InboxQuery, InboxQuestion, InboxRun,
    InboxSession,
};
use store::{InboxCursor, InboxEntry, InboxFilter, InboxItem, UserCredential};

use super::auth::Caller;
use super::params::Query;
use super::{ApiError, contract};
use crate::access::{Act, may};
use crate::app::AppState;

const PAGE: u32 = 50;
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
    let limit = query.limit.unwrap_or(PAGE).clamp(1, MAX_PAGE);
    let of_organization = may(Act::ReadOrganization, caller.kind(), false);
    let filter = InboxFilter { org, of_organization, limit, after };
    let found = app.store.inbox(filter, app.clock.now()).await?;
    let full = found.len() == limit as usize;
    let next = found.last().filter(|_| full).map(|last| InboxCursor::after(last).to_string());
    let entries = found.into_iter().map(|entry| shown(&caller, entry)).collect();
    Ok(Json(Inbox { entries, next }))
}

fn shown(caller: &Caller, entry: InboxEntry) -> WireEntry {
    let can_decide = can_decide(caller, &entry);
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
    WireEntry { item, since, can_decide, session }
}

/// Whether the caller may approve, answer or settle this entry, as the routes for that decide.
fn can_decide(caller: &Caller, entry: &InboxEntry) -> bool {
    match &entry.item {
        InboxItem::Approval { by_key, approval } => {
            let Caller::User(user) = caller else { return false };
            let with_key = matches!(user.credential, UserCredential::ApiKey(_));
            let creator = entry.session.as_ref().and_then(|session| session.created_by);
            let took_part = [creator, approval.first_approved_by].contains(&Some(user.id));
            user.may(Act::DecideInvocation, false)
                && !(*by_key && with_key)
                && !(approval.two_person && took_part)
        }
        InboxItem::Question { .. } => {
            let creator = entry.session.as_ref().and_then(|session| session.created_by);
            let owns = matches!(caller, Caller::User(user) if creator.is_none_or(|by| by == user.id));
            may(Act::Prompt, caller.kind(), owns)
        }
        InboxItem::Run { .. } => may(Act::RunAutomation, caller.kind(), false),
    }
}
