//! One WebSocket connection. The handshake is an ordinary HTTP request, so that errors have a status and a
//! message, and proxies and TLS work as for every other call.

use std::time::Duration;

use reqwest::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use reqwest::{Response, StatusCode, Upgraded};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use url::Url;

use crate::client::{display_origin, send};
use crate::error::{Error, cause};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// Large, because a complete conversation is sent in one frame.
const MAX_MESSAGE_SIZE: usize = 256 * 1024 * 1024;

pub(super) type Socket = WebSocketStream<Upgraded>;

pub(super) async fn open(http: &reqwest::Client, url: Url) -> Result<Socket, Error> {
    let at = display_origin(&url);
    let silent =
        || Error::Unreachable { url: at.clone(), cause: "no answer to the handshake".to_owned(), sent: true };
    timeout(HANDSHAKE_TIMEOUT, handshake(http, url)).await.map_err(|_| silent())?
}

async fn handshake(http: &reqwest::Client, url: Url) -> Result<Socket, Error> {
    let (at, key) = (display_origin(&url), generate_key());
    let request = http
        .get(url)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, &key);
    let answer = send(request).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refusal(answer, at).await);
    }
    let accepted = answer.headers().get(SEC_WEBSOCKET_ACCEPT);
    if accepted.is_none_or(|accepted| accepted.as_bytes() != derive_accept_key(key.as_bytes()).as_bytes()) {
        return Err(Error::UnexpectedResponse {
            url: at,
            problem: "the handshake response has the wrong Sec-WebSocket-Accept header".to_owned(),
        });
    }
    let broken = |error: reqwest::Error| Error::Unreachable {
        url: at,
        cause: cause(&error),
        sent: !error.is_connect(),
    };
    let upgraded = answer.upgrade().await.map_err(broken)?;
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE_SIZE))
        .max_frame_size(Some(MAX_MESSAGE_SIZE));
    Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await)
}

async fn refusal(answer: Response, url: String) -> Error {
    let status = answer.status();
    if status.is_success() {
        return Error::UnexpectedResponse {
            url,
            problem: "it answered the WebSocket handshake with an ordinary page".to_owned(),
        };
    }
    Error::from_response(status.as_u16(), &answer.text().await.unwrap_or_default())
}
