//! The parser of request heads, and the promises that hold for everything that it accepts.

use egress::{Framing, HeadError, Host, Request, RequestHead, Target as Destination};
use testkit::fuzz::{Shape, Target, encode, kept};

/// What is fuzzed: the parser, or a broken copy of it.
pub(crate) type Parser = fn(&[u8]) -> Result<RequestHead, HeadError>;

pub(crate) const HEADS: Target<'_> = Target {
    name: "heads",
    run: &|input, _| heads_with(RequestHead::parse, input),
    corpus: &|| kept(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus")),
    write: encode,
    shape: Shape::text(DICTIONARY, 4096),
};

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

pub(crate) fn heads_with(parser: Parser, input: &[u8]) -> Result<String, String> {
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
    let again = Destination::parse(&head.target.to_string(), None);
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
