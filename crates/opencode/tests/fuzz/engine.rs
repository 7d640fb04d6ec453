//! Breaks streams of events and watches what becomes of them: by a second decoder that is slow and simple, and by
//! the promises that clients rely on. A run is named by its seed alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use clock::{Clock, Rng};
use opencode::event::Event;
use opencode::sse::Decoder;
use opencode::translate::Translator;

use crate::promises;

pub(crate) const SESSION: &str = "ses_1";
pub(crate) const PROMPT: &str = "msg_prompt";
/// Small, so that being too long is easy.
const MOST: usize = 2_000;
const LONGEST_INPUT: usize = 20_000;
/// No message to clients is longer than what came in, but for the words around it.
const LONGEST_MESSAGE: usize = LONGEST_INPUT + 1_000;

/// Pieces that readers trip over; put in anywhere.
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

/// One input that broke a promise, and which.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) input: Vec<u8>,
    pub(crate) problem: String,
}

pub(crate) struct Fuzzer {
    reader: Reader,
    meddler: Meddler,
    rng: Rng,
    corpus: Vec<Vec<u8>>,
    pub(crate) runs: u64,
}

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

impl Fuzzer {
    pub(crate) fn new(reader: Reader, meddler: Meddler, seed: u64) -> Self {
        Self { reader, meddler, rng: Rng::seeded(seed), corpus: kept(), runs: 0 }
    }

    /// Tries every kept input as it is, and then breaks them for so long.
    pub(crate) fn run(&mut self, time: Duration, most: u64) -> Result<(), Finding> {
        let clock = Clock::system();
        for input in self.corpus.clone() {
            self.attempt(&input)?;
        }
        while clock.elapsed() < time && self.runs < most {
            let mut input = self.pick(&self.corpus).clone();
            for _ in 0..=self.below(5) {
                self.change(&mut input);
            }
            input.truncate(LONGEST_INPUT);
            self.attempt(&input)?;
        }
        Ok(())
    }

    fn attempt(&mut self, input: &[u8]) -> Result<(), Finding> {
        self.runs += 1;
        let pieces = self.cut(input);
        let (reader, meddler) = (self.reader, self.meddler);
        let outcome = catch_unwind(AssertUnwindSafe(|| examine(reader, meddler, input, &pieces)));
        let problem = outcome.map_err(|panic| text_of(&*panic));
        problem.map_err(|problem| Finding { input: input.to_vec(), problem })
    }

    fn cut<'a>(&self, mut input: &'a [u8]) -> Vec<&'a [u8]> {
        let longest = [1, 7, 400, LONGEST_INPUT][self.below(4)];
        let mut pieces = Vec::new();
        while !input.is_empty() {
            let (now, later) = input.split_at(1 + self.below(input.len().min(longest)));
            pieces.push(now);
            input = later;
        }
        pieces
    }

    fn change(&self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        let end = (at + self.below(24)).min(input.len());
        match self.below(7) {
            0 | 1 => drop(input.splice(at..end.min(at + self.below(6)).max(at), self.word())),
            2 if at < input.len() => input[at] = self.rng.bytes::<1>()[0],
            3 => drop(input.drain(at..end)),
            4 => self.change_lines(input),
            5 => {
                let other = self.pick(&self.corpus);
                input.extend_from_slice(&other[self.below(other.len() + 1)..]);
            }
            _ => drop(input.splice(at..at, vec![b'x'; self.below(MOST + 100)])),
        }
    }

    /// Doubles, drops or moves whole lines: events are what matters, and their order.
    fn change_lines(&self, input: &mut Vec<u8>) {
        let mut lines: Vec<Vec<u8>> =
            input.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        if lines.is_empty() {
            return;
        }
        let (at, other) = (self.below(lines.len()), self.below(lines.len()));
        match self.below(3) {
            0 => lines.insert(other, lines[at].clone()),
            1 => drop(lines.remove(at)),
            _ => lines.swap(at, other),
        }
        *input = lines.concat();
    }

    fn word(&self) -> Vec<u8> {
        DICTIONARY[self.below(DICTIONARY.len())].into()
    }

    fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    fn below(&self, limit: usize) -> usize {
        let random = u64::from_le_bytes(self.rng.bytes());
        usize::try_from(random % limit.max(1) as u64).unwrap_or_default()
    }
}

/// Panics where a promise is broken.
fn examine(reader: Reader, meddler: Meddler, input: &[u8], pieces: &[&[u8]]) {
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

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// All kept inputs, in the order of their names. In the files a line end is written `\n` or `\r`, so that no editor
/// mends it; a real one means nothing.
fn kept() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read_to_string(path).ok()).map(|text| unfold(&text)).collect()
}

/// Reads a kept input: `\x` and two digits for a byte, `\n`, `\r` and `\\` as usual.
pub(crate) fn unfold(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.replace('\n', "").into_bytes().into_iter();
    while let Some(byte) = rest.next() {
        let escaped = if byte == b'\\' { rest.next() } else { None };
        bytes.push(match escaped {
            None => byte,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b'x') => {
                let digits = [rest.next(), rest.next()].map(|digit| char::from(digit.unwrap_or(b'0')));
                u8::from_str_radix(&String::from_iter(digits), 16).unwrap_or_default()
            }
            Some(other) => other,
        });
    }
    bytes
}

/// Writes an input to be kept; see [`unfold`].
pub(crate) fn fold(bytes: &[u8]) -> String {
    let folded = bytes.iter().map(|byte| match byte {
        b'\n' => "\\n\n".to_owned(),
        b'\r' => "\\r".to_owned(),
        b'\\' => "\\\\".to_owned(),
        b'!'..=b'~' => char::from(*byte).to_string(),
        other => format!("\\x{other:02x}"),
    });
    folded.chain(["\n".to_owned()]).collect()
}
