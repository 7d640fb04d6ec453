//! The life cycle of a sandbox: recovered, reached, paused and resumed, copied, stopped.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clock::Clock;
use sandbox::local::{LocalConfig, LocalProvider};
use sandbox::{LeftOut, Provider as _, SandboxError, SandboxState, Spec};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::leaks::script;
use super::support::{HELPER, LISTEN, TestBed, config, host_allows_cgroups, id, run, spec};

fn doomed(root: &Path) -> LocalConfig {
    LocalConfig { uids: 290_000..=290_007, ..config(root) }
}

fn doomed_spec() -> Spec {
    let mut spec = spec("again");
    spec.injected.insert(3128);
    spec
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the next test in another process, to be killed"]
async fn gateway_to_be_killed() {
    let root = std::env::current_dir().unwrap();
    let provider = LocalProvider::open(doomed(&root)).unwrap();
    assert!(!provider.ensure(&doomed_spec()).await.unwrap().recovered);
    run(&provider, &doomed_spec().id, "echo kept > /tmp/memory").await.unwrap();
    std::fs::write(root.join("ready"), "").unwrap();
    tokio::time::sleep(Duration::from_mins(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_outlives_a_killed_gateway_and_is_recovered() {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "lifecycle::gateway_to_be_killed"])
        .current_dir(directory.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    for _ in 0..1000 {
        if directory.path().join("ready").exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    gateway.kill().unwrap();
    gateway.wait().unwrap();
    let bed = TestBed { provider: LocalProvider::open(doomed(directory.path())).unwrap(), directory };
    let wanted = doomed_spec();
    assert_eq!(bed.provider.list().await.unwrap()[0].state, SandboxState::Running);
    assert!(bed.provider.ensure(&wanted).await.unwrap().recovered);
    assert_eq!(bed.run(&wanted.id, "cat /tmp/memory").await, "kept\n");
    bed.provider.listeners(&wanted.id).await.unwrap();
    bed.provider.terminate(&wanted.id).await.unwrap();
    bed.provider.terminate(&wanted.id).await.unwrap();
    assert!(bed.provider.list().await.unwrap().is_empty());
    assert!(matches!(bed.provider.dial(&wanted.id, 1).await, Err(SandboxError::NotFound(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn leftover_sandbox_is_watched_before_it_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    let first = LocalProvider::open(config.clone()).unwrap();
    let mut wanted = spec("left");
    wanted.limits.disk_bytes = 16 << 20;
    first.ensure(&wanted).await.unwrap();
    let script = "(while [ ! -e /home/user/go ]; do sleep 0.05; done; for i in 1 2 3 4; do \
        dd if=/dev/zero of=f$i bs=1M count=8; done) >/dev/null 2>&1 & true";
    run(&first, &wanted.id, script).await.unwrap();
    // Its watcher ends with it.
    drop(first);
    let bed = TestBed { provider: LocalProvider::open(config).unwrap(), directory };
    std::fs::write(bed.directory.path().join("data/sandboxes/left/home/go"), "").unwrap();
    assert!(super::limits::dies_within(&bed, &wanted.id, 30).await, "the sandbox is not watched");
}

/// Simulates a gateway that was absent for a moment.
#[tokio::test(flavor = "multi_thread")]
async fn program_that_takes_the_gateways_port_is_killed_and_files_stay() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    let first = LocalProvider::open(config.clone()).unwrap();
    let mut wanted = spec("squat");
    wanted.injected.insert(3128);
    first.ensure(&wanted).await.unwrap();
    let script = "echo kept > note; perl -MIO::Socket::INET -e 'until ($s = IO::Socket::INET->new(Listen => 1, \
        LocalAddr => q(127.0.0.1), LocalPort => 3128)) { select undef, undef, undef, 0.02 } \
        open F, q(>), q(taken); close F; sleep 600' >/dev/null 2>&1 & true";
    run(&first, &wanted.id, script).await.unwrap();
    drop(first);
    let home = directory.path().join("data/sandboxes/squat/home/workspace");
    while !home.join("taken").exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let next = LocalProvider::open(config).unwrap();
    let refused = next.ensure(&wanted).await;
    assert!(matches!(refused, Err(SandboxError::PortTaken(3128))), "{refused:?}");
    assert!(!next.ensure(&wanted).await.unwrap().recovered);
    assert_eq!(std::fs::read_to_string(home.join("note")).unwrap(), "kept\n");
    next.terminate(&wanted.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_or_replaced_workspace_is_recreated() {
    let bed = TestBed::new();
    let wanted = spec("moved");
    let cases = [
        ("mv /home/user/workspace /home/user/elsewhere", ""),
        ("rmdir /home/user/workspace; ln -s /etc /home/user/workspace", "workspace.aside-1"),
        ("rmdir /home/user/workspace; echo x > /home/user/workspace", "workspace.aside-2"),
        ("chmod 0 /home/user/workspace", "workspace.aside-2"),
        ("chmod 0 /home/user/workspace /home/user", "workspace.aside-2"),
    ];
    for (script, aside) in cases {
        bed.provider.ensure(&wanted).await.unwrap();
        bed.run(&wanted.id, script).await;
        bed.run(&wanted.id, "kill -9 -1; kill -9 1").await;
        let record = bed.directory.path().join("data/sandboxes/moved/state.json");
        let record: serde_json::Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
        let pid = i32::try_from(record["identity"]["pid"].as_i64().unwrap()).unwrap();
        if let Some(pid) = rustix::process::Pid::from_raw(pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        assert!(super::limits::dies_within(&bed, &wanted.id, 30).await);
        assert!(!bed.provider.ensure(&wanted).await.unwrap().recovered, "{script}");
        assert_eq!(
            bed.run(&wanted.id, "touch it && pwd -P; rm it").await,
            "/home/user/workspace\n",
            "{script}"
        );
        let output = bed.run(&wanted.id, "ls /home/user | grep aside | tail -1").await;
        assert_eq!(output.trim(), aside, "{script}");
    }
    bed.provider.terminate(&wanted.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn record_of_a_reused_pid_is_not_trusted() {
    let bed = TestBed::new();
    let sandbox = bed.start("stale").await;
    let path = bed.directory.path().join("data/sandboxes/stale/state.json");
    let good = std::fs::read_to_string(&path).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&good).unwrap();
    // The pid now names a process of the host, as after a reboot.
    let pid = record["identity"]["pid"].clone();
    record["identity"]["pid"] = std::process::id().into();
    std::fs::write(&path, record.to_string()).unwrap();
    assert_eq!(bed.provider.list().await.unwrap()[0].state, SandboxState::Dead);
    assert!(matches!(bed.provider.dial(&sandbox, 4000).await, Err(SandboxError::NotFound(_))));
    std::fs::write(&path, "{ garbled").unwrap();
    assert_eq!(bed.provider.list().await.unwrap()[0].state, SandboxState::Unknown);
    assert!(matches!(bed.provider.terminate(&sandbox).await, Err(SandboxError::Records(_))));
    record["identity"]["pid"] = pid;
    std::fs::write(&path, record.to_string()).unwrap();
    assert_eq!(bed.provider.list().await.unwrap()[0].state, SandboxState::Running);
    bed.provider.terminate(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn injected_port_connects_to_the_gateway() {
    let bed = TestBed::new();
    let sandbox = bed.start_with("inject", |spec| spec.injected.extend([3128, 3129])).await;
    let mut arrivals = bed.provider.listeners(&sandbox).await.unwrap();
    let echo = tokio::spawn(async move {
        let mut arrived = arrivals.recv().await.unwrap();
        let mut word = [0; 5];
        arrived.stream.read_exact(&mut word).await.unwrap();
        arrived.stream.write_all(&word).await.unwrap();
        (arrived.port, word)
    });
    let script = "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(PeerAddr => q(127.0.0.1:3129)) or die; print $s q(hello); $s->flush; read($s, $b, 5); print $b'";
    assert_eq!(bed.run(&sandbox, script).await, "hello");
    assert_eq!(echo.await.unwrap(), (3129, *b"hello"));
    assert!(matches!(bed.provider.dial(&sandbox, 9).await, Err(SandboxError::Refused { port: 9, .. })));
    bed.provider.terminate(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn injected_ports_are_bound_before_any_program_runs() {
    // A slow broker.
    let bed = TestBed::with(|config| {
        let body = format!("[ $1 = sandbox-broker ] && sleep 0.5; exec {HELPER} \"$@\"");
        config.helper = script(config, &body);
    });
    let first = "use IO::Socket::INET; open F, q(>), q(/home/user/first); \
         print F IO::Socket::INET->new(PeerAddr => q(127.0.0.1:3128)) ? q(served) : $!; close F; sleep 60";
    bed.start_with("eager", |spec| {
        spec.init = ["/usr/bin/perl", "-e", first].map(String::from).into();
        spec.injected.insert(3128);
    })
    .await;
    let path = bed.directory.path().join("data/sandboxes/eager/home/first");
    let output = || std::fs::read_to_string(&path).unwrap_or_default();
    while output().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(output(), "served");
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_keeps_memory_and_freezes_processes() {
    let bed = TestBed::new();
    let freezer = bed.provider.capabilities().memory_pause;
    assert_eq!(freezer, host_allows_cgroups("freezer"), "the report does not match this host");
    let sandbox = bed.start("pause").await;
    if !freezer {
        let refused = bed.provider.pause(&sandbox).await;
        assert!(matches!(refused, Err(SandboxError::Unsupported(_))), "{refused:?}");
        return;
    }
    let neighbour = bed.start("awake").await;
    for ticking in [&sandbox, &neighbour] {
        bed.run(ticking, "(while :; do echo x >> /home/user/ticks; sleep 0.02; done) >/dev/null 2>&1 &")
            .await;
    }
    let count = |name: &str| {
        let ticks = bed.directory.path().join("data/sandboxes").join(name).join("home/ticks");
        std::fs::metadata(&ticks).map_or(0, |file| file.len())
    };
    let grows_beyond = async |name: &str, length| {
        while count(name) <= length {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    grows_beyond("pause", 0).await;
    bed.provider.pause(&sandbox).await.unwrap();
    let listed = bed.provider.list().await.unwrap();
    assert!(listed.iter().any(|one| one.id == sandbox && one.state == SandboxState::Paused), "{listed:?}");
    let before = count("pause");
    // Twenty ticks of two bytes: the time in which the paused one would have ticked as well.
    grows_beyond("awake", count("awake") + 40).await;
    assert_eq!(count("pause"), before);
    bed.provider.resume(&sandbox).await.unwrap();
    grows_beyond("pause", before).await;
    // A paused sandbox can also be terminated.
    bed.provider.pause(&sandbox).await.unwrap();
    bed.provider.terminate(&sandbox).await.unwrap();
    bed.provider.terminate(&neighbour).await.unwrap();
    assert!(bed.provider.list().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_outlives_its_sandbox_and_starts_others() {
    let bed = TestBed::new();
    let sandbox = bed.start("origin").await;
    bed.run(
        &sandbox,
        "echo first > file; ln -s /etc/shadow link; mkdir -p a/b; echo x > a/b/c; chmod 755 a/b/c",
    )
    .await;
    let snapshot = bed.provider.snapshot(&sandbox, &LeftOut::default(), Arc::new(|_| Ok(()))).await.unwrap();
    bed.run(&sandbox, "echo second > file").await;
    bed.provider.terminate(&sandbox).await.unwrap();
    for name in ["fork-1", "fork-2"] {
        let fork = bed.start_with(name, |spec| spec.snapshot = Some(snapshot.clone())).await;
        let output =
            bed.run(&fork, "cat file; readlink link; stat -c '%a %u' a/b/c; echo y >> file && echo ok").await;
        assert_eq!(output, "first\n/etc/shadow\n755 1000\nok\n");
        bed.provider.terminate(&fork).await.unwrap();
    }
    bed.provider.remove_snapshot(&snapshot).await.unwrap();
    let mut wanted = spec("late");
    wanted.snapshot = Some(snapshot);
    assert!(matches!(bed.provider.ensure(&wanted).await, Err(SandboxError::NoSnapshot(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_cleaned_before_it_is_a_snapshot() {
    let bed = TestBed::new();
    let sandbox = bed.start("origin").await;
    bed.run(&sandbox, "echo secret > file").await;
    let nothing = LeftOut::default();
    let failing =
        bed.provider.snapshot(&sandbox, &nothing, Arc::new(|_| Err(std::io::Error::other("no space"))));
    let refused = failing.await.unwrap_err().to_string();
    assert!(refused.contains("clean the snapshot"), "{refused}");
    let left = std::fs::read_dir(bed.directory.path().join("data/snapshots")).unwrap().count();
    assert_eq!(left, 0, "a copy that was not cleaned is left");
    let clean = Arc::new(|copy: &Path| std::fs::write(copy.join("workspace/file"), "clean\n"));
    let snapshot = bed.provider.snapshot(&sandbox, &LeftOut::default(), clean).await.unwrap();
    assert_eq!(bed.run(&sandbox, "cat file").await, "secret\n");
    let fork = bed.start_with("fork", |spec| spec.snapshot = Some(snapshot)).await;
    assert_eq!(bed.run(&fork, "cat file").await, "clean\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_sandbox_restarts_with_its_files() {
    let bed = TestBed::new();
    let sandbox = bed.start("dead").await;
    bed.run(&sandbox, "echo kept > file; kill -9 1; true").await;
    // PID 1 cannot be killed from inside its namespace.
    let pid = init_pid(&bed, "dead");
    assert!(std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    while bed.provider.list().await.unwrap()[0].state != SandboxState::Dead {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!bed.provider.ensure(&spec("dead")).await.unwrap().recovered);
    assert_eq!(bed.run(&sandbox, "cat file").await, "kept\n");
    bed.provider.terminate(&id("dead")).await.unwrap();
}

/// Simulates a reboot: no process, and no control group.
#[tokio::test(flavor = "multi_thread")]
async fn dead_sandbox_without_its_control_group_can_be_copied() {
    let bed = TestBed::new();
    let sandbox = bed.start("rebooted").await;
    bed.run(&sandbox, "echo kept > file; ln file other").await;
    bed.provider.halt(&sandbox).await.unwrap();
    let path = bed.directory.path().join("data/sandboxes/rebooted/state.json");
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    record["group"]["Freezer"] =
        serde_json::json!({"directory": bed.directory.path().join("gone"), "unified": false});
    std::fs::write(&path, record.to_string()).unwrap();
    let snapshot = bed.provider.snapshot(&sandbox, &LeftOut::default(), Arc::new(|_| Ok(()))).await.unwrap();
    let fork = bed.start_with("after", |spec| spec.snapshot = Some(snapshot.clone())).await;
    assert_eq!(bed.run(&fork, "cat file; stat -c %h file other").await, "kept\n2\n2\n");
}

/// Simulates a gateway that is killed while it restores a snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_restore_starts_again_from_the_snapshot() {
    let bed = TestBed::new();
    let first = bed.start("first").await;
    bed.run(&first, "echo kept > file").await;
    let snapshot = bed.provider.snapshot(&first, &LeftOut::default(), Arc::new(|_| Ok(()))).await.unwrap();
    bed.provider.terminate(&first).await.unwrap();
    let second = bed.start_with("second", |spec| spec.snapshot = Some(snapshot.clone())).await;
    bed.provider.halt(&second).await.unwrap();
    assert_eq!(bed.provider.list().await.unwrap()[0].state, SandboxState::Dead);
    let directory = bed.directory.path().join("data/sandboxes/second");
    std::fs::rename(directory.join("home"), directory.join("home.draft")).unwrap();
    std::fs::create_dir(directory.join("home.draft.links")).unwrap();
    assert_eq!(bed.provider.list().await.unwrap()[0].state, SandboxState::Incomplete);
    bed.start_with("second", |spec| spec.snapshot = Some(snapshot.clone())).await;
    assert_eq!(bed.run(&second, "cat file").await, "kept\n");
    assert!(!directory.join("home.draft.links").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_broker_is_replaced() {
    let bed = TestBed::new();
    let sandbox = bed.start("broker").await;
    assert_eq!(bed.run(&sandbox, "echo one").await, "one\n");
    let namespace = identity(&bed, "broker")["net_namespace"].as_u64().unwrap();
    let mut killed = 0;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let inside =
            std::fs::metadata(entry.path().join("ns/net")).is_ok_and(|found| found.ino() == namespace);
        if inside && line.ends_with(b"\0sandbox-broker\0") {
            let pid = entry.file_name().into_string().unwrap();
            assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
            killed += 1;
        }
    }
    assert_eq!(killed, 1);
    assert_eq!(bed.run(&sandbox, "echo two").await, "two\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn port_that_never_accepts_delays_only_its_own_caller() {
    let bed = TestBed::new();
    let sandbox = bed.start("stall").await;
    bed.run(&sandbox, LISTEN).await;
    let mut held = Vec::new();
    let mut stalled = false;
    for _ in 0..8 {
        match tokio::time::timeout(Duration::from_millis(300), bed.provider.dial(&sandbox, 5000)).await {
            Ok(stream) => held.push(stream.unwrap()),
            Err(_) => stalled = true,
        }
    }
    assert!(stalled, "the backlog of the program inside must be full");
    assert_eq!(bed.run(&sandbox, "echo alive").await, "alive\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn rootfs_of_the_operator_replaces_the_hosts() {
    let bed = TestBed::new();
    let rootfs = bed.directory.path().join("rootfs");
    std::fs::create_dir_all(rootfs.join("etc")).unwrap();
    std::fs::write(rootfs.join("etc/mime.types"), "of the operator").unwrap();
    for (target, name) in [("/usr", "usr"), ("usr/bin", "bin"), ("usr/lib", "lib"), ("usr/lib64", "lib64")] {
        std::os::unix::fs::symlink(target, rootfs.join(name)).unwrap();
    }
    let sandbox = bed.start_with("rootfs", |spec| spec.rootfs = Some(rootfs.clone())).await;
    let output = bed.run(&sandbox, "cat /etc/mime.types; ls /etc/ssl 2>&1; touch /etc/mime.types 2>&1").await;
    assert!(output.contains("of the operator") && output.contains("No such file"), "{output}");
    assert!(output.contains("Read-only") || output.contains("denied"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn given_program_is_inside_and_read_only() {
    let bed = TestBed::new();
    let program = bed.directory.path().join("program");
    std::fs::copy("/bin/sh", &program).unwrap();
    let sandbox = bed
        .start_with("program", |spec| spec.programs = [("proliferate".to_owned(), program.clone())].into())
        .await;
    let output =
        bed.run(&sandbox, "/opt/proliferate -c 'echo runs'; echo x > /opt/proliferate && echo CHANGED").await;
    assert!(output.contains("runs") && !output.contains("CHANGED"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_starts_are_fast() {
    let bed = TestBed::new();
    let clock = Clock::system();
    let mut times = Vec::new();
    for _ in 0..20 {
        let before = clock.elapsed();
        let sandbox = bed.start("quick").await;
        times.push(clock.elapsed().saturating_sub(before));
        bed.provider.terminate(&sandbox).await.unwrap();
    }
    times.sort();
    println!("start to a running PID 1, 20 times: p50 {:?}, p95 {:?}", times[9], times[18]);
}

fn identity(bed: &TestBed, name: &str) -> serde_json::Value {
    let path = bed.directory.path().join("data/sandboxes").join(name).join("state.json");
    let record: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    record["identity"].clone()
}

/// The host's pid of the process that is PID 1 inside the sandbox.
fn init_pid(bed: &TestBed, name: &str) -> u64 {
    identity(bed, name)["pid"].as_u64().unwrap()
}
