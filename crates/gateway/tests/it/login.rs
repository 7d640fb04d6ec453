//! A person logs in with a link and stays logged in with a cookie that no other site can use.

use std::time::Duration;

use clock::Clock;
use futures_util::future::join_all;
use gateway::identity::LOGIN_LINK_LIFETIME;
use proto::Role;
use serde_json::json;

use crate::call::Answer;
use crate::harness::{Setup, TestGateway};
use crate::people::{Person, api_key, login_code, org, person};

async fn member(gateway: &TestGateway) -> Person {
    person(&gateway.app, org(&gateway.app).await, Role::Owner).await
}

/// The cookie's name, value and attributes.
fn cookie(answer: &Answer) -> [String; 3] {
    let cookie = answer.header("set-cookie").unwrap();
    let (pair, attributes) = cookie.split_once("; ").unwrap();
    let (name, value) = pair.split_once('=').unwrap();
    [name, value, attributes].map(str::to_owned)
}

/// Logs in and returns the value of the login cookie.
pub(crate) async fn logged_in(gateway: &TestGateway, person: &Person) -> String {
    let code = login_code(&gateway.app, person).await;
    let answer = gateway.post("/v1/login", &json!({"code": code})).send().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let [_, value, _] = cookie(&answer);
    value
}

#[tokio::test]
async fn a_login_code_used_by_eight_at_once_logs_one_in() {
    for gateway in TestGateway::both().await {
        let code = login_code(&gateway.app, &member(&gateway).await).await;
        let body = json!({"code": code});
        let statuses = join_all((0..8).map(|_| gateway.post("/v1/login", &body).status())).await;
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 7, "{statuses:?}");
    }
}

#[tokio::test]
async fn a_login_code_expires_and_ends_with_its_membership() {
    let clock = Clock::manual(Clock::system().now());
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let gateway = setup.clock(&clock).start().await;
        let person = member(&gateway).await;
        crate::people::person(&gateway.app, person.org, Role::Owner).await;
        let (in_time, orphan) =
            (login_code(&gateway.app, &person).await, login_code(&gateway.app, &person).await);
        let post = |code: &str| gateway.post("/v1/login", &json!({"code": code})).status();
        clock.advance(LOGIN_LINK_LIFETIME.saturating_sub(Duration::from_secs(1)));
        assert_eq!(post(&in_time).await, 200);
        gateway.app.store.change_member(person.org, person.id, None, gateway.app.clock.now()).await.unwrap();
        assert_eq!(post(&orphan).await, 401);
        for strange in ["", "pll_", "pll_00", "plk_00", "x"] {
            assert_eq!(post(strange).await, 401, "{strange}");
        }
    }
}

#[tokio::test]
async fn an_expired_login_code_fails_for_a_member_too() {
    let clock = Clock::manual(Clock::system().now());
    let gateway = Setup::sqlite().clock(&clock).start().await;
    let code = login_code(&gateway.app, &member(&gateway).await).await;
    clock.advance(LOGIN_LINK_LIFETIME);
    assert_eq!(gateway.post("/v1/login", &json!({"code": code})).status().await, 401);
}

#[tokio::test]
async fn the_cookie_is_out_of_reach_for_scripts_and_other_sites() {
    for (public_url, expected) in [
        ("http://g.example", "proliferate_login"),
        ("http://g.example:80", "proliferate_login"),
        ("http://g.example:8787", "proliferate_login_8787"),
        ("https://g.example", "__Host-proliferate_login"),
        ("https://g.example:8443", "__Host-proliferate_login_8443"),
    ] {
        let gateway = Setup::sqlite().set("PUBLIC_URL", public_url).start().await;
        let code = login_code(&gateway.app, &member(&gateway).await).await;
        let [name, value, attributes] =
            cookie(&gateway.post("/v1/login", &json!({"code": code})).send().await);
        let end = if public_url.starts_with("https") { "; Secure" } else { "" };
        assert_eq!(attributes, format!("Path=/; HttpOnly; SameSite=Strict; Max-Age=43200{end}"));
        assert_eq!(name, expected, "{public_url}");
        let me = async |name: &str| {
            gateway.get("/v1/me").header("cookie", format!("{name}={value}")).status().await
        };
        assert_eq!(me(expected).await, 200);
        assert_eq!(me("proliferate_login_1").await, 401, "that of a gateway on another port");
    }
    let gateway = TestGateway::sqlite().await;
    let port = gateway.app.site.url.port().unwrap();
    let code = login_code(&gateway.app, &member(&gateway).await).await;
    let [name, ..] = cookie(&gateway.post("/v1/login", &json!({"code": code})).send().await);
    assert_eq!(name, format!("proliferate_login_{port}"), "the port that was bound counts too");
}

#[tokio::test]
async fn a_login_ends_after_twelve_hours_and_with_its_membership() {
    let clock = Clock::manual(Clock::system().now());
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let gateway = setup.clock(&clock).start().await;
        let (ada, bob) = (member(&gateway).await, member(&gateway).await);
        person(&gateway.app, bob.org, Role::Owner).await;
        let (long, short) = (logged_in(&gateway, &ada).await, logged_in(&gateway, &bob).await);
        let me = |token: &str| gateway.get("/v1/me").cookie(token).status();
        clock.advance(Duration::from_hours(12).saturating_sub(Duration::from_secs(1)));
        assert_eq!((me(&long).await, me(&short).await), (200, 200));
        gateway.app.store.change_member(bob.org, bob.id, None, gateway.app.clock.now()).await.unwrap();
        assert_eq!(me(&short).await, 401, "the membership ended");
        clock.advance(Duration::from_secs(1));
        assert_eq!(me(&long).await, 401, "twelve hours are over");
    }
}

#[tokio::test]
async fn a_login_is_accepted_only_as_a_cookie_and_a_cookie_accepts_nothing_else() {
    let gateway = TestGateway::sqlite().await;
    let person = member(&gateway).await;
    let token = logged_in(&gateway, &person).await;
    assert!(token.starts_with("plc_") && token.len() == 4 + 64, "it says nothing: {token}");
    assert_eq!(gateway.get("/v1/me").cookie(&token).status().await, 200);
    assert_eq!(gateway.get("/v1/me").bearer(&token).status().await, 401);
    assert_eq!(gateway.get("/llm/v1/models").header("x-api-key", &token).status().await, 401);
    for other in
        [&person.token, &api_key(&gateway.app, &person).await.1, &login_code(&gateway.app, &person).await]
    {
        assert_eq!(gateway.get("/v1/me").cookie(other).status().await, 401, "{other}");
    }
    for strange in ["", "plc_", "plc_00", "plc_' OR 1=1 --"] {
        assert_eq!(gateway.get("/v1/me").cookie(strange).status().await, 401, "{strange}");
    }
}

#[tokio::test]
async fn a_cookie_acts_only_for_our_own_pages() {
    let setup = Setup::sqlite().set("PUBLIC_URL", "https://g.example");
    let gateway = setup.start().await;
    let token = logged_in(&gateway, &member(&gateway).await).await;
    let body = json!({"name": "k"});
    let post = || gateway.post("/v1/keys", &body).cookie(&token);
    assert_eq!(post().status().await, 403, "no origin");
    for foreign in [
        "https://evil.example",
        "null",
        "",
        "https://g.example.evil.example",
        "http://g.example",
        "https://g.example:8443",
        "https://g.example/",
    ] {
        assert_eq!(post().header("origin", foreign).status().await, 403, "{foreign}");
    }
    assert_eq!(post().header("origin", "https://g.example").status().await, 201);
    let keys = gateway.get("/v1/keys").cookie(&token).header("origin", "https://evil.example").send().await;
    assert_eq!(keys.json()["keys"].as_array().unwrap().len(), 1, "reading works, and nothing else was made");
    assert_eq!(keys.header("access-control-allow-origin"), None);
    let bearer = gateway.post("/v1/keys", &body).bearer(&token);
    assert_eq!(bearer.status().await, 401, "it is no bearer");
}

#[tokio::test]
async fn a_page_of_another_origin_can_neither_open_a_socket_nor_log_in() {
    let gateway = Setup::sqlite().set("PUBLIC_URL", "https://g.example").start().await;
    let person = member(&gateway).await;
    let token = logged_in(&gateway, &person).await;
    let upgrade = || gateway.get("/v1/me").cookie(&token).header("upgrade", "websocket");
    assert_eq!(upgrade().header("origin", "https://evil.example").status().await, 403);
    assert_eq!(upgrade().status().await, 403);
    assert_eq!(upgrade().header("origin", "https://g.example").status().await, 200);

    let code = json!({"code": login_code(&gateway.app, &person).await});
    let foreign = gateway.post("/v1/login", &code).header("origin", "https://evil.example").send().await;
    assert_eq!((foreign.status, foreign.header("set-cookie")), (403, None));
    let own = gateway.post("/v1/login", &code).header("origin", "https://g.example").send().await;
    assert_eq!(own.status, 200, "the foreign attempt did not use the code up");
}

#[tokio::test]
async fn logout_ends_the_login_and_clears_the_cookie() {
    let gateway = Setup::sqlite().set("PUBLIC_URL", "https://g.example").start().await;
    let person = member(&gateway).await;
    let (token, elsewhere) = (logged_in(&gateway, &person).await, logged_in(&gateway, &person).await);
    let logout = gateway.call("POST", "/v1/logout").cookie(&token);
    assert_eq!(logout.status().await, 403, "another site cannot log us out");
    let out =
        gateway.call("POST", "/v1/logout").cookie(&token).header("origin", "https://g.example").send().await;
    let expected = ["__Host-proliferate_login", "", "Path=/; HttpOnly; SameSite=Strict; Max-Age=0; Secure"];
    assert_eq!((out.status, cookie(&out)), (200, expected.map(str::to_owned)));
    assert_eq!(gateway.get("/v1/me").cookie("").status().await, 401);
    assert_eq!(gateway.get("/v1/me").cookie(&token).status().await, 401, "whoever copied it is out as well");
    assert_eq!(gateway.get("/v1/me").cookie(&elsewhere).status().await, 200, "another browser stays in");
}
