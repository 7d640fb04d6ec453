//! The fuzz target for the request-head parser, and the invariants of every head it accepts.

use egress::{Framing, HeadError, Host, Request, RequestHead, Target as Destination};
use testkit::fuzz::{Shape, Target, encode, kept};

/// The parser under test, or a broken copy of it.
pub(crate) type Parser = fn(&[u8]) -> Result<RequestHead, HeadError>;

pub(crate) const HEADS: Target<'_> = Target {
    name: "heads",
    run: &|input, _| check_parser(RequestHead::parse, input),
    corpus: &|| kept(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus")),
    write: encode,
    shape: Shape::text(DICTIONARY, 4096),
};

/// Strings that confuse parsers; inserted at random positions.
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

pub(crate) fn check_parser(parser: Parser, input: &[u8]) -> Result<String, String> {
    match parser(input) {
        Err(error) => Ok(format!("{error:?}")),
        Ok(head) => check(input, &head).map(|()| shape(&head)),
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

/// Checks the invariants of an accepted head without using the parser.
fn check(input: &[u8], head: &RequestHead) -> Result<(), String> {
    let ensure = |kept: bool, text: &str| if kept { Ok(()) } else { Err(text.to_owned()) };
    let text = String::from_utf8_lossy(input).to_ascii_lowercase();
    ensure(!text.contains('\0'), "a NUL was accepted")?;
    ensure(!text.replace("\r\n", "").contains(['\r', '\n']), "a bare CR or LF was accepted")?;
    ensure(!text.contains("\r\n ") && !text.contains("\r\n\t"), "a folded line was accepted")?;
    ensure(
        text.ends_with("\r\n\r\n") && text.matches("\r\n\r\n").count() == 1,
        "the head does not end at its first empty line",
    )?;
    let lengths = text.matches("\r\ncontent-length:").count();
    let codings = text.matches("\r\ntransfer-encoding:").count();
    ensure(lengths + codings <= 1, "the length was given twice")?;
    ensure(codings == usize::from(head.body == Framing::Chunked), "the transfer encoding was misread")?;
    let again = Destination::parse(&head.target.to_string(), None);
    ensure(again.as_ref() == Ok(&head.target), "parsing the target again gives another target")?;
    ensure(head.target.port > 0, "port 0 was accepted")?;
    let uri = text.split(' ').nth(1).unwrap_or_default();
    ensure(!uri.contains(['\\', '#']), "an ambiguous URL was accepted")?;
    match head.request {
        Request::Connect => Ok(()),
        Request::Http { .. } => check_forwarded_head(head, ensure),
    }
}

fn check_forwarded_head(
    head: &RequestHead,
    ensure: impl Fn(bool, &str) -> Result<(), String>,
) -> Result<(), String> {
    let out = head.for_target();
    let text = String::from_utf8_lossy(&out).to_ascii_lowercase();
    ensure(text.matches("\r\n\r\n").count() == 1 && text.ends_with("\r\n\r\n"), "two heads were passed on")?;
    ensure(!text.replace("\r\n", "").contains(['\r', '\n', '\0']), "control characters were passed on")?;
    ensure(text.matches("\r\nhost:").count() == 1, "not exactly one host was passed on")?;
    let host = head.target.host.to_string();
    let rest = text.split_once("\r\nhost: ").map(|(_, rest)| rest).unwrap_or_default();
    ensure(rest.starts_with(&host), "the host that was sent on is not the one that was checked")?;
    for hop in ["proxy-", "te:", "trailer:", "upgrade:", "keep-alive:"] {
        ensure(!text.contains(&format!("\r\n{hop}")), "a hop-by-hop header was sent on")?;
    }
    ensure(text.matches("\r\nconnection:").count() == 1, "not exactly one connection header was passed on")?;
    let framings =
        text.matches("\r\ncontent-length:").count() + text.matches("\r\ntransfer-encoding:").count();
    ensure(
        framings == usize::from(head.body != Framing::None),
        "the framing that was sent on is not the one that was parsed",
    )
}
