//! Both sides prove that they know the same key before either believes anything the other says.
//!
//! 1. Each sends a greeting: magic, role, the versions it speaks, how many streams it allows, 32 random bytes.
//! 2. The caller proves itself; only then does the callee. Whoever merely reaches the callee's port learns nothing
//!    that was made with the key.
//!
//! A proof is HMAC-SHA-256 over a fixed text, the prover's role and both greetings, each with its length before it. An
//! old proof fails because both sides give fresh random bytes, a reflected one because of the role, and a changed
//! version or limit because the greetings are part of it.
//!
//! It authenticates the two ends and does not encrypt or sign what follows: whoever controls the connection itself
//! can still change bytes. The provider must hand out connections that nobody in between controls.

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

/// The versions of the protocol that this side speaks.
pub const VERSIONS: RangeInclusive<u16> = 1..=1;
/// The longest greeting that is read. Version 1 needs less; later ones may append.
pub const MAX_GREETING: usize = 256;

/// Magic, role, oldest and newest version, streams, random bytes.
const GREETING: usize = 8 + 1 + 2 + 2 + 2 + 32;
const MAGIC: &[u8; 8] = b"plfchan\0";
const DOMAIN: &[u8] = b"proliferate channel, proof of the shared key";

/// The secret that both sides of one channel were given. Make a new one for every sandbox.
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

/// The caller opens streams, the callee answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Caller,
    Callee,
}

/// What both sides agreed on.
#[derive(Debug)]
pub struct Agreed {
    pub version: u16,
    pub streams: u16,
    /// What was read behind the handshake already; frames begin with it.
    pub rest: BytesMut,
}

/// Why the other side is not one to talk to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    #[error("the other side did not prove itself in time")]
    Timeout,
    #[error("the other side closed the connection; it does so when the keys differ")]
    Closed,
    #[error("the connection failed: {0}")]
    Io(io::ErrorKind),
    #[error("the other side sent garbage: {0}")]
    Frame(#[from] FrameError),
    #[error("the other side sent something else than a greeting")]
    NotAGreeting,
    #[error("the other side plays the same role, {0:?}")]
    SameRole(Role),
    #[error(
        "this side speaks versions {} to {} of the channel, the other {} to {}: update the older",
        ours.start(), ours.end(), theirs.start(), theirs.end()
    )]
    Version { ours: RangeInclusive<u16>, theirs: RangeInclusive<u16> },
    #[error("the other side does not know the key")]
    WrongProof,
}

/// Greets and proves, within the time limit. Afterwards `io` carries frames.
pub async fn shake<Io: AsyncRead + AsyncWrite + Unpin>(
    io: &mut Io,
    role: Role,
    key: &Key,
    limits: &Limits,
    rng: &Rng,
) -> Result<Agreed, HandshakeError> {
    let work = unhurried(io, role, key, limits, rng);
    tokio::time::timeout(limits.handshake, work).await.unwrap_or(Err(HandshakeError::Timeout))
}

async fn unhurried<Io: AsyncRead + AsyncWrite + Unpin>(
    io: &mut Io,
    role: Role,
    key: &Key,
    limits: &Limits,
    rng: &Rng,
) -> Result<Agreed, HandshakeError> {
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
    let shown = receive(io, &mut buffer).await?;
    let prover = if role == Role::Caller { Role::Callee } else { Role::Caller };
    proof(prover).verify_slice(&shown).map_err(|_| HandshakeError::WrongProof)?;
    if role == Role::Callee {
        send(io, tag(proof(Role::Callee))).await?;
    }
    Ok(Agreed { version, streams: streams.min(limits.streams), rest: buffer })
}

fn greeting(role: Role, streams: u16, nonce: &[u8; 32]) -> Bytes {
    let mut out = BytesMut::with_capacity(GREETING);
    out.put_slice(MAGIC);
    out.put_u8(role_byte(role));
    out.put_u16(*VERSIONS.start());
    out.put_u16(*VERSIONS.end());
    out.put_u16(streams);
    out.put_slice(nonce);
    out.freeze()
}

/// The version to speak and the streams that the other side allows.
fn read_greeting(greeting: &[u8], role: Role) -> Result<(u16, u16), HandshakeError> {
    let Some(mut rest) = greeting.strip_prefix(MAGIC).filter(|_| greeting.len() >= GREETING) else {
        return Err(HandshakeError::NotAGreeting);
    };
    if rest.get_u8() == role_byte(role) {
        return Err(HandshakeError::SameRole(role));
    }
    let theirs = rest.get_u16()..=rest.get_u16();
    let Some(version) = agree(&VERSIONS, &theirs) else {
        return Err(HandshakeError::Version { ours: VERSIONS, theirs });
    };
    // A side that allows nothing has nothing to talk about, and whoever opens a stream would wait for ever.
    match rest.get_u16() {
        0 => Err(HandshakeError::NotAGreeting),
        streams => Ok((version, streams)),
    }
}

/// The newest version that both speak.
fn agree(ours: &RangeInclusive<u16>, theirs: &RangeInclusive<u16>) -> Option<u16> {
    let newest = *ours.end().min(theirs.end());
    (ours.contains(&newest) && theirs.contains(&newest)).then_some(newest)
}

fn role_byte(role: Role) -> u8 {
    match role {
        Role::Caller => 1,
        Role::Callee => 2,
    }
}

/// The caller's greeting comes first, whoever proves.
fn mac(key: &Key, prover: Role, greetings: [&[u8]; 2]) -> Hmac<Sha256> {
    // HMAC pads a short key with zeros to the block of the hash; done here, it cannot fail.
    let mut block = [0; 64];
    block[..32].copy_from_slice(&key.0);
    let mut mac = Hmac::<Sha256>::new(&block.into());
    for part in [DOMAIN, &[role_byte(prover)], greetings[0], greetings[1]] {
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
