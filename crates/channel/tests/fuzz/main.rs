//! Ten seconds of fuzzing, and the proof that it finds something: `examples/fuzz.rs` runs the same for longer.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as the tests do")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]

mod campaign;
mod live;
mod mutate;
mod targets;

use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use campaign::{Finding, Target, run};
use channel::WINDOW;
use channel::frame::{Frame, FrameError, HEADER, MAX_PAYLOAD};
use mutate::Mutator;
use targets::{FRAMES, corpus, decoder};

/// A third of the ten seconds: there are three targets.
const TIME: Duration = Duration::from_millis(3_333);

fn fuzz(seeds: &str, target: Target<'_>) -> Result<u64, Finding> {
    run(&Mutator::new(&FRAMES, &corpus(seeds)), target, 0, TIME)
}

fn must_hold(seeds: &str, target: Target<'_>) {
    if let Err(finding) = fuzz(seeds, target) {
        panic!("{}", finding.report());
    }
}

#[test]
fn the_decoder_holds() {
    must_hold("", &|input, dice| decoder(Frame::decode, input, dice));
}

#[test]
fn a_live_callee_holds() {
    must_hold("caller-", &|input, dice| live::callee(WINDOW, input, dice));
}

#[test]
fn a_live_caller_holds() {
    must_hold("callee-", &|input, dice| live::caller(WINDOW, input, dice));
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
    must_hold("", &|input, dice| decoder(broken::<0, 0>, input, dice));
}

#[test]
fn a_planted_wait_that_is_one_byte_too_short_is_found() {
    let finding = fuzz("", &|input, dice| decoder(broken::<0, 1>, input, dice)).unwrap_err();
    assert!(finding.what.contains("split_to out of bounds"), "{}", finding.report());
}

#[test]
fn a_planted_bound_that_is_one_too_high_is_found() {
    let finding = fuzz("", &|input, dice| decoder(broken::<1, 0>, input, dice)).unwrap_err();
    assert!(finding.what.contains("it waits for a frame of 65537 bytes"), "{}", finding.report());
}

#[test]
fn a_window_that_is_not_kept_would_be_found() {
    let must_be_found = |seeds: &str, target: Target<'_>| {
        let finding = fuzz(seeds, target).unwrap_err();
        assert!(finding.what.contains("more is held than allowed"), "{}", finding.report());
    };
    must_be_found("caller-", &|input, dice| live::callee(WINDOW / 2, input, dice));
    must_be_found("callee-", &|input, dice| live::caller(WINDOW / 2, input, dice));
}
