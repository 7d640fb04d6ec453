//! An event stream without any data, not even heartbeats.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use opencode::api::{ApiError, Client, Endpoint};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::time::timeout;

/// Answers an event subscription with one event and then sends nothing.
async fn serve_one_event(mut theirs: DuplexStream) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(theirs.read_u8().await.unwrap());
    }
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
        a\r\ndata: {}\n\n\r\n";
    theirs.write_all(answer.as_bytes()).await.unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(start_paused = true)]
async fn silence_is_detected_even_if_next_is_cancelled_repeatedly() {
    let (ours, theirs) = duplex(64 * 1024);
    tokio::spawn(serve_one_event(theirs));
    let stream = Mutex::new(Some(ours));
    let dial = || {
        let taken = stream.lock().unwrap().take();
        async move { taken.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionRefused)) }
    };
    let client = Client::new(dial, Endpoint::local());
    let mut events = client.events().await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap(), "{}");
    for _ in 0..10 {
        if let Ok(result) = timeout(Duration::from_secs(30), events.next()).await {
            assert!(matches!(result, Err(ApiError::Silent)), "{result:?}");
            return;
        }
    }
    panic!("the silence was not detected");
}
