//! Attempts to reach forbidden addresses, by each way to make a request.

use egress::{AddressClass, Denial, Failure, Mode, Refusal, RequestEnd, Rules, ScriptedResolver, Verdict};

use crate::harness::{HOST, PUBLIC, Setup, World, open};
use crate::origin::{HELLO, Origin, echo};

fn ip(text: &str) -> std::net::IpAddr {
    text.parse().unwrap()
}

#[tokio::test]
async fn unusual_spellings_of_addresses_are_refused() {
    let inside = Origin::start(HOST, HELLO).await;
    let mut world = World::new().await;
    let spellings = [
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "2130706433",
        "017700000001",
        "0177.0.0.1",
        "[::ffff:127.0.0.1]",
        "127.0.0.1.",
        "%31%32%37.0.0.1",
        "%EF%BC%91%EF%BC%92%EF%BC%97.0.0.1",
        "[::1]",
        "0",
        "0.0.0.0",
        "[::]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
    ];
    for spelling in spellings {
        let target = format!("{spelling}:{}", inside.port());
        for request in [
            format!("GET http://{target}/ HTTP/1.1\r\nConnection: close\r\n\r\n"),
            format!("CONNECT {target} HTTP/1.1\r\n\r\n"),
        ] {
            let answer = world.request(&request).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{request}: {answer}");
            let record = world.record().await;
            assert!(
                matches!(record.verdict, Verdict::Refused(Refusal::Address { .. })),
                "{request}: {record:?}"
            );
        }
    }
    assert!(inside.requests().is_empty(), "the host was reached");
}

#[tokio::test]
async fn private_and_metadata_addresses_are_refused_before_connecting() {
    let mut world = World::new().await;
    let targets =
        ["10.0.0.1", "169.254.169.254", "192.168.1.1", "100.100.100.200", "[fd00:ec2::254]", "[fe80::1]"];
    for target in targets {
        let answer = world.get(&format!("http://{target}/latest/meta-data/")).await;
        assert!(answer.contains("address_refused"), "{target}: {answer}");
        assert_eq!(world.record().await.bytes_up, 0);
    }
}

#[tokio::test]
async fn name_is_refused_if_any_of_its_addresses_is() {
    let resolver = ScriptedResolver::new()
        .answer("inside.test", [ip("10.1.2.3")])
        .answer("mixed.test", [PUBLIC, ip("192.168.0.1")])
        .answer("mapped.test", [ip("::ffff:169.254.169.254")])
        .answer("empty.test", []);
    let mut world = World::with(Setup { resolver, ..Setup::default() }).await;
    for (name, class) in [
        ("inside.test", AddressClass::Private),
        ("mixed.test", AddressClass::Private),
        ("mapped.test", AddressClass::Metadata),
    ] {
        let answer = world.get(&format!("http://{name}/")).await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains(name), "{answer}");
        assert!(!answer.contains("10.1.2.3"), "the response reveals an internal address: {answer}");
        let record = world.record().await;
        assert!(record.address.is_some());
        assert!(
            matches!(&record.verdict, Verdict::Refused(Refusal::Address { class: found, .. }) if *found == class),
            "{record:?}"
        );
    }
    for name in ["empty.test", "unknown.test"] {
        assert!(world.get(&format!("http://{name}/")).await.starts_with("HTTP/1.1 502 "));
        assert_eq!(world.record().await.ended, RequestEnd::Failed(Failure::NotFound));
    }
}

#[tokio::test]
async fn name_is_resolved_once_per_request() {
    let site = Origin::start(PUBLIC, HELLO).await;
    let inside = Origin::start(HOST, HELLO).await;
    let resolver = ScriptedResolver::new().answer("rebind.test", [PUBLIC]).answer("rebind.test", [HOST]);
    let world = World::with(Setup { resolver, ..Setup::default() }).await;
    let url = format!("http://rebind.test:{}/", site.port());
    assert!(world.get(&url).await.ends_with("hello"));
    assert_eq!(world.resolver.calls("rebind.test"), 1, "a second lookup would allow DNS rebinding");
    let again = world.get(&format!("http://rebind.test:{}/", inside.port())).await;
    assert!(again.starts_with("HTTP/1.1 403 "), "{again}");
    assert_eq!(world.resolver.calls("rebind.test"), 2);
    assert!(inside.requests().is_empty());
}

#[tokio::test]
async fn redirect_to_a_private_address_is_refused_when_followed() {
    let inside = Origin::start(HOST, HELLO).await;
    let location = format!("http://127.0.0.1:{}/secret", inside.port());
    let answer = format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
    let site = Origin::start(PUBLIC, answer).await;
    let world = World::new().await;
    let mut wire = world.connect().await;
    wire.send(format!("GET http://site.test:{}/ HTTP/1.1\r\n\r\n", site.port())).await;
    let (head, _) = wire.response().await;
    assert!(head.starts_with("HTTP/1.1 302 ") && head.contains(&location), "{head}");
    wire.send(format!("GET {location} HTTP/1.1\r\n\r\n")).await;
    assert!(wire.response().await.0.starts_with("HTTP/1.1 403 "));
    assert!(inside.requests().is_empty());
}

#[tokio::test]
async fn modes_and_lists_apply_to_real_requests() {
    let site = Origin::start(PUBLIC, HELLO).await;
    let url = format!("http://site.test:{}/", site.port());
    let mut world = World::with(Setup { rules: Rules::new(Mode::Offline), ..Setup::default() }).await;
    assert!(world.get(&url).await.contains("offline"));
    assert_eq!(world.record().await.verdict, Verdict::Refused(Refusal::Rule(Denial::Offline)));

    world.change_rules(Rules::new(Mode::AllowList).allow("other.test").unwrap());
    assert!(world.get(&url).await.contains("not_on_allow_list"));
    world.change_rules(Rules::new(Mode::AllowList).allow(&format!("site.test:{}", site.port())).unwrap());
    assert!(world.get(&url).await.ends_with("hello"));

    world.change_rules(open().deny("site.test").unwrap());
    assert!(world.get(&url).await.contains("deny rule `site.test`"));
    // A deny rule for an address also applies to names that resolve to it.
    world.change_rules(open().deny("127.0.0.10").unwrap());
    assert!(world.get(&url).await.contains("deny rule `127.0.0.10`"));
    assert_eq!(site.requests().len(), 1);
    assert_eq!(world.resolver.calls("site.test"), 2, "a target that the rules refuse must not be resolved");
}

#[tokio::test]
async fn changed_rules_apply_to_the_next_request_of_a_connection() {
    let site = Origin::start(PUBLIC, HELLO).await;
    let world = World::new().await;
    let request = format!("GET http://site.test:{}/ HTTP/1.1\r\n\r\n", site.port());
    let mut wire = world.connect().await;
    wire.send(&request).await;
    assert!(wire.response().await.0.starts_with("HTTP/1.1 200 "));
    world.change_rules(Rules::new(Mode::Offline));
    wire.send(&request).await;
    assert!(wire.response().await.0.starts_with("HTTP/1.1 403 "));
    world.change_rules(open());
    wire.send(&request).await;
    assert_eq!(wire.response().await.1, "hello");
}

#[tokio::test]
async fn exceptions_permit_what_they_name_but_never_metadata() {
    let (inside, _task) = echo(HOST).await;
    let port = inside.port();
    let resolver = ScriptedResolver::new()
        .answer("db.internal", [HOST])
        .answer("meta.internal", [ip("169.254.169.254")])
        .answer("lan.internal", [ip("10.0.0.1")]);
    let world = World::with(Setup { resolver, ..Setup::default() }).await;
    world.change_rules(
        Rules::new(Mode::AllowList)
            .allow_private(&format!("127.0.0.1:{port}"))
            .and_then(|rules| rules.allow_private(&format!("db.internal:{port}")))
            .and_then(|rules| rules.allow_private("meta.internal:80"))
            .and_then(|rules| rules.allow_private("169.254.169.254:80"))
            .unwrap(),
    );
    world.connect().await.tunnel(&format!("0x7f.1:{port}")).await;
    // An exception for a name does not cover loopback or metadata addresses that it may later resolve to.
    for target in [&format!("db.internal:{port}"), "meta.internal:80", "169.254.169.254:80"] {
        let answer = world.request(format!("CONNECT {target} HTTP/1.1\r\n\r\n")).await;
        assert!(answer.contains("address_refused"), "{target}: {answer}");
    }
    let answer = world.request("CONNECT lan.internal:80 HTTP/1.1\r\n\r\n").await;
    assert!(answer.contains("not_on_allow_list"), "{answer}");
}

#[tokio::test]
async fn unreachable_address_is_a_bad_gateway() {
    let gone = {
        let listener = tokio::net::TcpListener::bind((PUBLIC, 0)).await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let mut world = World::new().await;
    for request in [
        format!("GET http://site.test:{gone}/ HTTP/1.0\r\n\r\n"),
        format!("CONNECT site.test:{gone} HTTP/1.1\r\n\r\n"),
    ] {
        assert!(world.request(request).await.starts_with("HTTP/1.1 502 "));
        assert_eq!(world.record().await.ended, RequestEnd::Failed(Failure::Unreachable));
    }
}
