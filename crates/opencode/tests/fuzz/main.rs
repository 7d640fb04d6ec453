//! Ten seconds of broken streams through decoder, reader and translator, and the proof that it finds something:
//! `examples/fuzz.rs` runs the same for longer.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as the tests do")]

#[path = "../it/promises.rs"]
mod promises;
mod targets;

use std::time::Duration;

use bytes::Bytes;
use opencode::translate::Translator;
use targets::{Meddler, PROMPT, Reader, SESSION, STREAMS, ours, streams_with, untouched};
use testkit::fuzz::{Target, finds, holds};

#[test]
fn ten_seconds_find_nothing() {
    holds(STREAMS, Duration::from_secs(10));
}

/// Takes a line feed at the beginning of a piece for a line of its own, though it ends a carriage return.
fn forgets_the_carriage_return(pieces: &[&[u8]]) -> Vec<Bytes> {
    let mended: Vec<Vec<u8>> = pieces.iter().map(|piece| replace(piece, b"\r\n", b"\n")).collect();
    let mended: Vec<Vec<u8>> = mended.iter().map(|piece| replace(piece, b"\r", b"\n")).collect();
    ours(&mended.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Throws away what was left of a piece when the next one comes.
fn forgets_half_lines(pieces: &[&[u8]]) -> Vec<Bytes> {
    pieces.iter().flat_map(|piece| ours(&[piece])).collect()
}

/// Does not know the byte order mark, as if there were something before it.
fn keeps_the_mark(pieces: &[&[u8]]) -> Vec<Bytes> {
    let before: &[u8] = b"\n";
    ours(&[&[before], pieces].concat())
}

fn replace(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(from) {
            out.extend_from_slice(to);
            rest = after;
        } else {
            out.push(rest[0]);
            rest = &rest[1..];
        }
    }
    out
}

/// Loses its memory in the middle of a turn.
fn forgets_what_was_said(translator: &mut Translator, number: usize) {
    if number == 6 {
        *translator = Translator::new(SESSION);
        translator.begin(PROMPT);
    }
}

#[test]
fn planted_bugs_are_found() {
    let planted: [(Reader, Meddler, &str); 4] = [
        (forgets_the_carriage_return, untouched, "read differently"),
        (forgets_half_lines, untouched, "read differently"),
        (keeps_the_mark, untouched, "read differently"),
        (ours, forgets_what_was_said, "announced twice"),
    ];
    for (reader, meddler, problem) in planted {
        let run = &|input: &[u8], dice: &_| Ok(streams_with(reader, meddler, input, dice));
        finds(Target { run, ..STREAMS }, problem);
    }
}
