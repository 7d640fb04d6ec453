//! A small fuzzer for the request-head parser: deterministic, aware of the structure of a head, and with a second
//! opinion on what the parser accepted. Shared by the test and by the example that runs for longer.
//!
//! There is no instrumentation: an input counts as new when the parser's outcome has a shape not seen before, and
//! is then mutated further.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use clock::{Clock, Rng};
use egress::{Framing, HeadError, Host, Request, RequestHead, Target};

/// What is fuzzed: the parser, or a broken copy of it.
pub(crate) type Parser = fn(&[u8]) -> Result<RequestHead, HeadError>;

/// Pieces that parsers trip over; spliced in anywhere.
const DICTIONARY: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    "\r\n\r\n",
    "\r\n ",
    "\0",
    "\t",
    " ",
    ":",
    ",",
    "@",
    "\\",
    "#",
    "%",
    "%00",
    "%0d%0a",
    "/",
    "?",
    "//",
    "[",
    "]",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "127.1",
    "0x7f.1",
    "2130706433",
    "localhost",
    ".",
    "..",
    "http://",
    "https://",
    "CONNECT ",
    "GET ",
    " HTTP/1.1",
    " HTTP/1.0",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: identity\r\n",
    "Connection: close\r\n",
    "Connection: content-length\r\n",
    "Host: a\r\n",
    "Proxy-Authorization: x\r\n",
    ":80",
    ":443",
    ":0",
    ":65536",
    ":999999",
    "+",
    "-",
    "xn--",
    "\u{e9}",
    "\u{ff11}",
    "%EF%BC%91",
    "chunked",
    "a",
];

/// One input that broke a promise, and which.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) input: Vec<u8>,
    pub(crate) problem: String,
}

pub(crate) struct Fuzzer {
    parser: Parser,
    rng: Rng,
    corpus: Vec<Vec<u8>>,
    shapes: HashSet<String>,
    pub(crate) runs: u64,
}

impl Fuzzer {
    pub(crate) fn new(parser: Parser, seed: u64, corpus: Vec<Vec<u8>>) -> Self {
        Self { parser, rng: Rng::seeded(seed), corpus, shapes: HashSet::new(), runs: 0 }
    }

    /// Tries every kept input as it is, and then mutates them for so long.
    pub(crate) fn run(&mut self, time: Duration, most: u64) -> Result<(), Finding> {
        let clock = Clock::system();
        for input in self.corpus.clone() {
            self.try_one(&input)?;
        }
        while clock.elapsed() < time && self.runs < most {
            let pick = self.below(self.corpus.len());
            let mut input = self.corpus[pick].clone();
            for _ in 0..=self.below(4) {
                self.mutate(&mut input);
            }
            input.truncate(4096);
            if self.try_one(&input)? {
                self.corpus.push(input);
            }
        }
        Ok(())
    }

    /// Inputs that are worth keeping: one for each shape of outcome.
    pub(crate) fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    /// Returns whether the outcome has a new shape.
    fn try_one(&mut self, input: &[u8]) -> Result<bool, Finding> {
        self.runs += 1;
        let parser = self.parser;
        let outcome = catch_unwind(AssertUnwindSafe(|| parser(input)));
        let checked = match &outcome {
            Err(_) => Err("the parser panicked".to_owned()),
            Ok(Err(error)) => Ok(format!("{error:?}")),
            Ok(Ok(head)) => check(input, head).map(|()| shape(head)),
        };
        let shape = checked.map_err(|problem| Finding { input: input.to_vec(), problem })?;
        Ok(self.shapes.insert(shape))
    }

    fn below(&self, limit: usize) -> usize {
        let random = u64::from_le_bytes(self.rng.bytes());
        usize::try_from(random % limit.max(1) as u64).unwrap_or_default()
    }

    fn mutate(&self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        match self.below(7) {
            0 => {
                let piece = DICTIONARY[self.below(DICTIONARY.len())];
                input.splice(at..at, piece.bytes());
            }
            1 if at < input.len() => input[at] = self.rng.bytes::<1>()[0],
            2 if at < input.len() => {
                input.remove(at);
            }
            3 => {
                let end = (at + self.below(16)).min(input.len());
                input.drain(at..end);
            }
            4 => self.mutate_line(input),
            5 => {
                let other = &self.corpus[self.below(self.corpus.len())];
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => input.truncate(at),
        }
    }

    /// Doubles, drops, swaps or adds a whole line: what a flip of single bytes does not find.
    fn mutate_line(&self, input: &mut Vec<u8>) {
        let mut lines: Vec<Vec<u8>> =
            input.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        let (at, other) = (self.below(lines.len()), self.below(lines.len()));
        match self.below(4) {
            0 if at < lines.len() => lines.insert(other, lines[at].clone()),
            1 if at < lines.len() => {
                lines.remove(at);
            }
            2 if at < lines.len() => lines.swap(at, other),
            _ => lines.insert(at.min(lines.len()), DICTIONARY[self.below(DICTIONARY.len())].into()),
        }
        *input = lines.concat();
    }
}

fn shape(head: &RequestHead) -> String {
    let body = match head.body {
        Framing::Length(_) => "length".to_owned(),
        other => format!("{other:?}"),
    };
    let host = match &head.target.host {
        Host::Name(name) => format!("name {}", name.contains("xn--")),
        Host::Address(address) => format!("address {}", address.is_ipv4()),
    };
    format!("{} {body} {host} {} {}", head.request == Request::Connect, head.modern, head.keep_alive)
}

/// The promises about everything that is accepted, checked without the parser's help.
fn check(input: &[u8], head: &RequestHead) -> Result<(), String> {
    let promise = |kept: bool, text: &str| if kept { Ok(()) } else { Err(text.to_owned()) };
    let text = String::from_utf8_lossy(input).to_ascii_lowercase();
    promise(!text.contains('\0'), "a NUL was accepted")?;
    promise(
        !text.replace("\r\n", "").contains(['\r', '\n']),
        "a line end of half the usual size was accepted",
    )?;
    promise(!text.contains("\r\n ") && !text.contains("\r\n\t"), "a folded line was accepted")?;
    promise(
        text.ends_with("\r\n\r\n") && text.matches("\r\n\r\n").count() == 1,
        "the head does not end where it ends",
    )?;
    let lengths = text.matches("\r\ncontent-length:").count();
    let codings = text.matches("\r\ntransfer-encoding:").count();
    promise(lengths + codings <= 1, "the length was given twice")?;
    promise(codings == usize::from(head.body == Framing::Chunked), "the coding was misread")?;
    let again = Target::parse(&head.target.to_string(), None);
    promise(again.as_ref() == Ok(&head.target), "the target means something else when read again")?;
    promise(head.target.port > 0, "port 0 was accepted")?;
    let uri = text.split(' ').nth(1).unwrap_or_default();
    promise(!uri.contains(['\\', '#']), "an ambiguous URL was accepted")?;
    match head.request {
        Request::Connect => Ok(()),
        Request::Http { .. } => check_passed_on(head, promise),
    }
}

fn check_passed_on(
    head: &RequestHead,
    promise: impl Fn(bool, &str) -> Result<(), String>,
) -> Result<(), String> {
    let out = head.for_target();
    let text = String::from_utf8_lossy(&out).to_ascii_lowercase();
    promise(text.matches("\r\n\r\n").count() == 1 && text.ends_with("\r\n\r\n"), "two heads were passed on")?;
    promise(!text.replace("\r\n", "").contains(['\r', '\n', '\0']), "control characters were passed on")?;
    promise(text.matches("\r\nhost:").count() == 1, "not exactly one host was passed on")?;
    let host = head.target.host.to_string();
    let rest = text.split_once("\r\nhost: ").map(|(_, rest)| rest).unwrap_or_default();
    promise(rest.starts_with(&host), "the host that was passed on is not the one that was checked")?;
    for hop in ["proxy-", "te:", "trailer:", "upgrade:", "keep-alive:"] {
        promise(!text.contains(&format!("\r\n{hop}")), "a header for the proxy was passed on")?;
    }
    promise(text.matches("\r\nconnection:").count() == 1, "not exactly one connection header was passed on")?;
    let framings =
        text.matches("\r\ncontent-length:").count() + text.matches("\r\ntransfer-encoding:").count();
    promise(
        framings == usize::from(head.body != Framing::None),
        "the framing that was passed on is not the one read",
    )
}

/// Reads a kept input. They are written with escapes, one line of the head on each line, so that they can be read
/// and no editor mends them; a real line end means nothing.
pub(crate) fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut letters = text.bytes().filter(|byte| *byte != b'\n');
    while let Some(letter) = letters.next() {
        if letter != b'\\' {
            bytes.push(letter);
            continue;
        }
        bytes.push(match letters.next() {
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'x') => {
                let digits = [letters.next(), letters.next()].map(|digit| digit.unwrap_or(b'0') as char);
                u8::from_str_radix(&String::from_iter(digits), 16).unwrap_or_default()
            }
            other => other.unwrap_or(b'\\'),
        });
    }
    bytes
}

/// Writes an input to be kept; see [`decode`].
pub(crate) fn encode(bytes: &[u8]) -> String {
    let escaped = bytes.escape_ascii().to_string().replace("\\n", "\\n\n");
    let lines = escaped.lines().map(|line| match line.strip_suffix(' ') {
        Some(rest) => format!("{rest}\\x20\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// All kept inputs, in the order of their names.
pub(crate) fn kept() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read_to_string(path).ok()).map(|text| decode(&text)).collect()
}
