//! A stream loses and repeats nothing, whatever happens to its connections.

use client::{Error, Watch};
use serde_json::json;

use crate::script::{Behavior, Gateway, collect_events, gap, init, queue, session, status_frame};

#[tokio::test]
async fn a_broken_connection_resumes_after_the_last_number() {
    let gateway = Gateway::start(vec![
        Behavior::Break(vec![status_frame(), init(4), queue(5)]),
        // The gateway repeats a frame that was already sent.
        Behavior::Close(vec![status_frame(), queue(5), queue(6)], 1013),
        Behavior::Stay(vec![status_frame(), queue(7)]),
    ])
    .await;
    let mut stream = gateway.watch().await;
    let all = collect_events(&mut stream, "queue 7").await;
    let expected = [
        "status", "init 4", "queue 5", "lost 1 1", "back", "status", "queue 6", "lost 1 1", "back", "status",
        "queue 7",
    ];
    assert_eq!(all, expected);
    let path = format!("GET /some/prefix/proliferate/{}", session());
    let requests: Vec<_> =
        gateway.requests().iter().map(|line| line.split(" Bearer").next().unwrap().to_owned()).collect();
    assert_eq!(requests, [path.clone(), format!("{path}?since=5"), format!("{path}?since=6")]);
    assert!(gateway.requests().iter().all(|line| line.contains("Bearer secret-token")));
}

#[tokio::test]
async fn a_gap_is_reported_and_a_break_inside_it_starts_over() {
    let gateway = Gateway::start(vec![
        Behavior::Break(vec![status_frame(), gap(3, 9)]),
        Behavior::Stay(vec![status_frame(), init(9), queue(10)]),
    ])
    .await;
    let watch = Watch { since: Some(2), passive: true };
    let mut stream = gateway.client.connect(session(), watch).await.unwrap();
    let all = collect_events(&mut stream, "queue 10").await;
    assert_eq!(all, ["status", "gap", "lost 1 1", "back", "status", "init 9", "queue 10"]);
    let requests = gateway.requests();
    assert!(
        requests[0].contains("?since=2&passive=1 ") && requests[1].contains("?passive=1 "),
        "{requests:?}"
    );
}

#[tokio::test]
async fn a_gateway_that_closes_at_once_is_retried_with_backoff() {
    let gateway = Gateway::start(vec![
        Behavior::Break(vec![status_frame(), init(1)]),
        Behavior::Close(vec![status_frame()], 1011),
        Behavior::Refuse(503, json!({"error": "not now", "code": "unavailable"})),
        Behavior::Stay(vec![status_frame(), queue(2)]),
    ])
    .await;
    let mut stream = gateway.watch().await;
    let all = collect_events(&mut stream, "queue 2").await;
    let expected = [
        "status", "init 1", "lost 1 1", "back", "status", "lost 2 2", "lost 3 4", "back", "status", "queue 2",
    ];
    assert_eq!(all, expected);
}

#[tokio::test]
async fn a_gateway_that_sends_an_error_and_closes_is_retried_with_backoff() {
    let full = json!({"type": "error", "payload": {"message": "The gateway's disk is full"}});
    let refuses = || Behavior::Close(vec![status_frame(), full.clone(), status_frame()], 1013);
    let gateway = Gateway::start(vec![
        Behavior::Break(vec![status_frame(), init(1)]),
        refuses(),
        refuses(),
        Behavior::Stay(vec![status_frame(), queue(2)]),
    ])
    .await;
    let mut stream = gateway.watch().await;
    let all = collect_events(&mut stream, "queue 2").await;
    let lost: Vec<_> = all.iter().filter(|event| event.starts_with("lost")).collect();
    assert_eq!(lost, ["lost 1 1", "lost 2 2", "lost 3 4"]);
}

#[tokio::test]
async fn unknown_messages_are_passed_on_and_advance_the_cursor() {
    let news = json!({"type": "hologram", "payload": {}, "seq": 2});
    let gateway = Gateway::start(vec![
        Behavior::Break(vec![status_frame(), init(1), news.clone()]),
        Behavior::Stay(vec![status_frame(), news.clone(), queue(3)]),
    ])
    .await;
    let mut stream = gateway.watch().await;
    let all = collect_events(&mut stream, "queue 3").await;
    let unknown = format!("unknown {}", news.to_string().len());
    assert_eq!(all, ["status", "init 1", &unknown, "lost 1 1", "back", "status", "queue 3"]);
    assert!(gateway.requests()[1].contains("since=2"), "{:?}", gateway.requests());
}

#[tokio::test]
async fn a_permanent_error_ends_the_stream() {
    let gone = || Behavior::Refuse(404, json!({"error": "Session not found", "code": "not_found"}));
    let gateway = Gateway::start(vec![gone(), Behavior::Break(vec![status_frame(), init(1)]), gone()]).await;
    let never = gateway.client.connect(session(), Watch::default()).await.unwrap_err();
    assert_eq!((never.status(), never.to_string().as_str()), (Some(404), "Session not found (HTTP 404)"));
    let mut stream = gateway.watch().await;
    collect_events(&mut stream, "lost 1 1").await;
    assert!(matches!(stream.next().await, Some(Err(Error::Refused { status: 404, .. }))));
    assert!(stream.next().await.is_none());
}
