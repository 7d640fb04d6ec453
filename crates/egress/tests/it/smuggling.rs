//! Ambiguous requests. Each is refused without reaching a target, and the connection ends, so that the bytes that
//! follow are not read as a request.

use egress::{Kind, Refusal, RequestEnd, Verdict};

use crate::harness::{PUBLIC, World};
use crate::origin::{HELLO, Origin};

/// `U` stands for the site's URL without a path, `A` for its host and port.
const REFUSED_REQUESTS: &[&str] = &[
    // Ambiguous lengths.
    "POST U/ HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST U/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "POST U/ HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
    "POST U/ HTTP/1.1\r\nContent-Length: 4\r\ncontent-length: 5\r\n\r\nabcd",
    "POST U/ HTTP/1.1\r\nContent-Length: 4, 4\r\n\r\nabcd",
    "POST U/ HTTP/1.1\r\nContent-Length: +4\r\n\r\nabcd",
    "POST U/ HTTP/1.1\r\nContent-Length: -1\r\n\r\nabcd",
    "POST U/ HTTP/1.1\r\nContent-Length: 0x4\r\n\r\nabcd",
    "POST U/ HTTP/1.1\r\nContent-Length: 4 4\r\n\r\nabcd",
    "POST U/ HTTP/1.1\r\nContent-Length:\r\n\r\nabcd",
    "POST U/ HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\nabcd",
    "POST U/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST U/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "POST U/ HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n",
    "POST U/ HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "POST U/ HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "POST U/ HTTP/1.1\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
    "POST U/ HTTP/1.1\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "POST U/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST U/ HTTP/1.1\r\nConnection: content-length\r\nContent-Length: 4\r\n\r\nabcd",
    "POST U/ HTTP/1.1\r\nConnection: close, Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    // Ambiguous lines.
    "GET U/ HTTP/1.1\nHost: a\n\n",
    "GET U/ HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
    "GET U/ HTTP/1.1\r\nA: b\rX: y\r\n\r\n",
    "GET U/ HTTP/1.1\r\nA: b\r\r\n\r\n",
    "GET U/ HTTP/1.1\r\nA:\r b\r\n\r\n",
    "GET U/ HTTP/1.1\r\nA: b\r\n X: folded\r\n\r\n",
    "GET U/ HTTP/1.1\r\nA: b\r\n\tX: folded\r\n\r\n",
    "GET U/ HTTP/1.1\r\n A: b\r\n\r\n",
    "GET U/ HTTP/1.1\r\nA : b\r\n\r\n",
    "GET U/ HTTP/1.1\r\n: b\r\n\r\n",
    "GET U/ HTTP/1.1\r\nA\r\n\r\n",
    "GET U/ HTTP/1.1\r\nA: \0\r\n\r\n",
    "GET U/ HTTP/1.1\r\nA\0: b\r\n\r\n",
    "GET U/ HTTP/1.1\r\nA: \x7f\r\n\r\n",
    "GET U/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "\r\nGET U/ HTTP/1.1\r\n\r\n",
    // Ambiguous first lines.
    "GET  U/ HTTP/1.1\r\n\r\n",
    "GET U/ HTTP/1.1 \r\n\r\n",
    " GET U/ HTTP/1.1\r\n\r\n",
    "GET\tU/ HTTP/1.1\r\n\r\n",
    "GET U/ x HTTP/1.1\r\n\r\n",
    "GET U/\r\n\r\n",
    "GET U/ HTTP/1.2\r\n\r\n",
    "GET U/ HTTP/2.0\r\n\r\n",
    "GET U/ http/1.1\r\n\r\n",
    "GET U/ HTTP/1.1x\r\n\r\n",
    "G@T U/ HTTP/1.1\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    // Ambiguous targets.
    "GET / HTTP/1.1\r\nHost: A\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: A\r\n\r\n",
    "GET A/ HTTP/1.1\r\n\r\n",
    "GET //A/ HTTP/1.1\r\n\r\n",
    "GET http:/A/ HTTP/1.1\r\n\r\n",
    "GET https://A/ HTTP/1.1\r\n\r\n",
    "GET ftp://A/ HTTP/1.1\r\n\r\n",
    "GET file:///etc/passwd HTTP/1.1\r\n\r\n",
    "GET http:///etc/passwd HTTP/1.1\r\n\r\n",
    "GET http://user:pass@A/ HTTP/1.1\r\n\r\n",
    "GET http://A@127.0.0.1/ HTTP/1.1\r\n\r\n",
    "GET http://127.0.0.1\\@A/ HTTP/1.1\r\n\r\n",
    "GET http://A\\.evil.test/ HTTP/1.1\r\n\r\n",
    "GET http://A#@127.0.0.1/ HTTP/1.1\r\n\r\n",
    "GET U/#fragment HTTP/1.1\r\n\r\n",
    "GET U/a\\b HTTP/1.1\r\n\r\n",
    "GET http://site.test%00.evil.test/ HTTP/1.1\r\n\r\n",
    "GET http://site.test%0d%0aX:y/ HTTP/1.1\r\n\r\n",
    "GET http://site.test:80:80/ HTTP/1.1\r\n\r\n",
    "GET http://site.test:/ HTTP/1.1\r\n\r\n",
    "GET http://site.test:080/ HTTP/1.1\r\n\r\n",
    "GET http://[::1/ HTTP/1.1\r\n\r\n",
    "GET http://[::1]x/ HTTP/1.1\r\n\r\n",
    "GET http://site..test/ HTTP/1.1\r\n\r\n",
    "CONNECT site.test HTTP/1.1\r\n\r\n",
    "CONNECT U HTTP/1.1\r\n\r\n",
    "CONNECT A/ HTTP/1.1\r\n\r\n",
    "CONNECT u@A HTTP/1.1\r\n\r\n",
    "CONNECT A HTTP/1.1\r\nContent-Length: 4\r\n\r\nabcd",
    "CONNECT A HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
];

#[tokio::test]
async fn ambiguous_requests_are_not_forwarded() {
    let site = Origin::start(PUBLIC, HELLO).await;
    let mut world = World::new().await;
    let authority = format!("site.test:{}", site.port());
    let second = format!("GET http://{authority}/smuggled HTTP/1.1\r\n\r\n");
    for case in REFUSED_REQUESTS {
        let request =
            case.replace('U', &format!("http://{authority}")).replace("A/", &format!("{authority}/"));
        let request =
            request.replace(" A ", &format!(" {authority} ")).replace("@A ", &format!("@{authority} "));
        let answer = world.request(format!("{request}{second}")).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{case:?}: {answer}");
        assert_eq!(
            answer.matches("HTTP/1.1").count(),
            1 + answer.matches("`METHOD").count(),
            "{case:?}: {answer}"
        );
        let record = world.record().await;
        assert!(matches!(record.verdict, Verdict::Refused(Refusal::Malformed(_))), "{case:?}: {record:?}");
        assert_eq!((record.kind, record.ended), (Kind::Unknown, RequestEnd::Refused));
    }
    assert!(site.requests().is_empty(), "{:?}", site.requests());
}

#[tokio::test]
async fn ambiguous_chunks_end_the_request() {
    let site = Origin::start(PUBLIC, HELLO).await;
    let mut world = World::new().await;
    let bodies = [
        "0x4\r\nabcd\r\n0\r\n\r\n",
        "+4\r\nabcd\r\n0\r\n\r\n",
        "4 \r\nabcd\r\n0\r\n\r\n",
        "4\nabcd\r\n0\r\n\r\n",
        "\r\nabcd\r\n0\r\n\r\n",
        "4\r\nabcdX\r\n0\r\n\r\n",
        "4\r\nabcd0\r\n\r\n",
        "-1\r\nabcd\r\n0\r\n\r\n",
        "10000000000000000\r\nabcd\r\n0\r\n\r\n",
        "ffffffffffffffff\r\nabcd\r\n",
        "g\r\n\r\n",
    ];
    for body in bodies {
        let url = format!("http://site.test:{}/", site.port());
        let answer =
            world.request(format!("POST {url} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{body}")).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{body:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1 + answer.matches("not valid").count(), "{body:?}");
        let _ = world.record().await;
    }
    for requests in site.requests() {
        assert!(!requests.ends_with("0\r\n\r\n"), "an incomplete body must not look complete: {requests}");
    }
}

#[tokio::test]
async fn error_responses_repeat_nothing_unsafe() {
    let world = World::new().await;
    for request in [
        "GET http://<script>alert(1)</script>/ HTTP/1.1\r\n\r\n",
        "GET http://a.test/\u{1b}[31m HTTP/1.1\r\n\r\n",
        "<script> http://a.test/ HTTP/1.1\r\n\r\n",
        "GET http://a%22b.test/ HTTP/1.1\r\n\r\n",
    ] {
        let answer = world.request(request).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(
            !answer.contains('<') && !answer.contains('\u{1b}') && !answer.contains("a.test"),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn body_of_a_refused_request_is_not_read_as_a_request() {
    let site = Origin::start(PUBLIC, HELLO).await;
    let world = World::new().await;
    let inner = format!("GET http://site.test:{}/smuggled HTTP/1.1\r\n\r\n", site.port());
    let length = format!("Content-Length: {}", inner.len());
    for head in [&length, "Transfer-Encoding: chunked"] {
        let answer = world.request(format!("POST http://10.0.0.1/ HTTP/1.1\r\n{head}\r\n\r\n{inner}")).await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("Connection: close"), "{answer}");
    }
    assert!(site.requests().is_empty(), "{:?}", site.requests());
}
