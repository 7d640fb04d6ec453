//! A raw TCP client that controls every byte it sends, for requests that no HTTP library would make.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::harness::within;

pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        Self::open_from(Ipv4Addr::LOCALHOST.into(), address).await
    }

    /// Connects from one of the many loopback addresses.
    pub(crate) async fn open_from(from: IpAddr, address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        Self(within(socket.connect(address)).await.unwrap())
    }

    /// Sends bytes; returns `false` if the other side no longer accepts them.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        within(self.0.write_all(bytes.as_ref())).await.is_ok()
    }

    /// Reads everything until the connection ends, also by a reset.
    pub(crate) async fn rest(&mut self) -> String {
        let mut all = Vec::new();
        match within(self.0.read_to_end(&mut all)).await {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
            _ => String::from_utf8_lossy(&all).into_owned(),
        }
    }

    /// Reads everything up to and including `end`.
    pub(crate) async fn until(&mut self, end: &str) -> String {
        let mut all = Vec::new();
        while !all.ends_with(end.as_bytes()) {
            let byte = within(self.0.read_u8()).await;
            all.push(
                byte.unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&all))),
            );
        }
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Requests `/health` and waits for the answer; the connection stays open.
    pub(crate) async fn healthy(&mut self) -> bool {
        self.send("GET /health HTTP/1.1\r\nHost: t\r\n\r\n").await
            && self.until("{\"status\":\"ok\"}").await.starts_with("HTTP/1.1 200")
    }
}
