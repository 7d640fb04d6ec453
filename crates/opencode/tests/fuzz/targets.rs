//! Streams of events, broken, and what must become of them: by a second decoder that is slow and simple, and by the
//! promises that clients rely on.

use bytes::Bytes;
use opencode::event::Event;
use opencode::sse::Decoder;
use opencode::translate::Translator;
use testkit::fuzz::{Dice, Shape, Target, encode, kept};

use crate::promises;

pub(crate) const SESSION: &str = "ses_1";
pub(crate) const PROMPT: &str = "msg_prompt";
/// Small, so that being too long is easy.
const MOST: usize = 2_000;
const LONGEST_INPUT: usize = 20_000;
/// No message to clients is longer than what came in, but for the words around it.
const LONGEST_MESSAGE: usize = LONGEST_INPUT + 1_000;

pub(crate) const STREAMS: Target<'_> = Target {
    name: "streams",
    run: &|input, dice| Ok(streams_with(ours, untouched, input, dice)),
    corpus: &|| kept(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus")),
    write: encode,
    shape: Shape::text(DICTIONARY, LONGEST_INPUT),
};

/// Pieces that readers trip over.
const DICTIONARY: &[&str] = &[
    "\n",
    "\r",
    "\r\n",
    "\n\n",
    "\r\r",
    "\u{feff}",
    ":",
    ": ",
    "data",
    "data:",
    "data: ",
    "id: 1\n",
    "{",
    "}",
    "[",
    "\"",
    "\\",
    "\\u0000",
    "null",
    "0",
    "-1",
    "1e999",
    "\"text\"",
    "\"type\":",
    "\"session.status\"",
    "\"message.updated\"",
    "\"message.part.updated\"",
    "\"message.part.delta\"",
    "\"session.error\"",
    "\"idle\"",
    "\"busy\"",
    "\"retry\"",
    "\"assistant\"",
    "\"user\"",
    "\"completed\"",
    "\"error\"",
    "\"a1\"",
    "\"a2\"",
    "\"p1\"",
    "\"p2\"",
    "\"ses_1\"",
    "\"ses_2\"",
    "\"MessageAbortedError\"",
    "\"end\":1,",
    "\"delta\":\"x\",",
    "é",
    "\u{1f980}",
];

/// Turns pieces of input into the data of events.
pub(crate) type Reader = fn(&[&[u8]]) -> Vec<Bytes>;
/// Does something to the translator after this many events.
pub(crate) type Meddler = fn(&mut Translator, usize);

/// The decoder that is in use.
pub(crate) fn ours(pieces: &[&[u8]]) -> Vec<Bytes> {
    let mut decoder = Decoder::new(MOST);
    let mut events = Vec::new();
    for piece in pieces {
        decoder.feed(piece);
        while let Some(event) = decoder.next_event() {
            events.extend(event.ok());
        }
        assert!(decoder.held() <= 2 * MOST + 10, "{} bytes are held", decoder.held());
    }
    events
}

/// Nobody.
pub(crate) fn untouched(_: &mut Translator, _: usize) {}

/// Cuts the input into pieces as a network may.
pub(crate) fn streams_with(reader: Reader, meddler: Meddler, input: &[u8], dice: &Dice) -> String {
    let longest = *dice.pick(&[1, 7, 400, LONGEST_INPUT]);
    let (mut pieces, mut rest) = (Vec::new(), input);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(1 + dice.below(rest.len().min(longest)));
        pieces.push(now);
        rest = later;
    }
    examine(reader, meddler, input, &pieces)
}

/// The shape of the outcome. Panics where a promise is broken.
fn examine(reader: Reader, meddler: Meddler, input: &[u8], pieces: &[&[u8]]) -> String {
    let events = reader(pieces);
    let expected = simply(input);
    assert!(events == expected, "cut into {} pieces it is read differently", pieces.len());
    let mut translator = Translator::new(SESSION);
    translator.begin(PROMPT);
    let mut said = Vec::new();
    for ((number, data), now) in events.iter().enumerate().zip((0..).step_by(100)) {
        let Ok(event) = Event::parse(data) else { continue };
        said.extend(translator.observe(&event, now).messages);
        meddler(&mut translator, number);
    }
    said.extend(translator.give_up("over", 0).messages);
    for message in &said {
        let length = format!("{message:?}").len();
        assert!(length <= LONGEST_MESSAGE * 4, "a message of {length} bytes");
    }
    promises::check(&said);
    format!("{} events, {} messages", events.len().min(20), said.len().min(20))
}

/// The rules of the standard, one after the other over the whole input.
fn simply(input: &[u8]) -> Vec<Bytes> {
    let input = input.strip_prefix("\u{feff}".as_bytes()).unwrap_or(input);
    let (mut events, mut data, mut too_long) = (Vec::new(), None::<Vec<u8>>, false);
    let mut lines = lines(input);
    // What follows the last line end is no line.
    lines.pop();
    for line in lines {
        if line.is_empty() {
            let event = data.take().filter(|_| !too_long);
            events.extend(event.map(Bytes::from));
            too_long = false;
            continue;
        }
        too_long |= line.len() > MOST + 6;
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => {
                (&line[..colon], line[colon + 1..].strip_prefix(b" ").unwrap_or(&line[colon + 1..]))
            }
            None => (&line[..], &b""[..]),
        };
        if name == b"data" {
            match &mut data {
                Some(data) => *data = [data.as_slice(), b"\n", value].concat(),
                None => data = Some(value.to_vec()),
            }
            too_long |= data.as_ref().is_some_and(|data| data.len() > MOST);
        }
    }
    events
}

fn lines(input: &[u8]) -> Vec<Vec<u8>> {
    let mut lines = vec![Vec::new()];
    let mut bytes = input.iter().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\r' | b'\n' => {
                if *byte == b'\r' {
                    bytes.next_if(|next| **next == b'\n');
                }
                lines.push(Vec::new());
            }
            other => {
                if let Some(line) = lines.last_mut() {
                    line.push(*other);
                }
            }
        }
    }
    lines
}
