//! Requests as the gateway receives them, and errors as the caller sees them.

use client::{Client, Error};
use proto::http::{PostMessage, SessionQuery};
use proto::socket::MessageSource;
use proto::{ErrorCode, SessionStatus};
use serde_json::{Value, json};

use crate::script::{Behavior, Gateway, session};

fn answer(body: Value) -> Behavior {
    Behavior::Break(vec![body])
}

#[tokio::test]
async fn every_call_has_the_right_path_token_and_body() {
    let ok = || answer(json!({"ok": true}));
    let queued = answer(json!({"ok": true, "messageId": "msg_1"}));
    let gateway = Gateway::start(vec![queued, ok(), ok(), ok(), ok(), ok(), ok()]).await;
    let (client, id) = (&gateway.client, session());
    let prompt = PostMessage::Prompt {
        content: "hi".to_owned(),
        user_id: None,
        source: Some(MessageSource::Cli),
        images: None,
    };
    client.message(id, &prompt, Some("key-1")).await.unwrap();
    client.cancel(id).await.unwrap();
    client.eager_start(id).await.unwrap();
    client.heartbeat(id).await.unwrap();
    client.rename(id, "better").await.unwrap();
    client.stop(id, false).await.unwrap();
    client.delete(id).await.unwrap();
    let at = |method: &str, rest: &str| format!("{method} /some/prefix/proliferate/{id}{rest}");
    let expected = [
        at("POST", r#"/message Bearer secret-token key-1 {"type":"prompt","content":"hi","source":"cli"}"#),
        at("POST", "/cancel Bearer secret-token - "),
        at("POST", "/eager-start Bearer secret-token - "),
        at("POST", "/heartbeat Bearer secret-token - "),
        at("PATCH", r#" Bearer secret-token - {"title":"better"}"#),
        at("POST", "/stop Bearer secret-token - "),
        at("DELETE", " Bearer secret-token - "),
    ];
    assert_eq!(gateway.requests(), expected);
}

#[tokio::test]
async fn older_messages_are_requested_by_the_id_after_them() {
    let page = || answer(json!({"messages": [], "earlier": 3}));
    let gateway = Gateway::start(vec![page(), page()]).await;
    assert_eq!(gateway.client.messages(session(), Some("msg_1")).await.unwrap().earlier, 3);
    gateway.client.messages(session(), None).await.unwrap();
    let requests = gateway.requests();
    assert!(requests[0].contains("/messages?before=msg_1 "), "{requests:?}");
    assert!(requests[1].contains("/messages ") || requests[1].contains("/messages? "), "{requests:?}");
}

#[tokio::test]
async fn a_list_request_contains_only_the_given_filters() {
    let gateway = Gateway::start(vec![answer(json!({"sessions": [], "next": "there"}))]).await;
    let query = SessionQuery {
        status: Some(SessionStatus::Running),
        limit: Some(7),
        after: Some("a b&c".to_owned()),
        ..SessionQuery::default()
    };
    let page = gateway.client.list(&query).await.unwrap();
    assert_eq!((page.sessions.len(), page.next.as_deref()), (0, Some("there")));
    let requests = gateway.requests().remove(0);
    let query = requests.split_once('?').unwrap().1.split(' ').next().unwrap().to_owned();
    let mut pairs: Vec<_> = query.split('&').collect();
    pairs.sort_unstable();
    assert_eq!(pairs, ["after=a+b%26c", "limit=7", "status=running"]);
}

#[tokio::test]
async fn errors_have_status_code_and_message() {
    let gateway = Gateway::start(vec![
        Behavior::Refuse(401, json!({"error": "Invalid token", "code": "unauthorized"})),
        Behavior::Refuse(502, json!("<html>Bad\u{1b}[2J Gateway</html>")),
        answer(json!({"hello": "I am another program"})),
    ])
    .await;
    let Err(Error::Refused { status, code, message }) = gateway.client.me().await else {
        panic!("the call succeeded")
    };
    assert_eq!((status, code, message.as_str()), (401, Some(ErrorCode::Unauthorized), "Invalid token"));
    let Err(Error::Refused { status, code, message }) = gateway.client.me().await else {
        panic!("the call succeeded")
    };
    assert!(status == 502 && code.is_none() && message.contains("Bad"), "{message}");
    assert!(!message.contains('\u{1b}'));
    let garbled = gateway.client.me().await;
    assert!(matches!(garbled, Err(Error::UnexpectedResponse { .. })), "{garbled:?}");
}

#[tokio::test]
async fn an_unreachable_gateway_is_reported_without_the_token() {
    let client = Client::new("http://127.0.0.1:1".parse().unwrap(), &"secret-token".into()).unwrap();
    let error = client.me().await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("127.0.0.1:1"), "{error}");
    assert!(!format!("{client:?} {error:?}").contains("secret-token"));
    let impossible = Client::new("http://127.0.0.1:1".parse().unwrap(), &"two\nlines".into());
    assert!(matches!(impossible, Err(Error::BadToken)));
}
