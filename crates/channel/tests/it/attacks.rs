//! One side knows the key and is hostile: each thing it may try ends the channel with the error that names it.

use bytes::Bytes;
use channel::frame::{Flow, Frame, FrameError, Lane, MAX_PAYLOAD};
use channel::{ChannelError, Violation, WINDOW};
use tokio::io::AsyncWriteExt as _;

use crate::common::{hostile_callee, hostile_caller, soon};

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

/// Why our callee hangs up when it hears this. Nobody takes or reads anything.
async fn callee_hears(frames: impl IntoIterator<Item = Frame>) -> ChannelError {
    let (mut attacker, incoming, running) = hostile_caller().await;
    for frame in frames {
        attacker.send(frame).await;
    }
    let error = soon(running).await.unwrap().unwrap_err();
    assert!(incoming.usage().fullest <= WINDOW, "{:?}", incoming.usage());
    error
}

/// Why our caller, which has opened stream 1, hangs up when it hears this.
async fn caller_hears(frames: impl IntoIterator<Item = Frame>) -> ChannelError {
    let (mut attacker, caller, running) = hostile_callee(1024 * 1024).await;
    let _stream = caller.open("{}").await.unwrap();
    assert_eq!(attacker.recv().await.unwrap(), open(1));
    for frame in frames {
        attacker.send(frame).await;
    }
    soon(running).await.unwrap().unwrap_err()
}

async fn both_hear(frames: Vec<Frame>, wanted: Violation) {
    let opened = std::iter::once(open(1)).chain(frames.clone());
    assert_eq!(callee_hears(opened).await, wanted.into());
    assert_eq!(caller_hears(frames).await, wanted.into());
}

#[tokio::test(start_paused = true)]
async fn more_than_the_credit() {
    both_hear(vec![data(1, MAX_PAYLOAD); 5], Violation::CreditOverrun(1)).await;
    // Small pieces cost what they take: a window of single bytes would be many times its size in memory.
    both_hear(vec![data(1, 1); WINDOW / 65 + 1], Violation::CreditOverrun(1)).await;
}

#[tokio::test(start_paused = true)]
async fn endless_small_control_messages() {
    both_hear(vec![control(1); 513], Violation::CreditOverrun(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_was_reset_here_is_still_held_to_its_credit() {
    let (mut attacker, caller, running) = hostile_callee(1024 * 1024).await;
    drop(caller.open("{}").await.unwrap());
    assert_eq!(attacker.recv().await.unwrap(), open(1));
    assert_eq!(attacker.recv().await.unwrap(), Frame::Reset(1, Bytes::from_static(b"dropped")));
    for _ in 0..5 {
        attacker.send(data(1, MAX_PAYLOAD)).await;
    }
    assert_eq!(soon(running).await.unwrap(), Err(Violation::CreditOverrun(1).into()));
    assert_eq!(caller.usage().incoming, 0);
}

#[tokio::test(start_paused = true)]
async fn credit_that_was_never_spent() {
    for amount in [0, 1, u32::MAX] {
        for flow in [Flow::Data, Flow::Control] {
            both_hear(vec![Frame::Credit(1, flow, amount)], Violation::CreditInvented(1)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn credit_for_what_was_not_yet_written() {
    let (mut attacker, caller, running) = hostile_callee(64).await;
    let mut stream = caller.open("{}").await.unwrap();
    let sending = tokio::spawn(async move { stream.sender.send(Lane::Main, vec![0; 50 * WINDOW]).await });
    assert_eq!(attacker.recv().await.unwrap(), open(1));
    // Two frames may be on their way to the attacker, who takes none of them and returns credit for ever more.
    for _ in 0..3 {
        attacker.send(Frame::Credit(1, Flow::Data, 65_600)).await;
    }
    assert_eq!(soon(running).await.unwrap(), Err(Violation::CreditInvented(1).into()));
    assert!(caller.usage().outgoing <= WINDOW, "{:?}", caller.usage());
    assert!(soon(sending).await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn too_many_streams() {
    assert_eq!(callee_hears((1..=65).map(open)).await, Violation::TooManyStreams(64).into());
}

#[tokio::test(start_paused = true)]
async fn opening_and_resetting_in_a_loop() {
    let loops = (1..=65).flat_map(|id| [open(id), reset(id)]);
    assert_eq!(callee_hears(loops).await, Violation::TooManyStreams(64).into());
}

#[tokio::test(start_paused = true)]
async fn stream_numbers_that_are_used_again_or_left_out() {
    let reused = |got, wanted| ChannelError::from(Violation::StreamReused { got, wanted });
    assert_eq!(callee_hears([open(1), open(1)]).await, reused(1, 2));
    assert_eq!(callee_hears([open(1), reset(1), open(1)]).await, reused(1, 2));
    assert_eq!(callee_hears([open(2)]).await, reused(2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_number_is_not_free_again_when_its_conversation_is_over() {
    let (mut attacker, mut incoming, running) = hostile_caller().await;
    attacker.send(open(1)).await;
    incoming.next().await.unwrap().1.finish("").unwrap();
    assert_eq!(attacker.recv().await.unwrap(), Frame::Done(1, Bytes::new()));
    attacker.send(reset(1)).await;
    attacker.send(open(1)).await;
    assert_eq!(soon(running).await.unwrap(), Err(Violation::StreamReused { got: 1, wanted: 2 }.into()));
}

#[tokio::test(start_paused = true)]
async fn only_the_caller_opens() {
    assert_eq!(caller_hears([open(2)]).await, Violation::OpenByCallee(2).into());
}

#[tokio::test(start_paused = true)]
async fn streams_that_are_not_open() {
    for frame in [data(7, 1), control(7), reset(7), Frame::End(7), Frame::Credit(7, Flow::Data, 1)] {
        both_hear(vec![frame], Violation::UnknownStream(7)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_before_the_question() {
    // Nothing of what the caller opened can be written, so the attacker guesses the number.
    let (mut attacker, caller, running) = hostile_callee(64).await;
    let (_large, _small) = (caller.open(vec![0; MAX_PAYLOAD]).await.unwrap(), caller.open("").await.unwrap());
    tokio::task::yield_now().await;
    let _third = caller.open("").await.unwrap();
    attacker.send(Frame::Done(3, Bytes::new())).await;
    assert_eq!(soon(running).await.unwrap(), Err(Violation::UnknownStream(3).into()));
}

#[tokio::test(start_paused = true)]
async fn bytes_after_the_end() {
    both_hear(vec![Frame::End(1), data(1, 1)], Violation::DataAfterEnd(1)).await;
    both_hear(vec![Frame::End(1), Frame::End(1)], Violation::DataAfterEnd(1)).await;
}

#[tokio::test(start_paused = true)]
async fn words_after_the_last() {
    let done = Frame::Done(1, Bytes::new());
    for frame in [data(1, 1), control(1), Frame::End(1), done.clone(), reset(1)] {
        both_hear(vec![done.clone(), frame.clone()], Violation::SpokeAfterFinal(1)).await;
        both_hear(vec![reset(1), frame], Violation::SpokeAfterFinal(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pings_faster_than_answers_and_answers_without_pings() {
    both_hear(vec![Frame::Ping(1); 20_000], Violation::PingFlood).await;
    both_hear(vec![Frame::Pong(0)], Violation::UnaskedPong).await;
}

#[tokio::test(start_paused = true)]
async fn a_second_greeting() {
    both_hear(vec![Frame::Hello(Bytes::new())], Violation::LateHello).await;
}

#[tokio::test(start_paused = true)]
async fn garbage_and_frames_that_are_too_long() {
    for (bytes, error) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), FrameError::UnknownKind(b'/')),
        (vec![0, 1, 0, 1, 3, 0, 0, 0, 1], FrameError::TooLong { length: 65_537, most: MAX_PAYLOAD }),
    ] {
        let (mut attacker, _incoming, running) = hostile_caller().await;
        attacker.io.write_all(&bytes).await.unwrap();
        assert_eq!(soon(running).await.unwrap(), Err(error.into()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_breaks_off() {
    let (mut attacker, _incoming, running) = hostile_caller().await;
    attacker.io.write_all(&[0, 0, 0, 4, 11]).await.unwrap();
    drop(attacker);
    assert_eq!(soon(running).await.unwrap(), Err(ChannelError::Truncated));
}
