//! Why a channel or a stream ended. No error text contains payload bytes, except the reason of a reset.

use std::io;

use crate::frame::{FrameError, StreamId};

/// Why the channel ended; all its streams end with it.
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
    #[error("the other side sent nothing and did not answer a ping")]
    Silent,
    #[error("the other side stopped reading what was sent to it")]
    Stalled,
    #[error("the other side sent an invalid frame: {0}")]
    Frame(#[from] FrameError),
    #[error("the other side broke the protocol: {0}")]
    Violation(#[from] Violation),
    #[error("all stream numbers of this channel are used: open a new channel")]
    Exhausted,
}

/// A protocol violation that a correct peer never commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("it sent a second greeting")]
    LateHello,
    #[error("it opened stream {0}, but only the caller may open streams")]
    OpenByCallee(StreamId),
    #[error("it opened stream {got} instead of {wanted}")]
    StreamReused { got: StreamId, wanted: StreamId },
    #[error("it opened more than {0} streams at once")]
    TooManyStreams(u16),
    #[error("it sent a frame on stream {0}, which is not open")]
    UnknownStream(StreamId),
    #[error("it sent more than its credit on stream {0}")]
    CreditOverrun(StreamId),
    #[error("it returned more credit on stream {0} than it received data")]
    CreditExcess(StreamId),
    #[error("it sent data on stream {0} after ending it")]
    DataAfterEnd(StreamId),
    #[error("it sent a frame on stream {0} after finishing or resetting it")]
    FrameAfterFinal(StreamId),
    #[error("it sent pings faster than they can be answered")]
    PingFlood,
    #[error("it answered a ping that was never sent")]
    UnexpectedPong,
}

/// Why a stream cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error("the other side reset the stream: {0}")]
    Reset(String),
    #[error("the other side has finished the stream and accepts no more data")]
    Finished,
    #[error("this side has already ended the stream")]
    Ended,
    #[error("a message of {length} bytes exceeds the limit of {most}")]
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
