//! How streams and channels end: half-closed, finished, reset, dropped.

use bytes::Bytes;
use channel::frame::Frame;
use channel::{ChannelError, Lane, Stream, StreamError};
use tokio::io::AsyncReadExt as _;

use crate::common::{hostile_callee, hostile_caller, pair, with_timeout};

fn reset(reason: &str) -> StreamError {
    StreamError::Reset(reason.to_owned())
}

#[tokio::test(start_paused = true)]
async fn half_closed_side_still_receives() {
    let mut pair = pair().await;
    let mut near = pair.caller.open("").await.unwrap();
    let (_, mut far) = pair.incoming.next().await.unwrap();
    near.sender.end();
    near.sender.end();
    assert_eq!(with_timeout(far.receiver.recv()).await, Ok(None));
    far.sender.send(Lane::Main, "after your end").await.unwrap();
    assert_eq!(with_timeout(near.receiver.recv()).await.unwrap().unwrap().bytes, "after your end");
    far.sender.end();
    assert_eq!(with_timeout(near.receiver.recv()).await, Ok(None));
    assert_eq!(near.sender.send(Lane::Main, "late").await, Err(StreamError::Ended));
    near.controls.send("still here").await.unwrap();
    assert_eq!(with_timeout(far.controls.recv()).await.unwrap().unwrap(), "still here");
    far.finish("result").unwrap();
    assert_eq!(with_timeout(near.receiver.outcome()).await.unwrap(), "result");
}

#[tokio::test(start_paused = true)]
async fn reset_by_the_caller() {
    let mut pair = pair().await;
    let near = pair.caller.open("").await.unwrap();
    let (_, mut far) = pair.incoming.next().await.unwrap();
    near.reset("lost interest");
    assert_eq!(with_timeout(far.controls.recv()).await, Err(reset("lost interest")));
    assert_eq!(far.receiver.recv().await, Err(reset("lost interest")));
    assert_eq!(far.sender.send(Lane::Main, "x").await, Err(reset("lost interest")));
}

#[tokio::test(start_paused = true)]
async fn data_before_a_reset_by_the_callee_is_still_read() {
    let mut pair = pair().await;
    let mut near = pair.caller.open("").await.unwrap();
    let (_, mut far) = pair.incoming.next().await.unwrap();
    far.sender.send(Lane::Main, "half").await.unwrap();
    assert_eq!(with_timeout(near.receiver.recv()).await.unwrap().unwrap().bytes, "half");
    far.sender.send(Lane::Main, "more").await.unwrap();
    while pair.caller.usage().incoming == 0 {
        tokio::task::yield_now().await;
    }
    far.reset("disk full");
    assert_eq!(with_timeout(near.receiver.recv()).await.unwrap().unwrap().bytes, "more");
    assert_eq!(with_timeout(near.receiver.recv()).await, Err(reset("disk full")));
    assert_eq!(with_timeout(near.receiver.outcome()).await, Err(reset("disk full")));
}

#[tokio::test(start_paused = true)]
async fn long_reset_reason_is_truncated_at_a_char_boundary() {
    let mut pair = pair().await;
    let mut near = pair.caller.open("").await.unwrap();
    pair.incoming.next().await.unwrap().1.reset(&"é".repeat(40_000));
    let Err(StreamError::Reset(reason)) = with_timeout(near.receiver.outcome()).await else {
        panic!("not a reset")
    };
    assert!(reason.len() > 10_000 && reason.chars().all(|letter| letter == 'é'));
}

#[tokio::test(start_paused = true)]
async fn dropping_a_part_before_its_end_resets_the_stream() {
    let mut pair = pair().await;
    let Stream { sender, mut receiver, controls } = pair.caller.open("").await.unwrap();
    let (_, mut far) = pair.incoming.next().await.unwrap();
    drop(controls);
    drop(sender);
    assert_eq!(with_timeout(far.receiver.recv()).await, Err(reset("dropped")));
    assert_eq!(with_timeout(receiver.recv()).await, Err(StreamError::Ended));

    let Stream { mut sender, receiver, .. } = pair.caller.open("").await.unwrap();
    let (_, mut far) = pair.incoming.next().await.unwrap();
    drop(receiver);
    assert_eq!(with_timeout(far.receiver.recv()).await, Err(reset("dropped")));
    assert_eq!(sender.send(Lane::Main, "x").await, Err(StreamError::Ended));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_sender_after_the_result_loses_no_output() {
    let mut pair = pair().await;
    let Stream { mut sender, mut receiver, .. } = pair.caller.open("").await.unwrap();
    let (_, mut far) = pair.incoming.next().await.unwrap();
    far.sender.send(Lane::Main, "output").await.unwrap();
    far.finish("exit").unwrap();
    while sender.send(Lane::Main, "input").await.is_ok() {
        tokio::task::yield_now().await;
    }
    drop(sender);
    assert_eq!(with_timeout(receiver.recv()).await.unwrap().unwrap().bytes, "output");
    assert_eq!(with_timeout(receiver.recv()).await, Ok(None));
    assert_eq!(with_timeout(receiver.outcome()).await.unwrap(), "exit");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_driver_ends_everything_on_both_sides() {
    let mut pair = pair().await;
    let mut near = pair.caller.open("").await.unwrap();
    let (_, mut far) = pair.incoming.next().await.unwrap();
    pair.near.abort();
    let dropped = StreamError::Channel(ChannelError::Dropped);
    assert_eq!(with_timeout(near.receiver.recv()).await, Err(dropped.clone()));
    assert_eq!(near.sender.send(Lane::Main, "x").await, Err(dropped.clone()));
    assert_eq!(near.controls.send("x").await, Err(dropped.clone()));
    assert_eq!(pair.caller.open("").await.err(), Some(dropped));
    assert_eq!(with_timeout(pair.far).await.unwrap(), Err(ChannelError::Closed));
    assert_eq!(with_timeout(far.receiver.outcome()).await, Err(StreamError::Channel(ChannelError::Closed)));
    assert!(pair.incoming.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn waiting_open_fails_when_the_channel_ends() {
    let pair = pair().await;
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(pair.caller.open("").await.unwrap());
    }
    let caller = pair.caller.clone();
    let waiting = tokio::spawn(async move { caller.open("").await.err() });
    tokio::task::yield_now().await;
    pair.far.abort();
    assert_eq!(with_timeout(waiting).await.unwrap(), Some(StreamError::Channel(ChannelError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn streams_outlive_a_dropped_caller_and_then_both_drivers_end_cleanly() {
    let mut pair = pair().await;
    let mut near = pair.caller.open("").await.unwrap();
    let (_, far) = pair.incoming.next().await.unwrap();
    drop(pair.caller);
    assert!(!pair.near.is_finished());
    far.finish("still whole").unwrap();
    assert_eq!(with_timeout(near.receiver.outcome()).await.unwrap(), "still whole");
    drop(near);
    assert_eq!(with_timeout(pair.near).await.unwrap(), Ok(()));
    assert_eq!(with_timeout(pair.far).await.unwrap(), Ok(()));
    assert!(pair.incoming.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn dropped_incoming_refuses_new_streams() {
    let mut pair = pair().await;
    let _running = pair.caller.open("runs").await.unwrap();
    let _kept = pair.incoming.next().await.unwrap();
    let mut waits = pair.caller.open("waits").await.unwrap();
    while pair.incoming.usage().streams < 2 {
        tokio::task::yield_now().await;
    }
    drop(pair.incoming);
    let refusal = Err(reset("this side accepts no more streams"));
    assert_eq!(with_timeout(waits.receiver.outcome()).await, refusal);
    let mut late = pair.caller.open("late").await.unwrap();
    assert_eq!(with_timeout(late.receiver.outcome()).await, refusal);
}

#[tokio::test(start_paused = true)]
async fn the_driver_ends_with_its_connection() {
    let (attacker, _incoming, running) = hostile_caller().await;
    drop(attacker);
    assert_eq!(with_timeout(running).await.unwrap(), Ok(()));

    let (attacker, caller, running) = hostile_callee(64).await;
    let _stream = caller.open("").await.unwrap();
    drop(attacker);
    let error = with_timeout(running).await.unwrap().unwrap_err();
    assert!(matches!(error, ChannelError::Closed | ChannelError::Io(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn stderr_chunk_is_not_read_as_content() {
    let mut pair = pair().await;
    let mut near = pair.caller.open("").await.unwrap();
    let (_, mut far) = pair.incoming.next().await.unwrap();
    far.sender.send(Lane::Errors, "not content").await.unwrap();
    let error = with_timeout(near.read_u8()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}

#[tokio::test(start_paused = true)]
async fn each_side_sends_one_final_frame() {
    let (mut attacker, mut incoming, _running) = hostile_caller().await;
    attacker.send(Frame::Open(1, Bytes::new())).await;
    let (_, stream) = incoming.next().await.unwrap();
    stream.finish("result").unwrap();
    attacker.send(Frame::Reset(1, Bytes::new())).await;
    assert_eq!(with_timeout(attacker.recv()).await.unwrap(), Frame::Done(1, Bytes::from_static(b"result")));
    attacker.send(Frame::Ping(1)).await;
    assert_eq!(with_timeout(attacker.recv()).await.unwrap(), Frame::Pong(1));
    assert_eq!(incoming.usage().streams, 0);
}
