//! Programs: their exit status and output, and that no process survives a kill.

use std::time::Duration;

use channel::Lane;
use clock::Clock;
use sandboxd::protocol::{Code, Exec, ExitReason, Place};

use crate::common::{code, connect, is_running, sh, shell, start, wait_until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exit_codes_signals_and_lanes_are_reported() {
    let sandbox = start().await;
    let done = sh(&sandbox.client, "echo out; echo err >&2; exit 7").await;
    assert_eq!(
        (&*done.stdout, &*done.stderr, done.done.ended),
        (&b"out\n"[..], &b"err\n"[..], ExitReason::Exit(7))
    );
    assert_eq!(sh(&sandbox.client, "kill -SEGV $$").await.done.ended, ExitReason::Signal(11));
    let merged = Exec { merge: true, ..shell("echo a; echo b >&2; echo c") };
    let done = sandbox.client.run(merged, "", 100).await.unwrap();
    assert_eq!((&*done.stdout, &*done.stderr), (&b"a\nb\nc\n"[..], &b""[..]));
    let missing = Exec { argv: vec!["/no/such".to_owned()], timeout_ms: Some(1000), ..Exec::default() };
    assert_eq!(code(sandbox.client.run(missing, "", 100).await), Code::NotFound);
    let nothing = Exec { timeout_ms: Some(1000), ..Exec::default() };
    assert_eq!(code(sandbox.client.run(nothing, "", 100).await), Code::BadRequest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn environment_is_clean_and_cwd_is_the_workspace() {
    let sandbox = start().await;
    let mut exec = shell("pwd; echo $ADDED; env | cut -d= -f1 | sort | tr '\\n' ' '");
    exec.env.insert("ADDED".to_owned(), "a b".to_owned());
    let done = sandbox.client.run(exec, "", 10_000).await.unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], sandbox.workspace().canonicalize().unwrap().to_str().unwrap());
    assert_eq!(lines[1], "a b");
    assert_eq!(lines[2].trim(), "ADDED HOME LANG LOGNAME PATH PWD SANDBOXD_RUN SHELL TERM USER");
    let cwd = Some(Place::home(""));
    let done = sandbox.client.run(Exec { cwd, ..shell("pwd") }, "", 1000).await.unwrap();
    assert!(done.stdout.ends_with(b"/home\n"));
    let cwd = Some(Place::home("../.."));
    assert_eq!(code(sandbox.client.run(Exec { cwd, ..shell("pwd") }, "", 1000).await), Code::Escapes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_megabytes_arrive_complete_and_a_limit_truncates() {
    let sandbox = start().await;
    let clock = Clock::system();
    let done = sh(&sandbox.client, "seq 1 1500000; echo end >&2").await;
    let expected: Vec<u8> = (1..=1_500_000).flat_map(|number| format!("{number}\n").into_bytes()).collect();
    assert!(done.stdout == expected, "{} of {}", done.stdout.len(), expected.len());
    assert_eq!((&*done.stderr, done.done.truncated), (&b"end\n"[..], false));
    println!("{} bytes in {:?}", done.stdout.len(), clock.elapsed());
    let done = sandbox.client.run(shell("seq 1 1500000"), "", 1000).await.unwrap();
    assert_eq!((done.stdout.len(), done.done.truncated, done.done.ended), (1000, true, ExitReason::Exit(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_is_echoed_and_its_end_is_seen() {
    let sandbox = start().await;
    let input: Vec<u8> = (0..3_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    let done = sandbox.client.run(shell("cat"), input.clone(), 10_000_000).await.unwrap();
    assert!(done.stdout == input);
    // A program that does not read its input must not block.
    let done = sandbox.client.run(shell("exec <&-; echo no"), input, 1000).await.unwrap();
    assert_eq!((&*done.stdout, done.done.ended), (&b"no\n"[..], ExitReason::Exit(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_limit_kills_stubborn_and_detached_processes() {
    let sandbox = start().await;
    let script = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > ignores; while :; do sleep 1; done' & \
        setsid sh -c 'trap \"\" TERM; echo $$ > leaves; while :; do sleep 1; done' & \
        (setsid sh -c 'echo $$ > orphan; exec sleep 100' &) ; wait; while :; do sleep 1; done";
    // Long enough for all three to start on a busy machine.
    let exec = Exec { timeout_ms: Some(3000), ..shell(script) };
    let run = sandbox.client.run(exec, "", 1000);
    let done = tokio::time::timeout(Duration::from_mins(1), run).await.unwrap().unwrap();
    assert_eq!(done.done.ended, ExitReason::TimedOut);
    for name in ["ignores", "leaves", "orphan"] {
        let pid = std::fs::read_to_string(sandbox.workspace().join(name)).unwrap();
        assert!(!is_running(&pid), "{name} still runs");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signals_reach_the_group_and_kill_reaches_all_descendants() {
    let sandbox = start().await;
    let mut handle = sandbox
        .client
        .exec(shell("trap 'echo got; exit 3' USR1; echo ready; sleep 50 & wait"))
        .await
        .unwrap();
    assert_eq!(handle.output.next().await.unwrap().unwrap().1, "ready\n");
    handle.control.signal(10).await.unwrap();
    assert_eq!(handle.output.next().await.unwrap().unwrap().1, "got\n");
    assert_eq!(handle.output.done().await.unwrap().ended, ExitReason::Exit(3));
    let script =
        "setsid sh -c 'echo $$ > left; sleep 100' & while [ ! -s left ]; do sleep 0.05; done; echo go; wait";
    let mut handle = sandbox.client.exec(shell(script)).await.unwrap();
    assert_eq!(handle.output.next().await.unwrap().unwrap().1, "go\n");
    handle.control.signal(9).await.unwrap();
    assert_eq!(handle.output.done().await.unwrap().ended, ExitReason::Signal(9));
    assert!(!is_running(&std::fs::read_to_string(sandbox.workspace().join("left")).unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_handle_or_channel_kills_the_program() {
    let sandbox = start().await;
    let pid_in = |name: &str| std::fs::read_to_string(sandbox.workspace().join(name)).unwrap_or_default();
    let mut handle = sandbox.client.exec(shell("echo $$ > one; echo; exec sleep 100")).await.unwrap();
    handle.output.next().await.unwrap();
    drop(handle);
    wait_until("the program ends when its handle is dropped", || !is_running(&pid_in("one"))).await;
    let other = connect(sandbox.port).await;
    let mut handle = other.exec(shell("echo $$ > two; echo; exec sleep 100")).await.unwrap();
    handle.output.next().await.unwrap();
    drop((handle, other));
    wait_until("the program ends when its channel is closed", || !is_running(&pid_in("two"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leftover_process_does_not_delay_the_answer() {
    let sandbox = start().await;
    let run = sh(&sandbox.client, "sleep 1000 & echo started");
    let done = tokio::time::timeout(Duration::from_mins(1), run).await.unwrap();
    assert_eq!((&*done.stdout, done.done.detached), (&b"started\n"[..], true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_blocks_the_writer_and_can_still_kill_it() {
    let sandbox = start().await;
    let mut handle = sandbox.client.exec(shell("echo $$ > pid; exec yes")).await.unwrap();
    handle.output.next().await.unwrap();
    let pid = std::fs::read_to_string(sandbox.workspace().join("pid")).unwrap();
    let written = || {
        let io = std::fs::read_to_string(format!("/proc/{}/io", pid.trim())).unwrap();
        io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse::<u64>().ok()).unwrap()
    };
    // The writer fills the channel's window and then blocks, however often we check.
    let (mut before, mut same) = (0, 0);
    wait_until("the writer blocks", || {
        let now = written();
        same = if now == before { same + 1 } else { 0 };
        before = now;
        same == 10
    })
    .await;
    let memory = sandbox.client.status().await.unwrap().memory_bytes;
    assert!(memory < 200 << 20, "{memory}");
    handle.control.signal(9).await.unwrap();
    let mut bytes = 0;
    while let Some((lane, piece)) = handle.output.next().await.unwrap() {
        assert_eq!(lane, Lane::Main);
        bytes += piece.len();
    }
    assert_eq!(handle.output.done().await.unwrap().ended, ExitReason::Signal(9));
    println!("{bytes} bytes were in flight");
    assert!(bytes < 2 << 20, "{bytes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_concurrent_programs() {
    let sandbox = start().await;
    let mut all = tokio::task::JoinSet::new();
    for number in 0..100 {
        let client = sandbox.client.clone();
        all.spawn(async move {
            let done = sh(&client, &format!("echo {number}; exit {number}")).await;
            assert_eq!(done.stdout, format!("{number}\n").as_bytes());
            assert_eq!(done.done.ended, ExitReason::Exit(number));
        });
    }
    all.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_trips_are_measured() {
    let sandbox = start().await;
    let clock = Clock::system();
    let mut times = Vec::new();
    for _ in 0..200 {
        let before = clock.elapsed();
        sandbox.client.status().await.unwrap();
        times.push(clock.elapsed().saturating_sub(before));
    }
    times.sort();
    println!("status round trip p50 {:?} p95 {:?}", times[100], times[190]);
    let mut times = Vec::new();
    for _ in 0..40 {
        let before = clock.elapsed();
        let exec = Exec { argv: vec!["/bin/true".to_owned()], timeout_ms: Some(10_000), ..Exec::default() };
        sandbox.client.run(exec, "", 10).await.unwrap();
        times.push(clock.elapsed().saturating_sub(before));
    }
    times.sort();
    println!("exec /bin/true p50 {:?} p95 {:?}", times[20], times[38]);
    let before = clock.elapsed();
    let mut handle = sandbox.client.exec(shell("head -c 100000000 /dev/zero")).await.unwrap();
    let mut bytes = 0;
    while let Some((_, piece)) = handle.output.next().await.unwrap() {
        bytes += piece.len();
    }
    assert_eq!(bytes, 100_000_000);
    println!("100 MB of output in {:?}", clock.elapsed().saturating_sub(before));
}
