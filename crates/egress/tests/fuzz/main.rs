//! The request-head parser against ten seconds of mutated input, and the fuzzer against parsers with planted bugs.

mod engine;

use std::time::Duration;

use egress::{HeadError, RequestHead};
use engine::{Fuzzer, Parser, decode, encode, kept};

const TEN_SECONDS: Duration = Duration::from_secs(10);
/// Far more runs than any planted bug needed.
const RUNS: u64 = 2_000_000;

#[test]
fn ten_seconds_find_nothing() {
    let corpus = kept();
    assert!(corpus.len() >= 20, "only {} inputs are kept", corpus.len());
    let mut fuzzer = Fuzzer::new(RequestHead::parse, 1, corpus);
    if let Err(finding) = fuzzer.run(TEN_SECONDS, u64::MAX) {
        panic!("{}; keep this in the corpus:\n{}", finding.problem, encode(&finding.input));
    }
    println!("{} runs, {} inputs", fuzzer.runs, fuzzer.corpus().len());
    assert!(fuzzer.runs > 1_000);
}

/// Takes a line feed alone for the end of a line, as lenient servers do.
fn mends_line_feeds(input: &[u8]) -> Result<RequestHead, HeadError> {
    let text = String::from_utf8_lossy(input).replace("\r\n", "\n").replace('\n', "\r\n");
    RequestHead::parse(text.as_bytes())
}

/// Believes the first of two lengths.
fn believes_the_first_length(input: &[u8]) -> Result<RequestHead, HeadError> {
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

/// Forgets that a port may be longer than a port.
fn panics_at_long_ports(input: &[u8]) -> Result<RequestHead, HeadError> {
    let long =
        |text: &str| text.split(':').any(|part| part.bytes().take_while(u8::is_ascii_digit).count() > 5);
    assert!(!long(&String::from_utf8_lossy(input)), "the buffer for the port is too small");
    RequestHead::parse(input)
}

#[test]
fn planted_bugs_are_found_by_mutation_alone() {
    let corpus: Vec<_> = kept().into_iter().filter(|input| RequestHead::parse(input).is_ok()).collect();
    assert!(corpus.len() >= 8);
    let planted: [(Parser, &str); 4] = [
        (mends_line_feeds, "half the usual size"),
        (believes_the_first_length, "given twice"),
        (cuts_fragments, "ambiguous URL"),
        (panics_at_long_ports, "panicked"),
    ];
    for (parser, problem) in planted {
        let mut fuzzer = Fuzzer::new(parser, 2, corpus.clone());
        let finding = fuzzer.run(Duration::from_mins(1), RUNS).expect_err("the planted bug was not found");
        assert!(finding.problem.contains(problem), "{finding:?}");
        println!("found after {} runs: {problem}", fuzzer.runs);
    }
}

#[test]
fn the_same_seed_does_the_same() {
    let run = |seed| {
        let mut fuzzer = Fuzzer::new(RequestHead::parse, seed, kept());
        fuzzer.run(Duration::from_mins(1), 2_000).unwrap();
        fuzzer.corpus().to_vec()
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn kept_inputs_survive_being_written() {
    for input in [&b"GET / \r\n\t\0\xff\\x41\\ \r\n\r\n"[..], b"", b"\n\n", b" \n"] {
        assert_eq!(decode(&encode(input)), input, "{}", encode(input));
    }
}
