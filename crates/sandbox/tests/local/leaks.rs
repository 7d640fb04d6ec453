//! Whatever happens, nothing is left behind: processes, mounts, control groups, folders, user ids.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use sandbox::local::LocalConfig;
use sandbox::{Provider as _, SandboxError, SandboxState, Spec};

use super::support::{Bed, HELPER, spec};

/// What a provider with this folder and these user ids has on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Count {
    processes: BTreeSet<String>,
    mounts: usize,
    groups: Vec<String>,
    folders: Vec<String>,
    uids: usize,
}

fn count(bed: &Bed, range: &std::ops::RangeInclusive<u32>) -> Count {
    let data = bed.folder.path().join("data");
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
    // The mark of the provider is the hash of its folder.
    let mark = fs::canonicalize(&data).unwrap();
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let mark = mark.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fnv);
    let mut groups = Vec::new();
    find_groups(Path::new("/sys/fs/cgroup"), &format!("{mark:016x}"), &mut groups);
    Count {
        processes,
        mounts: fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count(),
        groups,
        folders: [list(&data.join("sandboxes")), list(&data.join("snapshots"))].concat(),
        uids: list(&data.join("uids")).len(),
    }
}

fn find_groups(folder: &Path, mark: &str, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        if entry.file_name().to_string_lossy().contains(mark) {
            found.push(entry.path().display().to_string());
        }
        find_groups(&entry.path(), mark, found);
    }
}

/// Zombies are taken note of by a task, so a moment may pass.
async fn settles(bed: &Bed, range: &std::ops::RangeInclusive<u32>, before: &Count, case: &str) {
    // A zombie of a test beside this one may have been there before and be gone now.
    let none = Count { processes: BTreeSet::new(), ..before.clone() };
    let left = || {
        let mut now = count(bed, range);
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

async fn check(
    case: &str,
    configure: impl FnOnce(&mut LocalConfig),
    change: impl FnOnce(&mut Spec),
    want: fn(&SandboxError) -> bool,
) {
    let mut range = 0..=0;
    let bed = Bed::with(|config| {
        configure(config);
        range = config.uids.clone();
    });
    let before = count(&bed, &range);
    let mut spec = spec("leak");
    spec.injected.insert(3128);
    change(&mut spec);
    let error = bed.provider.ensure(&spec).await.expect_err(case);
    assert!(want(&error), "{case}: {error}");
    settles(&bed, &range, &before, case).await;
    println!("{case}: {error}");
}

/// A program beside the provider's folder that every user may run.
pub(crate) fn script(config: &LocalConfig, body: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = config.root.parent().unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o711)).unwrap();
    let path = folder.join("script");
    // Written by another process: what a child of a neighbouring test holds open for writing cannot be run.
    let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$2"; chmod 755 "$2""#;
    let mut written = std::process::Command::new("sh");
    assert!(written.args(["-c", write, "sh", body]).arg(&path).status().unwrap().success());
    path
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_starts_leave_nothing_behind() {
    check(
        "no bubblewrap",
        |config| config.bwrap = "/nonexistent/bwrap".into(),
        |_| {},
        |error| matches!(error, SandboxError::BubblewrapMissing),
    )
    .await;
    check(
        "a bubblewrap that fails",
        |config| config.bwrap = "/bin/false".into(),
        |_| {},
        |error| matches!(error, SandboxError::InitExited),
    )
    .await;
    check(
        "a host without namespaces",
        |config| {
            let said =
                "bwrap: No permissions to create new namespace, likely because the kernel does not allow";
            config.bwrap = script(config, &format!("echo '{said}' >&2; exit 1"));
        },
        |_| {},
        |error| matches!(error, SandboxError::NamespacesForbidden),
    )
    .await;
    check(
        "a bubblewrap that hangs",
        |config| {
            config.bwrap = script(config, "sleep 100");
            config.start_timeout = Duration::from_millis(500);
        },
        |_| {},
        |error| matches!(error, SandboxError::Timeout(_)),
    )
    .await;
    check(
        "a root filesystem without anything",
        |_| {},
        |spec| spec.rootfs = Some("/proc".into()),
        |error| matches!(error, SandboxError::BadSpec(_)),
    )
    .await;
    check(
        "no such program",
        |_| {},
        |spec| spec.init = words(&["/no/such/program"]),
        |error| matches!(error, SandboxError::StartFailed(_)),
    )
    .await;
    check(
        "a helper that is missing",
        |config| config.helper = "/nonexistent/helper".into(),
        |_| {},
        |error| matches!(error, SandboxError::Host { .. }),
    )
    .await;
    check(
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
#[ignore = "run by a_full_disk_is_told_and_leaves_nothing_behind on a small disk"]
async fn on_a_small_disk() {
    let disk = std::env::current_dir().unwrap();
    let range = 291_000..=291_007;
    let bed = Bed::below(&disk, |config| config.uids = range.clone());
    let before = count(&bed, &range);
    let filler = disk.join("filler");
    let full = std::io::copy(&mut std::io::repeat(0), &mut fs::File::create(&filler).unwrap()).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let error = bed.provider.ensure(&spec("full")).await.unwrap_err();
    assert!(matches!(error, SandboxError::DiskFull), "{error}");
    settles(&bed, &range, &before, "a full disk").await;
    fs::remove_file(filler).unwrap();
    let sandbox = bed.start("full").await;
    fs::write(bed.folder.path().join("data/sandboxes/full/home/large"), vec![0; 700_000]).unwrap();
    let error = bed.provider.snapshot(&sandbox, &[]).await.unwrap_err();
    assert!(matches!(error, SandboxError::DiskFull), "{error}");
    bed.provider.terminate(&sandbox).await.unwrap();
    settles(&bed, &range, &before, "a snapshot on a full disk").await;
    println!("it was told: {error}");
}

#[test]
fn a_full_disk_is_told_and_leaves_nothing_behind() {
    // In a mount table of its own, so that a test that fails leaves no mount. An ordinary user may mount in a user
    // namespace, with capabilities that bubblewrap refuses to be started with.
    let (namespaces, drop): (&[_], _) = if rustix::process::geteuid().is_root() {
        (&["-m"], "")
    } else {
        (&["-m", "-U", "--map-current-user", "--keep-caps"], "setpriv --inh-caps=-all --ambient-caps=-all ")
    };
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        r#"mount -t tmpfs -o size=1m,mode=0777 tmpfs "$1"; cd "$1"; exec {drop}"$2" --ignored leaks::on_a_small_disk --nocapture"#
    );
    let ran = std::process::Command::new("unshare")
        .args(namespaces)
        .args(["sh", "-ec", &script, "sh"])
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("it was told"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_user_ids_are_told() {
    let bed = Bed::with(|config| config.uids = 270_000..=270_000);
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
#[ignore = "run by the next test, which expects its launcher to kill it"]
async fn a_gateway_that_crashes_in_the_middle_of_a_start() {
    let folder = std::env::current_dir().unwrap();
    let mut config = LocalConfig { uids: CRASH_UIDS, ..super::support::config(&folder) };
    // With the plan comes all that a start makes before bubblewrap runs.
    config.helper = script(
        &config,
        r#"case $1 in *broker) exit;; esac; head -c 4 > /dev/null; echo $$ > "$0.pid"; kill -9 $PPID; exec sleep 600"#,
    );
    let provider = sandbox::local::LocalProvider::open(config).unwrap();
    provider.ensure(&spec("half")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_the_middle_of_a_start_leaves_nothing_that_is_not_known() {
    let folder = tempfile::tempdir().unwrap();
    let crashed = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "leaks::a_gateway_that_crashes_in_the_middle_of_a_start"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(!crashed.status.success());
    let launcher = fs::read_to_string(folder.path().join("script.pid")).unwrap();
    // One that has ended may still be seen for a moment, as a zombie or just dead.
    let over = |stat: &String| stat.contains(") Z ") || stat.contains(") X ");
    let launcher =
        || fs::read_to_string(format!("/proc/{}/stat", launcher.trim())).ok().filter(|stat| !over(stat));
    assert!(launcher().is_some(), "the crash ended its launcher as well");
    let bed = Bed::again(folder, |config| config.uids = CRASH_UIDS);
    assert_eq!(bed.provider.list().await.unwrap()[0].state, SandboxState::Dead);
    bed.provider.terminate(&super::support::id("half")).await.unwrap();
    let left = count(&bed, &CRASH_UIDS);
    let nothing =
        Count { processes: BTreeSet::new(), groups: vec![], folders: vec![], uids: 0, ..left.clone() };
    assert_eq!(left, nothing);
    assert_eq!(launcher(), None, "a launcher is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_id_that_was_taken_and_not_recorded_comes_back() {
    let bed = Bed::with(|config| config.uids = 271_000..=271_000);
    let data = bed.folder.path().join("data");
    fs::create_dir(data.join("sandboxes/half")).unwrap();
    if rustix::process::geteuid().is_root() {
        fs::write(data.join("uids/271000"), "half").unwrap();
        assert!(matches!(bed.provider.ensure(&spec("other")).await, Err(SandboxError::UidsExhausted)));
        bed.provider.terminate(&super::support::id("half")).await.unwrap();
    }
    bed.start("other").await;
    // An ordinary user hands out none.
    assert_eq!(data.join("uids").exists(), rustix::process::geteuid().is_root());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_life_leaves_nothing_behind() {
    let mut range = 0..=0;
    let bed = Bed::with(|config| range = config.uids.clone());
    let before = count(&bed, &range);
    for round in 0..3 {
        let sandbox = bed.start_with("life", |spec| spec.injected.extend([3128])).await;
        bed.run(&sandbox, "mkdir -p a/b; ln -s / a/b/root; chmod 0 a; (setsid sleep 100 >/dev/null 2>&1 &)")
            .await;
        let snapshot = bed.provider.snapshot(&sandbox, &[]).await;
        // As an ordinary user a folder without rights cannot be copied, and that is told or left out.
        bed.provider.terminate(&sandbox).await.unwrap();
        if let Ok(snapshot) = snapshot {
            bed.provider.remove_snapshot(&snapshot).await.unwrap();
        }
        settles(&bed, &range, &before, &format!("round {round}")).await;
    }
    println!("before and after three lives: {before:?}");
}

#[tokio::test]
async fn a_sandbox_whose_data_folder_is_gone_is_found_and_ended() {
    let bed = Bed::new();
    let id = bed.start("lost").await;
    assert_eq!(bed.run(&id, "echo here").await, "here\n");
    let ours = || {
        let all = sandbox::local::leaked();
        let folder = fs::canonicalize(bed.folder.path()).unwrap();
        all.into_iter().filter(move |leaked| leaked.home.starts_with(&folder)).collect::<Vec<_>>()
    };
    assert_eq!(ours(), [], "it is known");
    fs::remove_dir_all(bed.folder.path().join("data")).unwrap();
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
