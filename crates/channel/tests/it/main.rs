//! Tests of the public API: frames, handshake, streams, and every attack on them that we know.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as the tests do")]

mod attacks;
mod common;

mod ends;
mod frames;
mod handshakes;
mod liveness;
mod random;
mod streams;
