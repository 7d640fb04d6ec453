//! OpenCode's events, read for what we need of them and tolerant of everything else: another version adds
//! fields and types, and what is not understood is left out rather than refused.
//!
//! Texts are borrowed from the input where they need no unescaping. A token costs one pass and no tree of values.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

mod delta;
mod lenient;
mod part;

use lenient::text;
pub use part::{Part, PartKind, Times, ToolState};

/// One event of the stream.
#[derive(Debug)]
pub struct Event<'a> {
    /// The agent session it is about; empty where it names none.
    pub session: Cow<'a, str>,
    pub body: Body<'a>,
}

/// What has happened, as far as it concerns us.
#[derive(Debug)]
pub enum Body<'a> {
    /// The next piece of a part's text.
    Delta {
        message: Cow<'a, str>,
        part: Cow<'a, str>,
        delta: Cow<'a, str>,
    },
    /// A part as it is now; older agents send the newest piece of its text along.
    Part {
        part: Box<Part<'a>>,
        delta: Cow<'a, str>,
    },
    Message(Info<'a>),
    Status(Status<'a>),
    Error(Failure<'a>),
    Session {
        parent: Cow<'a, str>,
    },
    PermissionAsked {
        id: Cow<'a, str>,
        permission: Cow<'a, str>,
    },
    QuestionAsked {
        id: Cow<'a, str>,
    },
    /// Everything that we need not know.
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

/// Whether the agent works.
#[derive(Debug)]
pub enum Status<'a> {
    Idle,
    Busy,
    Retry { attempt: u32, message: Cow<'a, str> },
    Unknown,
}

/// An error of the agent. Only its name and message are read: the rest shows the inside of our model proxy.
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
    /// Somebody cancelled; this is no failure.
    pub fn is_abort(&self) -> bool {
        self.name == "MessageAbortedError"
    }
}

/// The event is not JSON, or what is known of it has another form.
#[derive(Debug, thiserror::Error)]
#[error("not an event of the agent: {0}")]
pub struct EventError(#[from] serde_json::Error);

impl<'a> Event<'a> {
    /// Reads the data of one server-sent event.
    pub fn parse(data: &'a [u8]) -> Result<Self, EventError> {
        // One look at all of it is cheaper than one at each text in it.
        match str::from_utf8(data) {
            Ok(text) => delta::read(text).map_or_else(|| Self::of(serde_json::from_str(text)?), Ok),
            Err(_) => Self::of(serde_json::from_slice(data)?),
        }
    }

    fn of(Envelope { kind, properties: found }: Envelope<'a>) -> Result<Self, EventError> {
        let body = match &*kind {
            "message.part.delta" if found.field == "text" => {
                Body::Delta { message: found.message, part: found.part_id, delta: found.delta }
            }
            "message.part.updated" => {
                let part: Box<Part<'_>> = read(found.part)?;
                let session = either(found.session, &part.session);
                return Ok(Self { session, body: Body::Part { part, delta: found.delta } });
            }
            "message.updated" => {
                let info: Info<'_> = read(found.info)?;
                let session = either(found.session, &info.session);
                return Ok(Self { session, body: Body::Message(info) });
            }
            // `session.idle` is left out: it says again what the status has said.
            "session.status" => Body::Status(status(found.status)?),
            "session.error" => Body::Error(read(found.error)?),
            "session.created" | "session.updated" => {
                let Lineage { parent } = read(found.info)?;
                Body::Session { parent }
            }
            "permission.asked" => Body::PermissionAsked { id: found.id, permission: found.permission },
            "question.asked" => Body::QuestionAsked { id: found.id },
            _ => Body::Other,
        };
        Ok(Self { session: found.session, body })
    }
}

/// Newer agents name the session beside what has changed, older ones inside it.
fn either<'a>(outer: Cow<'a, str>, inner: &Cow<'a, str>) -> Cow<'a, str> {
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

/// The properties of all types in one, so that an event is read once whatever the order of its keys.
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
struct Lineage<'a> {
    #[serde(borrow, rename = "parentID", default, deserialize_with = "text")]
    parent: Cow<'a, str>,
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
