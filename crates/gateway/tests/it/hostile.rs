//! Hostile clients on real sockets: slow, endless, many and malformed. Other clients must not be affected.

use std::net::Ipv4Addr;

use futures_util::future::join_all;
use tokio::io::AsyncWriteExt as _;

use crate::harness::{Running, Setup, within};
use crate::raw::Raw;

async fn gateway(settings: &[(&str, &str)]) -> Running {
    let setup = settings.iter().fold(Setup::sqlite(), |setup, (name, value)| setup.set(name, value));
    setup.start().await.serve()
}

async fn impatient() -> Running {
    gateway(&[("PROLIFERATE_CLIENT_TIMEOUT_SECONDS", "1")]).await
}

/// Starts a gateway whose client timeout never expires during a test, so that no result below is a timeout by
/// accident.
async fn patient(settings: &[(&str, &str)]) -> Running {
    gateway(&[settings, &[("PROLIFERATE_CLIENT_TIMEOUT_SECONDS", "600")]].concat()).await
}

#[tokio::test]
async fn half_a_header_is_not_waited_for() {
    let gateway = impatient().await;
    let half = ["", "GET", "GET /health HTTP/1.1\r\nHost: t\r\nX-Slow: ", "\r\n"];
    let clients = (0..50).map(|at| {
        let address = gateway.address;
        async move {
            let mut client = Raw::open(address).await;
            client.send(half[at % half.len()]).await;
            client.rest().await
        }
    });
    for said in join_all(clients).await {
        assert!(!said.contains(" 200 "), "{said}");
    }
    assert!(Raw::open(gateway.address).await.healthy().await);
}

#[tokio::test]
async fn a_connection_that_says_nothing_more_is_closed() {
    let gateway = impatient().await;
    let mut client = Raw::open(gateway.address).await;
    assert!(client.healthy().await);
    assert_eq!(client.rest().await, "", "it was kept for a next request, but not for ever");
}

#[tokio::test]
async fn a_body_that_stops_is_408_and_the_connection_ends() {
    let gateway = impatient().await;
    let mut client = Raw::open(gateway.address).await;
    client.send("POST /v1/login HTTP/1.1\r\nHost: t\r\nContent-Length: 99\r\n\r\n{\"code\":").await;
    let said = client.rest().await;
    assert!(said.starts_with("HTTP/1.1 408") && said.contains("did not arrive in time"), "{said}");
}

#[tokio::test]
async fn a_body_that_arrives_too_slowly_is_refused() {
    let gateway = impatient().await;
    let mut client = Raw::open(gateway.address).await;
    client.send("POST /v1/login HTTP/1.1\r\nHost: t\r\nContent-Length: 4000\r\n\r\n").await;
    let (mut from, mut to) = client.0.split();
    let drip = async {
        // Each byte arrives before the timeout, but the complete body would take hours.
        let mut pace = tokio::time::interval(std::time::Duration::from_millis(200));
        while to.write_all(b" ").await.is_ok() {
            pace.tick().await;
        }
        std::future::pending::<()>().await;
    };
    let mut said = Vec::new();
    tokio::select! {
        () = within(drip) => {}
        _ = within(tokio::io::AsyncReadExt::read_to_end(&mut from, &mut said)) => {}
    }
    let said = String::from_utf8_lossy(&said);
    assert!(said.starts_with("HTTP/1.1 408"), "{said}");
}

#[tokio::test]
async fn a_content_length_over_the_limit_is_refused_before_the_body_arrives() {
    let gateway = patient(&[]).await;
    for length in ["1048577", "9999999999", "18446744073709551613"] {
        let mut client = Raw::open(gateway.address).await;
        client
            .send(format!("POST /v1/login HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n{{"))
            .await;
        let said = client.until("bytes\",\"code\":\"payload_too_large\"}").await;
        assert!(said.starts_with("HTTP/1.1 413"), "{said}");
    }
}

#[tokio::test]
async fn an_endless_chunked_body_is_413() {
    let gateway = patient(&[("PROLIFERATE_MAX_BODY_BYTES", "10000")]).await;
    let mut client = Raw::open(gateway.address).await;
    client.send("POST /v1/login HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    let chunk = format!("1000\r\n{}\r\n", " ".repeat(0x1000));
    let (mut from, mut to) = client.0.split();
    let send = async {
        while to.write_all(chunk.as_bytes()).await.is_ok() {}
        std::future::pending::<()>().await;
    };
    let mut said = Vec::new();
    tokio::select! {
        () = within(send) => {}
        _ = within(tokio::io::AsyncReadExt::read_to_end(&mut from, &mut said)) => {}
    }
    let said = String::from_utf8_lossy(&said);
    assert!(said.starts_with("HTTP/1.1 413"), "{said}");
    assert!(Raw::open(gateway.address).await.healthy().await);
}

#[tokio::test]
async fn one_address_cannot_take_more_than_its_share() {
    let gateway = patient(&[("PROLIFERATE_MAX_CONNECTIONS_PER_ADDRESS", "3")]).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut client = Raw::open(gateway.address).await;
        assert!(client.healthy().await);
        held.push(client);
    }
    for _ in 0..5 {
        let mut refused = Raw::open(gateway.address).await;
        refused.send("GET /health HTTP/1.1\r\nHost: t\r\n\r\n").await;
        assert_eq!(refused.rest().await, "");
    }
    let mut other = Raw::open_from(Ipv4Addr::new(127, 0, 0, 2).into(), gateway.address).await;
    assert!(other.healthy().await, "another address has its own share");
    assert!(held[0].healthy().await, "those who are in go on");
    held.pop();
    within(async {
        loop {
            let mut next = Raw::open(gateway.address).await;
            next.send("GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").await;
            if next.rest().await.starts_with("HTTP/1.1 200") {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_never_reads_is_disconnected() {
    let gateway = impatient().await;
    let mut client = Raw::open(gateway.address).await;
    let many = "GET /openapi.json HTTP/1.1\r\nHost: t\r\n\r\n".repeat(100);
    // The buffers on both sides soon fill up; the server has to close the connection.
    within(async { while client.0.write_all(many.as_bytes()).await.is_ok() {} }).await;
    assert!(Raw::open(gateway.address).await.healthy().await);
}

#[tokio::test]
async fn a_connection_over_the_total_limit_waits_for_a_slot() {
    let gateway = patient(&[("PROLIFERATE_MAX_CONNECTIONS", "2")]).await;
    let (mut a, mut b) = (Raw::open(gateway.address).await, Raw::open(gateway.address).await);
    assert!(a.healthy().await && b.healthy().await);
    let mut waiting = Raw::open(gateway.address).await;
    waiting.send("GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").await;
    for _ in 0..20 {
        assert!(a.healthy().await && b.healthy().await);
    }
    assert!(waiting.0.try_read(&mut [0; 16]).is_err(), "it was served beyond the cap");
    drop(a);
    assert!(waiting.rest().await.starts_with("HTTP/1.1 200"));
    assert!(b.healthy().await);
}

#[tokio::test]
async fn bytes_after_a_valid_request_do_not_affect_it() {
    let gateway = patient(&[]).await;
    let health = "GET /health HTTP/1.1\r\nHost: t\r\n\r\n";
    for garbage in [
        "\0\0\0\0\r\n\r\n",
        "GET\r\n\r\n",
        "GET /health HTTP/9.9\r\n\r\n",
        "{\"a\":1}\r\n\r\n",
        "\u{16}\u{3}\u{1}\r\n\r\n",
    ] {
        let mut client = Raw::open(gateway.address).await;
        client.send(format!("{health}{garbage}")).await;
        let said = client.rest().await;
        assert_eq!(said.matches("HTTP/1.1 200").count(), 1, "{garbage:?}: {said}");
        assert_eq!(said.matches("HTTP/1.1 400").count(), 1, "{garbage:?}: {said}");
    }
    let mut client = Raw::open(gateway.address).await;
    client.send(health.repeat(3)).await;
    for _ in 0..3 {
        assert!(client.until("{\"status\":\"ok\"}").await.starts_with("HTTP/1.1 200"));
    }
}

#[tokio::test]
async fn a_request_that_two_readers_would_cut_differently_is_refused() {
    let gateway = patient(&[]).await;
    let smuggled = "GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n";
    for headers in [
        "Content-Length: 2\r\nContent-Length: 40\r\n",
        "Content-Length: 2, 40\r\n",
        "Content-Length: +2\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x2\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        "X: a\r\n folded\r\n",
        "X\0: a\r\n",
    ] {
        let mut client = Raw::open(gateway.address).await;
        client.send(format!("POST /v1/login HTTP/1.1\r\nHost: t\r\n{headers}\r\n{smuggled}")).await;
        let said = client.rest().await;
        assert!(said.starts_with("HTTP/1.1 400"), "{headers:?}: {said}");
        assert!(!said.contains("proliferate_"), "the hidden request was answered: {headers:?}");
    }
}

#[tokio::test]
async fn strange_targets_and_methods_do_no_harm() {
    let gateway = patient(&[]).await;
    let long = "a".repeat(100_000);
    for line in [
        "OPTIONS * HTTP/1.1",
        "GET * HTTP/1.1",
        "CONNECT 127.0.0.1:1 HTTP/1.1",
        "CONNECT /health HTTP/1.1",
        "GET http://evil.example/v1/me HTTP/1.1",
        "GET //evil.example/v1/me HTTP/1.1",
        "GET /%zz HTTP/1.1",
        "GET /v1/../../etc/passwd HTTP/1.1",
        "PRI * HTTP/2.0",
        "GET /health HTTP/1.0",
        "FOO-BAR /health HTTP/1.1",
        "GET /?a=%00&token=%ff HTTP/1.1",
        "GET ? HTTP/1.1",
        &format!("GET /{long} HTTP/1.1"),
    ] {
        let mut client = Raw::open(gateway.address).await;
        client.send(format!("{line}\r\nHost: t\r\nConnection: close\r\n\r\n")).await;
        let said = client.rest().await;
        let shown = &line[..line.len().min(60)];
        assert!(!said.starts_with("HTTP/1.1 5") && said.starts_with("HTTP/1."), "{shown}: {said}");
    }
    assert!(Raw::open(gateway.address).await.healthy().await);
}

#[tokio::test]
async fn too_many_headers_are_refused() {
    let gateway = patient(&[]).await;
    let mut client = Raw::open(gateway.address).await;
    client.send(format!("GET /health HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(5000))).await;
    let said = client.rest().await;
    assert!(said.starts_with("HTTP/1.1 431"), "{said}");
}

#[tokio::test]
async fn an_unfinished_head_is_held_up_to_a_few_kilobytes() {
    let gateway = patient(&[]).await;
    let mut client = Raw::open(gateway.address).await;
    client.send(format!("GET /health HTTP/1.1\r\nHost: t\r\nX-Long: {}", "x".repeat(40_000))).await;
    let said = client.rest().await;
    assert!(said.starts_with("HTTP/1.1 431"), "{said}");
    assert!(Raw::open(gateway.address).await.healthy().await);
}
