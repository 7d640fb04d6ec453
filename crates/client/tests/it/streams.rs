//! A stream loses nothing and repeats nothing, whatever happens to its connections.

use client::{Error, Watch};
use serde_json::json;

use crate::stage::{Act, Gateway, gap, heard, hello, init, queue, session};

#[tokio::test]
async fn a_broken_connection_is_made_again_and_goes_on_behind_the_last_number() {
    let gateway = Gateway::start(vec![
        Act::Break(vec![hello(), init(4), queue(5)]),
        // What was heard already is told again by mistake, once.
        Act::Close(vec![hello(), queue(5), queue(6)], 1013),
        Act::Stay(vec![hello(), queue(7)]),
    ])
    .await;
    let mut stream = gateway.watch().await;
    let all = heard(&mut stream, "queue 7").await;
    let expected = [
        "status", "init 4", "queue 5", "lost 1 1", "back", "status", "queue 6", "lost 1 1", "back", "status",
        "queue 7",
    ];
    assert_eq!(all, expected);
    let path = format!("GET /some/prefix/proliferate/{}", session());
    let asked: Vec<_> =
        gateway.asked().iter().map(|line| line.split(" Bearer").next().unwrap().to_owned()).collect();
    assert_eq!(asked, [path.clone(), format!("{path}?since=5"), format!("{path}?since=6")]);
    assert!(gateway.asked().iter().all(|line| line.contains("Bearer secret-token")));
}

#[tokio::test]
async fn a_gap_is_told_and_a_connection_that_breaks_inside_it_begins_anew() {
    let gateway = Gateway::start(vec![
        Act::Break(vec![hello(), gap(3, 9)]),
        Act::Stay(vec![hello(), init(9), queue(10)]),
    ])
    .await;
    let watch = Watch { since: Some(2), passive: true };
    let mut stream = gateway.client.connect(session(), watch).await.unwrap();
    let all = heard(&mut stream, "queue 10").await;
    assert_eq!(all, ["status", "gap", "lost 1 1", "back", "status", "init 9", "queue 10"]);
    let asked = gateway.asked();
    assert!(asked[0].contains("?since=2&passive=1 ") && asked[1].contains("?passive=1 "), "{asked:?}");
}

#[tokio::test]
async fn a_gateway_that_only_greets_is_asked_less_and_less_often() {
    let gateway = Gateway::start(vec![
        Act::Break(vec![hello(), init(1)]),
        Act::Close(vec![hello()], 1011),
        Act::Refuse(503, json!({"error": "not now", "code": "unavailable"})),
        Act::Stay(vec![hello(), queue(2)]),
    ])
    .await;
    let mut stream = gateway.watch().await;
    let all = heard(&mut stream, "queue 2").await;
    let expected = [
        "status", "init 1", "lost 1 1", "back", "status", "lost 2 2", "lost 3 4", "back", "status", "queue 2",
    ];
    assert_eq!(all, expected);
}

#[tokio::test]
async fn a_gateway_that_explains_itself_and_closes_is_asked_less_and_less_often() {
    let full = json!({"type": "error", "payload": {"message": "The gateway's disk is full"}});
    let refuses = || Act::Close(vec![hello(), full.clone(), hello()], 1013);
    let gateway = Gateway::start(vec![
        Act::Break(vec![hello(), init(1)]),
        refuses(),
        refuses(),
        Act::Stay(vec![hello(), queue(2)]),
    ])
    .await;
    let mut stream = gateway.watch().await;
    let all = heard(&mut stream, "queue 2").await;
    let lost: Vec<_> = all.iter().filter(|event| event.starts_with("lost")).collect();
    assert_eq!(lost, ["lost 1 1", "lost 2 2", "lost 3 4"]);
}

#[tokio::test]
async fn what_a_later_gateway_says_is_passed_on_and_counted() {
    let news = json!({"type": "hologram", "payload": {}, "seq": 2});
    let gateway = Gateway::start(vec![
        Act::Break(vec![hello(), init(1), news.clone()]),
        Act::Stay(vec![hello(), news.clone(), queue(3)]),
    ])
    .await;
    let mut stream = gateway.watch().await;
    let all = heard(&mut stream, "queue 3").await;
    let unknown = format!("unknown {}", news.to_string().len());
    assert_eq!(all, ["status", "init 1", &unknown, "lost 1 1", "back", "status", "queue 3"]);
    assert!(gateway.asked()[1].contains("since=2"), "{:?}", gateway.asked());
}

#[tokio::test]
async fn a_refusal_ends_a_stream_with_its_reason() {
    let gone = || Act::Refuse(404, json!({"error": "Session not found", "code": "not_found"}));
    let gateway = Gateway::start(vec![gone(), Act::Break(vec![hello(), init(1)]), gone()]).await;
    let never = gateway.client.connect(session(), Watch::default()).await.unwrap_err();
    assert_eq!((never.status(), never.to_string().as_str()), (Some(404), "Session not found (HTTP 404)"));
    let mut stream = gateway.watch().await;
    heard(&mut stream, "lost 1 1").await;
    assert!(matches!(stream.next().await, Some(Err(Error::Refused { status: 404, .. }))));
    assert!(stream.next().await.is_none());
}
