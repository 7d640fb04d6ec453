//! A connection to a port inside.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use channel::Stream;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::dispatch::answer;
use crate::protocol::{CONNECTED, Code, Nothing, Refusal};

const PATIENCE: Duration = Duration::from_secs(5);

/// `own` is this program's port: whoever dialled it would only talk to us through us.
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
        Err(_) => stream.reset("the connection broke"),
    }
}

/// Development servers listen on either loopback address.
async fn connect(port: u16, own: u16) -> Result<TcpStream, Refusal> {
    if port == 0 || port == own {
        return Err(Refusal::new(Code::Denied, "this port is not for dialling"));
    }
    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        if let Ok(Ok(socket)) = timeout(PATIENCE, TcpStream::connect((address, port))).await {
            let _ = socket.set_nodelay(true);
            return Ok(socket);
        }
    }
    Err(Refusal::new(Code::Unreachable, format!("nobody answers on port {port}")))
}
