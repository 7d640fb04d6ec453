//! The git proxy for sandboxes: who may use it, for which repositories, and where the gateway connects to.

use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use axum::routing::any;
use proto::Role;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::harness::{Setup, within};
use crate::live::{Live, On, id};
use crate::model_proxy::serve;
use crate::people::{org, person, sandbox_token};

/// Creates a session with these repositories, and returns its sandbox's token.
async fn session_on(live: &Live, urls: &[&str]) -> String {
    let mut places = Vec::new();
    for (number, url) in urls.iter().enumerate() {
        let repo = live.add_repo(url).await["id"].clone();
        places.push(json!({"repoId": repo, "workspacePath": format!("repo{number}")}));
    }
    let place = live.post("/v1/configurations", &json!({"name": "app", "repos": places})).await;
    let session = live.session_with(&json!({"configurationId": place["id"]})).await;
    sandbox_token(&live.app, id(&session)).await
}

async fn refs(live: &Live, token: Option<&str>, repository: &str) -> (u16, String) {
    let path = format!("/git/{repository}/info/refs?service=git-upload-pack");
    let request = crate::harness::client().get(live.gateway.url(&path));
    let request = token.into_iter().fold(request, reqwest::RequestBuilder::bearer_auth);
    let answer = within(request.send()).await.unwrap();
    let status = answer.status().as_u16();
    (status, within(answer.text()).await.unwrap().trim_end().to_owned())
}

/// The error that real git prints about a repository.
async fn git_says(live: &Live, token: &str, repository: &str) -> String {
    let mut git = tokio::process::Command::new("git");
    git.args(["-c", &format!("http.extraHeader=Authorization: Bearer {token}"), "ls-remote"]);
    git.arg(live.gateway.url(&format!("/git/{repository}"))).env("GIT_TERMINAL_PROMPT", "0");
    let ended = within(git.output()).await.unwrap();
    assert!(!ended.status.success());
    String::from_utf8(ended.stderr).unwrap()
}

#[tokio::test]
async fn git_prints_why_it_was_refused() {
    let live = Live::start(On::Sqlite).await;
    let token = session_on(&live, &["http://127.0.0.1/ada/app", "https://example.com:8443/app"]).await;
    for (repository, reason) in [
        ("http/127.0.0.1/ada/other", "remote: This repository does not belong to the session"),
        ("http/127.0.0.1/ada/app", "private address"),
        ("https/example.com:8443/app", "port 8443"),
    ] {
        let said = git_says(&live, &token, repository).await;
        assert!(said.contains("remote: ") && said.contains(reason), "{repository}: {said}");
    }
}

#[tokio::test]
async fn only_the_sandbox_of_a_session_reaches_its_repositories() {
    let live = Live::start(On::Sqlite).await;
    let token = session_on(&live, &["http://127.0.0.1/ada/app"]).await;
    let repository = "http/127.0.0.1/ada/app";
    assert_eq!(refs(&live, None, repository).await.0, 401);
    assert_eq!(refs(&live, Some(&live.ada.token), repository).await.0, 403);
    let admin = person(&live.app, live.ada.org, Role::Admin).await;
    assert_eq!(refs(&live, Some(&admin.token), repository).await.0, 403);
    let elsewhere = org(&live.app).await;
    let stranger = Live { ada: person(&live.app, elsewhere, Role::Member).await, ..live };
    let foreign = session_on(&stranger, &["https://example.com/x"]).await;
    let not_ours = (403, "This repository does not belong to the session".to_owned());
    assert_eq!(refs(&stranger, Some(&foreign), repository).await, not_ours);
    for other in [
        "http/127.0.0.1/ada/app2",
        "http/127.0.0.1/ada/%61pp",
        "http/127.0.0.1:80/ada/app",
        "https/127.0.0.1/ada/app",
        "http/127.0.0.1@evil.example/ada/app",
        "http//127.0.0.1/ada/app",
    ] {
        assert_eq!(refs(&stranger, Some(&token), other).await, not_ours, "{other}");
    }
    for (method, rest) in [
        ("GET", "info/refs"),
        ("GET", "info/refs?service=git-evil"),
        ("GET", "info/refs?service=git-upload-pack&x"),
        ("GET", "HEAD"),
        ("GET", "git-upload-pack"),
        ("POST", "info/refs?service=git-upload-pack"),
    ] {
        let path = format!("/git/{repository}/{rest}");
        let (status, _) = stranger.ask(method, &path, Some(&token), &Value::Null, None).await;
        assert_eq!(status, 403, "{method} {rest}");
    }
}

#[tokio::test]
async fn the_gateway_connects_only_where_the_organizations_sandboxes_may() {
    let live = Live::start(On::Sqlite).await;
    let urls = ["http://127.0.0.1/ada/app", "http://localhost/ada/app", "https://example.com:8443/app"];
    let token = session_on(&live, &urls).await;
    let (status, why) = refs(&live, Some(&token), "http/127.0.0.1/ada/app").await;
    assert!(status == 403 && why.contains("private address"), "{status} {why}");
    // The name passes the rules; the address that it resolves to does not.
    assert_eq!(refs(&live, Some(&token), "http/localhost/ada/app").await.0, 503);
    let (status, why) = refs(&live, Some(&token), "https/example.com:8443/app").await;
    assert!(status == 403 && why.contains("port 8443"), "{status} {why}");
    let admin = person(&live.app, live.ada.org, Role::Admin).await;
    let rules = json!({"mode": "offline", "allow": [], "deny": []});
    let set = live.ask("PUT", "/v1/egress", Some(&admin.token), &rules, None).await;
    assert_eq!(set.0, 200, "{}", set.1);
    let mut tries = 0;
    while !refs(&live, Some(&token), "http/127.0.0.1/ada/app").await.1.contains("offline") {
        tries += 1;
        assert!(tries < 200, "a changed rule has no effect");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_request_that_takes_long_does_not_hold_others_of_the_session() {
    let (arrived, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let notes = (arrived.clone(), go_on.clone());
    let forge = Router::new().fallback(any(async move |method: Method| {
        if method == Method::POST {
            notes.0.notify_one();
            notes.1.notified().await;
        }
        "refs"
    }));
    let address = serve(forge).await.to_string();
    let setup =
        Setup::sqlite().set("EGRESS_ALLOWED_HOSTS", &address).set("CONNECTOR_ALLOWED_HOSTS", &address);
    let live = Live::with(setup).await;
    let token = session_on(&live, &[&format!("http://{address}/ada/app")]).await;
    let repository = format!("http/{address}/ada/app");
    let slow = live.gateway.url(&format!("/git/{repository}/git-upload-pack"));
    let mut slow = Box::pin(crate::harness::client().post(slow).bearer_auth(&token).body("0000").send());
    tokio::select! {
        () = arrived.notified() => {}
        early = within(&mut slow) => panic!("{}", early.unwrap().text().await.unwrap()),
    }
    let others = async {
        let answer = refs(&live, Some(&token), &repository).await;
        go_on.notify_one();
        answer
    };
    let (slow, answer) = tokio::join!(within(slow), others);
    assert_eq!((slow.unwrap().status().as_u16(), answer), (200, (200, "refs".to_owned())));
}
