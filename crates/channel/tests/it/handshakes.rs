//! The handshake rejects every peer without the key, and cannot be made to hang or to use unbounded memory.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use channel::frame::{Frame, FrameError};
use channel::handshake::{Agreement, HandshakeError, Role, perform_handshake};
use channel::{Key, Limits};
use clock::Rng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use crate::common::key;

type Outcome = Result<Agreement, HandshakeError>;

async fn as_role(mut io: DuplexStream, role: Role, key: Key, seed: u64) -> Outcome {
    perform_handshake(&mut io, role, &key, &Limits::default(), &Rng::seeded(seed)).await
}

fn hello(payload: impl Into<Bytes>) -> BytesMut {
    let mut out = BytesMut::new();
    Frame::Hello(payload.into()).encode(&mut out);
    out
}

fn greeting(role: u8, versions: [u16; 2], streams: u16) -> Vec<u8> {
    let numbers = [versions[0], versions[1], streams].map(u16::to_be_bytes).concat();
    [b"plfchan\0", &[role][..], &numbers, &[5; 32]].concat()
}

/// Sends these bytes to our `role`, then nothing, and returns the error.
async fn error_after(role: Role, bytes: &[u8]) -> HandshakeError {
    let (mut attacker, ours) = duplex(4096);
    attacker.write_all(bytes).await.unwrap();
    as_role(ours, role, key(), 1).await.unwrap_err()
}

/// A relay between two peers that records what each sends and may change it.
async fn relay_handshake(change: impl Fn(Role, &mut [u8])) -> (Outcome, Outcome, [Vec<u8>; 2]) {
    let ((near, mut near_end), (far, mut far_end)) = (duplex(4096), duplex(4096));
    let relay = async move {
        let mut sent = [Vec::new(), Vec::new()];
        let (mut near_buffer, mut far_buffer) = ([0; 500], [0; 500]);
        loop {
            tokio::select! {
                Ok(length) = near_end.read(&mut near_buffer) => {
                    if length == 0 {
                        return sent;
                    }
                    change(Role::Caller, &mut near_buffer[..length]);
                    sent[0].extend_from_slice(&near_buffer[..length]);
                    let _ = far_end.write_all(&near_buffer[..length]).await;
                }
                Ok(length) = far_end.read(&mut far_buffer) => {
                    if length == 0 {
                        return sent;
                    }
                    change(Role::Callee, &mut far_buffer[..length]);
                    sent[1].extend_from_slice(&far_buffer[..length]);
                    let _ = near_end.write_all(&far_buffer[..length]).await;
                }
            }
        }
    };
    tokio::join!(as_role(near, Role::Caller, key(), 1), as_role(far, Role::Callee, key(), 2), relay)
}

#[tokio::test(start_paused = true)]
async fn peers_with_the_key_agree_on_version_and_smaller_limit() {
    let (mut near, mut far) = duplex(64);
    let many = Limits::default();
    let few = Limits { streams: 3, ..many };
    let (key, rng) = (key(), Rng::system());
    let (near, far) = tokio::join!(
        perform_handshake(&mut near, Role::Caller, &key, &many, &rng),
        perform_handshake(&mut far, Role::Callee, &key, &few, &rng)
    );
    let (near, far) = (near.unwrap(), far.unwrap());
    assert_eq!((near.version, near.streams), (1, 3));
    assert_eq!((far.version, far.streams), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn callee_rejects_a_wrong_key_without_revealing_its_own_proof() {
    let (mut attacker, ours) = duplex(4096);
    let callee = tokio::spawn(as_role(ours, Role::Callee, key(), 1));
    let wrong = perform_handshake(
        &mut attacker,
        Role::Caller,
        &Key::new([0; 32]),
        &Limits::default(),
        &Rng::system(),
    )
    .await;
    assert_eq!(wrong.unwrap_err(), HandshakeError::Closed);
    assert_eq!(callee.await.unwrap().unwrap_err(), HandshakeError::WrongProof);
}

#[tokio::test(start_paused = true)]
async fn a_caller_refuses_a_callee_that_invents_a_proof() {
    let sent = [hello(greeting(2, [1, 1], 64)), hello(vec![0; 32])].concat();
    assert_eq!(error_after(Role::Caller, &sent).await, HandshakeError::WrongProof);
    let short = [hello(greeting(2, [1, 1], 64)), hello(vec![])].concat();
    assert_eq!(error_after(Role::Caller, &short).await, HandshakeError::WrongProof);
}

#[tokio::test(start_paused = true)]
async fn replayed_handshake_is_rejected() {
    let (near, far, sent) = relay_handshake(|_, _| {}).await;
    near.unwrap();
    far.unwrap();
    // A different seed gives the fresh side other random bytes than the recording answers.
    for (role, recorded) in [(Role::Callee, &sent[0]), (Role::Caller, &sent[1])] {
        let (mut attacker, ours) = duplex(4096);
        attacker.write_all(recorded).await.unwrap();
        let outcome = as_role(ours, role, key(), 77).await;
        assert_eq!(outcome.unwrap_err(), HandshakeError::WrongProof);
    }
}

#[tokio::test(start_paused = true)]
async fn reflected_greeting_is_rejected() {
    for role in [Role::Caller, Role::Callee] {
        let (mirror, ours) = duplex(4096);
        let (mut reader, mut writer) = tokio::io::split(mirror);
        let copy = tokio::spawn(async move { tokio::io::copy(&mut reader, &mut writer).await });
        assert_eq!(as_role(ours, role, key(), 1).await.unwrap_err(), HandshakeError::SameRole(role));
        copy.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn reflected_proof_with_a_changed_role_is_rejected() {
    let (mut mirror, ours) = duplex(4096);
    let caller = tokio::spawn(as_role(ours, Role::Caller, key(), 1));
    let mut seen = [0; 9 + 47];
    mirror.read_exact(&mut seen).await.unwrap();
    seen[9 + 8] = 2;
    mirror.write_all(&seen).await.unwrap();
    let mut proof = [0; 9 + 32];
    mirror.read_exact(&mut proof).await.unwrap();
    mirror.write_all(&proof).await.unwrap();
    assert_eq!(caller.await.unwrap().unwrap_err(), HandshakeError::WrongProof);
}

#[tokio::test(start_paused = true)]
async fn a_changed_greeting_breaks_the_proof() {
    // Byte 14 of a greeting is the low byte of the number of streams.
    let (near, far, _) = relay_handshake(|role, sent| {
        if role == Role::Caller && sent.len() == 9 + 47 {
            sent[9 + 14] = 1;
        }
    })
    .await;
    assert_eq!(far.unwrap_err(), HandshakeError::WrongProof);
    assert_eq!(near.unwrap_err(), HandshakeError::Closed);
}

#[tokio::test(start_paused = true)]
async fn version_mismatch_names_both_ranges() {
    for (role, other) in [(Role::Caller, 2), (Role::Callee, 1)] {
        let error = error_after(role, &hello(greeting(other, [2, 9], 64))).await;
        assert_eq!(error, HandshakeError::Version { ours: 1..=1, theirs: 2..=9 });
        let text = "this side supports channel versions 1 to 1, the other side 2 to 9: update the older one";
        assert_eq!(error.to_string(), text);
        let inverted = error_after(role, &hello(greeting(other, [1, 0], 64))).await;
        assert_eq!(inverted, HandshakeError::Version { ours: 1..=1, theirs: RangeInclusive::new(1, 0) });
    }
}

#[tokio::test(start_paused = true)]
async fn newer_and_longer_greeting_with_version_1_is_accepted() {
    let newer = [greeting(2, [1, 9], 64), vec![1; 100]].concat();
    assert_eq!(error_after(Role::Caller, &hello(newer)).await, HandshakeError::Timeout);
}

#[tokio::test(start_paused = true)]
async fn garbage_is_refused_at_once() {
    let error = error_after(Role::Callee, b"GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(error, HandshakeError::Frame(FrameError::UnknownKind(b'/')));
    for payload in
        [vec![], b"plfchan\0".to_vec(), greeting(1, [1, 1], 0), greeting(1, [1, 1], 1)[..46].into()]
    {
        assert_eq!(error_after(Role::Callee, &hello(payload)).await, HandshakeError::NotAGreeting);
    }
    let mut open = BytesMut::new();
    Frame::Open(1, Bytes::from_static(b"let me in")).encode(&mut open);
    assert_eq!(error_after(Role::Callee, &open).await, HandshakeError::NotAGreeting);
    let early = [&hello(greeting(1, [1, 1], 64))[..], &open].concat();
    assert_eq!(error_after(Role::Callee, &early).await, HandshakeError::NotAGreeting);
}

#[tokio::test(start_paused = true)]
async fn oversized_greeting_is_refused_by_its_head() {
    let error = error_after(Role::Callee, &hello(vec![0; 257])[..9]).await;
    assert_eq!(error, HandshakeError::Frame(FrameError::TooLong { length: 257, most: 256 }));
}

#[tokio::test(start_paused = true)]
async fn silent_and_slow_peers_time_out() {
    assert_eq!(error_after(Role::Callee, b"").await, HandshakeError::Timeout);
    let (mut attacker, ours) = duplex(4096);
    let callee = tokio::spawn(as_role(ours, Role::Callee, key(), 1));
    let trickle = tokio::spawn(async move {
        for byte in hello(greeting(1, [1, 1], 64)) {
            tokio::time::sleep(Duration::from_secs(1)).await;
            attacker.write_all(&[byte]).await?;
        }
        std::io::Result::Ok(())
    });
    assert_eq!(callee.await.unwrap().unwrap_err(), HandshakeError::Timeout);
    assert!(trickle.await.unwrap().is_err(), "the callee must close the connection");
}

#[tokio::test(start_paused = true)]
async fn closed_connection_is_distinguished_from_a_silent_one() {
    let (attacker, ours) = duplex(4096);
    let callee = tokio::spawn(as_role(ours, Role::Callee, key(), 1));
    drop(attacker);
    let error = callee.await.unwrap().unwrap_err();
    assert!(matches!(error, HandshakeError::Closed | HandshakeError::Io(_)), "{error}");
}

#[test]
fn key_debug_output_hides_its_bytes() {
    assert_eq!(format!("{:?}", Key::new([1; 32])), "Key(..)");
}
