//! Clients of sessions that cannot be opened because the gateway's disk is full. Such a client gets the stored
//! conversation and the reason, and stays connected until there is space. If the gateway closed the connection, all
//! these clients would reconnect at once.

use std::pin::pin;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use futures_util::StreamExt as _;
use proto::socket::{ClientMessage, CloseCode, ServerMessage, WireStatus};
use tokio::time::sleep;

use super::{End, GATEWAY_STOPS, OVER_SHARE, Visitor, in_time, text};
use crate::app::AppState;
use crate::hub::{read_init, to_one};

/// The delay before the gateway tries to open the session again.
const RETRY_DELAY: Duration = Duration::from_secs(5);
const DISK_FULL_MESSAGE: &str =
    "The gateway's disk is full: nothing new is accepted until its operator frees some space.";

/// Sends the stored conversation and the reason why the session does not open. A client that has a cursor already has
/// the conversation; any other gets a cursor here, so that it later continues from this point.
pub(super) async fn send_stored_conversation(
    app: &AppState,
    visitor: &Visitor,
    since: &mut Option<i64>,
    socket: &mut WebSocket,
) -> Result<(), End> {
    if since.is_none() {
        let stored = read_init(&app.store, &app.clock, visitor.session).await;
        let (init, seq) = stored.map_err(|_| End::Away(CloseCode::DISK_FULL))?;
        in_time(socket.send(Message::Text(text(init)))).await?;
        *since = Some(seq);
    }
    send(socket, &ServerMessage::Error { message: DISK_FULL_MESSAGE.to_owned() }).await?;
    send(socket, &ServerMessage::Status { status: WireStatus::Error, message: DISK_FULL_MESSAGE.to_owned() })
        .await
}

/// Waits for the retry delay, and answers the client's messages meanwhile.
pub(super) async fn wait_for_retry(
    app: &AppState,
    visitor: &Visitor,
    socket: &mut WebSocket,
) -> Result<(), End> {
    let mut again = pin!(sleep(RETRY_DELAY));
    loop {
        let message = tokio::select! {
            () = &mut again => return Ok(()),
            () = app.process.closing.cancelled() => return Err(End::Away(GATEWAY_STOPS)),
            message = socket.next() => message,
        };
        match message {
            Some(Ok(Message::Text(text))) => {
                // A longer message cannot be a ping, so it is not parsed.
                let is_ping =
                    text.len() < 1024 && matches!(ClientMessage::parse(&text), Ok(ClientMessage::Ping));
                let full = ServerMessage::Error { message: DISK_FULL_MESSAGE.to_owned() };
                send(socket, if is_ping { &ServerMessage::Pong } else { &full }).await?;
                visitor.inbound.completed();
            }
            Some(Ok(Message::Binary(_))) => visitor.inbound.completed(),
            Some(Ok(Message::Ping(payload) | Message::Pong(payload))) => {
                visitor.inbound.control(payload.len());
            }
            Some(Ok(Message::Close(_))) => return Err(End::Closed),
            Some(Err(_)) if visitor.inbound.is_over() => return Err(End::Away(OVER_SHARE)),
            Some(Err(_)) | None => return Err(End::Gone),
        }
    }
}

async fn send(socket: &mut WebSocket, message: &ServerMessage) -> Result<(), End> {
    in_time(socket.send(Message::Text(text(to_one(message))))).await
}
