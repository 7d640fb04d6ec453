//! A stream that says nothing, not even that it is there.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use opencode::api::{ApiError, Client, Place};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::time::timeout;

/// Answers a request for events with one event and nothing more.
async fn say_once(mut theirs: DuplexStream) {
    let mut asked = Vec::new();
    while !asked.ends_with(b"\r\n\r\n") {
        asked.push(theirs.read_u8().await.unwrap());
    }
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
        a\r\ndata: {}\n\n\r\n";
    theirs.write_all(answer.as_bytes()).await.unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(start_paused = true)]
async fn silence_is_noticed_however_often_the_listener_is_called_away() {
    let (ours, theirs) = duplex(64 * 1024);
    tokio::spawn(say_once(theirs));
    let stream = Mutex::new(Some(ours));
    let dial = || {
        let taken = stream.lock().unwrap().take();
        async move { taken.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionRefused)) }
    };
    let client = Client::new(dial, Place::local());
    let mut events = client.events().await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap(), "{}");
    for _ in 0..10 {
        if let Ok(heard) = timeout(Duration::from_secs(30), events.next()).await {
            assert!(matches!(heard, Err(ApiError::Silent)), "{heard:?}");
            return;
        }
    }
    panic!("nobody noticed");
}
