//! The login link in a real browser.

use std::process::Command;

use crate::harness::Machine;

/// The DOM of the page after its script has run.
fn page(machine: &Machine, url: &str) -> String {
    let profile = machine.file("profile");
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--virtual-time-budget=20000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(url)
        .output()
        .unwrap_or_else(|error| panic!("{error}: run `make test`, which installs chromium"));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_login_link_logs_in_once() {
    let machine = Machine::new();
    let _server = machine.serve();
    let link = machine.run(&["login-link"]).out.trim().to_owned();
    let first = page(&machine, &link);
    assert!(first.contains("You are logged in") && first.contains("<dd>owner</dd>"), "{first}");
    assert!(first.contains("database: SQLite"), "{first}");
    std::fs::remove_dir_all(machine.file("profile")).unwrap();
    let second = page(&machine, &link);
    assert!(second.contains("used already or has expired"), "{second}");
}
