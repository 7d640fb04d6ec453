//! A silent or blocked peer is detected as dead; an idle but honest one is not.

use std::time::Duration;

use bytes::Bytes;
use channel::frame::Frame;
use channel::{ChannelError, Lane, StreamError, WINDOW};
use tokio::time::sleep;

use crate::common::{hostile_callee, hostile_caller, pair, with_timeout};

#[tokio::test(start_paused = true)]
async fn idle_honest_peers_stay_connected_for_a_day() {
    let mut pair = pair().await;
    sleep(Duration::from_hours(24)).await;
    let mut near = pair.caller.open("good morning").await.unwrap();
    with_timeout(pair.incoming.next()).await.unwrap().1.finish("and to you").unwrap();
    assert_eq!(with_timeout(near.receiver.outcome()).await.unwrap(), "and to you");
}

#[tokio::test(start_paused = true)]
async fn silent_peer_gets_one_ping_and_is_then_dead() {
    let (mut attacker, caller, running) = hostile_callee(1024).await;
    let mut stream = caller.open("").await.unwrap();
    assert_eq!(with_timeout(running).await.unwrap(), Err(ChannelError::Silent));
    assert_eq!(stream.receiver.recv().await, Err(StreamError::Channel(ChannelError::Silent)));
    assert_eq!(attacker.recv().await, Some(Frame::Open(1, Bytes::new())));
    assert_eq!(attacker.recv().await, Some(Frame::Ping(1)));
    assert_eq!(attacker.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn partial_frames_do_not_count_as_alive() {
    use tokio::io::AsyncWriteExt as _;
    let (mut attacker, _incoming, running) = hostile_caller().await;
    let trickle = tokio::spawn(async move {
        attacker.io.write_all(&[0, 1, 0, 0, 2, 0, 0, 0, 1]).await?;
        loop {
            sleep(Duration::from_secs(1)).await;
            attacker.io.write_all(b"x").await?;
        }
        #[expect(unreachable_code, reason = "it names the type of the error")]
        std::io::Result::Ok(())
    });
    assert_eq!(with_timeout(running).await.unwrap(), Err(ChannelError::Silent));
    assert!(with_timeout(trickle).await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn peer_that_sends_but_never_reads_is_stalled() {
    let (mut attacker, caller, running) = hostile_callee(64).await;
    let mut stream = caller.open("").await.unwrap();
    with_timeout(attacker.recv()).await.unwrap();
    stream.sender.send(Lane::Main, vec![0; WINDOW / 2]).await.unwrap();
    let talk = tokio::spawn(async move {
        for _ in 0..100 {
            sleep(Duration::from_secs(1)).await;
            attacker.send(Frame::Control(1, Bytes::new())).await;
        }
    });
    assert_eq!(with_timeout(running).await.unwrap(), Err(ChannelError::Stalled));
    with_timeout(talk).await.unwrap();
}
