//! `GET /v1/changes`: a stream of the ids of sessions and inbox entries that have changed, as server-sent events. A client
//! that gets `ready` or `reload` reads its lists once, and after a `change` what it names.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use proto::http::{Change, ChangeQuery, ChangedEntry, ChangedKind, ErrorBody};
use store::{InboxKey, InboxKind};
use tokio::sync::broadcast::error::RecvError;

use super::auth::Caller;
use super::params::Query;
use super::{ApiError, contract};
use crate::access::{Act, may};
use crate::app::AppState;
use crate::changes::OrgChange;

/// How often a comment shows that the stream is alive.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// Streams which sessions and inbox entries have changed. The events are `ready`, `change` and, for a reader that was too
/// slow, `reload`. The stream ends with the caller's credential.
#[utoipa::path(get, path = "/v1/changes", tag = "sessions", params(ChangeQuery),
    responses((status = 200, body = Change, content_type = "text/event-stream"), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody)))]
pub(super) async fn follow(
    app: AppState,
    caller: Caller,
    Query(query): Query<ChangeQuery>,
) -> Result<Response, ApiError> {
    let (_, org) =
        contract::identity_and_organization(&app, &caller, query.organization_id.as_deref()).await?;
    let live = app.credentials.live.open(&caller);
    let live = live.ok_or_else(|| ApiError::forbidden(&Act::Watch.refusal()))?;
    // The slot of the request ends with its headers; the stream needs one until it ends.
    let slot = app.shares.requests.take(caller.party(), 1)?;
    let of_organization = may(Act::ReadOrganization, caller.kind(), false);
    let receiver = app.changes.follow(org).await?;
    let changes = stream::unfold(receiver, move |mut receiver| async move {
        loop {
            let event = match receiver.recv().await {
                Ok(change) => match visible(&change, of_organization) {
                    Some(change) => Event::default().event("change").json_data(&change).ok()?,
                    None => continue,
                },
                Err(RecvError::Lagged(_)) => named_event("reload"),
                Err(RecvError::Closed) => return None,
            };
            return Some((event, receiver));
        }
    });
    let closing = app.process.closing.clone();
    let ended = async move {
        let _slot = slot;
        tokio::select! {
            () = live.ended() => {}
            () = closing.cancelled_owned() => {}
        }
    };
    let events = stream::once(async { named_event("ready") }).chain(changes).map(Ok::<_, Infallible>);
    let events = events.take_until(Box::pin(ended));
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT_INTERVAL)).into_response())
}

/// An event without data. Browsers ignore an event whose data is absent.
fn named_event(name: &str) -> Event {
    Event::default().event(name).data("{}")
}

/// What a caller may know of a change; `None` if that is nothing.
fn visible(change: &Arc<OrgChange>, of_organization: bool) -> Option<Change> {
    let shown = |key: &&InboxKey| of_organization || (key.session.is_some() && key.kind != InboxKind::Run);
    let entry = |key: &InboxKey| ChangedEntry {
        kind: match key.kind {
            InboxKind::Approval => ChangedKind::Approval,
            InboxKind::Question => ChangedKind::Question,
            InboxKind::Run => ChangedKind::Run,
        },
        id: key.id.clone(),
        session_id: key.session,
    };
    let inbox: Vec<_> = change.inbox.iter().filter(shown).map(entry).collect();
    let sessions = change.sessions.clone();
    (!sessions.is_empty() || !inbox.is_empty()).then_some(Change { sessions, inbox })
}
