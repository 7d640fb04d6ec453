//! The SSE decoder against the specification, with arbitrary splits, and with input that tries to exhaust
//! memory.

use bytes::Bytes;
use opencode::sse::{Decoder, SseError};
use proptest::prelude::*;

fn decode(most: usize, pieces: &[&[u8]]) -> Vec<Result<Bytes, SseError>> {
    let mut decoder = Decoder::new(most);
    let mut events = Vec::new();
    for piece in pieces {
        decoder.feed(piece);
        events.extend(std::iter::from_fn(|| decoder.next_event()));
        assert!(decoder.buffered_len() <= 2 * most + 16, "{} bytes are held", decoder.buffered_len());
    }
    events
}

fn texts(input: &str) -> Vec<String> {
    let events = decode(1_000, &[input.as_bytes()]);
    events.into_iter().map(|event| String::from_utf8(event.unwrap().to_vec()).unwrap()).collect()
}

#[test]
fn events_are_split_as_the_specification_says() {
    assert_eq!(texts("data: a\n\ndata: b\n\n"), ["a", "b"]);
    assert_eq!(texts("data: a\r\n\r\ndata: b\r\n\r\n"), ["a", "b"]);
    assert_eq!(texts("data: a\r\ndata: b\r\n\r\n"), ["a\nb"], "CRLF is one line end");
    assert_eq!(texts("data: a\r\rdata: b\r\r"), ["a", "b"], "a bare carriage return is a line end");
    assert_eq!(texts("data: a\ndata: b\ndata\ndata: c\n\n"), ["a\nb\n\nc"]);
    assert_eq!(texts("data:a\n\ndata:  b\n\n"), ["a", " b"], "one leading space is not part of the value");
    assert_eq!(texts("\u{feff}data: a\n\n"), ["a"], "a byte order mark at the start is skipped");
    assert_eq!(texts("data: \u{feff}\n\n"), ["\u{feff}"], "and only there");
    assert_eq!(texts(": comment\nid: 7\nevent: x\nretry: 5\ndata: a\nunknown\n\n"), ["a"]);
    assert_eq!(texts("id: 7\n\n: only a comment\n\n\n\n"), [""; 0], "no event without data");
    assert_eq!(texts("data\n\n"), [""], "empty data is data");
    assert_eq!(texts("datax: a\n data: b\nDATA: c\n\n"), [""; 0], "other fields");
    assert_eq!(texts("data: a\n\ndata: unfinished"), ["a"]);
}

#[test]
fn invalid_utf_8_is_passed_through() {
    let events = decode(100, &[b"data: \xff\xfe\n\ndata: a\n\n"]);
    assert_eq!(events, [Ok(Bytes::from_static(b"\xff\xfe")), Ok(Bytes::from_static(b"a"))]);
}

#[test]
fn an_oversized_event_is_reported_once_and_skipped() {
    let too_long = Err(SseError::TooLong { most: 10 });
    let fits = "data: 0123456789\n\n";
    let next = "data: next\n\n";
    for long in [
        "data: 0123456789a\n\n",
        "data: 01234\ndata: 56789\n\n",
        "data: 0123456789a\ndata: b\ndata: 0123456789abcdefghijklmnopqrst\n\n",
        ": a comment without an end, to hide in\ndata: a\n\n",
    ] {
        let input = [fits, long, next].concat();
        let expected = [Ok(Bytes::from("0123456789")), too_long.clone(), Ok(Bytes::from("next"))];
        assert_eq!(decode(10, &[input.as_bytes()]), expected, "{long}");
        let bytes: Vec<&[u8]> = input.as_bytes().chunks(1).collect();
        assert_eq!(decode(10, &bytes), expected, "{long} in single bytes");
    }
}

#[test]
fn an_endless_line_uses_bounded_memory_and_time() {
    let mut decoder = Decoder::new(1_000);
    let piece = [b'x'; 4096];
    let mut told = 0;
    // If every piece were searched from the beginning of the line, this would take forever.
    for _ in 0..20_000 {
        decoder.feed(&piece);
        while let Some(event) = decoder.next_event() {
            assert_eq!(event, Err(SseError::TooLong { most: 1_000 }));
            told += 1;
        }
        assert!(decoder.buffered_len() <= 1_006);
    }
    assert_eq!(told, 1);
    decoder.feed(b"\n\ndata: a\n\n");
    assert_eq!(decoder.next_event(), Some(Ok(Bytes::from_static(b"a"))));
}

#[test]
fn small_pieces_of_a_long_line_are_searched_once() {
    let mut decoder = Decoder::default();
    decoder.feed(b"data: ");
    // Searching the growing line this many times would take very long.
    for _ in 0..500_000 {
        decoder.feed(b"x");
        assert_eq!(decoder.next_event(), None);
    }
    decoder.feed(b"\n\n");
    assert_eq!(decoder.next_event().unwrap().unwrap().len(), 500_000);
}

fn any_stream() -> impl Strategy<Value = Vec<u8>> {
    let token = prop::sample::select(vec![
        "data",
        ": ",
        ":",
        " ",
        "\n",
        "\r",
        "\r\n",
        "\n\n",
        "data: ",
        "id: 1",
        "x",
        "longer text",
        "\u{feff}",
        "é",
    ]);
    prop::collection::vec(token, 0..40).prop_map(|tokens| tokens.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_do_not_depend_on_how_the_input_is_split(
        stream in any_stream(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        most in 1_usize..40,
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut begin = 0;
        for cut in cuts.into_iter().chain([stream.len()]) {
            pieces.push(&stream[begin..cut]);
            begin = cut;
        }
        prop_assert_eq!(decode(most, &pieces), decode(most, &[&stream]));
    }
}
