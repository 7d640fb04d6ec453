//! Terminals.

use std::time::Duration;

use sandboxd::client::ExecHandle;
use sandboxd::protocol::{Exec, ExitReason, Size};
use tokio::time::timeout;

use crate::common::{shell, start};

/// Reads until the output contains `wanted`.
async fn read_until(handle: &mut ExecHandle, wanted: &str) -> String {
    let mut seen = String::new();
    let reading = async {
        while !seen.contains(wanted) {
            let Some((_, bytes)) = handle.output.next().await.unwrap() else { break };
            seen.push_str(&String::from_utf8_lossy(&bytes));
        }
    };
    let _ = timeout(Duration::from_mins(1), reading).await;
    assert!(seen.contains(wanted), "{wanted:?} not in {seen:?}");
    seen
}

fn terminal(script: &str) -> Exec {
    Exec { pty: Some(Size { cols: 81, rows: 25 }), timeout_ms: None, ..shell(script) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminal_reports_its_size_and_resizes() {
    let sandbox = start().await;
    let script =
        "stty size; trap 'stty size; exit 5' WINCH; tty > /dev/null && echo tty; while :; do sleep 0.1; done";
    let mut handle = sandbox.client.exec(terminal(script)).await.unwrap();
    let seen = read_until(&mut handle, "tty").await;
    assert!(seen.starts_with("25 81\r\n"), "{seen:?}");
    handle.control.resize(132, 50).await.unwrap();
    read_until(&mut handle, "50 132").await;
    assert_eq!(handle.output.done().await.unwrap().ended, ExitReason::Exit(5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_c_interrupts_the_foreground_job_and_the_shell_survives() {
    let sandbox = start().await;
    let prompt = [("PS1".to_owned(), "$ ".to_owned())].into();
    let argv = ["/bin/bash", "--norc", "--noprofile", "-i"].map(str::to_owned).to_vec();
    let mut handle = sandbox.client.exec(Exec { argv, env: prompt, ..terminal("") }).await.unwrap();
    // The job prints this itself, so it is in the foreground by then.
    handle.stdin.write("sh -c \"echo re''ady; exec sleep 1000\"\n").await.unwrap();
    read_until(&mut handle, "ready\r\n").await;
    handle.stdin.write("\u{3}").await.unwrap();
    // A signal discards typed-ahead input, so wait for the next prompt.
    read_until(&mut handle, "$ ").await;
    handle.stdin.write("echo status $?\n").await.unwrap();
    let seen = read_until(&mut handle, "status 130").await;
    assert!(!seen.contains("no job control"), "{seen:?}");
    handle.stdin.write("exit 9\n").await.unwrap();
    assert_eq!(handle.output.done().await.unwrap().ended, ExitReason::Exit(9));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_input_ends_a_reader_and_dropping_ends_the_program() {
    let sandbox = start().await;
    let mut handle = sandbox.client.exec(terminal("cat; echo over")).await.unwrap();
    handle.stdin.write("line\n").await.unwrap();
    handle.stdin.close();
    read_until(&mut handle, "over").await;
    assert_eq!(handle.output.done().await.unwrap().ended, ExitReason::Exit(0));
    let mut handle = sandbox.client.exec(terminal("echo $$ > pid; echo up; sleep 100")).await.unwrap();
    read_until(&mut handle, "up").await;
    drop(handle);
    let pid = std::fs::read_to_string(sandbox.workspace().join("pid")).unwrap();
    crate::common::wait_until("the terminal's program ends", || !crate::common::is_running(&pid)).await;
}

/// A program started by `nohup … &` ignores these signals, and its children would inherit that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_c_works_even_if_the_server_was_started_ignoring_it() {
    let this = std::env::current_exe().unwrap();
    let again = "trap '' INT QUIT HUP; exec \"$0\" --exact terminal::control_c_interrupts_the_foreground_job_and_the_shell_survives";
    let mut shell = tokio::process::Command::new("bash");
    let ran =
        timeout(Duration::from_mins(3), shell.args(["-c", again]).arg(this).output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}
