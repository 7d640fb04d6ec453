//! Shutdown: requests in flight are finished, hanging ones are cut off, and new ones are refused.

use crate::harness::{Running, Setup, within};
use crate::raw::Raw;

const LOGIN_BODY: &str = r#"{"code":"pll_00"}"#;

async fn gateway() -> Running {
    Setup::sqlite().set("PROLIFERATE_CLIENT_TIMEOUT_SECONDS", "600").start().await.serve()
}

/// Starts a request whose handler waits for the body: the server has sent `100 Continue`.
async fn in_flight(gateway: &Running) -> Raw {
    let mut client = Raw::open(gateway.address).await;
    let length = LOGIN_BODY.len();
    client
        .send(format!(
            "POST /v1/login HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
        ))
        .await;
    assert_eq!(client.until("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    client
}

#[tokio::test]
async fn a_request_in_flight_is_finished() {
    let gateway = gateway().await;
    let mut client = in_flight(&gateway).await;
    gateway.life.soft.cancel();
    client.send(LOGIN_BODY).await;
    let said = client.rest().await;
    assert!(said.starts_with("HTTP/1.1 401") && said.contains("Invalid token"), "{said}");
    assert!(gateway.ended().await, "everything was finished");
}

#[tokio::test]
async fn idle_connections_do_not_hold_the_end_up() {
    let gateway = gateway().await;
    let (mut kept, mut silent) = (Raw::open(gateway.address).await, Raw::open(gateway.address).await);
    assert!(kept.healthy().await);
    gateway.life.soft.cancel();
    assert!(gateway.ended().await);
    assert_eq!((kept.rest().await, silent.rest().await), (String::new(), String::new()));
}

#[tokio::test]
async fn a_request_that_hangs_is_cut_off_by_the_hard_stop() {
    let gateway = gateway().await;
    let mut client = in_flight(&gateway).await;
    gateway.life.soft.cancel();
    gateway.life.hard.cancel();
    assert_eq!(client.rest().await, "", "it gets no answer");
    assert!(!gateway.ended().await, "and that is said");
}

#[tokio::test]
async fn no_connection_is_accepted_after_the_soft_stop() {
    let gateway = gateway().await;
    let mut client = in_flight(&gateway).await;
    gateway.life.soft.cancel();
    // Until the listener is closed the kernel may still accept a connection, but nobody answers on it.
    within(async {
        while let Ok(stream) = tokio::net::TcpStream::connect(gateway.address).await {
            let mut late = Raw(stream);
            late.send("GET /health HTTP/1.1\r\nHost: t\r\n\r\n").await;
            assert_eq!(late.rest().await, "");
        }
    })
    .await;
    client.send(LOGIN_BODY).await;
    assert!(client.rest().await.starts_with("HTTP/1.1 401"), "the one that was in is finished");
    assert!(gateway.ended().await);
}

#[tokio::test]
async fn soft_and_hard_stops_of_an_idle_server_are_clean() {
    for _ in 0..20 {
        let gateway = gateway().await;
        gateway.life.soft.cancel();
        gateway.life.hard.cancel();
        assert!(gateway.ended().await);
    }
}

#[tokio::test]
async fn the_data_dir_is_free_after_the_end() {
    let setup = Setup::sqlite();
    let first = setup.try_start().await.unwrap_or_else(|error| panic!("{error}"));
    let life = gateway::lifecycle::Lifecycle::default();
    life.soft.cancel();
    assert!(within(first.run(&life)).await);
    assert!(setup.try_start().await.is_ok());
}

#[tokio::test]
async fn the_database_is_closed_at_the_end_and_is_one_file() {
    let setup = Setup::sqlite();
    let gateway = setup.try_start().await.unwrap_or_else(|error| panic!("{error}"));
    let (store, life) = (gateway.app.store.clone(), gateway::lifecycle::Lifecycle::default());
    let log = setup.data_dir().join("proliferate.db-wal");
    assert!(log.exists(), "it writes ahead while it runs");
    life.soft.cancel();
    assert!(within(gateway.run(&life)).await);
    let left = std::fs::metadata(&log).map_or(0, |log| log.len());
    assert_eq!(left, 0, "a copy of the file alone would miss what is in the log");
    assert!(store.ping().await.is_err());
}
