//! The sandbox's side of a connection: reads request heads within limits, writes our responses, and closes so that
//! the last response arrives.

use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf, copy_buf, sink,
    split,
};
use tokio::time::timeout;

use crate::body::read_head;
use crate::error_response::ErrorResponse;
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

    /// The next head; `None` when the client sends no further request.
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

    /// Writes a response of our own. If the client does not read it, [`Client::close`] handles that.
    pub(crate) async fn respond(
        &mut self,
        response: &ErrorResponse,
        keep_alive: bool,
        with_body: bool,
        limits: &Limits,
    ) {
        let bytes = response.to_bytes(keep_alive, with_body);
        let writing = async {
            self.writer.write_all(&bytes).await?;
            self.writer.flush().await
        };
        let _ = timeout(limits.close, writing).await;
    }

    /// Closes the connection. The kernel resets a socket that is closed with unread bytes, and the reset can
    /// overtake the response; so for a moment we read and discard what the client still sends.
    pub(crate) async fn close(mut self, limits: &Limits) {
        let closing = async {
            self.writer.shutdown().await?;
            copy_buf(&mut self.reader, &mut sink()).await
        };
        let _ = timeout(limits.close, closing).await;
    }
}
