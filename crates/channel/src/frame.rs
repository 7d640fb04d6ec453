//! The frame codec: each frame has a kind, a stream number and at most 64 KiB of payload.
//!
//! The other side may be hostile. A frame that is too long, of an unknown kind or malformed for its kind ends the
//! channel with a typed error as soon as its head has arrived. Each frame has exactly one encoding, so nothing can
//! be hidden in one.
//!
//! On the wire: payload length (4 bytes, big endian), kind (1), stream (4), payload.

use std::fmt;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// The longest payload. Larger data is sent in several frames.
pub const MAX_PAYLOAD: usize = 64 * 1024;
/// The size of a frame's head: length, kind, stream.
pub const HEADER: usize = 4 + 1 + 4;

/// Identifies one of the streams that share a channel. 0 is the channel itself.
pub type StreamId = u32;

/// A message on the channel. Its `Debug` output shows sizes and never contents, because frames carry secrets.
#[derive(Clone, PartialEq, Eq)]
pub enum Frame {
    /// A greeting or a proof of the key; valid only during the handshake.
    Hello(Bytes),
    /// Opens a stream with a request.
    Open(StreamId, Bytes),
    /// Bytes of a stream.
    Data(StreamId, Lane, Bytes),
    /// An out-of-band message, such as a new terminal size or a signal.
    Control(StreamId, Bytes),
    /// The sender sends no more bytes on this stream.
    End(StreamId),
    /// The sender finishes the stream with a result and sends nothing more on it.
    Done(StreamId, Bytes),
    /// The sender aborts the stream with a reason and sends nothing more on it.
    Reset(StreamId, Bytes),
    /// Allows the other side to send this many more bytes.
    Credit(StreamId, Flow, u32),
    Ping(u32),
    Pong(u32),
}

/// Selects one of a stream's two byte sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Input, standard output, a file's content, a connection's bytes.
    Main,
    /// Standard error.
    Errors,
}

/// Which window a credit belongs to. Control messages have their own window, so that a signal reaches a program
/// that does not read its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Data,
    Control,
}

/// Why a byte sequence is not a valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {length} bytes exceeds the limit of {most}")]
    TooLong { length: usize, most: usize },
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    #[error("a frame of kind {kind} cannot have {length} bytes")]
    WrongLength { kind: u8, length: usize },
    #[error("a frame of kind {kind} cannot belong to stream {stream}")]
    WrongStream { kind: u8, stream: StreamId },
}

const HELLO: u8 = 1;
const OPEN: u8 = 2;
const DATA: u8 = 3;
const ERRORS: u8 = 4;
const CONTROL: u8 = 5;
const END: u8 = 6;
const DONE: u8 = 7;
const RESET: u8 = 8;
const DATA_CREDIT: u8 = 9;
const CONTROL_CREDIT: u8 = 10;
const PING: u8 = 11;
const PONG: u8 = 12;

impl Frame {
    /// Removes the next complete frame from `buffer`, or returns `None` if it has not arrived yet.
    pub fn decode(buffer: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        Self::decode_at_most(buffer, MAX_PAYLOAD)
    }

    /// Like [`Frame::decode`], with a tighter limit for peers that have not authenticated yet.
    ///
    /// The payload is copied into its own allocation: a slice of `buffer` would keep the entire buffer alive.
    pub fn decode_at_most(buffer: &mut BytesMut, most: usize) -> Result<Option<Self>, FrameError> {
        let Some(mut head) = buffer.get(..HEADER) else { return Ok(None) };
        let (length, kind, stream) = (head.get_u32() as usize, head.get_u8(), head.get_u32());
        check_head(kind, stream, length, most)?;
        let Some(payload) = buffer.get(HEADER..HEADER + length) else { return Ok(None) };
        let frame = Self::parse(kind, stream, payload)?;
        buffer.advance(HEADER + length);
        Ok(Some(frame))
    }

    fn parse(kind: u8, stream: StreamId, payload: &[u8]) -> Result<Self, FrameError> {
        let bytes = || Bytes::copy_from_slice(payload);
        let number = || match payload.try_into() {
            Ok(number) => Ok(u32::from_be_bytes(number)),
            Err(_) => Err(FrameError::WrongLength { kind, length: payload.len() }),
        };
        Ok(match kind {
            HELLO => Self::Hello(bytes()),
            OPEN => Self::Open(stream, bytes()),
            DATA => Self::Data(stream, Lane::Main, bytes()),
            ERRORS => Self::Data(stream, Lane::Errors, bytes()),
            CONTROL => Self::Control(stream, bytes()),
            END => Self::End(stream),
            DONE => Self::Done(stream, bytes()),
            RESET => Self::Reset(stream, bytes()),
            DATA_CREDIT => Self::Credit(stream, Flow::Data, number()?),
            CONTROL_CREDIT => Self::Credit(stream, Flow::Control, number()?),
            PING => Self::Ping(number()?),
            PONG => Self::Pong(number()?),
            _ => return Err(FrameError::UnknownKind(kind)),
        })
    }

    /// Appends the encoded frame to `out`.
    pub fn encode(&self, out: &mut BytesMut) {
        let payload = self.encode_head(out);
        out.put_slice(&payload);
    }

    /// Appends the head to `out` and returns the payload that must follow it, so that large payloads need no copy.
    /// The payload must not exceed [`MAX_PAYLOAD`], or the other side ends the channel; callers split their data.
    pub(crate) fn encode_head(&self, out: &mut BytesMut) -> Bytes {
        let number = |n: &u32| Bytes::copy_from_slice(&n.to_be_bytes());
        let (kind, stream, payload) = match self {
            Self::Hello(payload) => (HELLO, 0, payload.clone()),
            Self::Open(stream, payload) => (OPEN, *stream, payload.clone()),
            Self::Data(stream, Lane::Main, payload) => (DATA, *stream, payload.clone()),
            Self::Data(stream, Lane::Errors, payload) => (ERRORS, *stream, payload.clone()),
            Self::Control(stream, payload) => (CONTROL, *stream, payload.clone()),
            Self::End(stream) => (END, *stream, Bytes::new()),
            Self::Done(stream, payload) => (DONE, *stream, payload.clone()),
            Self::Reset(stream, payload) => (RESET, *stream, payload.clone()),
            Self::Credit(stream, Flow::Data, n) => (DATA_CREDIT, *stream, number(n)),
            Self::Credit(stream, Flow::Control, n) => (CONTROL_CREDIT, *stream, number(n)),
            Self::Ping(n) => (PING, 0, number(n)),
            Self::Pong(n) => (PONG, 0, number(n)),
        };
        debug_assert!(payload.len() <= MAX_PAYLOAD, "this side built a frame of {} bytes", payload.len());
        out.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
        out.put_u8(kind);
        out.put_u32(stream);
        payload
    }
}

/// Checks everything that the head alone reveals, so that an invalid frame fails before its payload arrives.
fn check_head(kind: u8, stream: StreamId, length: usize, most: usize) -> Result<(), FrameError> {
    if !(HELLO..=PONG).contains(&kind) {
        return Err(FrameError::UnknownKind(kind));
    }
    if length > most {
        return Err(FrameError::TooLong { length, most });
    }
    let right_length = match kind {
        DATA | ERRORS => length > 0,
        END => length == 0,
        DATA_CREDIT | CONTROL_CREDIT | PING | PONG => length == 4,
        _ => true,
    };
    if !right_length {
        return Err(FrameError::WrongLength { kind, length });
    }
    if (stream == 0) != matches!(kind, HELLO | PING | PONG) {
        return Err(FrameError::WrongStream { kind, stream });
    }
    Ok(())
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello(bytes) => write!(f, "Hello({} bytes)", bytes.len()),
            Self::Open(stream, bytes) => write!(f, "Open({stream}, {} bytes)", bytes.len()),
            Self::Data(stream, lane, bytes) => write!(f, "Data({stream}, {lane:?}, {} bytes)", bytes.len()),
            Self::Control(stream, bytes) => write!(f, "Control({stream}, {} bytes)", bytes.len()),
            Self::End(stream) => write!(f, "End({stream})"),
            Self::Done(stream, bytes) => write!(f, "Done({stream}, {} bytes)", bytes.len()),
            Self::Reset(stream, bytes) => write!(f, "Reset({stream}, {} bytes)", bytes.len()),
            Self::Credit(stream, flow, n) => write!(f, "Credit({stream}, {flow:?}, {n})"),
            Self::Ping(n) => write!(f, "Ping({n})"),
            Self::Pong(n) => write!(f, "Pong({n})"),
        }
    }
}
