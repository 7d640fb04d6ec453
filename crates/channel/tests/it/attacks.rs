//! Attacks by a peer that knows the key: each must end the channel with the matching error.

use bytes::Bytes;
use channel::frame::{Flow, Frame, FrameError, Lane, MAX_PAYLOAD};
use channel::{ChannelError, Violation, WINDOW};
use tokio::io::AsyncWriteExt as _;

use crate::common::{hostile_callee, hostile_caller, with_timeout};

fn open(id: u32) -> Frame {
    Frame::Open(id, Bytes::from_static(b"{}"))
}

fn data(id: u32, length: usize) -> Frame {
    Frame::Data(id, Lane::Main, Bytes::from(vec![1; length]))
}

fn control(id: u32) -> Frame {
    Frame::Control(id, Bytes::new())
}

fn reset(id: u32) -> Frame {
    Frame::Reset(id, Bytes::new())
}

/// Sends the frames to our callee and returns the error it disconnects with. Nothing is accepted or read.
async fn error_of_callee(frames: impl IntoIterator<Item = Frame>) -> ChannelError {
    let (mut attacker, incoming, running) = hostile_caller().await;
    for frame in frames {
        attacker.send(frame).await;
    }
    let error = with_timeout(running).await.unwrap().unwrap_err();
    assert!(incoming.usage().fullest <= WINDOW, "{:?}", incoming.usage());
    error
}

/// Sends the frames to our caller, which has opened stream 1, and returns the error it disconnects with.
async fn error_of_caller(frames: impl IntoIterator<Item = Frame>) -> ChannelError {
    let (mut attacker, caller, running) = hostile_callee(1024 * 1024).await;
    let _stream = caller.open("{}").await.unwrap();
    assert_eq!(attacker.recv().await.unwrap(), open(1));
    for frame in frames {
        attacker.send(frame).await;
    }
    with_timeout(running).await.unwrap().unwrap_err()
}

async fn both_fail_with(frames: Vec<Frame>, wanted: Violation) {
    let opened = std::iter::once(open(1)).chain(frames.clone());
    assert_eq!(error_of_callee(opened).await, wanted.into());
    assert_eq!(error_of_caller(frames).await, wanted.into());
}

#[tokio::test(start_paused = true)]
async fn data_beyond_the_credit() {
    both_fail_with(vec![data(1, MAX_PAYLOAD); 5], Violation::CreditOverrun(1)).await;
    // Each chunk also costs its overhead: a window of single bytes would take many times its size in memory.
    both_fail_with(vec![data(1, 1); WINDOW / 65 + 1], Violation::CreditOverrun(1)).await;
}

#[tokio::test(start_paused = true)]
async fn flood_of_small_control_messages() {
    both_fail_with(vec![control(1); 513], Violation::CreditOverrun(1)).await;
}

#[tokio::test(start_paused = true)]
async fn locally_reset_stream_still_enforces_credit() {
    let (mut attacker, caller, running) = hostile_callee(1024 * 1024).await;
    drop(caller.open("{}").await.unwrap());
    assert_eq!(attacker.recv().await.unwrap(), open(1));
    assert_eq!(attacker.recv().await.unwrap(), Frame::Reset(1, Bytes::from_static(b"dropped")));
    for _ in 0..5 {
        attacker.send(data(1, MAX_PAYLOAD)).await;
    }
    assert_eq!(with_timeout(running).await.unwrap(), Err(Violation::CreditOverrun(1).into()));
    assert_eq!(caller.usage().incoming, 0);
}

#[tokio::test(start_paused = true)]
async fn return_of_unspent_credit() {
    for amount in [0, 1, u32::MAX] {
        for flow in [Flow::Data, Flow::Control] {
            both_fail_with(vec![Frame::Credit(1, flow, amount)], Violation::CreditExcess(1)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn return_of_credit_for_unwritten_data() {
    let (mut attacker, caller, running) = hostile_callee(64).await;
    let mut stream = caller.open("{}").await.unwrap();
    let sending = tokio::spawn(async move { stream.sender.send(Lane::Main, vec![0; 50 * WINDOW]).await });
    assert_eq!(attacker.recv().await.unwrap(), open(1));
    // Two frames may be in transit to the attacker, who reads none of them and keeps returning credit.
    for _ in 0..3 {
        attacker.send(Frame::Credit(1, Flow::Data, 65_600)).await;
    }
    assert_eq!(with_timeout(running).await.unwrap(), Err(Violation::CreditExcess(1).into()));
    assert!(caller.usage().outgoing <= WINDOW, "{:?}", caller.usage());
    assert!(with_timeout(sending).await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn too_many_streams() {
    assert_eq!(error_of_callee((1..=65).map(open)).await, Violation::TooManyStreams(64).into());
}

#[tokio::test(start_paused = true)]
async fn opening_and_resetting_in_a_loop() {
    let loops = (1..=65).flat_map(|id| [open(id), reset(id)]);
    assert_eq!(error_of_callee(loops).await, Violation::TooManyStreams(64).into());
}

#[tokio::test(start_paused = true)]
async fn reused_or_skipped_stream_numbers() {
    let reused = |got, wanted| ChannelError::from(Violation::StreamReused { got, wanted });
    assert_eq!(error_of_callee([open(1), open(1)]).await, reused(1, 2));
    assert_eq!(error_of_callee([open(1), reset(1), open(1)]).await, reused(1, 2));
    assert_eq!(error_of_callee([open(2)]).await, reused(2, 1));
}

#[tokio::test(start_paused = true)]
async fn stream_number_of_a_closed_stream_cannot_be_reused() {
    let (mut attacker, mut incoming, running) = hostile_caller().await;
    attacker.send(open(1)).await;
    incoming.next().await.unwrap().1.finish("").unwrap();
    assert_eq!(attacker.recv().await.unwrap(), Frame::Done(1, Bytes::new()));
    attacker.send(reset(1)).await;
    attacker.send(open(1)).await;
    assert_eq!(
        with_timeout(running).await.unwrap(),
        Err(Violation::StreamReused { got: 1, wanted: 2 }.into())
    );
}

#[tokio::test(start_paused = true)]
async fn open_by_the_callee() {
    assert_eq!(error_of_caller([open(2)]).await, Violation::OpenByCallee(2).into());
}

#[tokio::test(start_paused = true)]
async fn frames_on_streams_that_are_not_open() {
    for frame in [data(7, 1), control(7), reset(7), Frame::End(7), Frame::Credit(7, Flow::Data, 1)] {
        both_fail_with(vec![frame], Violation::UnknownStream(7)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn result_before_the_request_was_sent() {
    // The caller's Open frames cannot be written yet, so the attacker guesses the stream number.
    let (mut attacker, caller, running) = hostile_callee(64).await;
    let (_large, _small) = (caller.open(vec![0; MAX_PAYLOAD]).await.unwrap(), caller.open("").await.unwrap());
    tokio::task::yield_now().await;
    let _third = caller.open("").await.unwrap();
    attacker.send(Frame::Done(3, Bytes::new())).await;
    assert_eq!(with_timeout(running).await.unwrap(), Err(Violation::UnknownStream(3).into()));
}

#[tokio::test(start_paused = true)]
async fn data_after_end() {
    both_fail_with(vec![Frame::End(1), data(1, 1)], Violation::DataAfterEnd(1)).await;
    both_fail_with(vec![Frame::End(1), Frame::End(1)], Violation::DataAfterEnd(1)).await;
}

#[tokio::test(start_paused = true)]
async fn frames_after_the_final_frame() {
    let done = Frame::Done(1, Bytes::new());
    for frame in [data(1, 1), control(1), Frame::End(1), done.clone(), reset(1)] {
        both_fail_with(vec![done.clone(), frame.clone()], Violation::FrameAfterFinal(1)).await;
        both_fail_with(vec![reset(1), frame], Violation::FrameAfterFinal(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn ping_floods_and_unexpected_pongs() {
    both_fail_with(vec![Frame::Ping(1); 20_000], Violation::PingFlood).await;
    both_fail_with(vec![Frame::Pong(0)], Violation::UnexpectedPong).await;
}

#[tokio::test(start_paused = true)]
async fn a_second_greeting() {
    both_fail_with(vec![Frame::Hello(Bytes::new())], Violation::LateHello).await;
}

#[tokio::test(start_paused = true)]
async fn garbage_and_oversized_frames() {
    for (bytes, error) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), FrameError::UnknownKind(b'/')),
        (vec![0, 1, 0, 1, 3, 0, 0, 0, 1], FrameError::TooLong { length: 65_537, most: MAX_PAYLOAD }),
    ] {
        let (mut attacker, _incoming, running) = hostile_caller().await;
        attacker.io.write_all(&bytes).await.unwrap();
        assert_eq!(with_timeout(running).await.unwrap(), Err(error.into()));
    }
}

#[tokio::test(start_paused = true)]
async fn truncated_frame() {
    let (mut attacker, _incoming, running) = hostile_caller().await;
    attacker.io.write_all(&[0, 0, 0, 4, 11]).await.unwrap();
    drop(attacker);
    assert_eq!(with_timeout(running).await.unwrap(), Err(ChannelError::Truncated));
}
