//! Two honest ends over memory, or one honest end and one that says whatever a test wants.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use channel::frame::Frame;
use channel::handshake::{Role, shake};
use channel::{Caller, ChannelError, Incoming, Key, Limits, accept, connect};
use clock::Rng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::task::JoinHandle;

pub(crate) type Running = JoinHandle<Result<(), ChannelError>>;

pub(crate) fn key() -> Key {
    Key::new([0x42; 32])
}

/// Ends a test that would hang. Time is simulated: nobody waits an hour.
pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
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

/// Two honest ends; so many bytes fit between them.
pub(crate) async fn pair_over(bytes: usize) -> Pair {
    let (near, far) = duplex(bytes);
    let (key, rng, limits) = (key(), Rng::seeded(1), Limits::default());
    let (caller, incoming) = tokio::join!(connect(near, &key, limits, &rng), accept(far, &key, limits, &rng));
    let ((caller, near), (incoming, far)) = (caller.unwrap(), incoming.unwrap());
    Pair { caller, incoming, near: tokio::spawn(near.run()), far: tokio::spawn(far.run()) }
}

/// An end that knows the key and says what it likes.
pub(crate) struct Attacker {
    pub(crate) io: DuplexStream,
    buffer: BytesMut,
}

impl Attacker {
    async fn shake(mut io: DuplexStream, role: Role) -> Self {
        let agreed = shake(&mut io, role, &key(), &Limits::default(), &Rng::seeded(2)).await.unwrap();
        Self { io, buffer: agreed.rest }
    }

    pub(crate) async fn send(&mut self, frame: Frame) {
        let mut out = BytesMut::new();
        frame.encode(&mut out);
        // The other end may have hung up already; the test looks at why.
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

/// A hostile caller against our callee. A megabyte fits between them, so that the attacker need not read.
pub(crate) async fn hostile_caller() -> (Attacker, Incoming, Running) {
    let (near, far) = duplex(1024 * 1024);
    let (key, rng) = (key(), Rng::seeded(3));
    let (attacker, accepted) =
        tokio::join!(Attacker::shake(near, Role::Caller), accept(far, &key, Limits::default(), &rng));
    let (incoming, driver) = accepted.unwrap();
    (attacker, incoming, tokio::spawn(driver.run()))
}

/// A hostile callee against our caller.
pub(crate) async fn hostile_callee(between: usize) -> (Attacker, Caller, Running) {
    let (near, far) = duplex(between);
    let (key, rng) = (key(), Rng::seeded(3));
    let (attacker, connected) =
        tokio::join!(Attacker::shake(near, Role::Callee), connect(far, &key, Limits::default(), &rng));
    let (caller, driver) = connected.unwrap();
    (attacker, caller, tokio::spawn(driver.run()))
}

/// Bytes that tell their place and their origin, so that a lost, doubled or strayed one is seen.
pub(crate) fn pattern(seed: usize, length: usize) -> Bytes {
    (0..length).map(|n| (n.wrapping_mul(31) ^ (n >> 8) ^ seed.wrapping_mul(97)).to_le_bytes()[0]).collect()
}
