//! Services: restarted, stopped with all their processes, and logged.

use std::time::Duration;

use sandboxd::Sandboxd;
use sandboxd::protocol::{Code, ExitReason, Restart, ServiceInfo, ServiceSpec, ServiceState};

use crate::common::{code, is_running, start};

fn spec(name: &str, command: &str, restart: Restart) -> ServiceSpec {
    let (name, command) = (name.to_owned(), command.to_owned());
    ServiceSpec { name, command, cwd: None, env: std::collections::BTreeMap::new(), restart }
}

async fn wait_for(client: &Sandboxd, name: &str, so: impl Fn(&ServiceInfo) -> bool) -> ServiceInfo {
    for _ in 0..500 {
        let all = client.service_list().await.unwrap();
        let found = all.into_iter().find(|service| service.name == name).unwrap();
        if so(&found) {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{name} never reached the expected state: {:?}", client.service_list().await);
}

async fn log_of(client: &Sandboxd, name: &str) -> String {
    let mut log = client.logs(name, false).await.unwrap();
    let mut all = Vec::new();
    while let Some(bytes) = log.next().await.unwrap() {
        all.extend(bytes);
    }
    String::from_utf8(all).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_service_is_restarted_with_backoff() {
    let sandbox = start().await;
    let client = &sandbox.client;
    client.service_start(spec("fails", "echo run; exit 3", Restart::OnFailure)).await.unwrap();
    let clock = clock::Clock::system();
    let info = wait_for(client, "fails", |info| info.restarts == 3).await;
    assert_eq!(info.last_exit, Some(ExitReason::Exit(3)));
    assert!(clock.elapsed() > Duration::from_millis(250 + 500 + 1000 - 200), "{:?}", clock.elapsed());
    assert!(log_of(client, "fails").await.matches("run\n").count() >= 3);
    client.service_stop("fails").await.unwrap();
    assert_eq!(wait_for(client, "fails", |_| true).await.state, ServiceState::Stopped);
    client.service_start(spec("once", "exit 4", Restart::Never)).await.unwrap();
    let info = wait_for(client, "once", |info| info.state == ServiceState::Failed).await;
    assert_eq!((info.restarts, info.last_exit), (0, Some(ExitReason::Exit(4))));
    client.service_start(spec("fine", "exit 0", Restart::OnFailure)).await.unwrap();
    wait_for(client, "fine", |info| info.state == ServiceState::Stopped && info.restarts == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_is_stopped_replaced_and_restarted_with_its_children() {
    let sandbox = start().await;
    let client = &sandbox.client;
    let command = "(setsid sh -c 'echo $$ > child; exec sleep 100' &); exec sleep 100";
    client.service_start(spec("tree", command, Restart::Always)).await.unwrap();
    let child = || std::fs::read_to_string(sandbox.workspace().join("child")).unwrap_or_default();
    crate::common::wait_until("it has a child", || is_running(&child()) && child().ends_with('\n')).await;
    let first = wait_for(client, "tree", |info| info.pid.is_some()).await.pid.unwrap();
    let old_child = child();
    client.service_restart("tree").await.unwrap();
    assert!(!is_running(&first.to_string()) && !is_running(&old_child));
    let second = wait_for(client, "tree", |info| info.pid.is_some()).await.pid.unwrap();
    client.service_start(spec("tree", "exec sleep 50", Restart::Always)).await.unwrap();
    assert!(!is_running(&second.to_string()));
    let third = wait_for(client, "tree", |info| info.pid.is_some()).await.pid.unwrap();
    client.service_stop("tree").await.unwrap();
    assert!(!is_running(&third.to_string()));
    assert_eq!(client.service_list().await.unwrap().len(), 1);
    assert_eq!(client.status().await.unwrap().services, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_are_bounded_and_can_be_followed() {
    let sandbox = start().await;
    let client = &sandbox.client;
    client.service_start(spec("loud", "seq 1 500000; sleep 0.5; echo last", Restart::Never)).await.unwrap();
    let mut log = client.logs("loud", true).await.unwrap();
    let mut all = Vec::new();
    while let Some(bytes) = log.next().await.unwrap() {
        all.extend(bytes);
    }
    assert!(all.ends_with(b"500000\nlast\n"));
    let kept = log_of(client, "loud").await;
    assert_eq!(kept.len(), 256 * 1024);
    assert!(kept.ends_with("\nlast\n"));
    let directory = sandbox.directory.path().join("logs");
    let on_disk: u64 =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(on_disk <= 2 << 20, "{on_disk}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_names_and_too_many_services_are_refused() {
    let sandbox = start().await;
    let client = &sandbox.client;
    for name in ["", "../x", "a/b", ".hidden", "a b", &"x".repeat(65)] {
        assert_eq!(code(client.service_start(spec(name, "true", Restart::Never)).await), Code::BadRequest);
    }
    assert_eq!(code(client.service_start(spec("x", " ", Restart::Never)).await), Code::BadRequest);
    assert_eq!(code(client.service_restart("unknown").await), Code::NotFound);
    client.service_stop("unknown").await.unwrap();
    let mut log = client.logs("unknown", false).await.unwrap();
    assert_eq!(code(log.next().await), Code::NotFound);
    for number in 0..32 {
        client.service_start(spec(&format!("s{number}"), "true", Restart::Never)).await.unwrap();
    }
    assert_eq!(code(client.service_start(spec("more", "true", Restart::Never)).await), Code::Limit);
}
