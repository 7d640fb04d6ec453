//! The `Authorization` header as careless and hostile clients write it.

use proto::Role;

use crate::harness::TestGateway;
use crate::people::{org, person};

/// The status of `/v1/me` with these `Authorization` headers; `{}` is replaced with a valid token.
async fn ask(gateway: &TestGateway, token: &str, headers: &[&[u8]]) -> u16 {
    let mut call = gateway.get("/v1/me");
    for header in headers {
        let text = header.windows(2).position(|pair| pair == b"{}");
        let value = match text {
            Some(at) => [&header[..at], token.as_bytes(), &header[at + 2..]].concat(),
            None => header.to_vec(),
        };
        call = call.header("authorization", value);
    }
    call.status().await
}

#[tokio::test]
async fn exactly_one_bearer_token_in_one_header_is_accepted() {
    let gateway = TestGateway::sqlite().await;
    let person = person(&gateway.app, org(&gateway.app).await, Role::Member).await;
    let cases: [(&[&[u8]], u16); 16] = [
        (&[b"Bearer {}"], 200),
        (&[b"bearer {}"], 200),
        (&[b"BEARER {}"], 200),
        (&[b"Bearer  {}"], 200),
        (&[b"Bearer {} "], 200),
        (&[], 401),
        (&[b""], 401),
        (&[b"Bearer"], 401),
        (&[b"Bearer "], 401),
        (&[b"Bearer{}"], 401),
        (&[b"{}"], 401),
        (&[b"Basic {}"], 401),
        (&[b"Bearer {} {}"], 401),
        (&[b"Bearer \xff\xfe"], 401),
        (&[b"Bearer {}", b"Bearer other"], 401),
        (&[b"Bearer other", b"Bearer {}"], 401),
    ];
    for (headers, expected) in cases {
        let shown: Vec<_> = headers.iter().map(|header| String::from_utf8_lossy(header)).collect();
        assert_eq!(ask(&gateway, &person.token, headers).await, expected, "{shown:?}");
    }
}

#[tokio::test]
async fn a_refusal_says_only_whether_there_was_a_token() {
    let gateway = TestGateway::sqlite().await;
    let missing = gateway.get("/v1/me").send().await;
    assert_eq!(missing.json(), serde_json::json!({"error": "Missing authorization", "code": "unauthorized"}));
    let wrong = gateway.get("/v1/me").bearer("eyJhbGciOiJub25lIn0.e30.").send().await;
    assert_eq!(wrong.json(), serde_json::json!({"error": "Invalid token", "code": "unauthorized"}));
    for length in [1_000, 100_000] {
        assert_eq!(gateway.get("/v1/me").bearer(&"a".repeat(length)).status().await, 401);
    }
}
