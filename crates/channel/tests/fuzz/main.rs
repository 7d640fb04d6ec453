//! Ten seconds of fuzzing, and the proof that it finds something: `examples/fuzz.rs` runs the same for longer.

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
const TIME: Duration = Duration::from_millis(3_333);

#[test]
fn the_decoder_holds() {
    holds(DECODER, TIME);
}

#[test]
fn a_live_callee_holds() {
    holds(CALLEE, TIME);
}

#[test]
fn a_live_caller_holds() {
    holds(CALLER, TIME);
}

#[test]
fn what_was_recorded_is_whole() {
    for name in ["caller-recorded", "callee-recorded"] {
        let [recorded] = &corpus(name)[..] else { panic!("there is not one {name}") };
        let mut buffer = BytesMut::from(recorded.as_slice());
        let mut frames = 0;
        while Frame::decode(&mut buffer).unwrap().is_some() {
            frames += 1;
        }
        assert!(frames > 5 && buffer.is_empty(), "{name}: {frames} frames, {} bytes left", buffer.len());
    }
}

/// A copy of the decoder into which a bug can be put: a bound that is `BOUND` too high, or a wait that is `WAIT` bytes
/// too short.
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
fn the_copy_without_a_bug_is_not_accused() {
    holds(Target { run: &|input, dice| decoder(broken::<0, 0>, input, dice), ..DECODER }, TIME);
}

#[test]
fn a_planted_wait_that_is_one_byte_too_short_is_found() {
    let run = &|input: &[u8], dice: &_| decoder(broken::<0, 1>, input, dice);
    finds(Target { run, ..DECODER }, "split_to out of bounds");
}

#[test]
fn a_planted_bound_that_is_one_too_high_is_found() {
    let run = &|input: &[u8], dice: &_| decoder(broken::<1, 0>, input, dice);
    finds(Target { run, ..DECODER }, "it waits for a frame of 65537 bytes");
}

#[test]
fn a_window_that_is_not_kept_would_be_found() {
    let run = &|input: &[u8], dice: &_| live::callee(WINDOW / 2, input, dice);
    finds(Target { run, ..CALLEE }, "more is held than allowed");
    let run = &|input: &[u8], dice: &_| live::caller(WINDOW / 2, input, dice);
    finds(Target { run, ..CALLER }, "more is held than allowed");
}
