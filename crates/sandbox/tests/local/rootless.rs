//! Repeats the tests as an unprivileged user, when they are run as root.

use std::process::Command;

const USER: &str = "61234";

#[test]
fn all_tests_pass_for_an_unprivileged_user() {
    if !rustix::process::geteuid().is_root() {
        println!("these tests already run as an unprivileged user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let owner = USER.parse().ok();
    std::os::unix::fs::chown(directory.path(), owner, owner).unwrap();
    let ran = Command::new("setpriv")
        .args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--skip", "rootless", "--nocapture", "--test-threads=2"])
        .env("TMPDIR", directory.path())
        .output()
        .unwrap();
    let output = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    println!("as user {USER}:\n{output}");
    assert!(ran.status.success(), "{output}");
}
