//! A session's event stream that survives broken connections: it reconnects and resumes where it was.

mod socket;

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use proto::SessionId;
use proto::socket::{ClientMessage, Frame, ServerMessage};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_tungstenite::tungstenite::Message;

use crate::client::Client;
use crate::error::Error;
use socket::Socket;

/// The pause before the first reconnection attempt; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The interval between pings, and the number of unanswered ones after which the connection counts as lost.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const MAX_UNANSWERED_PINGS: u32 = 3;
/// Events that are buffered for a reader. If the reader is too slow, the gateway closes the connection and
/// the stream resumes.
const EVENT_BUFFER: usize = 256;

/// How to watch a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    /// Resume after this sequence number. Without it, the complete conversation is sent first, as `init`.
    pub since: Option<i64>,
    /// Whether to watch without resuming a paused session.
    pub passive: bool,
}

/// An event of a session's stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A frame from the gateway. After a `gap`, the following `init` replaces everything before it.
    Frame(Box<Frame>),
    /// A message that this version does not understand, as raw text.
    Unknown(String),
    /// The connection is lost; the next attempt follows after this pause.
    Disconnected { reason: String, attempt: u32, pause: Duration },
    /// The connection is restored, and the stream continues where it was.
    Reconnected,
}

/// The events of one session, in order and without duplicates. It ends only with a permanent error.
#[derive(Debug)]
pub struct Stream {
    events: mpsc::Receiver<Result<Event, Error>>,
}

impl Stream {
    pub(crate) async fn open(client: Client, session: SessionId, watch: Watch) -> Result<Self, Error> {
        let (out, events) = mpsc::channel(EVENT_BUFFER);
        let position = Position { cursor: watch.since, failures: 0 };
        let reader = Reader { client, session, passive: watch.passive, position, out };
        let socket = reader.dial().await?;
        tokio::spawn(reader.run(socket));
        Ok(Self { events })
    }

    /// The next event; `None` after an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Event, Error>> {
        self.events.recv().await
    }
}

/// The position in a stream, which is needed to resume it.
struct Position {
    /// The last sequence number received; `None` before the first `init`, and between a `gap` and its `init`.
    cursor: Option<i64>,
    /// Attempts since the last connection that delivered something new or lasted. A gateway that accepts
    /// connections but closes them right away is thus tried less and less often.
    failures: u32,
}

impl Position {
    /// Records a frame; returns `false` if it is a duplicate.
    fn advance(&mut self, message: Option<&ServerMessage>, seq: Option<i64>) -> bool {
        let before = self.cursor;
        match (message, seq) {
            (Some(ServerMessage::Gap { .. }), _) => self.cursor = None,
            (Some(ServerMessage::Init { .. }), Some(seq)) => self.cursor = Some(seq),
            (_, Some(seq)) if self.cursor.is_some_and(|cursor| seq <= cursor) => return false,
            (_, Some(seq)) => self.cursor = Some(seq),
            (_, None) => {}
        }
        if self.cursor > before {
            self.failures = 0;
        }
        true
    }

    fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(5);
        (FIRST_PAUSE * 2_u32.pow(doublings)).min(LONGEST_PAUSE)
    }
}

/// The task that feeds a stream.
struct Reader {
    client: Client,
    session: SessionId,
    passive: bool,
    position: Position,
    out: mpsc::Sender<Result<Event, Error>>,
}

/// The receiving end of the stream was dropped.
struct StreamClosed;

/// The sequence number of a frame with an unknown type.
#[derive(Deserialize)]
struct SequenceNumber {
    seq: Option<i64>,
}

impl Reader {
    async fn run(mut self, mut socket: Socket) {
        loop {
            let Ok(reason) = self.forward_messages(&mut socket).await else { return };
            socket = match self.reconnect(reason).await {
                Ok(Some(socket)) => socket,
                Ok(None) | Err(StreamClosed) => return,
            };
        }
    }

    async fn dial(&self) -> Result<Socket, Error> {
        let since = self.position.cursor.map(|since| format!("since={since}"));
        let passive = self.passive.then(|| "passive=1".to_owned());
        let query = [since, passive].into_iter().flatten().collect::<Vec<_>>().join("&");
        let query = Some(query.as_str()).filter(|query| !query.is_empty());
        socket::open(&self.client.http, self.client.session(self.session, query)).await
    }

    /// Forwards messages until the connection ends; returns the reason.
    async fn forward_messages(&mut self, socket: &mut Socket) -> Result<String, StreamClosed> {
        let (mut ping, mut unanswered) = (interval(PING_INTERVAL), 0);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ping.reset();
        loop {
            tokio::select! {
                message = socket.next() => {
                    unanswered = 0;
                    match message {
                        Some(Ok(Message::Text(text))) => self.handle_text(&text).await?,
                        Some(Ok(Message::Close(Some(frame)))) => {
                            return Ok(format!("{} ({})", frame.reason, u16::from(frame.code)));
                        }
                        Some(Ok(Message::Close(None))) | None => return Ok("the connection was closed".to_owned()),
                        Some(Ok(_)) => {}
                        Some(Err(error)) => return Ok(error.to_string()),
                    }
                }
                _ = ping.tick() => {
                    if unanswered == MAX_UNANSWERED_PINGS {
                        return Ok("the gateway does not answer pings".to_owned());
                    }
                    unanswered += 1;
                    let text = serde_json::to_string(&ClientMessage::Ping).unwrap_or_default();
                    if let Err(error) = socket.send(Message::text(text)).await {
                        return Ok(error.to_string());
                    }
                }
                () = self.out.closed() => return Err(StreamClosed),
            }
        }
    }

    async fn handle_text(&mut self, text: &str) -> Result<(), StreamClosed> {
        match Frame::parse(text) {
            // The answer to our own ping, which shows that the connection works.
            Ok(Frame { message: ServerMessage::Pong, .. }) => {
                self.position.failures = 0;
                Ok(())
            }
            Ok(frame) => {
                if !self.position.advance(Some(&frame.message), frame.seq) {
                    return Ok(());
                }
                self.send_event(Ok(Event::Frame(Box::new(frame)))).await
            }
            Err(_) => {
                let seq = serde_json::from_str(text).ok().and_then(|SequenceNumber { seq }| seq);
                if !self.position.advance(None, seq) {
                    return Ok(());
                }
                self.send_event(Ok(Event::Unknown(text.to_owned()))).await
            }
        }
    }

    /// Retries until a connection is established or the gateway reports a permanent error.
    async fn reconnect(&mut self, mut reason: String) -> Result<Option<Socket>, StreamClosed> {
        loop {
            self.position.failures += 1;
            let (attempt, pause) = (self.position.failures, self.position.pause());
            self.send_event(Ok(Event::Disconnected { reason, attempt, pause })).await?;
            tokio::select! {
                () = sleep(pause) => {}
                () = self.out.closed() => return Err(StreamClosed),
            }
            match self.dial().await {
                Ok(socket) => {
                    self.send_event(Ok(Event::Reconnected)).await?;
                    return Ok(Some(socket));
                }
                Err(error) if error.is_transient() => reason = error.to_string(),
                Err(error) => {
                    self.send_event(Err(error)).await?;
                    return Ok(None);
                }
            }
        }
    }

    async fn send_event(&self, event: Result<Event, Error>) -> Result<(), StreamClosed> {
        self.out.send(event).await.map_err(|_| StreamClosed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_30_seconds() {
        let pause = |failures| Position { cursor: None, failures }.pause().as_secs();
        assert_eq!([1, 2, 3, 4, 5, 6, 7, 100].map(pause), [1, 2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn the_position_moves_backward_only_by_init() {
        let mut position = Position { cursor: None, failures: 0 };
        let init = ServerMessage::Init {
            messages: Vec::new(),
            earlier: 0,
            config: None,
            questions: Vec::new(),
            approvals: Vec::new(),
        };
        assert!(position.advance(Some(&init), Some(7)));
        assert!(position.advance(None, None) && position.cursor == Some(7));
        assert!(!position.advance(None, Some(7)), "a duplicate");
        assert!(position.advance(None, Some(8)) && position.cursor == Some(8));
        assert!(position.advance(Some(&ServerMessage::Gap { from: 9, to: 12 }), None));
        assert_eq!(position.cursor, None, "a connection that breaks here must start with init");
        assert!(position.advance(Some(&init), Some(3)) && position.cursor == Some(3));
    }
}
