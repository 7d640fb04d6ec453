//! Fuzzes the decoder, parser and translator for ten seconds, and checks that the fuzzer finds planted bugs.
//! `examples/fuzz.rs` runs the same for longer.

#![expect(clippy::unwrap_used, reason = "test helpers may panic like tests")]

#[path = "../it/client_invariants.rs"]
mod client_invariants;
mod targets;

use std::time::Duration;

use bytes::Bytes;
use opencode::translate::Translator;
use targets::{PROMPT, PlantedBug, Reader, SESSION, STREAMS, decode, no_bug, streams_with};
use testkit::fuzz::{Target, finds, holds};

#[test]
fn streams_uphold_their_invariants() {
    holds(STREAMS, Duration::from_secs(10));
}

/// Treats a line feed at the start of a piece as a line, even if it follows a carriage return.
fn forgets_the_carriage_return(pieces: &[&[u8]]) -> Vec<Bytes> {
    let normalized: Vec<Vec<u8>> = pieces.iter().map(|piece| replace(piece, b"\r\n", b"\n")).collect();
    let normalized: Vec<Vec<u8>> = normalized.iter().map(|piece| replace(piece, b"\r", b"\n")).collect();
    decode(&normalized.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Drops unfinished lines at the end of a piece.
fn forgets_half_lines(pieces: &[&[u8]]) -> Vec<Bytes> {
    pieces.iter().flat_map(|piece| decode(&[piece])).collect()
}

/// Does not skip the byte order mark, because there is input before it.
fn keeps_the_mark(pieces: &[&[u8]]) -> Vec<Bytes> {
    let before: &[u8] = b"\n";
    decode(&[&[before], pieces].concat())
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

/// Makes the translator lose its state in the middle of a turn.
fn loses_state_mid_turn(translator: &mut Translator, number: usize) {
    if number == 6 {
        *translator = Translator::new(SESSION);
        translator.begin(PROMPT);
    }
}

#[test]
fn fuzzer_finds_planted_bugs() {
    let planted: [(Reader, PlantedBug, &str); 4] = [
        (forgets_the_carriage_return, no_bug, "decoded differently"),
        (forgets_half_lines, no_bug, "decoded differently"),
        (keeps_the_mark, no_bug, "decoded differently"),
        (decode, loses_state_mid_turn, "announced twice"),
    ];
    for (reader, bug, problem) in planted {
        let run = &|input: &[u8], dice: &_| Ok(streams_with(reader, bug, input, dice));
        finds(Target { run, ..STREAMS }, problem);
    }
}
