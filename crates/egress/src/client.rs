//! The sandbox's end of a connection: heads come out of it within limits, answers go in, and it is closed so that
//! the last answer arrives.

use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf, copy_buf, sink,
    split,
};
use tokio::time::timeout;

use crate::answer::Answer;
use crate::body::read_head;
use crate::fields::HeadError;
use crate::limits::Limits;

pub(crate) struct Client<S> {
    pub(crate) reader: BufReader<ReadHalf<S>>,
    pub(crate) writer: WriteHalf<S>,
}

impl<S: AsyncRead + AsyncWrite> Client<S> {
    pub(crate) fn new(stream: S) -> Self {
        let (reader, writer) = split(stream);
        Self { reader: BufReader::new(reader), writer }
    }

    /// The next head; `None` when the client has no more to ask.
    pub(crate) async fn next_head(
        &mut self,
        limits: &Limits,
        first: bool,
    ) -> Result<Option<Vec<u8>>, HeadError> {
        if !first && !matches!(timeout(limits.keep_alive, self.reader.fill_buf()).await, Ok(Ok([_, ..]))) {
            return Ok(None);
        }
        let head = read_head(&mut self.reader, limits.request_head);
        timeout(limits.head, head).await.unwrap_or(Err(HeadError::TooSlow))
    }

    /// Says something of our own. A client that does not take it is left to [`Client::close`].
    pub(crate) async fn answer(
        &mut self,
        answer: &Answer,
        keep_alive: bool,
        with_body: bool,
        limits: &Limits,
    ) {
        let bytes = answer.to_bytes(keep_alive, with_body);
        let writing = async {
            self.writer.write_all(&bytes).await?;
            self.writer.flush().await
        };
        let _ = timeout(limits.farewell, writing).await;
    }

    /// Ends the connection. A socket that is closed while unread bytes wait is reset, and the reset overtakes the
    /// answer; so what the client still sends is taken and thrown away for a moment.
    pub(crate) async fn close(mut self, limits: &Limits) {
        let leaving = async {
            self.writer.shutdown().await?;
            copy_buf(&mut self.reader, &mut sink()).await
        };
        let _ = timeout(limits.farewell, leaving).await;
    }
}
