//! Upgraded connections: a WebSocket outlives its request and still counts against the connection limits.

use axum::extract::WebSocketUpgrade;
use axum::extract::ws::WebSocket;
use axum::response::Response;
use axum::{Extension, Router, routing};
use gateway::lifecycle::Lifecycle;
use gateway::server::{ConnectionHeld, Limits, serve};
use tokio::net::TcpListener;

use crate::harness::within;
use crate::raw::Raw;

const UPGRADE_REQUEST: &str = "GET /socket HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Reads until the client disconnects, and holds the connection's slot until then.
async fn socket(upgrade: WebSocketUpgrade, Extension(held): Extension<ConnectionHeld>) -> Response {
    upgrade.on_upgrade(async |mut socket: WebSocket| {
        while socket.recv().await.is_some() {}
        drop(held);
    })
}

/// Opens a connection; `None` if the server refuses it.
async fn connected(address: std::net::SocketAddr) -> Option<Raw> {
    let mut client = Raw::open(address).await;
    client.send(UPGRADE_REQUEST).await;
    let mut first = [0; 12];
    within(tokio::io::AsyncReadExt::read_exact(&mut client.0, &mut first)).await.ok()?;
    assert_eq!(&first, b"HTTP/1.1 101");
    client.until("\r\n\r\n").await;
    Some(client)
}

#[tokio::test]
async fn a_socket_counts_for_its_address_as_long_as_it_is_held() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, life) = (listener.local_addr().unwrap(), Lifecycle::default());
    let router = Router::new().route("/socket", routing::get(socket));
    let limits =
        Limits { connections: 9, per_address: 2, client_timeout: std::time::Duration::from_mins(10) };
    let serving = life.clone();
    tokio::spawn(async move { serve(listener, router, limits, &serving).await });
    let (Some(first), Some(_second)) = (connected(address).await, connected(address).await) else {
        panic!("the share of an address is two")
    };
    for _ in 0..20 {
        assert!(connected(address).await.is_none(), "a third one was taken");
    }
    drop(first);
    within(async { while connected(address).await.is_none() {} }).await;
}
