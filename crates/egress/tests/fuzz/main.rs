//! Fuzzes the request-head parser for ten seconds, and checks that the fuzzer finds planted bugs.

mod targets;

use std::time::Duration;

use egress::{HeadError, RequestHead};
use targets::{HEADS, Parser, check_parser};
use testkit::fuzz::{Target, finds, holds, kept};

#[test]
fn ten_seconds_of_fuzzing_find_nothing() {
    holds(HEADS, Duration::from_secs(10));
}

/// Accepts a bare line feed as a line end, as lenient servers do.
fn accepts_bare_line_feeds(input: &[u8]) -> Result<RequestHead, HeadError> {
    let text = String::from_utf8_lossy(input).replace("\r\n", "\n").replace('\n', "\r\n");
    RequestHead::parse(text.as_bytes())
}

/// Uses the first of two lengths.
fn uses_the_first_length(input: &[u8]) -> Result<RequestHead, HeadError> {
    let text = String::from_utf8_lossy(input).into_owned();
    let mut seen = false;
    let lines = text.split_inclusive("\r\n").filter(|line| {
        let lower = line.to_ascii_lowercase();
        let length = lower.starts_with("content-length:") || lower.starts_with("transfer-encoding:");
        let again = seen && length;
        seen |= length;
        !again
    });
    RequestHead::parse(lines.collect::<String>().as_bytes())
}

/// Cuts the URL at a fragment instead of refusing it.
fn cuts_fragments(input: &[u8]) -> Result<RequestHead, HeadError> {
    let text = String::from_utf8_lossy(input).into_owned();
    let Some((before, after)) = text.split_once('#') else { return RequestHead::parse(input) };
    let rest = after.find(' ').map_or("", |at| &after[at..]);
    RequestHead::parse([before, rest].concat().as_bytes())
}

/// Panics on a port with more than five digits.
fn panics_on_long_ports(input: &[u8]) -> Result<RequestHead, HeadError> {
    let long =
        |text: &str| text.split(':').any(|part| part.bytes().take_while(u8::is_ascii_digit).count() > 5);
    assert!(!long(&String::from_utf8_lossy(input)), "the buffer for the port is too small");
    RequestHead::parse(input)
}

#[test]
fn planted_bugs_are_found_by_mutation_alone() {
    let good = || {
        let kept = kept(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        kept.into_iter().filter(|input| RequestHead::parse(input).is_ok()).collect::<Vec<_>>()
    };
    assert!(good().len() >= 8);
    let planted: [(Parser, &str); 4] = [
        (accepts_bare_line_feeds, "bare CR or LF"),
        (uses_the_first_length, "given twice"),
        (cuts_fragments, "ambiguous URL"),
        (panics_on_long_ports, "panicked"),
    ];
    for (parser, problem) in planted {
        finds(Target { run: &|input, _| check_parser(parser, input), corpus: &good, ..HEADS }, problem);
    }
}
