//! One connection. The handshake is an ordinary request, so that a refusal has its status and text, and proxies and TLS
//! are those of every other call.

use std::time::Duration;

use reqwest::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use reqwest::{Response, StatusCode, Upgraded};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use url::Url;

use crate::client::{send, shown};
use crate::error::{Error, cause};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// A whole conversation comes in one frame.
const LARGEST: usize = 256 * 1024 * 1024;

pub(super) type Socket = WebSocketStream<Upgraded>;

pub(super) async fn open(http: &reqwest::Client, url: Url) -> Result<Socket, Error> {
    let at = shown(&url);
    let silent = || Error::Unreachable { url: at.clone(), cause: "no answer to the handshake".to_owned() };
    timeout(HANDSHAKE, shake(http, url)).await.map_err(|_| silent())?
}

async fn shake(http: &reqwest::Client, url: Url) -> Result<Socket, Error> {
    let (at, key) = (shown(&url), generate_key());
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
        return Err(Error::Garbled { url: at, problem: "it did not accept the WebSocket's key".to_owned() });
    }
    let broken = |error: reqwest::Error| Error::Unreachable { url: at, cause: cause(&error) };
    let upgraded = answer.upgrade().await.map_err(broken)?;
    let config = WebSocketConfig::default().max_message_size(Some(LARGEST)).max_frame_size(Some(LARGEST));
    Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await)
}

async fn refusal(answer: Response, url: String) -> Error {
    let status = answer.status();
    if status.is_success() {
        return Error::Garbled { url, problem: "it answers a WebSocket's handshake with a page".to_owned() };
    }
    Error::refused(status.as_u16(), &answer.text().await.unwrap_or_default())
}
