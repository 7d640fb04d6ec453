//! Why a channel or one of its conversations ended. No text holds anything that was sent, except a reset's reason.

use std::io;

use crate::frame::{FrameError, StreamId};

/// Why the channel is over, and with it all its conversations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    #[error("the other side closed the channel")]
    Closed,
    #[error("the channel was cut in the middle of a frame")]
    Truncated,
    #[error("this side dropped the channel's driver")]
    Dropped,
    #[error("the connection failed: {0}")]
    Io(io::ErrorKind),
    #[error("the other side said nothing and answered no ping")]
    Silent,
    #[error("the other side took nothing of what was sent to it")]
    Stalled,
    #[error("the other side sent garbage: {0}")]
    Frame(#[from] FrameError),
    #[error("the other side broke the protocol: {0}")]
    Violation(#[from] Violation),
    #[error("all stream numbers of this channel are used: make a new channel")]
    Exhausted,
}

/// What the other side did that an honest one never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("it greeted again")]
    LateHello,
    #[error("it opened stream {0}, and only the caller opens streams")]
    OpenByCallee(StreamId),
    #[error("it opened stream {got} where {wanted} was next")]
    StreamReused { got: StreamId, wanted: StreamId },
    #[error("it opened more than {0} streams at a time")]
    TooManyStreams(u16),
    #[error("it spoke on stream {0}, which is not open")]
    UnknownStream(StreamId),
    #[error("it sent more than its credit on stream {0}")]
    CreditOverrun(StreamId),
    #[error("it returned credit on stream {0} for what it cannot have got")]
    CreditInvented(StreamId),
    #[error("it sent data on stream {0} after ending it")]
    DataAfterEnd(StreamId),
    #[error("it spoke on stream {0} after finishing or resetting it")]
    SpokeAfterFinal(StreamId),
    #[error("it sent pings faster than they can be answered")]
    PingFlood,
    #[error("it answered a ping that was never sent")]
    UnaskedPong,
}

/// Why a conversation cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error("the other side gave the conversation up: {0}")]
    Reset(String),
    #[error("the other side has finished the conversation and takes no more")]
    Finished,
    #[error("this side has already ended the conversation")]
    Ended,
    #[error("a message of {length} bytes is longer than {most}")]
    TooLong { length: usize, most: usize },
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

impl From<io::Error> for ChannelError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind())
    }
}

impl From<StreamError> for io::Error {
    fn from(error: StreamError) -> Self {
        let kind = match error {
            StreamError::Reset(_) => io::ErrorKind::ConnectionReset,
            StreamError::Finished | StreamError::Ended => io::ErrorKind::BrokenPipe,
            StreamError::TooLong { .. } => io::ErrorKind::InvalidInput,
            StreamError::Channel(_) => io::ErrorKind::ConnectionAborted,
        };
        Self::new(kind, error)
    }
}
