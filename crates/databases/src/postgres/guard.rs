//! A limit on what a PostgreSQL server can make us hold. The client reads a message completely before it passes it on, and
//! reserves as much memory as a message claims to have, so the stream ends before a message that is too long.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The bytes of a message's header: its type, and its length without the type.
const HEADER: usize = 5;
/// The type of the message that ends an exchange.
const READY_FOR_QUERY: u8 = b'Z';
/// The maximum number of exchanges. The client asks for the definition of each type that it does not know, one inside of
/// the other, so a server with endless types would exhaust the stack.
const MAX_EXCHANGES: usize = 100;

/// Whether a stream has ended because of its limit.
#[derive(Clone, Default)]
pub(super) struct Exceeded(Arc<AtomicBool>);

impl Exceeded {
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

pub(super) struct Guarded<S> {
    stream: S,
    messages: Messages,
    exceeded: Exceeded,
}

impl<S> Guarded<S> {
    pub(super) fn new(stream: S, max_bytes: usize) -> Self {
        Self { stream, messages: Messages::new(max_bytes), exceeded: Exceeded::default() }
    }

    pub(super) fn exceeded(&self) -> Exceeded {
        self.exceeded.clone()
    }
}

/// The messages of a stream, of which only the headers are read.
struct Messages {
    /// The number of bytes that may still begin.
    left: usize,
    exchanges: usize,
    header: [u8; HEADER],
    in_header: usize,
    /// The number of bytes until the next header.
    in_body: usize,
}

impl Messages {
    const fn new(max_bytes: usize) -> Self {
        Self { left: max_bytes, exchanges: 0, header: [0; HEADER], in_header: 0, in_body: 0 }
    }

    /// The number of these bytes that may be passed on. Fewer than all means that the limit is reached.
    fn admit(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            if self.in_body > 0 {
                let skipped = self.in_body.min(bytes.len() - at);
                self.in_body -= skipped;
                at += skipped;
                continue;
            }
            self.header[self.in_header] = bytes[at];
            self.in_header += 1;
            if self.in_header == HEADER {
                if !self.begin() {
                    // The first bytes of this header may have been passed on already, and are harmless.
                    return at;
                }
                self.in_header = 0;
            }
            at += 1;
        }
        at
    }

    /// Begins the message of a complete header. Returns `false` if it does not fit.
    fn begin(&mut self) -> bool {
        let [kind, length @ ..] = self.header;
        let body = (u32::from_be_bytes(length) as usize).saturating_sub(4);
        let Some(left) = self.left.checked_sub(body + HEADER) else { return false };
        self.exchanges += usize::from(kind == READY_FOR_QUERY);
        (self.left, self.in_body) = (left, body);
        self.exchanges <= MAX_EXCHANGES
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let ended = || Poll::Ready(Err(io::Error::other("the server sends more than the limit")));
        if self.exceeded.get() {
            return ended();
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        let admitted = self.messages.admit(&buf.filled()[before..]);
        if admitted == read {
            return Poll::Ready(Ok(()));
        }
        self.exceeded.0.store(true, Ordering::Release);
        buf.set_filled(before + admitted);
        // An empty read would look like the end of the connection.
        if admitted == 0 { ended() } else { Poll::Ready(Ok(())) }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    fn message(kind: u8, body: usize) -> Vec<u8> {
        let length = u32::try_from(body + 4).unwrap().to_be_bytes();
        [&[kind], length.as_slice(), &vec![b'x'; body]].concat()
    }

    /// What passes of a stream, and whether the limit ended it.
    async fn pass(sent: &[u8], max_bytes: usize) -> (usize, bool) {
        let mut stream = Guarded::new(sent, max_bytes);
        let (mut passed, mut piece) = (0, [0; 7]);
        while let Ok(read @ 1..) = stream.read(&mut piece).await {
            passed += read;
        }
        (passed, stream.exceeded().get())
    }

    #[tokio::test]
    async fn messages_within_the_limit_pass_unchanged() {
        let sent = [message(b'T', 10), message(b'D', 0), message(b'Z', 1)].concat();
        assert_eq!(pass(&sent, 26).await, (sent.len(), false));
    }

    #[tokio::test]
    async fn a_stream_ends_before_a_message_that_is_too_long() {
        let first = message(b'D', 10);
        let (passed, exceeded) = pass(&[first.clone(), message(b'D', 11)].concat(), 30).await;
        assert!(exceeded && (first.len()..first.len() + HEADER).contains(&passed), "{passed}");
        // A message that only claims to be long.
        let (passed, exceeded) = pass(&[b'D', 0xff, 0xff, 0xff, 0xff, b'x'], 1 << 20).await;
        assert!(exceeded && passed < HEADER, "{passed}");
    }

    #[tokio::test]
    async fn the_number_of_exchanges_is_limited() {
        let (_, exceeded) = pass(&message(b'Z', 1).repeat(MAX_EXCHANGES), 1 << 20).await;
        assert!(!exceeded);
        let (_, exceeded) = pass(&message(b'Z', 1).repeat(MAX_EXCHANGES + 1), 1 << 20).await;
        assert!(exceeded);
    }
}
