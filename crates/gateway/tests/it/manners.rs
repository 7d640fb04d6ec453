//! Headers of every response, including those for browsers, on every kind of request.

use serde_json::json;

use crate::call::Answer;
use crate::harness::{Setup, TestGateway};
use crate::people::some_uuid;

const OWN_ORIGIN: &str = "https://g.example";
const EXPECTED_POLICY_START: &str = "default-src 'none'; script-src 'self'";

async fn gateway() -> TestGateway {
    Setup::sqlite().set("PUBLIC_URL", OWN_ORIGIN).start().await
}

fn cors(answer: &Answer) -> Vec<&str> {
    answer
        .headers
        .keys()
        .map(axum::http::HeaderName::as_str)
        .filter(|name| name.starts_with("access-control"))
        .collect()
}

#[tokio::test]
async fn a_preflight_needs_no_credential() {
    let gateway = gateway().await;
    for path in ["/v1/me", "/health", "/no/such/route", "/proliferate/sessions/x/status"] {
        let own = gateway.call("OPTIONS", path).header("origin", OWN_ORIGIN).send().await;
        assert_eq!(
            (own.status, own.header("access-control-allow-origin")),
            (204, Some(OWN_ORIGIN)),
            "{path}"
        );
        assert_eq!(own.header("access-control-max-age"), Some("86400"));
        assert!(own.header("access-control-allow-headers").unwrap().contains("Idempotency-Key"));
        for foreign in ["https://evil.example", "null", "https://g.example.evil.example", "http://g.example"]
        {
            let answer = gateway.call("OPTIONS", path).header("origin", foreign).send().await;
            assert_eq!((answer.status, cors(&answer)), (204, vec![]), "{path} for {foreign}");
        }
        assert_eq!(cors(&gateway.call("OPTIONS", path).send().await), Vec::<&str>::new());
    }
}

#[tokio::test]
async fn only_an_allowed_origin_is_returned_with_a_vary_header() {
    let setup = Setup::sqlite().set("ALLOWED_ORIGINS", "https://a.example,http://b.example:3000");
    let gateway = setup.start().await;
    for origin in ["https://a.example", "http://b.example:3000"] {
        let answer = gateway.get("/health").header("origin", origin).send().await;
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
        assert_eq!(answer.header("access-control-max-age"), None, "that is for preflights");
        assert_eq!(answer.header("access-control-allow-credentials"), None);
    }
    let answer = gateway.get("/health").header("origin", "https://c.example").send().await;
    assert_eq!((cors(&answer), answer.header("vary")), (vec![], Some("Origin")));
}

#[tokio::test]
async fn every_answer_is_hardened() {
    let gateway = gateway().await;
    let large = "x".repeat(2 << 20);
    let calls = [
        gateway.get("/health"),
        gateway.get("/ready"),
        gateway.get("/v1/me"),
        gateway.get("/nothing"),
        gateway.call("PUT", "/health"),
        gateway.call("OPTIONS", "/health"),
        gateway.call("HEAD", "/health"),
        gateway.get("/"),
        gateway.get("/ui/app.js"),
        gateway.get("/openapi.json"),
        gateway.call("POST", "/v1/login").body("["),
        gateway.call("POST", "/v1/login").body(large),
        gateway.call("POST", "/llm/v1/messages"),
    ];
    for call in calls {
        let answer = call.send().await;
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{answer:?}");
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"), "{answer:?}");
        assert_eq!(answer.header("x-frame-options"), Some("DENY"), "{answer:?}");
        let caching = answer.header("cache-control").unwrap();
        assert!(["no-store", "no-cache"].contains(&caching), "{answer:?}");
        assert!(answer.header("x-request-id").is_some_and(|id| !id.is_empty()), "{answer:?}");
    }
}

#[tokio::test]
async fn a_request_id_is_kept_only_when_it_can_stand_in_a_log() {
    let gateway = gateway().await;
    let echo = async |id: &[u8]| {
        let answer = gateway.get("/health").header("x-request-id", id).send().await;
        answer.header("x-request-id").unwrap().to_owned()
    };
    let longest = "a".repeat(64);
    for plain in ["a", "Req-1_2", longest.as_str()] {
        assert_eq!(echo(plain.as_bytes()).await, plain);
    }
    let too_long = "a".repeat(65);
    for odd in [&b""[..], b"a b", b"a\tb", b"a=b", b"\"", b"<x>", b"a;b", b"\xc3\xa4", too_long.as_bytes()] {
        let id = echo(odd).await;
        assert!(uuid::Uuid::parse_str(&id).is_ok(), "{id} for {odd:?}");
    }
    assert_ne!(echo(b"").await, echo(b"").await);
}

#[tokio::test]
async fn unknown_routes_and_wrong_methods_get_a_json_error() {
    let gateway = gateway().await;
    for path in [
        "/nothing",
        "/v1",
        "/v1/",
        "/v1/me/",
        "//v1/me",
        "/V1/me",
        "/proliferate",
        "/ui",
        "/v1/secrets/",
        "/%2e",
    ] {
        let answer = gateway.get(path).send().await;
        assert_eq!((answer.status, &answer.json()["code"]), (404, &json!("not_found")), "{path}");
    }
    for (method, path) in
        [("POST", "/health"), ("DELETE", "/v1/me"), ("PATCH", "/"), ("TRACE", "/health"), ("X", "/ready")]
    {
        let answer = gateway.call(method, path).send().await;
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (405, &json!("method_not_allowed")),
            "{method} {path}"
        );
    }
    let head = gateway.call("HEAD", "/health").send().await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(gateway.call("HEAD", "/v1/me").status().await, 401);
}

#[tokio::test]
async fn health_ignores_every_credential() {
    let gateway = gateway().await;
    for token in ["x", "plk_00", ""] {
        let answer = gateway.get("/health").bearer(token).cookie(token).send().await;
        assert_eq!((answer.status, answer.json()), (200, json!({"status": "ok"})));
    }
}

#[tokio::test]
async fn metrics_count_routes_and_name_no_caller() {
    let gateway = gateway().await;
    let (id, method) = (some_uuid().to_string(), format!("M-{}", some_uuid()));
    gateway.get(&format!("/proliferate/sessions/{id}/status")).bearer("x").send().await;
    gateway.get(&format!("/nothing/{id}")).send().await;
    gateway.call(&method, "/health").send().await;
    gateway.call(&method, &format!("/v1/keys/{id}")).header("x-request-id", &id).send().await;
    let answer = gateway.get("/metrics").send().await;
    assert_eq!(answer.status, 200);
    let text = answer.text();
    for wanted in [
        "proliferate_http_requests_total{route=\"/proliferate/sessions/{id}/status\",method=\"GET\",status=\"401\"}",
        "proliferate_http_requests_total{route=\"none\",method=\"GET\",status=\"404\"}",
        "proliferate_http_request_seconds_bucket{route=\"/health\"",
        "proliferate_auth_failures_total",
        "proliferate_build_info",
        "proliferate_live_sessions",
        "proliferate_prompts_waiting",
        "proliferate_writes_waiting",
    ] {
        assert!(text.contains(wanted), "{wanted} is not in:\n{text}");
    }
    let uuid = |word: &str| word.len() == 36 && uuid::Uuid::parse_str(word).is_ok();
    let in_label = |line: &str| line.as_bytes().windows(36).any(|w| std::str::from_utf8(w).is_ok_and(uuid));
    let named: Vec<_> = text.lines().filter(|line| in_label(line)).collect();
    assert!(named.is_empty(), "{named:?}");
}

#[tokio::test]
async fn the_page_has_its_policy_and_no_script_of_its_own() {
    let gateway = gateway().await;
    for path in ["/", "/login", "/login?code=pll_00"] {
        let page = gateway.get(path).send().await;
        assert_eq!(
            (page.status, page.header("content-type")),
            (200, Some("text/html; charset=utf-8")),
            "{path}"
        );
        let policy = page.header("content-security-policy").unwrap();
        assert!(
            policy.starts_with(EXPECTED_POLICY_START) && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        let text = page.text();
        assert!(
            text.contains("<title>") && !text.contains("<script>") && !text.contains(" onclick="),
            "{text}"
        );
    }
}

#[tokio::test]
async fn nothing_but_the_files_of_the_page_is_served() {
    let gateway = gateway().await;
    assert_eq!(
        gateway.get("/ui/app.js").send().await.header("content-type"),
        Some("text/javascript; charset=utf-8")
    );
    for path in [
        "/ui/../Cargo.toml",
        "/ui/..%2fCargo.toml",
        "/ui/%2e%2e%2fCargo.toml",
        "/ui/..%5cCargo.toml",
        "/ui/Cargo.toml",
        "/ui/",
        "/ui/.",
        "/ui/..",
        "/ui/index.html%00.js",
        "/ui/%ff",
        "/ui//app.js",
        "/ui/APP.JS",
        "/ui/app.js/",
        "/ui/%2fetc%2fpasswd",
    ] {
        let answer = gateway.get(path).send().await;
        assert_eq!((answer.status, &answer.json()["code"]), (404, &json!("not_found")), "{path}");
    }
}
