//! Dialling ports inside the sandbox.

use sandboxd::protocol::Code;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::common::{code, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_direction_of_a_connection_ends_independently() {
    let sandbox = start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut heard = Vec::new();
        socket.read_to_end(&mut heard).await.unwrap();
        // Sent after the other direction has ended.
        socket.write_all(&heard).await.unwrap();
        heard.len()
    });
    let mut connection = sandbox.client.dial(port).await.unwrap();
    let sent: Vec<u8> = (0..2_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    connection.write_all(&sent).await.unwrap();
    connection.shutdown().await.unwrap();
    let mut heard = Vec::new();
    connection.read_to_end(&mut heard).await.unwrap();
    assert!(heard == sent);
    assert_eq!(server.await.unwrap(), 2_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ipv6_server_is_reached_and_notices_a_dropped_connection() {
    let sandbox = start().await;
    let Ok(listener) = TcpListener::bind("[::1]:0").await else {
        println!("this host has no IPv6 loopback");
        return;
    };
    let connection = sandbox.client.dial(listener.local_addr().unwrap().port()).await.unwrap();
    let (mut socket, _) = listener.accept().await.unwrap();
    drop(connection);
    let mut heard = Vec::new();
    let _ = socket.read_to_end(&mut heard).await;
    assert_eq!(heard, b"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_port_and_own_port_are_refused() {
    let sandbox = start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    assert_eq!(code(sandbox.client.dial(port).await), Code::Unreachable);
    assert_eq!(code(sandbox.client.dial(sandbox.port).await), Code::Denied);
    assert_eq!(code(sandbox.client.dial(0).await), Code::Denied);
}
