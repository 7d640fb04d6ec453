//! Ten seconds of fuzzing, and checks that the fuzzer finds planted bugs; `examples/fuzz.rs` runs longer.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as the tests do")]

mod live;
mod targets;

use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use channel::WINDOW;
use channel::frame::{Frame, FrameError, HEADER, MAX_PAYLOAD};
use targets::{CALLEE, CALLER, DECODER, corpus, decoder};
use testkit::fuzz::{Target, finds, holds};

/// A third of the ten seconds: there are three targets.
const TIME_PER_TARGET: Duration = Duration::from_millis(3_333);

#[test]
fn decoder_survives_fuzzing() {
    holds(DECODER, TIME_PER_TARGET);
}

#[test]
fn callee_survives_fuzzing() {
    holds(CALLEE, TIME_PER_TARGET);
}

#[test]
fn caller_survives_fuzzing() {
    holds(CALLER, TIME_PER_TARGET);
}

#[test]
fn recordings_contain_complete_frames() {
    for name in ["caller-recorded", "callee-recorded"] {
        let [recorded] = &corpus(name)[..] else { panic!("expected exactly one corpus file {name}") };
        let mut buffer = BytesMut::from(recorded.as_slice());
        let mut frames = 0;
        while Frame::decode(&mut buffer).unwrap().is_some() {
            frames += 1;
        }
        assert!(frames > 5 && buffer.is_empty(), "{name}: {frames} frames, {} bytes left", buffer.len());
    }
}

/// A copy of the decoder with an optional bug: a length limit that is `BOUND` too high, or a wait that stops `WAIT`
/// bytes too early.
fn broken<const BOUND: usize, const WAIT: usize>(buffer: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
    let Some(mut head) = buffer.get(..HEADER) else { return Ok(None) };
    let length = head.get_u32() as usize;
    if length > MAX_PAYLOAD + BOUND {
        return Err(FrameError::TooLong { length, most: MAX_PAYLOAD });
    }
    if buffer.len() + WAIT < HEADER + length {
        return Ok(None);
    }
    Frame::decode(&mut buffer.split_to(HEADER + length))
}

#[test]
fn decoder_copy_without_a_bug_passes() {
    holds(Target { run: &|input, dice| decoder(broken::<0, 0>, input, dice), ..DECODER }, TIME_PER_TARGET);
}

#[test]
fn fuzzer_finds_a_wait_one_byte_too_short() {
    let run = &|input: &[u8], dice: &_| decoder(broken::<0, 1>, input, dice);
    finds(Target { run, ..DECODER }, "split_to out of bounds");
}

#[test]
fn fuzzer_finds_a_bound_one_too_high() {
    let run = &|input: &[u8], dice: &_| decoder(broken::<1, 0>, input, dice);
    finds(Target { run, ..DECODER }, "the decoder waits for a frame of 65537 bytes");
}

#[test]
fn fuzzer_finds_an_exceeded_window() {
    let run = &|input: &[u8], dice: &_| live::callee(WINDOW / 2, input, dice);
    finds(Target { run, ..CALLEE }, "more is held than allowed");
    let run = &|input: &[u8], dice: &_| live::caller(WINDOW / 2, input, dice);
    finds(Target { run, ..CALLER }, "more is held than allowed");
}
