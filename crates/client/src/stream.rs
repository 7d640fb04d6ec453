//! A session's stream that outlives its connections: whatever breaks, it goes on where it was.

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

/// The pause before the first attempt to come back; each next one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How often the gateway is asked whether it is there, and how often it may fail to say so.
const PING: Duration = Duration::from_secs(30);
const UNANSWERED: u32 = 3;
/// Events that may wait for a reader; a slower one holds the gateway back, which sends it away and lets it resume.
const WAITING: usize = 256;

/// How to watch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    /// Go on behind this number; without it the whole conversation comes first, as `init`.
    pub since: Option<i64>,
    /// Only look: a session that sleeps is not woken.
    pub passive: bool,
}

/// What happens on a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The gateway said this. After a `gap`, the `init` that follows replaces all that was known.
    Frame(Box<Frame>),
    /// The gateway said something that this version does not understand; the text as it came.
    Unknown(String),
    /// The connection is lost; the next attempt comes after this pause.
    Lost { reason: String, attempt: u32, pause: Duration },
    /// It is there again, and goes on where it was.
    Back,
}

/// Events of one session, in order, none twice. It ends only with an error that no new attempt would change.
#[derive(Debug)]
pub struct Stream {
    events: mpsc::Receiver<Result<Event, Error>>,
}

impl Stream {
    pub(crate) async fn open(client: Client, session: SessionId, watch: Watch) -> Result<Self, Error> {
        let (out, events) = mpsc::channel(WAITING);
        let place = Place { cursor: watch.since, failures: 0 };
        let reader = Reader { client, session, passive: watch.passive, place, out };
        let socket = reader.dial().await?;
        tokio::spawn(reader.run(socket));
        Ok(Self { events })
    }

    /// The next event; `None` after an error. Giving up waiting for it loses nothing.
    pub async fn next(&mut self) -> Option<Result<Event, Error>> {
        self.events.recv().await
    }
}

/// What has to be known to go on.
struct Place {
    /// The last number that was heard; nothing before the first `init`, and between a `gap` and its `init`.
    cursor: Option<i64>,
    /// Attempts since the last connection that brought something new, or lasted. One that only greets, explains itself
    /// and ends, as often as it is made, is tried less and less often.
    failures: u32,
}

impl Place {
    /// Takes a frame in; `false` when it was heard before.
    fn take(&mut self, message: Option<&ServerMessage>, seq: Option<i64>) -> bool {
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

/// The task behind a stream.
struct Reader {
    client: Client,
    session: SessionId,
    passive: bool,
    place: Place,
    out: mpsc::Sender<Result<Event, Error>>,
}

/// Nobody reads the stream any more.
struct Unread;

/// The number of a frame whose type is not known.
#[derive(Deserialize)]
struct Numbered {
    seq: Option<i64>,
}

impl Reader {
    async fn run(mut self, mut socket: Socket) {
        loop {
            let Ok(reason) = self.listen(&mut socket).await else { return };
            socket = match self.come_back(reason).await {
                Ok(Some(socket)) => socket,
                Ok(None) | Err(Unread) => return,
            };
        }
    }

    async fn dial(&self) -> Result<Socket, Error> {
        let since = self.place.cursor.map(|since| format!("since={since}"));
        let passive = self.passive.then(|| "passive=1".to_owned());
        let query = [since, passive].into_iter().flatten().collect::<Vec<_>>().join("&");
        let query = Some(query.as_str()).filter(|query| !query.is_empty());
        socket::open(&self.client.http, self.client.session(self.session, query)).await
    }

    /// Passes on what is heard until the connection ends; returns why it did.
    async fn listen(&mut self, socket: &mut Socket) -> Result<String, Unread> {
        let (mut ping, mut unanswered) = (interval(PING), 0);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ping.reset();
        loop {
            tokio::select! {
                message = socket.next() => {
                    unanswered = 0;
                    match message {
                        Some(Ok(Message::Text(text))) => self.hear(&text).await?,
                        Some(Ok(Message::Close(Some(frame)))) => {
                            return Ok(format!("{} ({})", frame.reason, u16::from(frame.code)));
                        }
                        Some(Ok(Message::Close(None))) | None => return Ok("the connection ended".to_owned()),
                        Some(Ok(_)) => {}
                        Some(Err(error)) => return Ok(error.to_string()),
                    }
                }
                _ = ping.tick() => {
                    if unanswered == UNANSWERED {
                        return Ok("the gateway is silent".to_owned());
                    }
                    unanswered += 1;
                    let text = serde_json::to_string(&ClientMessage::Ping).unwrap_or_default();
                    if let Err(error) = socket.send(Message::text(text)).await {
                        return Ok(error.to_string());
                    }
                }
                () = self.out.closed() => return Err(Unread),
            }
        }
    }

    async fn hear(&mut self, text: &str) -> Result<(), Unread> {
        match Frame::parse(text) {
            // The answer to our own ping: the connection lasts.
            Ok(Frame { message: ServerMessage::Pong, .. }) => {
                self.place.failures = 0;
                Ok(())
            }
            Ok(frame) => {
                if !self.place.take(Some(&frame.message), frame.seq) {
                    return Ok(());
                }
                self.tell(Ok(Event::Frame(Box::new(frame)))).await
            }
            Err(_) => {
                let seq = serde_json::from_str(text).ok().and_then(|Numbered { seq }| seq);
                if !self.place.take(None, seq) {
                    return Ok(());
                }
                self.tell(Ok(Event::Unknown(text.to_owned()))).await
            }
        }
    }

    /// Tries until there is a connection, or until the gateway says that there will be none.
    async fn come_back(&mut self, mut reason: String) -> Result<Option<Socket>, Unread> {
        loop {
            self.place.failures += 1;
            let (attempt, pause) = (self.place.failures, self.place.pause());
            self.tell(Ok(Event::Lost { reason, attempt, pause })).await?;
            tokio::select! {
                () = sleep(pause) => {}
                () = self.out.closed() => return Err(Unread),
            }
            match self.dial().await {
                Ok(socket) => {
                    self.tell(Ok(Event::Back)).await?;
                    return Ok(Some(socket));
                }
                Err(error) if error.may_pass() => reason = error.to_string(),
                Err(error) => {
                    self.tell(Err(error)).await?;
                    return Ok(None);
                }
            }
        }
    }

    async fn tell(&self, event: Result<Event, Error>) -> Result<(), Unread> {
        self.out.send(event).await.map_err(|_| Unread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        let pause = |failures| Place { cursor: None, failures }.pause().as_secs();
        assert_eq!([1, 2, 3, 4, 5, 6, 7, 100].map(pause), [1, 2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn a_place_moves_forward_only_except_by_init() {
        let mut place = Place { cursor: None, failures: 0 };
        let init = ServerMessage::Init { messages: Vec::new(), earlier: 0, config: None };
        assert!(place.take(Some(&init), Some(7)));
        assert!(place.take(None, None) && place.cursor == Some(7));
        assert!(!place.take(None, Some(7)), "heard before");
        assert!(place.take(None, Some(8)) && place.cursor == Some(8));
        assert!(place.take(Some(&ServerMessage::Gap { from: 9, to: 12 }), None));
        assert_eq!(place.cursor, None, "a connection that breaks here must begin with init");
        assert!(place.take(Some(&init), Some(3)) && place.cursor == Some(3));
    }
}
