//! Start, stop, kill and restart.

use std::io::Read as _;

use crate::deadline::{Lines, wait_for_end};
use crate::harness::Machine;

#[test]
fn a_stop_signal_ends_it_with_success_and_frees_everything() {
    let machine = Machine::new();
    let server = machine.serve();
    let address = server.said["address"].as_str().unwrap().to_owned();
    assert_eq!(server.get("/health", "").0, 200);
    assert_eq!(server.stop(), 0);
    assert!(std::net::TcpStream::connect(address).is_err());
    assert_eq!(machine.serve().stop(), 0, "the data dir is free again");
}

#[test]
fn after_a_kill_everything_acknowledged_is_still_there() {
    let machine = Machine::new();
    let server = machine.serve();
    let key = machine.json(&["keys", "create", "--name", "ci"])["key"].as_str().unwrap().to_owned();
    server.kill();
    let server = machine.serve();
    assert_eq!(server.get("/v1/me", &key).0, 200);
}

#[test]
fn the_gateway_stops_although_nobody_reads_its_log() {
    let machine = Machine::new();
    let mut command = machine.command(&["serve", "--json", "--listen", "127.0.0.1:0"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    Lines::of(child.stdout.take().unwrap()).next().unwrap();
    drop(child.stderr.take());
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(wait_for_end("the gateway to stop", &mut child).success());
}

#[test]
fn two_servers_cannot_share_a_data_dir() {
    let machine = Machine::new();
    let _server = machine.serve();
    let second = machine.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(second.code, 3);
    assert!(second.err.contains("another proliferate serves"), "{}", second.err);
}

#[test]
fn logs_of_a_service_are_json_and_hold_no_token() {
    let machine = Machine::new();
    let mut command =
        machine.command(&["serve", "--json", "--listen", "127.0.0.1:0", "--set", "PROLIFERATE_LOG=debug"]);
    let log = machine.file("log");
    command.stderr(std::fs::File::create(&log).unwrap());
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let first = Lines::of(child.stdout.take().unwrap()).next().unwrap();
    let said: serde_json::Value = serde_json::from_str(&first).unwrap();
    let key = machine.json(&["keys", "create", "--name", "ci"])["key"].as_str().unwrap().to_owned();
    let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
    let url = said["url"].as_str().unwrap().trim_end_matches('/').to_owned();
    client.get(format!("{url}/v1/me?token={key}")).bearer_auth(&key).send().unwrap();
    client.get(format!("{url}/nowhere/{key}")).send().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let mut text = String::new();
    std::fs::File::open(&log).unwrap().read_to_string(&mut text).unwrap();
    assert!(text.lines().count() >= 3, "{text}");
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error} in {line}"));
    }
    assert!(!text.contains(&key), "a key is in the log");
    assert!(!text.contains("pll_"), "a login code is in the log");
    let mut lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let answered = lines.find(|line| line["message"] == "answered" && line["status"] == 404);
    let answered = answered.unwrap_or_else(|| panic!("the status is no number in {text}"));
    assert!(answered["micros"].is_u64(), "numbers are numbers: {answered}");
    assert_eq!(answered["reason"], "Not found");
}

#[test]
fn a_service_warns_about_what_is_missing_and_says_what_to_do() {
    let machine = Machine::new();
    let empty = machine.file("empty");
    std::fs::create_dir(&empty).unwrap();
    let policy = machine.file("policy");
    std::fs::create_dir(&policy).unwrap();
    let example = "        - {role: SYSTEM, tool: git.fetch, risk: read, scope: [case_id, run_id]}\n";
    let lanes = include_str!("../../../../policy/lanes.yaml").replace(example, "");
    let lanes = lanes.replace("[save_snapshot, start_services, git.fetch]", "[save_snapshot]");
    std::fs::write(policy.join("lanes.yaml"), lanes).unwrap();
    std::fs::write(policy.join("roles.yaml"), include_str!("../../../../policy/roles.yaml")).unwrap();
    let log = machine.file("log");
    let mut command = machine.command(&["serve", "--json", "--listen", "127.0.0.1:0"]);
    command.env("PATH", &empty).env("SANDBOX_PROVIDER", "attach");
    command.env("SANDBOX_ATTACH_URL", "http://127.0.0.1:1").stderr(std::fs::File::create(&log).unwrap());
    command.env("PROLIFERATE_POLICY_DIR", &policy);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    Lines::of(child.stdout.take().unwrap()).next().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let text = std::fs::read_to_string(&log).unwrap();
    let warnings: Vec<serde_json::Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|line: &serde_json::Value| line["level"] == "WARN")
        .collect();
    assert!(text.contains("the lane platform.system does not allow start_services, git.fetch"), "{text}");
    for missing in ["git", "rg", "policy"] {
        let warned = warnings.iter().find(|warning| warning["check"] == missing);
        let warned = warned.unwrap_or_else(|| panic!("no word of {missing} in {text}"));
        assert!(warned["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{warned}");
    }
}

#[test]
fn there_are_no_core_dumps() {
    let server = Machine::new().serve();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
    assert_eq!(line.split_ascii_whitespace().take(2).collect::<Vec<_>>(), ["1", "1"], "{line}");
}

#[test]
fn up_greets_with_a_link_on_every_start() {
    // The test kills the gateway, and nobody would end the sandboxes in its pool.
    let machine = Machine::new().with("WARM_POOL_SIZE", "0");
    for _ in 0..2 {
        let directory = machine.data_dir().display().to_string();
        let mut command = machine.command(&["up", "--listen", "127.0.0.1:0", "--data-dir", &directory]);
        let mut child =
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
        let mut lines = Lines::of(child.stdout.take().unwrap());
        let greeting: Vec<String> =
            std::iter::from_fn(|| lines.next()).take_while(|line| !line.contains("Ctrl-C")).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        let greeting = greeting.join("\n");
        assert!(greeting.contains("/login#code=pll_") && greeting.contains("SQLite"), "{greeting}");
        assert!(greeting.contains("built-in script"), "{greeting}");
        let check = format!("proliferate --data-dir {directory} doctor");
        assert!(greeting.contains(&check), "a suggested command names the same data dir: {greeting}");
    }
}

#[test]
fn the_limit_of_open_files_is_raised_to_the_maximum() {
    let machine = Machine::new();
    let server = machine.serve_short_of_descriptors();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    assert_eq!(words[0], words[1], "{line}");
    assert_ne!(words[0], "256");
}
