//! The handshake: both sides prove that they know the same key before either trusts the other's frames.
//!
//! 1. Each sends a greeting: magic, role, supported versions, its limit on streams, 32 random bytes.
//! 2. The caller proves that it knows the key, and only then the callee does. Somebody who merely reaches the
//!    callee's port learns nothing that was derived from the key.
//!
//! A proof is an HMAC-SHA-256 over a fixed text, the prover's role and both greetings, each prefixed with its
//! length. A replayed proof fails because both sides contribute fresh random bytes, a reflected one because it
//! includes the role, and a tampered version or limit because the greetings are part of it.
//!
//! The handshake authenticates the two ends but does not encrypt or sign what follows: an attacker on the
//! connection can still change bytes. The provider must supply connections that nobody in between controls.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use clock::Rng;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::frame::{Frame, FrameError};
use crate::limits::{Limits, READ_BUFFER};

/// The protocol versions that this side supports.
pub const VERSIONS: RangeInclusive<u16> = 1..=1;
/// The longest greeting that is accepted. Version 1 needs less; later versions may append fields.
pub const MAX_GREETING: usize = 256;

/// Magic, role, oldest and newest version, streams, random bytes.
const GREETING_BYTES: usize = 8 + 1 + 2 + 2 + 2 + 32;
const MAGIC: &[u8; 8] = b"plfchan\0";
const PROOF_DOMAIN: &[u8] = b"proliferate channel, proof of the shared key";

/// The secret that both ends of one channel share. Generate a new one for every sandbox.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The caller opens streams; the callee answers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Caller,
    Callee,
}

/// The parameters that both sides agreed on.
#[derive(Debug)]
pub struct Agreement {
    pub version: u16,
    pub streams: u16,
    /// Bytes that were read beyond the handshake; the first frames start here.
    pub rest: BytesMut,
}

/// Why the handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    #[error("the other side did not prove itself in time")]
    Timeout,
    #[error("the other side closed the connection; it does so when the keys differ")]
    Closed,
    #[error("the connection failed: {0}")]
    Io(io::ErrorKind),
    #[error("the other side sent an invalid frame: {0}")]
    Frame(#[from] FrameError),
    #[error("the other side did not send a valid greeting")]
    NotAGreeting,
    #[error("both sides have the same role, {0:?}")]
    SameRole(Role),
    #[error(
        "this side supports channel versions {} to {}, the other side {} to {}: update the older one",
        ours.start(), ours.end(), theirs.start(), theirs.end()
    )]
    Version { ours: RangeInclusive<u16>, theirs: RangeInclusive<u16> },
    #[error("the other side does not know the key")]
    WrongProof,
}

/// Exchanges greetings and proofs within the time limit. Afterwards `io` carries frames.
pub async fn perform_handshake<Io: AsyncRead + AsyncWrite + Unpin>(
    io: &mut Io,
    role: Role,
    key: &Key,
    limits: &Limits,
    rng: &Rng,
) -> Result<Agreement, HandshakeError> {
    let work = perform_without_timeout(io, role, key, limits, rng);
    tokio::time::timeout(limits.handshake, work).await.unwrap_or(Err(HandshakeError::Timeout))
}

async fn perform_without_timeout<Io: AsyncRead + AsyncWrite + Unpin>(
    io: &mut Io,
    role: Role,
    key: &Key,
    limits: &Limits,
    rng: &Rng,
) -> Result<Agreement, HandshakeError> {
    let mut buffer = BytesMut::with_capacity(READ_BUFFER);
    let ours = greeting(role, limits.streams, &rng.bytes());
    send(io, ours.clone()).await?;
    let theirs = receive(io, &mut buffer).await?;
    let (version, streams) = read_greeting(&theirs, role)?;
    let proof = |prover: Role| match role {
        Role::Caller => mac(key, prover, [&ours, &theirs]),
        Role::Callee => mac(key, prover, [&theirs, &ours]),
    };
    if role == Role::Caller {
        send(io, tag(proof(Role::Caller))).await?;
    }
    let their_proof = receive(io, &mut buffer).await?;
    let prover = if role == Role::Caller { Role::Callee } else { Role::Caller };
    proof(prover).verify_slice(&their_proof).map_err(|_| HandshakeError::WrongProof)?;
    if role == Role::Callee {
        send(io, tag(proof(Role::Callee))).await?;
    }
    Ok(Agreement { version, streams: streams.min(limits.streams), rest: buffer })
}

fn greeting(role: Role, streams: u16, nonce: &[u8; 32]) -> Bytes {
    let mut out = BytesMut::with_capacity(GREETING_BYTES);
    out.put_slice(MAGIC);
    out.put_u8(role_byte(role));
    out.put_u16(*VERSIONS.start());
    out.put_u16(*VERSIONS.end());
    out.put_u16(streams);
    out.put_slice(nonce);
    out.freeze()
}

/// Returns the version to use and the number of streams that the other side allows.
fn read_greeting(greeting: &[u8], role: Role) -> Result<(u16, u16), HandshakeError> {
    let Some(mut rest) = greeting.strip_prefix(MAGIC).filter(|_| greeting.len() >= GREETING_BYTES) else {
        return Err(HandshakeError::NotAGreeting);
    };
    if rest.get_u8() == role_byte(role) {
        return Err(HandshakeError::SameRole(role));
    }
    let theirs = rest.get_u16()..=rest.get_u16();
    let Some(version) = newest_common_version(&VERSIONS, &theirs) else {
        return Err(HandshakeError::Version { ours: VERSIONS, theirs });
    };
    // With a limit of zero, opening a stream would wait for ever.
    match rest.get_u16() {
        0 => Err(HandshakeError::NotAGreeting),
        streams => Ok((version, streams)),
    }
}

/// The newest version that both sides support.
fn newest_common_version(ours: &RangeInclusive<u16>, theirs: &RangeInclusive<u16>) -> Option<u16> {
    let newest = *ours.end().min(theirs.end());
    (ours.contains(&newest) && theirs.contains(&newest)).then_some(newest)
}

fn role_byte(role: Role) -> u8 {
    match role {
        Role::Caller => 1,
        Role::Callee => 2,
    }
}

/// The caller's greeting always comes first, whichever side is the prover.
fn mac(key: &Key, prover: Role, greetings: [&[u8]; 2]) -> Hmac<Sha256> {
    // HMAC pads a short key with zeros to the hash's block size; padding it here makes the constructor infallible.
    let mut block = [0; 64];
    block[..32].copy_from_slice(&key.0);
    let mut mac = Hmac::<Sha256>::new(&block.into());
    for part in [PROOF_DOMAIN, &[role_byte(prover)], greetings[0], greetings[1]] {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac
}

fn tag(mac: Hmac<Sha256>) -> Bytes {
    Bytes::copy_from_slice(&mac.finalize().into_bytes())
}

async fn send<Io: AsyncWrite + Unpin>(io: &mut Io, payload: Bytes) -> Result<(), HandshakeError> {
    let mut out = BytesMut::new();
    Frame::Hello(payload).encode(&mut out);
    io.write_all(&out).await?;
    Ok(io.flush().await?)
}

async fn receive<Io: AsyncRead + Unpin>(io: &mut Io, buffer: &mut BytesMut) -> Result<Bytes, HandshakeError> {
    loop {
        match Frame::decode_at_most(buffer, MAX_GREETING)? {
            Some(Frame::Hello(payload)) => return Ok(payload),
            Some(_) => return Err(HandshakeError::NotAGreeting),
            None if io.read_buf(buffer).await? == 0 => return Err(HandshakeError::Closed),
            None => {}
        }
    }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind())
    }
}
