//! Parses OpenCode's events. It reads only what we need and tolerates everything else: other versions add
//! fields and types, and what is not understood is ignored rather than rejected.
//!
//! Texts are borrowed from the input if they need no unescaping. A token needs one pass and no JSON tree.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

mod delta;
mod lenient;
mod part;
mod request;

use lenient::text;
pub use part::{Part, PartKind, Times, ToolState};
use proto::socket::{OpenQuestion, QuestionKind};
pub use request::parse_pending;

#[derive(Debug)]
pub struct Event<'a> {
    /// The agent session that the event belongs to; empty if it names none.
    pub session: Cow<'a, str>,
    pub body: Body<'a>,
}

/// The content of an event.
#[derive(Debug)]
pub enum Body<'a> {
    /// The next piece of a part's text.
    Delta {
        message: Cow<'a, str>,
        part: Cow<'a, str>,
        delta: Cow<'a, str>,
    },
    /// The current state of a part. Older agents include the newest piece of its text.
    Part {
        part: Box<Part<'a>>,
        delta: Cow<'a, str>,
    },
    Message(Info<'a>),
    Status(Status<'a>),
    Error(Failure<'a>),
    Session {
        title: Cow<'a, str>,
        parent: Cow<'a, str>,
    },
    /// The agent waits for an answer.
    Asked {
        id: Cow<'a, str>,
        kind: QuestionKind,
        /// `None` if the question could not be parsed.
        question: Option<Box<OpenQuestion>>,
    },
    /// The agent does not wait for this answer any more.
    Settled {
        id: Cow<'a, str>,
    },
    /// An event that we ignore.
    Other,
}

/// A message without its parts.
#[derive(Debug, Deserialize)]
pub struct Info<'a> {
    #[serde(borrow, default, deserialize_with = "text")]
    pub id: Cow<'a, str>,
    #[serde(borrow, rename = "sessionID", default, deserialize_with = "text")]
    pub session: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "text")]
    pub role: Cow<'a, str>,
    #[serde(default)]
    pub time: Times,
    #[serde(borrow, default)]
    pub error: Option<Failure<'a>>,
}

/// The activity of the agent.
#[derive(Debug)]
pub enum Status<'a> {
    Idle,
    Busy,
    Retry { attempt: u32, message: Cow<'a, str> },
    Unknown,
}

/// An error of the agent. Only name and message are parsed; the rest reveals details of our model proxy.
#[derive(Debug, Deserialize)]
pub struct Failure<'a> {
    #[serde(borrow, default, deserialize_with = "text")]
    pub name: Cow<'a, str>,
    #[serde(borrow, default)]
    pub data: FailureData<'a>,
}

#[derive(Debug, Default, Deserialize)]
pub struct FailureData<'a> {
    #[serde(borrow, default, deserialize_with = "text")]
    pub message: Cow<'a, str>,
}

impl Failure<'_> {
    /// Whether this is a cancellation, which is not a failure.
    pub fn is_abort(&self) -> bool {
        self.name == "MessageAbortedError"
    }
}

/// The event is not JSON, or a known field has the wrong type.
#[derive(Debug, thiserror::Error)]
#[error("not an event of the agent: {0}")]
pub struct EventError(#[from] serde_json::Error);

impl<'a> Event<'a> {
    /// Parses the data of one server-sent event.
    pub fn parse(data: &'a [u8]) -> Result<Self, EventError> {
        // Validating UTF-8 once is cheaper than for each text.
        match str::from_utf8(data) {
            Ok(text) => {
                delta::read(text).map_or_else(|| Self::from_envelope(serde_json::from_str(text)?), Ok)
            }
            Err(_) => Self::from_envelope(serde_json::from_slice(data)?),
        }
    }

    fn from_envelope(Envelope { kind, properties: found }: Envelope<'a>) -> Result<Self, EventError> {
        let body = match &*kind {
            "message.part.delta" if found.field == "text" => {
                Body::Delta { message: found.message, part: found.part_id, delta: found.delta }
            }
            "message.part.updated" => {
                let part: Box<Part<'_>> = read(found.part)?;
                let session = outer_or_inner(found.session, &part.session);
                return Ok(Self { session, body: Body::Part { part, delta: found.delta } });
            }
            "message.updated" => {
                let info: Info<'_> = read(found.info)?;
                let session = outer_or_inner(found.session, &info.session);
                return Ok(Self { session, body: Body::Message(info) });
            }
            // `session.idle` is ignored, because it repeats `session.status`.
            "session.status" => Body::Status(status(found.status)?),
            "session.error" => Body::Error(read(found.error)?),
            "session.created" | "session.updated" => {
                let SessionFields { parent, title } = read(found.info)?;
                Body::Session { parent, title }
            }
            "permission.asked" => {
                let question = request::permission(&found.id, &found.permission, found.patterns);
                Body::Asked { id: found.id, kind: QuestionKind::Permission, question: question.map(Box::new) }
            }
            "question.asked" => {
                let question = request::question(&found.id, found.questions);
                Body::Asked { id: found.id, kind: QuestionKind::Question, question: question.map(Box::new) }
            }
            "permission.replied" | "question.replied" | "question.rejected" => {
                Body::Settled { id: found.request }
            }
            _ => Body::Other,
        };
        Ok(Self { session: found.session, body })
    }
}

/// Newer agents name the session next to the changed object, older ones inside it.
fn outer_or_inner<'a>(outer: Cow<'a, str>, inner: &Cow<'a, str>) -> Cow<'a, str> {
    if outer.is_empty() { inner.clone() } else { outer }
}

fn read<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Result<T, EventError> {
    Ok(serde_json::from_str(raw.map_or("null", RawValue::get))?)
}

fn status(raw: Option<&RawValue>) -> Result<Status<'_>, EventError> {
    let found: StatusFields<'_> = read(raw)?;
    Ok(match &*found.kind {
        "idle" => Status::Idle,
        "busy" => Status::Busy,
        "retry" => Status::Retry { attempt: found.attempt, message: found.message },
        _ => Status::Unknown,
    })
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, rename = "type", default, deserialize_with = "text")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    properties: Properties<'a>,
}

/// The properties of all event types in one struct, so that an event is parsed in one pass whatever the order
/// of its keys.
#[derive(Default, Deserialize)]
struct Properties<'a> {
    #[serde(borrow, rename = "sessionID", default, deserialize_with = "text")]
    session: Cow<'a, str>,
    #[serde(borrow, rename = "messageID", default, deserialize_with = "text")]
    message: Cow<'a, str>,
    #[serde(borrow, rename = "partID", default, deserialize_with = "text")]
    part_id: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "text")]
    field: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "text")]
    delta: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "text")]
    id: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "text")]
    permission: Cow<'a, str>,
    #[serde(borrow, rename = "requestID", default, deserialize_with = "text")]
    request: Cow<'a, str>,
    #[serde(borrow, default)]
    questions: Option<&'a RawValue>,
    #[serde(borrow, default)]
    patterns: Option<&'a RawValue>,
    #[serde(borrow, default)]
    part: Option<&'a RawValue>,
    #[serde(borrow, default)]
    info: Option<&'a RawValue>,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct SessionFields<'a> {
    #[serde(borrow, rename = "parentID", default, deserialize_with = "text")]
    parent: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "text")]
    title: Cow<'a, str>,
}

#[derive(Deserialize)]
struct StatusFields<'a> {
    #[serde(borrow, rename = "type", default, deserialize_with = "text")]
    kind: Cow<'a, str>,
    #[serde(default)]
    attempt: u32,
    #[serde(borrow, default, deserialize_with = "text")]
    message: Cow<'a, str>,
}
