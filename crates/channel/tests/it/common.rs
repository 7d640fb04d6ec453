//! Connects two honest peers in memory, or one honest peer and an attacker.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use channel::frame::Frame;
use channel::handshake::{Role, perform_handshake};
use channel::{Caller, ChannelError, Incoming, Key, Limits, accept, connect};
use clock::Rng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::task::JoinHandle;

pub(crate) type Running = JoinHandle<Result<(), ChannelError>>;

pub(crate) fn key() -> Key {
    Key::new([0x42; 32])
}

/// Fails a test that would hang. Time is simulated, so no test waits an hour.
pub(crate) async fn with_timeout<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_hours(1), work).await.unwrap()
}

pub(crate) struct Pair {
    pub(crate) caller: Caller,
    pub(crate) incoming: Incoming,
    pub(crate) near: Running,
    pub(crate) far: Running,
}

pub(crate) async fn pair() -> Pair {
    pair_over(64 * 1024).await
}

/// Connects two honest peers; `bytes` is the capacity of the connection between them.
pub(crate) async fn pair_over(bytes: usize) -> Pair {
    let (near, far) = duplex(bytes);
    let (key, rng, limits) = (key(), Rng::seeded(1), Limits::default());
    let (caller, incoming) = tokio::join!(connect(near, &key, limits, &rng), accept(far, &key, limits, &rng));
    let ((caller, near), (incoming, far)) = (caller.unwrap(), incoming.unwrap());
    Pair { caller, incoming, near: tokio::spawn(near.run()), far: tokio::spawn(far.run()) }
}

/// A peer that knows the key and sends arbitrary frames.
pub(crate) struct Attacker {
    pub(crate) io: DuplexStream,
    buffer: BytesMut,
}

impl Attacker {
    async fn perform_handshake(mut io: DuplexStream, role: Role) -> Self {
        let agreed =
            perform_handshake(&mut io, role, &key(), &Limits::default(), &Rng::seeded(2)).await.unwrap();
        Self { io, buffer: agreed.rest }
    }

    pub(crate) async fn send(&mut self, frame: Frame) {
        let mut out = BytesMut::new();
        frame.encode(&mut out);
        // The other end may have disconnected already; the test checks its error.
        let _ = self.io.write_all(&out).await;
    }

    pub(crate) async fn recv(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = Frame::decode(&mut self.buffer).unwrap() {
                return Some(frame);
            }
            if self.io.read_buf(&mut self.buffer).await.unwrap() == 0 {
                return None;
            }
        }
    }
}

/// A hostile caller against our callee. The connection buffers a megabyte, so that the attacker need not read.
pub(crate) async fn hostile_caller() -> (Attacker, Incoming, Running) {
    let (near, far) = duplex(1024 * 1024);
    let (key, rng) = (key(), Rng::seeded(3));
    let (attacker, accepted) = tokio::join!(
        Attacker::perform_handshake(near, Role::Caller),
        accept(far, &key, Limits::default(), &rng)
    );
    let (incoming, driver) = accepted.unwrap();
    (attacker, incoming, tokio::spawn(driver.run()))
}

/// A hostile callee against our caller.
pub(crate) async fn hostile_callee(between: usize) -> (Attacker, Caller, Running) {
    let (near, far) = duplex(between);
    let (key, rng) = (key(), Rng::seeded(3));
    let (attacker, connected) = tokio::join!(
        Attacker::perform_handshake(near, Role::Callee),
        connect(far, &key, Limits::default(), &rng)
    );
    let (caller, driver) = connected.unwrap();
    (attacker, caller, tokio::spawn(driver.run()))
}

/// Bytes that depend on their position and seed, so that lost, duplicated or misrouted bytes are noticed.
pub(crate) fn pattern(seed: usize, length: usize) -> Bytes {
    (0..length).map(|n| (n.wrapping_mul(31) ^ (n >> 8) ^ seed.wrapping_mul(97)).to_le_bytes()[0]).collect()
}
