//! `/v1/tickets`: short-lived credentials that a browser puts into a URL instead of its token.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use proto::TicketId;
use proto::http::{CreateTicket, ErrorBody, NewTicketReply, OkReply, TicketKind};
use secrecy::ExposeSecret as _;
use store::NewTicket;

use super::auth::{Caller, User, admit};
use super::params::Path;
use super::{ApiError, Body};
use crate::access::Act;
use crate::app::AppState;
use crate::identity::{Credential, CredentialKind};

/// How long a ticket is valid, for a socket and for proxied ports.
const SOCKET_TICKET_LIFETIME: Duration = Duration::from_mins(1);
const PROXY_TICKET_LIFETIME: Duration = Duration::from_hours(1);

/// Creates a ticket for one session of the caller's organization: for one socket connection, or for its proxied ports.
#[utoipa::path(post, path = "/v1/tickets", tag = "identity", request_body = CreateTicket,
    responses((status = 201, body = NewTicketReply), (status = 404, body = ErrorBody)))]
pub(super) async fn create(
    app: AppState,
    user: User,
    Body(request): Body<CreateTicket>,
) -> Result<(StatusCode, Json<NewTicketReply>), ApiError> {
    let standing = user.standing();
    let caller = Caller::User(user);
    let session = admit(&app, &caller, Some(request.session_id)).await?;
    let (kind, life) = match request.kind {
        TicketKind::Socket => (store::TicketKind::Socket, SOCKET_TICKET_LIFETIME),
        TicketKind::Proxy => {
            caller.must(Act::ChangeSession, caller.owns_session(&session))?;
            (store::TicketKind::Proxy, PROXY_TICKET_LIFETIME)
        }
    };
    let at = app.clock.now();
    let ticket = Credential::new(CredentialKind::Ticket, &app.rng);
    let new = NewTicket {
        id: TicketId::from(app.rng.uuid(at)),
        session_id: session.id,
        standing,
        kind,
        token_hash: ticket.hash,
        at,
        expires_at: at + life,
    };
    let (id, expires_at) = (new.id, new.expires_at);
    app.store.create_ticket(new).await?;
    let ticket = ticket.text.expose_secret().to_owned();
    Ok((StatusCode::CREATED, Json(NewTicketReply { id, ticket, expires_at })))
}

/// Revokes a ticket of the caller before it expires.
#[utoipa::path(delete, path = "/v1/tickets/{ticketId}", tag = "identity", params(("ticketId" = TicketId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn revoke(
    app: AppState,
    user: User,
    Path(id): Path<TicketId>,
) -> Result<Json<OkReply>, ApiError> {
    app.store.revoke_ticket(user.org, user.id, id, app.clock.now()).await?;
    Ok(Json(OkReply::OK))
}
