//! Connects the caller to a port inside the sandbox.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use channel::Stream;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::dispatch::answer;
use crate::protocol::{CONNECTED, Code, Nothing, Refusal};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// `own` is the server's port, which must not be dialled through itself.
pub(super) async fn dial(port: u16, own: u16, mut stream: Stream) {
    let mut socket = match connect(port, own).await {
        Ok(socket) => socket,
        Err(refusal) => return answer::<Nothing>(stream, Err(refusal)).await,
    };
    if stream.controls.send(CONNECTED).await.is_err() {
        return;
    }
    match copy_bidirectional(&mut stream, &mut socket).await {
        Ok(_) => answer(stream, Ok(Nothing {})).await,
        Err(_) => stream.reset("the connection failed"),
    }
}

/// Development servers listen on either loopback address.
async fn connect(port: u16, own: u16) -> Result<TcpStream, Refusal> {
    if port == 0 || port == own {
        return Err(Refusal::new(Code::Denied, "this port cannot be dialled"));
    }
    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        if let Ok(Ok(socket)) = timeout(CONNECT_TIMEOUT, TcpStream::connect((address, port))).await {
            let _ = socket.set_nodelay(true);
            return Ok(socket);
        }
    }
    Err(Refusal::new(Code::Unreachable, format!("nothing accepts connections on port {port}")))
}
