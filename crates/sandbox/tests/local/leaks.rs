//! Whatever happens, nothing leaks: processes, mounts, control groups, directories, user ids.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandbox::local::LocalConfig;
use sandbox::{LeftOut, Provider as _, SandboxError, SandboxState, Spec};

use super::support::{HELPER, TestBed, spec};

/// What a provider with this directory and these user ids holds on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostResources {
    processes: BTreeSet<String>,
    mounts: usize,
    groups: Vec<String>,
    directories: Vec<String>,
    uids: usize,
}

fn host_resources(bed: &TestBed, range: &std::ops::RangeInclusive<u32>) -> HostResources {
    let data = bed.directory.path().join("data");
    let list = |path: &Path| -> Vec<String> {
        let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let mut processes = BTreeSet::new();
    for pid in list(Path::new("/proc")).into_iter().filter(|name| name.parse::<i32>().is_ok()) {
        let ours = fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| range.contains(&found.uid()));
        let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).replace('\0', " ");
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if ours || state.contains(&format!(") Z {} ", std::process::id())) {
            processes.insert(format!("{pid} {text}"));
        }
    }
    // The provider marks its groups with the hash of its directory.
    let mark = fs::canonicalize(&data).unwrap();
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let mark = mark.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fnv);
    let mut groups = Vec::new();
    find_groups(Path::new("/sys/fs/cgroup"), &format!("{mark:016x}"), &mut groups);
    HostResources {
        processes,
        mounts: fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count(),
        groups,
        directories: [list(&data.join("sandboxes")), list(&data.join("snapshots"))].concat(),
        uids: list(&data.join("uids")).len(),
    }
}

fn find_groups(directory: &Path, mark: &str, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        if entry.file_name().to_string_lossy().contains(mark) {
            found.push(entry.path().display().to_string());
        }
        find_groups(&entry.path(), mark, found);
    }
}

/// A task reaps zombies, so this may take a moment.
async fn assert_nothing_leaked(
    bed: &TestBed,
    range: &std::ops::RangeInclusive<u32>,
    before: &HostResources,
    case: &str,
) {
    // A zombie of a parallel test may have existed before and be gone now.
    let none = HostResources { processes: BTreeSet::new(), ..before.clone() };
    let left = || {
        let mut now = host_resources(bed, range);
        now.processes.retain(|process| !before.processes.contains(process));
        now
    };
    let mut now = left();
    for _ in 0..100 {
        if now == none {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        now = left();
    }
    assert_eq!(now, none, "{case}");
}

async fn check_failed_start(
    case: &str,
    configure: impl FnOnce(&mut LocalConfig),
    change: impl FnOnce(&mut Spec),
    want: fn(&SandboxError) -> bool,
) {
    let mut range = 0..=0;
    let bed = TestBed::with(|config| {
        configure(config);
        range = config.uids.clone();
    });
    let before = host_resources(&bed, &range);
    let mut spec = spec("leak");
    spec.injected.insert(3128);
    change(&mut spec);
    let error = bed.provider.ensure(&spec).await.expect_err(case);
    assert!(want(&error), "{case}: {error}");
    assert_nothing_leaked(&bed, &range, &before, case).await;
    println!("{case}: {error}");
}

/// Writes a script next to the provider's directory that every user may run.
pub(crate) fn script(config: &LocalConfig, body: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = config.root.parent().unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o711)).unwrap();
    let path = directory.join("script");
    // Written by another process: a file that a child of a parallel test holds open for writing cannot be executed
    // (ETXTBSY).
    let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$2"; chmod 755 "$2""#;
    let mut written = std::process::Command::new("sh");
    assert!(written.args(["-c", write, "sh", body]).arg(&path).status().unwrap().success());
    path
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_starts_leak_nothing() {
    check_failed_start(
        "no bubblewrap",
        |config| config.bwrap = "/nonexistent/bwrap".into(),
        |_| {},
        |error| matches!(error, SandboxError::BubblewrapMissing),
    )
    .await;
    check_failed_start(
        "a bubblewrap that fails",
        |config| config.bwrap = "/bin/false".into(),
        |_| {},
        |error| matches!(error, SandboxError::InitExited),
    )
    .await;
    check_failed_start(
        "a host without namespaces",
        |config| {
            let output =
                "bwrap: No permissions to create new namespace, likely because the kernel does not allow";
            config.bwrap = script(config, &format!("echo '{output}' >&2; exit 1"));
        },
        |_| {},
        |error| matches!(error, SandboxError::NamespacesForbidden),
    )
    .await;
    check_failed_start(
        "a bubblewrap that hangs",
        |config| {
            config.bwrap = script(config, "sleep 100");
            config.start_timeout = Duration::from_millis(500);
        },
        |_| {},
        |error| matches!(error, SandboxError::Timeout(_)),
    )
    .await;
    check_failed_start(
        "a root filesystem without anything",
        |_| {},
        |spec| spec.rootfs = Some("/proc".into()),
        |error| matches!(error, SandboxError::BadSpec(_)),
    )
    .await;
    check_failed_start(
        "no such program",
        |_| {},
        |spec| spec.init = words(&["/no/such/program"]),
        |error| matches!(error, SandboxError::StartFailed(_)),
    )
    .await;
    check_failed_start(
        "a helper that is missing",
        |config| config.helper = "/nonexistent/helper".into(),
        |_| {},
        |error| matches!(error, SandboxError::Host { .. }),
    )
    .await;
    check_failed_start(
        "a broker that dies",
        |config| {
            let body = format!("[ $1 = sandbox-broker ] || exec {HELPER} \"$@\"");
            config.helper = script(config, &body);
        },
        |_| {},
        |error| matches!(error, SandboxError::BrokerDied),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by full_disk_is_reported_and_nothing_leaks on a small disk"]
async fn on_a_small_disk() {
    let disk = std::env::current_dir().unwrap();
    let range = 291_000..=291_007;
    let bed = TestBed::below(&disk, |config| config.uids = range.clone());
    let before = host_resources(&bed, &range);
    let filler = disk.join("filler");
    let full = std::io::copy(&mut std::io::repeat(0), &mut fs::File::create(&filler).unwrap()).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let error = bed.provider.ensure(&spec("full")).await.unwrap_err();
    assert!(matches!(error, SandboxError::DiskFull), "{error}");
    assert_nothing_leaked(&bed, &range, &before, "a full disk").await;
    fs::remove_file(filler).unwrap();
    let sandbox = bed.start("full").await;
    fs::write(bed.directory.path().join("data/sandboxes/full/home/large"), vec![0; 700_000]).unwrap();
    let error = bed.provider.snapshot(&sandbox, &LeftOut::default(), Arc::new(|_| Ok(()))).await.unwrap_err();
    assert!(matches!(error, SandboxError::DiskFull), "{error}");
    bed.provider.terminate(&sandbox).await.unwrap();
    assert_nothing_leaked(&bed, &range, &before, "a snapshot on a full disk").await;
    println!("it was reported: {error}");
}

#[test]
fn full_disk_is_reported_and_nothing_leaks() {
    // Uses its own mount namespace, so that a failed test leaves no mount. An unprivileged user may mount in a user
    // namespace, but with capabilities with which bubblewrap refuses to start.
    let (namespaces, drop): (&[_], _) = if rustix::process::geteuid().is_root() {
        (&["-m"], "")
    } else {
        (&["-m", "-U", "--map-current-user", "--keep-caps"], "setpriv --inh-caps=-all --ambient-caps=-all ")
    };
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        r#"mount -t tmpfs -o size=1m,mode=0777 tmpfs "$1"; cd "$1"; exec {drop}"$2" --ignored leaks::on_a_small_disk --nocapture"#
    );
    let ran = std::process::Command::new("unshare")
        .args(namespaces)
        .args(["sh", "-ec", &script, "sh"])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && output.contains("it was reported"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_user_ids_are_reported() {
    let bed = TestBed::with(|config| config.uids = 270_000..=270_000);
    let first = bed.start("first").await;
    let second = bed.provider.ensure(&spec("second")).await.map(drop);
    if rustix::process::geteuid().is_root() {
        assert!(matches!(second, Err(SandboxError::UidsExhausted)), "{second:?}");
        assert_eq!(bed.provider.list().await.unwrap().len(), 1);
        bed.provider.terminate(&first).await.unwrap();
        bed.start("second").await;
    } else {
        second.expect("an ordinary user's sandboxes all have that user's own id");
    }
}

const CRASH_UIDS: std::ops::RangeInclusive<u32> = 292_000..=292_007;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the next test, whose launcher kills it"]
async fn gateway_that_crashes_during_a_start() {
    let directory = std::env::current_dir().unwrap();
    let mut config = LocalConfig { uids: CRASH_UIDS, ..super::support::config(&directory) };
    // By the time the plan arrives, the start has created everything that precedes bubblewrap.
    config.helper = script(
        &config,
        r#"case $1 in *broker) exit;; esac; head -c 4 > /dev/null; echo $$ > "$0.pid"; kill -9 $PPID; exec sleep 600"#,
    );
    let provider = sandbox::local::LocalProvider::open(config).unwrap();
    provider.ensure(&spec("half")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_during_a_start_leaves_only_recorded_resources() {
    let directory = tempfile::tempdir().unwrap();
    let crashed = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "leaks::gateway_that_crashes_during_a_start"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(!crashed.status.success());
    let launcher = fs::read_to_string(directory.path().join("script.pid")).unwrap();
    // A process that has exited may be visible for a moment, as a zombie or dead.
    let over = |stat: &String| stat.contains(") Z ") || stat.contains(") X ");
    let launcher =
        || fs::read_to_string(format!("/proc/{}/stat", launcher.trim())).ok().filter(|stat| !over(stat));
    assert!(launcher().is_some(), "the crash must leave its launcher running");
    let bed = TestBed::again(directory, |config| config.uids = CRASH_UIDS);
    assert_eq!(bed.provider.list().await.unwrap()[0].state, SandboxState::Dead);
    bed.provider.terminate(&super::support::id("half")).await.unwrap();
    let left = host_resources(&bed, &CRASH_UIDS);
    let nothing = HostResources {
        processes: BTreeSet::new(),
        groups: vec![],
        directories: vec![],
        uids: 0,
        ..left.clone()
    };
    assert_eq!(left, nothing);
    assert_eq!(launcher(), None, "the launcher must be killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn unrecorded_user_id_is_released() {
    let bed = TestBed::with(|config| config.uids = 271_000..=271_000);
    let data = bed.directory.path().join("data");
    fs::create_dir(data.join("sandboxes/half")).unwrap();
    if rustix::process::geteuid().is_root() {
        fs::write(data.join("uids/271000"), "half").unwrap();
        assert!(matches!(bed.provider.ensure(&spec("other")).await, Err(SandboxError::UidsExhausted)));
        bed.provider.terminate(&super::support::id("half")).await.unwrap();
    }
    bed.start("other").await;
    // An unprivileged gateway allocates no user ids.
    assert_eq!(data.join("uids").exists(), rustix::process::geteuid().is_root());
}

#[tokio::test(flavor = "multi_thread")]
async fn complete_life_cycle_leaks_nothing() {
    let mut range = 0..=0;
    let bed = TestBed::with(|config| range = config.uids.clone());
    let before = host_resources(&bed, &range);
    for round in 0..3 {
        let sandbox = bed.start_with("life", |spec| spec.injected.extend([3128])).await;
        bed.run(&sandbox, "mkdir -p a/b; ln -s / a/b/root; chmod 0 a; (setsid sleep 100 >/dev/null 2>&1 &)")
            .await;
        let snapshot = bed.provider.snapshot(&sandbox, &LeftOut::default(), Arc::new(|_| Ok(()))).await;
        // An unprivileged user cannot copy a directory without permissions, which is an error or omitted.
        bed.provider.terminate(&sandbox).await.unwrap();
        if let Ok(snapshot) = snapshot {
            bed.provider.remove_snapshot(&snapshot).await.unwrap();
        }
        assert_nothing_leaked(&bed, &range, &before, &format!("round {round}")).await;
    }
    println!("before and after three lives: {before:?}");
}

#[tokio::test]
async fn sandbox_without_its_data_directory_is_found_and_killed() {
    let bed = TestBed::new();
    let id = bed.start("lost").await;
    assert_eq!(bed.run(&id, "echo here").await, "here\n");
    let ours = || {
        let all = sandbox::local::find_leaked_sandboxes();
        let directory = fs::canonicalize(bed.directory.path()).unwrap();
        all.into_iter().filter(move |leaked| leaked.home.starts_with(&directory)).collect::<Vec<_>>()
    };
    assert_eq!(ours(), [], "a sandbox with a data directory must not count as leaked");
    fs::remove_dir_all(bed.directory.path().join("data")).unwrap();
    let found = ours();
    assert_eq!(found.len(), 1, "{found:?}");
    let group = fs::read_to_string(format!("/proc/{}/cgroup", found[0].pid)).unwrap();
    found[0].end().unwrap();
    assert_eq!(ours(), []);
    let mark = group.split(['/', '\n']).find(|part| part.starts_with("proliferate-"));
    if let Some(mark) = mark {
        let mut left = Vec::new();
        find_groups(Path::new("/sys/fs/cgroup"), mark, &mut left);
        assert_eq!(left, [""; 0], "control groups");
    }
}
