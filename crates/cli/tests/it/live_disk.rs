//! A sandbox that fills its disk: everyone learns why it ended, it restarts with some space to clean up, and if even
//! that is used up, an operator can raise the limit.

use serde_json::json;

use crate::deadline::until;
use crate::live::Real;
use crate::live_expiry::{answer, info, says};

/// Writes this many files of 50 MB next to the agent, since one file cannot exceed the limit. The sandbox may end
/// meanwhile.
fn fill(real: &Real, files: u32) {
    let command = format!("for i in $(seq {files}); do head -c 50000000 /dev/zero > big.$i.$$; done");
    real.machine.run(&["sandbox", "exec", &real.sandbox(), "--", "sh", "-c", &command]);
}

#[test]
fn a_sandbox_over_its_disk_limit_reports_it_and_can_be_cleaned_up_or_enlarged() {
    let mut real = Real::serving(&[("SANDBOX_DISK_MIB", "128"), ("WARM_POOL_SIZE", "0")]);
    real.new_session(&json!({}));
    let mut socket = real.watch("");
    says(&mut socket, "running");
    fill(&real, 3);
    let told = socket.until_type("error").pop().unwrap()["payload"]["message"].clone();
    let told = told.as_str().unwrap();
    assert!(told.contains("took more than 128 MiB") && told.contains("SANDBOX_DISK_MIB"), "{told}");
    says(&mut socket, "running");
    // There is enough space for the agent, and for cleaning up.
    assert_eq!(answer(&mut socket, "hello"), "You said: hello");
    real.shell(&real.sandbox(), "rm big.*");
    assert_eq!(answer(&mut socket, "hello again"), "You said: hello again");

    // Far over the limit the sandbox no longer starts, and its session says why.
    until("the end of the restarts", || {
        fill(&real, 5);
        info(&real)["status"] == "failed"
    });
    let failed = socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "error");
    let reason = failed.last().unwrap()["payload"]["message"].as_str().unwrap().to_owned();
    assert!(reason.contains("128 MiB"), "{reason}");
    assert_eq!(info(&real)["status"], "failed");
    drop(socket);
    real.restart_with(&[("SANDBOX_DISK_MIB", "1024")]);
    assert_eq!(answer(&mut real.watch(""), "hello"), "You said: hello");
    assert_eq!(real.shell(&real.sandbox(), "test -s \"$(ls big.* | head -n 1)\" && echo kept"), "kept");
}
