//! Fuzz target for event streams. The result is compared with a slow and simple reference decoder and checked
//! against the invariants that clients rely on.

use bytes::Bytes;
use opencode::event::Event;
use opencode::sse::Decoder;
use opencode::translate::Translator;
use testkit::fuzz::{Dice, Shape, Target, encode, kept};

use crate::client_invariants;

pub(crate) const SESSION: &str = "ses_1";
pub(crate) const PROMPT: &str = "msg_prompt";
/// The event size limit; small, so that inputs easily exceed it.
const MAX_EVENTS: usize = 2_000;
const LONGEST_INPUT: usize = 20_000;
/// A message to clients is at most slightly longer than the input.
const LONGEST_MESSAGE: usize = LONGEST_INPUT + 1_000;

pub(crate) const STREAMS: Target<'_> = Target {
    name: "streams",
    run: &|input, dice| Ok(streams_with(decode, no_bug, input, dice)),
    corpus: &|| kept(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus")),
    write: encode,
    shape: Shape::text(DICTIONARY, LONGEST_INPUT),
};

/// Sequences that parsers commonly get wrong.
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

/// Decodes pieces of input into the data of events.
pub(crate) type Reader = fn(&[&[u8]]) -> Vec<Bytes>;
/// Tampers with the translator after the given number of events.
pub(crate) type PlantedBug = fn(&mut Translator, usize);

/// The decoder under test.
pub(crate) fn decode(pieces: &[&[u8]]) -> Vec<Bytes> {
    let mut decoder = Decoder::new(MAX_EVENTS);
    let mut events = Vec::new();
    for piece in pieces {
        decoder.feed(piece);
        while let Some(event) = decoder.next_event() {
            events.extend(event.ok());
        }
        assert!(decoder.buffered_len() <= 2 * MAX_EVENTS + 10, "{} bytes are held", decoder.buffered_len());
    }
    events
}

pub(crate) fn no_bug(_: &mut Translator, _: usize) {}

/// Splits the input into random pieces, as a network may.
pub(crate) fn streams_with(reader: Reader, bug: PlantedBug, input: &[u8], dice: &Dice) -> String {
    let longest = *dice.pick(&[1, 7, 400, LONGEST_INPUT]);
    let (mut pieces, mut rest) = (Vec::new(), input);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(1 + dice.below(rest.len().min(longest)));
        pieces.push(now);
        rest = later;
    }
    check_pieces(reader, bug, input, &pieces)
}

/// Describes the outcome; panics if an invariant is violated.
fn check_pieces(reader: Reader, bug: PlantedBug, input: &[u8], pieces: &[&[u8]]) -> String {
    let events = reader(pieces);
    let expected = reference_decode(input);
    assert!(events == expected, "split into {} pieces, the input is decoded differently", pieces.len());
    let mut translator = Translator::new(SESSION);
    translator.begin(PROMPT);
    let mut emitted = Vec::new();
    for ((number, data), now) in events.iter().enumerate().zip((0..).step_by(100)) {
        let Ok(event) = Event::parse(data) else { continue };
        emitted.extend(translator.observe(&event, now).messages);
        bug(&mut translator, number);
    }
    emitted.extend(translator.give_up("over", 0).messages);
    for message in &emitted {
        let length = format!("{message:?}").len();
        assert!(length <= LONGEST_MESSAGE * 4, "a message of {length} bytes");
    }
    client_invariants::check(&emitted);
    format!("{} events, {} messages", events.len().min(20), emitted.len().min(20))
}

/// The rules of the specification, applied to the complete input.
fn reference_decode(input: &[u8]) -> Vec<Bytes> {
    let input = input.strip_prefix("\u{feff}".as_bytes()).unwrap_or(input);
    let (mut events, mut data, mut too_long) = (Vec::new(), None::<Vec<u8>>, false);
    let mut lines = lines(input);
    // Text after the last line end is not a line.
    lines.pop();
    for line in lines {
        if line.is_empty() {
            let event = data.take().filter(|_| !too_long);
            events.extend(event.map(Bytes::from));
            too_long = false;
            continue;
        }
        too_long |= line.len() > MAX_EVENTS + 6;
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
            too_long |= data.as_ref().is_some_and(|data| data.len() > MAX_EVENTS);
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
