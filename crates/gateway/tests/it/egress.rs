//! Egress rules: who sets them, how soon they apply, and that every attempt is recorded.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::TimeDelta;
use egress::Proxy;
use gateway::runtime::Network;
use proto::{EgressKind, EgressOutcome, Role};
use sandbox::SandboxId;
use serde_json::{Value, json};
use store::NewEgressRecord;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::harness::{Setup, TestGateway, within};
use crate::people::OrgOf3;

#[tokio::test]
async fn only_admins_set_rules_and_wrong_ones_are_named() {
    for gateway in TestGateway::both().await {
        let team = OrgOf3::new(&gateway.app).await;
        let put = async |role, rules: Value| {
            gateway.call("PUT", "/v1/egress").bearer(team.token(role)).json(&rules).send().await
        };
        let rules =
            json!({"mode": "allow_list", "allow": ["*.example.com:443"], "deny": ["bad.example.com"]});
        assert_eq!(put(Role::Member, rules.clone()).await.status, 403);
        assert_eq!(put(Role::Admin, rules.clone()).await.status, 200);
        let read = gateway.get("/v1/egress").bearer(team.token(Role::Member)).send().await;
        assert_eq!((read.status, read.json()), (200, rules.clone()));
        for (wrong, named) in [
            (json!({"mode": "open", "allow": ["http://x/"]}), "http://x/"),
            (json!({"mode": "open", "deny": ["a b"]}), "a b"),
            (json!({"mode": "open", "allow": ["mail.example.com:25"]}), "25"),
            (json!({"mode": "wide"}), "mode must be one of open, allow_list, offline"),
            (json!({"mode": "open", "allow": vec!["a.example"; 1001]}), "1000"),
        ] {
            let answer = put(Role::Admin, wrong).await;
            assert_eq!(answer.status, 400, "{named}");
            assert!(answer.json()["error"].as_str().unwrap().contains(named), "{named}: {}", answer.json());
        }
        assert_eq!(gateway.get("/v1/egress").bearer(team.token(Role::Owner)).send().await.json(), rules);
        let other = OrgOf3::new(&gateway.app).await;
        let read = gateway.get("/v1/egress").bearer(other.token(Role::Owner)).send().await;
        assert_eq!(
            read.json(),
            json!({"mode": "open", "allow": [], "deny": []}),
            "another organization's rules"
        );
    }
}

#[tokio::test]
async fn a_changed_rule_counts_for_running_sandboxes_and_every_attempt_is_on_record() {
    let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = origin.local_addr().unwrap().to_string();
    tokio::spawn(serve(origin));
    let gateway = Setup::sqlite().set("EGRESS_ALLOWED_HOSTS", &host).start().await;
    let team = OrgOf3::new(&gateway.app).await;
    let sandbox = SandboxId::new("one").unwrap();
    let network = Network { org: team.org, session: None, sandbox };
    let proxy = gateway.app.runtime.networks.proxy(network).await.unwrap();
    assert!(ask(&proxy, &host).await.ends_with("hello"));
    let offline = json!({"mode": "offline"});
    gateway.call("PUT", "/v1/egress").bearer(team.token(Role::Owner)).json(&offline).send().await;
    within(async {
        while !ask(&proxy, &host).await.contains("offline") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let records = within(async {
        loop {
            let listed =
                gateway.get("/v1/egress/records?limit=1000").bearer(team.token(Role::Member)).send().await;
            let records = listed.json()["records"].as_array().unwrap().clone();
            if records.iter().any(|record| record["outcome"] == "refused") {
                break records;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let first = records.last().unwrap();
    assert_eq!((first["outcome"].as_str(), first["sandboxId"].as_str()), (Some("complete"), Some("one")));
    assert_eq!(format!("{}:{}", first["host"].as_str().unwrap(), first["port"]), host);
    assert!(first["bytesUp"].as_u64() > Some(20) && first["bytesDown"].as_u64() > Some(20), "{first}");
    assert!(records[0]["reason"].as_str().unwrap().contains("offline"), "{}", records[0]);
    let other = OrgOf3::new(&gateway.app).await;
    let foreign = gateway.get("/v1/egress/records").bearer(other.token(Role::Owner)).send().await;
    assert_eq!(foreign.json(), json!({"records": []}));
}

#[tokio::test]
async fn every_attempt_of_a_burst_is_recorded() {
    for gateway in TestGateway::both().await {
        let team = OrgOf3::new(&gateway.app).await;
        let network = Network { org: team.org, session: None, sandbox: SandboxId::new("one").unwrap() };
        let proxy = gateway.app.runtime.networks.proxy(network).await.unwrap();
        let (mut ours, theirs) = tokio::io::duplex(1 << 20);
        let asking = async {
            let request = |number| format!("GET http://127.0.0.1:{number}/ HTTP/1.1\r\nHost: x\r\n\r\n");
            ours.write_all((1..=1500).map(request).collect::<String>().as_bytes()).await.unwrap();
            ours.shutdown().await.unwrap();
            let mut answers = String::new();
            ours.read_to_string(&mut answers).await.unwrap();
            assert_eq!(answers.matches(" 403 Forbidden").count(), 1500);
        };
        within(async { tokio::join!(asking, proxy.serve(theirs)) }).await;
        let ports = within(async {
            loop {
                let rows = gateway.app.store.egress_records(team.org, None, 2000).await.unwrap();
                if rows.len() == 1500 {
                    break rows.into_iter().map(|row| row.port.unwrap()).collect::<BTreeSet<_>>();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        assert_eq!(ports, (1..=1500).collect());
    }
}

#[tokio::test]
async fn queued_egress_records_are_written_before_a_gateway_stops() {
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let gateway = setup.try_start().await.unwrap_or_else(|error| panic!("{error}"));
        let team = OrgOf3::new(&gateway.app).await;
        let network = Network { org: team.org, session: None, sandbox: SandboxId::new("one").unwrap() };
        // Keep the proxy alive after the gateway has ended, as a session keeps its sandbox's proxy.
        let proxy = gateway.app.runtime.networks.proxy(network).await.unwrap();
        let (mut ours, theirs) = tokio::io::duplex(1 << 20);
        let request = |number| format!("GET http://127.0.0.1:{number}/ HTTP/1.1\r\nHost: x\r\n\r\n");
        ours.write_all((1..=500).map(request).collect::<String>().as_bytes()).await.unwrap();
        ours.shutdown().await.unwrap();
        within(proxy.serve(theirs)).await;
        let life = gateway::lifecycle::Lifecycle::default();
        life.soft.cancel();
        assert!(within(gateway.run(&life)).await);
        let again = setup.try_start().await.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again.app.store.egress_records(team.org, None, 1000).await.unwrap().len(), 500);
    }
}

#[tokio::test]
async fn old_egress_records_are_deleted() {
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let gateway = setup.set("EGRESS_KEEP_DAYS", "7").start().await;
        let (app, team) = (gateway.app.clone(), OrgOf3::new(&gateway.app).await);
        let record = |days: i64, host: &str| {
            let started_at = app.clock.now() - TimeDelta::days(days);
            NewEgressRecord {
                id: app.rng.uuid(started_at),
                org_id: team.org,
                session_id: None,
                sandbox_id: "one".to_owned(),
                kind: EgressKind::Http,
                host: Some(host.to_owned()),
                port: Some(80),
                address: None,
                outcome: EgressOutcome::Complete,
                reason: None,
                bytes_up: 1,
                bytes_down: 1,
                started_at,
                duration_ms: 1,
            }
        };
        // More records than the sweep deletes at once.
        let mut records: Vec<_> = (0..1001).map(|_| record(8, "old.example")).collect();
        records.push(record(6, "new.example"));
        app.store.add_egress_records(records).await.unwrap();
        let running = gateway.serve();
        let left = within(async {
            loop {
                let rows = app.store.egress_records(team.org, None, 2000).await.unwrap();
                if rows.len() < 2 {
                    break rows;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        assert_eq!(left[0].host.as_deref(), Some("new.example"));
        running.stop().await;
    }
}

/// Sends a plain HTTP request through the sandbox's proxy and returns the answer.
async fn ask(proxy: &Proxy, host: &str) -> String {
    let (mut ours, theirs) = tokio::io::duplex(4096);
    let asking = async {
        let request = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        ours.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        ours.read_to_string(&mut answer).await.unwrap();
        answer
    };
    within(async { tokio::join!(asking, proxy.serve(theirs)).0 }).await
}

async fn serve(origin: TcpListener) {
    while let Ok((mut stream, _)) = origin.accept().await {
        let mut head = [0; 1024];
        let _ = stream.read(&mut head).await;
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
        let _ = stream.write_all(answer.as_bytes()).await;
    }
}
