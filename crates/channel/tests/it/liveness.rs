//! A channel that is silent or stuck is found dead; one that is merely quiet lives.

use std::time::Duration;

use bytes::Bytes;
use channel::frame::Frame;
use channel::{ChannelError, Lane, StreamError, WINDOW};
use tokio::time::sleep;

use crate::common::{hostile_callee, hostile_caller, pair, soon};

#[tokio::test(start_paused = true)]
async fn two_honest_ends_live_through_a_quiet_day() {
    let mut pair = pair().await;
    sleep(Duration::from_hours(24)).await;
    let mut near = pair.caller.open("good morning").await.unwrap();
    soon(pair.incoming.next()).await.unwrap().1.finish("and to you").unwrap();
    assert_eq!(soon(near.receiver.outcome()).await.unwrap(), "and to you");
}

#[tokio::test(start_paused = true)]
async fn whoever_is_silent_is_asked_once_and_then_dead() {
    let (mut attacker, caller, running) = hostile_callee(1024).await;
    let mut stream = caller.open("").await.unwrap();
    assert_eq!(soon(running).await.unwrap(), Err(ChannelError::Silent));
    assert_eq!(stream.receiver.recv().await, Err(StreamError::Channel(ChannelError::Silent)));
    assert_eq!(attacker.recv().await, Some(Frame::Open(1, Bytes::new())));
    assert_eq!(attacker.recv().await, Some(Frame::Ping(1)));
    assert_eq!(attacker.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn parts_of_a_frame_are_no_sign_of_life() {
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
    assert_eq!(soon(running).await.unwrap(), Err(ChannelError::Silent));
    assert!(soon(trickle).await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn whoever_talks_but_takes_nothing_is_stalled() {
    let (mut attacker, caller, running) = hostile_callee(64).await;
    let mut stream = caller.open("").await.unwrap();
    soon(attacker.recv()).await.unwrap();
    stream.sender.send(Lane::Main, vec![0; WINDOW / 2]).await.unwrap();
    let talk = tokio::spawn(async move {
        for _ in 0..100 {
            sleep(Duration::from_secs(1)).await;
            attacker.send(Frame::Control(1, Bytes::new())).await;
        }
    });
    assert_eq!(soon(running).await.unwrap(), Err(ChannelError::Stalled));
    soon(talk).await.unwrap();
}
