//! Peers without the key, and peers with the key that send invalid data.

use std::time::Duration;

use channel::{Caller, HandshakeError, Key, Lane, Limits};
use clock::Rng;
use sandboxd::Sandboxd;
use sandboxd::client::ClientError;
use sandboxd::protocol::Place;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::common::{KEY, connect, sh, start};

async fn raw(port: u16) -> Caller {
    let socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (caller, driver) =
        channel::connect(socket, &Key::new(KEY), Limits::default(), &Rng::system()).await.unwrap();
    tokio::spawn(driver.run());
    caller
}

async fn ask(caller: &Caller, request: impl Into<bytes::Bytes>) -> String {
    let mut stream = caller.open(request).await.unwrap();
    String::from_utf8(stream.receiver.outcome().await.unwrap().to_vec()).unwrap()
}

pub(crate) async fn write_with_limit(port: u16, path: &str, most: u64, size: usize) -> String {
    let caller = raw(port).await;
    let request = format!(r#"{{"op":"write","place":{{"root":"workspace","path":"{path}"}},"most":{most}}}"#);
    let mut stream = caller.open(request).await.unwrap();
    let _ = stream.sender.send(Lane::Main, vec![1; size]).await;
    String::from_utf8(stream.receiver.outcome().await.unwrap().to_vec()).unwrap()
}

/// Disconnects once `begun` says that the server has started to write.
pub(crate) async fn write_and_disconnect(port: u16, path: &str, begun: impl FnMut() -> bool) {
    let caller = raw(port).await;
    let request = format!(r#"{{"op":"write","place":{{"root":"workspace","path":"{path}"}}}}"#);
    let mut stream = caller.open(request).await.unwrap();
    stream.sender.send(Lane::Main, vec![1; 1000]).await.unwrap();
    crate::common::wait_until("the temporary file exists", begun).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_without_the_key_gets_nothing() {
    let sandbox = start().await;
    let socket = TcpStream::connect(("127.0.0.1", sandbox.port)).await.unwrap();
    let refused = Sandboxd::connect(socket, &Key::new([8; 32]), Limits::default(), &Rng::system()).await;
    assert!(matches!(refused, Err(HandshakeError::Closed | HandshakeError::Io(_))));
    let mut socket = TcpStream::connect(("127.0.0.1", sandbox.port)).await.unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut heard = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(8), socket.read_to_end(&mut heard)).await.unwrap();
    assert!(heard.len() < 100, "a peer without the key must get a greeting at most");
    assert_eq!(sh(&sandbox.client, "echo on").await.stdout, b"on\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_peers_without_the_key_do_not_block_the_gateway() {
    let sandbox = start().await;
    let mut crowd = Vec::new();
    for _ in 0..300 {
        crowd.push(TcpStream::connect(("127.0.0.1", sandbox.port)).await.unwrap());
    }
    assert_eq!(sh(&connect(sandbox.port).await, "echo in").await.stdout, b"in\n");
    assert_eq!(sh(&sandbox.client, "echo on").await.stdout, b"on\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_channels_replace_the_oldest() {
    let sandbox = start().await;
    let mut clients = Vec::new();
    for _ in 0..18 {
        clients.push(connect(sandbox.port).await);
        clients.last().unwrap().status().await.unwrap();
    }
    assert!(sandbox.client.status().await.is_err());
    assert!(clients[0].status().await.is_err() && clients[17].status().await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_requests_are_refused_and_the_channel_survives() {
    let sandbox = start().await;
    let caller = raw(sandbox.port).await;
    let deep = format!(r#"{{"op":"status","x":{}1{}}}"#, "[".repeat(20_000), "]".repeat(20_000));
    let table: [(&[u8], &str); 12] = [
        (b"", "bad_request"),
        (b"{", "bad_request"),
        (b"\xff\xfe", "bad_request"),
        (deep.as_bytes(), "bad_request"),
        (b"[]", "unknown_op"),
        (b"null", "unknown_op"),
        (br#"{"op":"format_disk"}"#, "unknown_op"),
        (br#"{"op":7}"#, "unknown_op"),
        (br#"{"op":"exec","argv":"hunter2"}"#, "bad_request"),
        (br#"{"op":"exec","argv":["true"],"hunter2":1}"#, "bad_request"),
        (br#"{"op":"dial","port":70000}"#, "bad_request"),
        (br#"{"op":"stat","place":{"root":"etc","path":"hunter2"}}"#, "bad_request"),
    ];
    for (request, wanted) in table {
        let answer = ask(&caller, request.to_vec()).await;
        let shown = String::from_utf8_lossy(&request[..request.len().min(60)]);
        assert!(answer.contains(&format!(r#"{{"refused":{{"code":"{wanted}""#)), "{shown}: {answer}");
        assert!(!answer.contains("hunter2"), "{answer}");
    }
    let mut stream = caller.open(r#"{"op":"exec","argv":["sleep","50"]}"#).await.unwrap();
    stream.controls.send("nonsense").await.unwrap();
    let answer = stream.receiver.outcome().await.unwrap();
    assert!(answer.starts_with(br#"{"refused":{"code":"bad_request""#), "{answer:?}");
    let mut stream = caller.open(r#"{"op":"env_apply"}"#).await.unwrap();
    let _ = stream.sender.send(Lane::Main, vec![b'['; 2 << 20]).await;
    let answer = stream.receiver.outcome().await.unwrap();
    assert!(answer.starts_with(br#"{"refused":{"code":"too_large""#), "{answer:?}");
    assert!(ask(&caller, r#"{"op":"status"}"#).await.starts_with(r#"{"ok":"#));
}

/// A compromised server: it knows the key and sends arbitrary answers.
async fn hostile_server(behave: impl AsyncFn(channel::Stream) + Send + Sync + 'static) -> Sandboxd {
    let (near, far) = tokio::io::duplex(100_000);
    let (key, rng) = (Key::new(KEY), Rng::system());
    let (client, accepted) = tokio::join!(
        Sandboxd::connect(near, &key, Limits::default(), &rng),
        channel::accept(far, &key, Limits::default(), &rng)
    );
    let (mut incoming, driver) = accepted.unwrap();
    tokio::task::spawn_local(driver.run());
    tokio::task::spawn_local(async move {
        while let Some((_, stream)) = incoming.next().await {
            behave(stream).await;
        }
    });
    client.unwrap().with_timeout(Duration::from_millis(300))
}

#[tokio::test]
async fn invalid_answers_of_the_server_are_detected() {
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let client = hostile_server(async |stream| stream.finish("nonsense").unwrap()).await;
            assert!(matches!(client.status().await, Err(ClientError::InvalidAnswer(_))));
            let refusal = r#"{"refused":{"code":"brand_new","message":"a\u001b[31mb"}}"#;
            let client = hostile_server(async move |stream| stream.finish(refusal).unwrap()).await;
            let error = client.status().await.unwrap_err().to_string();
            assert_eq!(error, "the sandbox refused: Other: a [31mb");
            let client =
                hostile_server(
                    async |mut stream| {
                        while stream.sender.send(Lane::Main, vec![0; 60_000]).await.is_ok() {}
                    },
                )
                .await
                .with_timeout(Duration::from_secs(20));
            let place = Place::workspace("x");
            assert!(matches!(
                client.read_file(place.clone(), 0, 1000).await,
                Err(ClientError::TooLarge(1000))
            ));
            assert!(matches!(client.status().await, Err(ClientError::TooLarge(_))));
            let client = hostile_server(async |stream| {
                tokio::time::sleep(Duration::from_mins(1)).await;
                drop(stream);
            })
            .await;
            assert!(matches!(client.status().await, Err(ClientError::TimedOut)));
            let listing =
                r#"{"ok":{"entries":[{"name":"../up","kind":"file","size":1,"mode":1,"modified":1}]}}"#;
            let client = hostile_server(async move |stream| stream.finish(listing).unwrap()).await;
            assert_eq!(client.list(place, 10).await.unwrap().entries, []);
        })
        .await;
}
