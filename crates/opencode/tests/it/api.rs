//! The API client against a server with scripted answers, and against one that misbehaves.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::Prompt;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::HeaderName;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opencode::api::{ApiError, Client, Dial, Endpoint};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

const SECRET: &str = "hunter2";

/// A request as the server received it.
#[derive(Clone, Debug)]
struct ReceivedRequest {
    line: String,
    headers: hyper::HeaderMap,
    body: Value,
}

type Log = Arc<Mutex<Vec<ReceivedRequest>>>;

/// A client of a server with a fixed answer for each request line.
fn client_with_answers(answer: fn(&str) -> Response<Full<Bytes>>) -> (Client<impl Dial>, Log) {
    let log = Log::default();
    let kept = Arc::clone(&log);
    let dial = move || {
        let (near, far) = duplex(64 * 1024);
        let log = Arc::clone(&log);
        tokio::spawn(async move {
            let service = service_fn(move |request| serve(request, answer, Arc::clone(&log)));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(far), service).await;
        });
        async { io::Result::Ok(near) }
    };
    let name = HeaderName::from_static("x-proliferate-sandbox-token");
    let place = Endpoint::remote("host:80", "/s/1/").unwrap().with_secret(name, SECRET).unwrap();
    (Client::new(dial, place), kept)
}

async fn serve(
    request: Request<Incoming>,
    answer: fn(&str) -> Response<Full<Bytes>>,
    log: Log,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let line = format!("{} {}", request.method(), request.uri());
    let headers = request.headers().clone();
    let body = request.into_body().collect().await?.to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    log.lock().unwrap().push(ReceivedRequest { line: line.clone(), headers, body });
    Ok(answer(&line))
}

fn reply(status: u16, body: &Value) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(body.to_string().into())).unwrap()
}

/// A client that receives these bytes for any request; afterwards the stream stays open or closes.
fn client_with_response_bytes(bytes: Vec<u8>, stays: bool) -> Client<impl Dial> {
    let dial = move || {
        let (near, far) = duplex(1024 * 1024);
        tokio::spawn(send_response(far, bytes.clone(), stays));
        async { io::Result::Ok(near) }
    };
    Client::new(dial, Endpoint::local())
}

async fn send_response(mut stream: DuplexStream, bytes: Vec<u8>, stays: bool) {
    let mut request = [0; 4096];
    if stream.read(&mut request).await.is_ok() && stream.write_all(&bytes).await.is_ok() && stays {
        std::future::pending::<()>().await;
    }
}

#[tokio::test]
async fn requests_have_the_right_path_host_and_header() {
    let (client, log) = client_with_answers(|line| match line {
        "GET /s/1/global/health" => reply(200, &json!({ "healthy": true, "version": "1.2.3" })),
        "POST /s/1/session" => reply(200, &json!({ "id": "ses_1", "slug": "x" })),
        "GET /s/1/session/ses_1" => reply(200, &json!({ "id": "ses_1" })),
        "GET /s/1/experimental/tool/ids" => reply(200, &json!(["bash"])),
        "GET /s/1/config/providers" => reply(
            200,
            &json!({ "providers": [{ "id": "litellm", "key": "k", "models": { "a/b": { "id": "a/b" } } }] }),
        ),
        line if line.starts_with("GET") => reply(404, &json!({ "name": "NotFoundError" })),
        _ => reply(200, &json!(true)),
    });
    assert_eq!(client.health().await.unwrap(), "1.2.3");
    assert_eq!(client.wait_until_ready(Duration::from_secs(9)).await.unwrap(), "1.2.3");
    assert_eq!(client.create_session(Some("a title")).await.unwrap(), "ses_1");
    assert!(client.has_session("ses_1").await.unwrap());
    assert!(!client.has_session("ses_2").await.unwrap());
    assert!(client.has_model("litellm/a/b").await.unwrap());
    for unknown in ["litellm/a", "anthropic/a/b", "a/b", "litellm"] {
        assert!(!client.has_model(unknown).await.unwrap(), "{unknown}");
    }
    client.abort("ses_1").await.unwrap();
    client.dispose().await.unwrap();
    client.reply_permission("per_1", "reject").await.unwrap();
    client.reject_question("que_1").await.unwrap();
    let log = log.lock().unwrap();
    let lines = log.iter().map(|request| request.line.as_str());
    let lines: Vec<&str> = lines.filter(|line| !line.ends_with("/config/providers")).collect();
    let expected = [
        "GET /s/1/global/health",
        "GET /s/1/global/health",
        "GET /s/1/experimental/tool/ids",
        "POST /s/1/session",
        "GET /s/1/session/ses_1",
        "GET /s/1/session/ses_2",
        "POST /s/1/session/ses_1/abort",
        "POST /s/1/instance/dispose",
        "POST /s/1/permission/per_1/reply",
        "POST /s/1/question/que_1/reject",
    ];
    assert_eq!(lines, expected);
    assert!(log.iter().all(|request| request.headers["x-proliferate-sandbox-token"] == SECRET));
    assert!(log.iter().all(|request| request.headers["host"] == "host:80"));
    assert_eq!(log[3].body, json!({ "title": "a title" }));
    assert_eq!(log[13].body, json!({ "reply": "reject" }));
}

#[tokio::test]
async fn a_prompt_carries_its_ids_model_and_images() {
    let (client, log) =
        client_with_answers(|_| Response::builder().status(204).body(Full::default()).unwrap());
    let images = ["data:image/png;base64,AA".to_owned()];
    let prompt = Prompt { id: "msg_7", model: "anthropic/m", effort: None, text: "hi", images: &images };
    client.prompt("ses_1", &prompt).await.unwrap();
    let expected = json!({
        "messageID": "msg_7",
        "model": { "providerID": "anthropic", "modelID": "m" },
        "parts": [
            { "id": "prt_700", "type": "text", "text": "hi" },
            { "id": "prt_701", "type": "file", "mime": "image/png", "filename": "image", "url": images[0] },
        ],
    });
    assert_eq!(log.lock().unwrap()[0].body, expected);
    let bad = ["http://elsewhere/a.png".to_owned()];
    for wrong in [Prompt { model: "nameless", ..prompt }, Prompt { images: &bad, ..prompt }] {
        assert!(matches!(client.prompt("ses_1", &wrong).await, Err(ApiError::BadPrompt)), "{wrong:?}");
    }
    assert_eq!(log.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn history_is_fetched_back_to_the_prompt_only() {
    let (client, log) = client_with_answers(|line| {
        let page = |id: &str, cursor: Option<&str>| {
            let mut response = reply(200, &json!([{ "info": { "id": id, "role": "user" }, "parts": [] }]));
            if let Some(cursor) = cursor {
                response.headers_mut().insert("x-next-cursor", cursor.parse().unwrap());
            }
            response
        };
        match line {
            "GET /s/1/session/status" => reply(200, &json!({ "ses_1": { "type": "busy" } })),
            "GET /s/1/session/ses_1/message?limit=20" => page("msg_3", Some("c1")),
            "GET /s/1/session/ses_1/message?limit=20&before=c1" => page("msg_2", Some("c2")),
            "GET /s/1/session/ses_2/message?limit=20" => page("msg_9", Some("c?&x=1")),
            _ => reply(500, &json!({})),
        }
    });
    let history = client.history("ses_1", "msg_2", &mut |_| true).await.unwrap();
    let ids: Vec<&str> = history.messages().map(|message| message.id).collect();
    assert_eq!((ids, history.busy), (vec!["msg_2", "msg_3"], true));
    assert!(log.lock().unwrap()[0].line.ends_with("status"), "the status must be requested before the pages");
    let other = client.history("ses_2", "msg_1", &mut |_| true).await.unwrap();
    assert_eq!(
        (other.pages.len(), other.busy),
        (1, false),
        "a cursor that would change the query must be ignored"
    );
}

#[tokio::test]
async fn history_stops_when_no_more_bytes_are_allowed() {
    let (client, log) = client_with_answers(|line| {
        if line == "GET /s/1/session/status" {
            return reply(200, &json!({}));
        }
        let text = "x".repeat(100_000);
        let mut page = reply(200, &json!([{ "info": { "id": "msg_1" }, "parts": [{ "text": text }] }]));
        page.headers_mut().insert("x-next-cursor", "c".parse().unwrap());
        page
    });
    let mut held = 0;
    let mut allow = |bytes: usize| {
        held += bytes;
        held < 350_000
    };
    let endless = client.history("ses_1", "msg_0", &mut allow).await;
    assert!(matches!(endless, Err(ApiError::NoMemory(_))), "{endless:?}");
    assert!(held < 500_000, "{held} bytes were read");
    assert_eq!(log.lock().unwrap().len(), 5, "the status and four pages");
}

#[tokio::test]
async fn only_history_responses_may_be_long() {
    let (client, _) = client_with_answers(|_| reply(200, &json!([" ".repeat(2 << 20)])));
    assert!(matches!(client.tools().await, Err(ApiError::TooLong(_))));
}

#[tokio::test]
async fn ids_that_would_change_the_path_are_rejected() {
    let (client, log) = client_with_answers(|_| reply(200, &json!({ "id": "../../etc" })));
    for id in ["", "a/b", "..", "a?b", "a%2f", "é", &"x".repeat(129)] {
        assert!(matches!(client.abort(id).await, Err(ApiError::BadId)), "{id}");
        assert!(matches!(client.reply_permission(id, "once").await, Err(ApiError::BadId)), "{id}");
    }
    assert!(log.lock().unwrap().is_empty());
    assert!(
        matches!(client.create_session(Some("x")).await, Err(ApiError::BadId)),
        "invalid ids from the agent must be rejected too"
    );
}

#[tokio::test]
async fn refusals_contain_only_the_error_name() {
    let (client, _) = client_with_answers(|line| match line {
        "POST /s/1/session" => {
            reply(400, &json!({ "name": "ConfigInvalidError", "data": { "key": "sk-secret" } }))
        }
        _ => reply(500, &json!({ "name": "not a name: sk-secret" })),
    });
    let error = client.create_session(Some("x")).await.unwrap_err();
    assert_eq!(error.to_string(), "the agent refused to create a session: 400 ConfigInvalidError");
    assert!(!format!("{error:?}").contains("sk-secret"));
    let error = client.tools().await.unwrap_err();
    assert!(matches!(&error, ApiError::Refused { status: 500, name, .. } if name.is_empty()), "{error:?}");
    assert!(
        !format!("{:?}", Endpoint::local().with_secret(HeaderName::from_static("x"), SECRET))
            .contains(SECRET)
    );
}

#[tokio::test]
async fn misbehaving_agents_cause_specific_errors() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
    for bytes in [
        String::new(),
        "garbage\r\n\r\n".to_owned(),
        format!("{head}[1"),
        format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(900_000)),
    ] {
        let error = client_with_response_bytes(bytes.clone().into_bytes(), false).tools().await.unwrap_err();
        assert!(matches!(error, ApiError::Broken(_)), "{error:?} for {bytes:.60}");
    }
    let error =
        client_with_response_bytes(format!("{head}[1]77").into_bytes(), false).tools().await.unwrap_err();
    assert!(matches!(error, ApiError::Malformed(_)), "{error:?}");
    let refused = || async { io::Result::<DuplexStream>::Err(io::ErrorKind::ConnectionRefused.into()) };
    let error = Client::new(refused, Endpoint::local()).health().await.unwrap_err();
    assert!(matches!(error, ApiError::Unreachable(io::ErrorKind::ConnectionRefused)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn silent_agents_time_out() {
    let silent = client_with_response_bytes(Vec::new(), true);
    assert!(matches!(silent.tools().await, Err(ApiError::TimedOut(_))));
    let patience = Duration::from_secs(5);
    assert!(matches!(silent.wait_until_ready(patience).await, Err(ApiError::TimedOut(_))));
    let endless = client_with_response_bytes(b"HTTP/1.1 200 OK\r\n\r\n[".to_vec(), true);
    assert!(matches!(endless.tools().await, Err(ApiError::TimedOut(_))));
    let nowhere = Client::new(std::future::pending::<io::Result<DuplexStream>>, Endpoint::local());
    assert!(matches!(nowhere.health().await, Err(ApiError::Unreachable(io::ErrorKind::TimedOut))));
}

#[tokio::test]
async fn endless_bodies_are_rejected() {
    let dial = || {
        let (near, mut far) = duplex(1024 * 1024);
        tokio::spawn(async move {
            let mut request = [0; 4096];
            let _ = far.read(&mut request).await;
            let _ = far.write_all(b"HTTP/1.1 200 OK\r\n\r\n[").await;
            while far.write_all(&[b' '; 8_192]).await.is_ok() {}
        });
        async { io::Result::Ok(near) }
    };
    let error = Client::new(dial, Endpoint::local()).tools().await.unwrap_err();
    assert!(matches!(error, ApiError::TooLong(_)), "{error:?}");
}

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

#[tokio::test]
async fn events_are_returned_until_the_stream_ends() {
    let client = client_with_response_bytes(
        format!("{STREAM}data: a\n\n: beat\n\ndata: b\n\ndata: cut").into_bytes(),
        false,
    );
    let mut events = client.events().await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap(), "a");
    assert_eq!(events.next().await.unwrap().unwrap(), "b");
    assert!(events.next().await.unwrap().is_none());
    let page = client_with_response_bytes(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<html>".to_vec(),
        false,
    );
    assert!(matches!(page.events().await, Err(ApiError::Malformed(_))));
}

#[tokio::test]
async fn a_truncated_stream_is_an_error() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n";
    let chunked = format!("{head}Transfer-Encoding: Chunked\r\n\r\n5\r\ndata:\r\n4;x=y\r\n a\n\n\r\n");
    let whole = [format!("{chunked}0\r\n\r\n"), format!("{head}content-length: 9\r\n\r\ndata: a\n\n")];
    for bytes in whole {
        let mut events = client_with_response_bytes(bytes.clone().into_bytes(), true).events().await.unwrap();
        assert_eq!(events.next().await.unwrap().unwrap(), "a", "{bytes}");
        assert!(events.next().await.unwrap().is_none() && events.next().await.unwrap().is_none(), "{bytes}");
    }
    let cut = [chunked.clone(), format!("{head}content-length: 10\r\n\r\ndata: a\n\n")];
    for bytes in cut {
        let mut events =
            client_with_response_bytes(bytes.clone().into_bytes(), false).events().await.unwrap();
        assert_eq!(events.next().await.unwrap().unwrap(), "a", "{bytes}");
        let after = events.next().await;
        assert!(matches!(after, Err(ApiError::Broken(_))), "{after:?} for {bytes}");
    }
    let error =
        client_with_response_bytes(format!("{chunked}zz").into_bytes(), false).events().await.unwrap_err();
    assert!(matches!(error, ApiError::Broken(_)), "{error:?}");
}

#[tokio::test]
async fn responses_that_are_not_event_streams_are_errors() {
    let refused =
        client_with_response_bytes(b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\nno".to_vec(), true);
    let error = refused.events().await.unwrap_err();
    assert!(matches!(error, ApiError::Refused { status: 503, .. }), "{error:?}");
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(100));
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(900_000));
    let coded = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: gzip\r\n\r\n";
    for bytes in ["", "garbage\r\n\r\n", "HTTP/1.1 200 OK\r\n", &many, &long, coded] {
        let error = client_with_response_bytes(bytes.as_bytes().to_vec(), false).events().await.unwrap_err();
        assert!(matches!(error, ApiError::Broken(_)), "{error:?} for {bytes:.60}");
    }
}

#[tokio::test]
async fn the_event_request_has_the_right_path_host_and_header() {
    let (client, log) = client_with_answers(|_| {
        let events = Response::builder().header("content-type", "text/event-stream");
        events.body(Full::new("data: a\n\n".into())).unwrap()
    });
    assert_eq!(client.events().await.unwrap().next().await.unwrap().unwrap(), "a");
    let request = &log.lock().unwrap()[0];
    assert_eq!(request.line, "GET /s/1/event");
    assert_eq!(
        (&request.headers["host"], &request.headers["x-proliferate-sandbox-token"]),
        (&"host:80".parse().unwrap(), &SECRET.parse().unwrap())
    );
}

#[tokio::test(start_paused = true)]
async fn silent_streams_are_detected() {
    let client = client_with_response_bytes(format!("{STREAM}data: a\n\n").into_bytes(), true);
    let mut events = client.events().await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap(), "a");
    assert!(matches!(events.next().await, Err(ApiError::Silent)));
}

#[tokio::test]
async fn an_oversized_event_does_not_end_the_stream() {
    let long = "x".repeat(9 * 1024 * 1024);
    let client =
        client_with_response_bytes(format!("{STREAM}data: {long}\n\ndata: next\n\n").into_bytes(), false);
    let mut events = client.events().await.unwrap();
    assert!(matches!(events.next().await, Err(ApiError::Event(_))));
    assert_eq!(events.next().await.unwrap().unwrap(), "next");
}

#[test]
fn endpoints_that_would_change_the_request_are_rejected() {
    for prefix in ["s/1", "/s?x", "/s#x", "/s 1", "/s\r\nx: y", "/é"] {
        assert!(matches!(Endpoint::remote("host", prefix), Err(ApiError::BadEndpoint)), "{prefix}");
    }
    assert!(matches!(Endpoint::remote("host\r\nx: y", ""), Err(ApiError::BadEndpoint)));
    assert!(Endpoint::local().with_secret(HeaderName::from_static("x"), "a\nb").is_err());
}
