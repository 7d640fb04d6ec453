//! Plain HTTP: what the target receives, what the client gets back, and correct framing in both directions.

use egress::{Failure, RequestEnd};
use testkit::{Direction, FaultProxy};

use crate::harness::{HOST, PUBLIC, Setup, World};
use crate::origin::{HELLO, Origin};

#[tokio::test]
async fn target_gets_its_own_host_and_no_hop_by_hop_headers() {
    let site = Origin::start(PUBLIC, HELLO).await;
    let world = World::new().await;
    let port = site.port();
    let request = format!(
        "GET HTTP://SITE.test.:{port}?q=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nProxy-Authorization: Basic \
         c2VjcmV0\r\nProxy-Connection: keep-alive\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: \
         trailers\r\nUpgrade: websocket\r\nX-End:  kept \r\n\r\n"
    );
    assert!(world.request(request).await.ends_with("hello"));
    let expected = format!(
        "GET /?q=1 HTTP/1.1\r\nHost: site.test:{port}\r\nAccept: */*\r\nX-End: kept\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(site.requests(), [expected]);
}

#[tokio::test]
async fn both_body_framings_pass_and_the_connection_is_reused() {
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n006\r\n world\r\n0\r\nT: 1\r\n\r\n";
    let site = Origin::start(PUBLIC, answer).await;
    let world = World::new().await;
    let url = format!("http://site.test:{}/", site.port());
    let mut wire = world.connect().await;
    wire.send(format!("POST {url} HTTP/1.1\r\nContent-Length: 4\r\n\r\nfour")).await;
    let got = wire.read_until("0\r\n\r\n").await;
    assert!(
        got.contains("Transfer-Encoding: chunked\r\n") && !got.contains("x=y") && !got.contains("T: 1"),
        "{got}"
    );
    assert!(got.ends_with("\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"), "{got}");
    wire.send(format!(
        "PUT {url} HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n2;a\r\nab\r\n3\r\ncde\r\n0\r\nX: y\r\n\r\n"
    ))
    .await;
    wire.read_until("0\r\n\r\n").await;
    let requests = site.requests();
    assert!(requests[0].ends_with("Content-Length: 4\r\nConnection: close\r\n\r\nfour"), "{}", requests[0]);
    assert!(
        requests[1].contains("Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"),
        "{}",
        requests[1]
    );
    assert!(requests[1].ends_with("2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"), "{}", requests[1]);
}

#[tokio::test]
async fn http_1_0_client_gets_neither_chunks_nor_interim_responses() {
    let answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let site = Origin::start(PUBLIC, answer).await;
    let world = World::new().await;
    let got = world.request(format!("GET http://site.test:{}/ HTTP/1.0\r\n\r\n", site.port())).await;
    assert_eq!(got, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello");
}

#[tokio::test]
async fn http_1_1_client_gets_interim_responses_and_chunks_for_until_close_bodies() {
    let answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 Fine\r\nX: y\r\n\r\nhello";
    let site = Origin::start(PUBLIC, answer).await;
    let world = World::new().await;
    let url = format!("http://site.test:{}/", site.port());
    let mut wire = world.connect().await;
    wire.send(format!("POST {url} HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx")).await;
    let got = wire.read_until("0\r\n\r\n").await;
    assert_eq!(
        got,
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 Fine\r\nX: y\r\nTransfer-Encoding: chunked\r\nConnection: \
         keep-alive\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    );
    assert!(site.requests()[0].contains("Expect: 100-continue\r\n"));
}

#[tokio::test]
async fn bodiless_responses_keep_the_connection_in_sync() {
    let site = Origin::start(PUBLIC, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").await;
    let world = World::new().await;
    let mut wire = world.connect().await;
    wire.send(format!("HEAD http://site.test:{}/ HTTP/1.1\r\n\r\n", site.port())).await;
    let head = wire.read_until("\r\n\r\n").await;
    assert!(head.contains("Content-Length: 5\r\n"), "{head}");
    // A refusal is sent without a body in response to HEAD.
    wire.send(
        "HEAD http://10.0.0.1/ HTTP/1.1\r\n\r\nHEAD http://10.0.0.2/ HTTP/1.1\r\nConnection: close\r\n\r\n",
    )
    .await;
    let rest = wire.read_rest().await;
    assert_eq!(rest.matches("HTTP/1.1 403 ").count(), 2, "{rest}");
    assert!(!rest.contains('{'), "{rest}");
}

#[tokio::test]
async fn early_response_of_the_target_is_relayed() {
    // The target responds after the head alone, like a server that refuses an upload.
    let refuses = "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno";
    let listener = tokio::net::TcpListener::bind((PUBLIC, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, refuses.as_bytes()).await.unwrap();
        stream
    });
    let world = World::new().await;
    let mut wire = world.connect().await;
    wire.send(format!("POST http://site.test:{port}/ HTTP/1.1\r\nContent-Length: 1000000\r\n\r\nfirst"))
        .await;
    let (head, body) = wire.response().await;
    assert!(head.starts_with("HTTP/1.1 413 ") && body == "no", "{head}");
    assert_eq!(wire.read_rest().await, "", "a connection with an incomplete body must not be reused");
    drop(server.await.unwrap());
}

#[tokio::test]
async fn invalid_response_of_the_target_is_a_bad_gateway() {
    let answers = [
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        "SSH-2.0-OpenSSH_9\r\n\r\n",
    ];
    let mut world = World::new().await;
    for answer in answers {
        let site = Origin::start(PUBLIC, answer).await;
        let got = world.get(&format!("http://site.test:{}/", site.port())).await;
        assert!(got.starts_with("HTTP/1.1 502 ") && !got.contains("SSH"), "{answer}: {got}");
        assert_eq!(world.record().await.ended, RequestEnd::Failed(Failure::BadResponse));
    }
}

#[tokio::test]
async fn reset_by_the_target_is_distinguished_from_a_clean_end() {
    let long = format!("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{}", "x".repeat(100_000));
    let site = Origin::start(HOST, long).await;
    let fault = FaultProxy::start(site.address).await.unwrap();
    let mut world = World::with(Setup { stand_ins: vec![HOST], ..Setup::default() }).await;
    let url = format!("http://127.0.0.1:{}/", fault.address().port());

    fault.reset_after(Direction::ToClient, 50_000);
    let got = world.get(&url).await;
    assert!(
        got.starts_with("HTTP/1.1 200 ") && got.len() < 60_000,
        "the response must be truncated, not padded"
    );
    assert_eq!(world.record().await.ended, RequestEnd::Failed(Failure::TargetGone));

    fault.reset_after(Direction::ToClient, 10);
    assert!(world.get(&url).await.starts_with("HTTP/1.1 502 "));
    assert_eq!(world.record().await.ended, RequestEnd::Failed(Failure::TargetGone));

    fault.heal().await.unwrap();
    assert!(world.get(&url).await.len() > 100_000);
    assert_eq!(world.record().await.ended, RequestEnd::Complete);
}
