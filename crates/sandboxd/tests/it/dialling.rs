//! Ports inside.

use sandboxd::protocol::Code;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::common::{code, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_flow_both_ways_and_each_way_ends_by_itself() {
    let sandbox = start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut heard = Vec::new();
        socket.read_to_end(&mut heard).await.unwrap();
        // Said after the other way has ended.
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
async fn a_server_behind_ipv6_answers_and_a_dropped_connection_is_seen() {
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
async fn nobody_there_and_ourselves_are_refused() {
    let sandbox = start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    assert_eq!(code(sandbox.client.dial(port).await), Code::Unreachable);
    assert_eq!(code(sandbox.client.dial(sandbox.port).await), Code::Denied);
    assert_eq!(code(sandbox.client.dial(0).await), Code::Denied);
}
