//! Directories as an attacker would create them.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::permissions::grant_permissions;
use super::*;
use crate::provider::LeftOut;

fn copy(from: &Path, to: &Path, most: u64) -> Result<(), TreeError> {
    fs::create_dir(to).unwrap();
    Copy::new(None, most).run(from, to)
}

#[test]
fn copy_keeps_links_modes_and_times_and_drops_special_files() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("a/b")).unwrap();
    fs::write(from.join("a/b/run"), "x").unwrap();
    fs::set_permissions(from.join("a/b/run"), fs::Permissions::from_mode(0o4755)).unwrap();
    symlink("/etc/shadow", from.join("evil")).unwrap();
    symlink("/etc", from.join("directory")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap());
    copy(&from, &to, 1 << 20).unwrap();
    assert_eq!(fs::read_link(to.join("evil")).unwrap(), Path::new("/etc/shadow"));
    assert!(fs::symlink_metadata(to.join("directory")).unwrap().is_symlink());
    assert!(!to.join("socket").exists());
    let (old, new) = (fs::metadata(from.join("a/b/run")).unwrap(), fs::metadata(to.join("a/b/run")).unwrap());
    assert_eq!(new.mode() & 0o7777, 0o755);
    assert_eq!((old.mtime(), old.mtime_nsec()), (new.mtime(), new.mtime_nsec()));
}

#[test]
fn sparse_file_costs_its_data_and_large_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    let file = fs::File::create(from.join("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    copy(&from, &dir.path().join("to"), 1 << 20).unwrap();
    assert_eq!(fs::metadata(dir.path().join("to/sparse")).unwrap().len(), 1 << 40);
    assert!(measure(&from, 1 << 20).unwrap().bytes < 1 << 20);
    fs::write(from.join("full"), vec![1; 2 << 20]).unwrap();
    assert_eq!(measure(&from, 1 << 20), Err(TreeError::TooLarge(1 << 20)));
    assert_eq!(copy(&from, &dir.path().join("to2"), 1 << 20), Err(TreeError::TooLarge(1 << 20)));
}

#[test]
fn hard_links_are_preserved_and_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to, again) = (dir.path().join("from"), dir.path().join("to"), dir.path().join("again"));
    fs::create_dir_all(from.join("hidden/inner")).unwrap();
    fs::write(from.join("first"), vec![1; 1 << 20]).unwrap();
    for name in ["hidden/inner/one", "hidden/two", "three", "four"] {
        fs::hard_link(from.join("first"), from.join(name)).unwrap();
    }
    fs::write(from.join("other"), "other").unwrap();
    fs::write(from.join("left-out"), "x").unwrap();
    fs::hard_link(from.join("left-out"), from.join("kept")).unwrap();
    for (name, mode) in [("first", 0o400), ("hidden/inner", 0), ("hidden", 0)] {
        fs::set_permissions(from.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    as_unprivileged_user(dir.path(), || {
        for (from, to) in [(&from, &to), (&to, &again)] {
            fs::create_dir(to).unwrap();
            let without = LeftOut { files: vec!["left-out".into()], ..LeftOut::default() };
            Copy::new(None, 2 << 20).without(without).run(from, to).unwrap();
            assert!(measure(to, 2 << 20).unwrap().bytes >= 1 << 20);
        }
    });
    for copy in [&to, &again] {
        let hidden = copy.join("hidden");
        assert_eq!(fs::metadata(&hidden).unwrap().mode() & 0o777, 0);
        for directory in [&hidden, &hidden.join("inner")] {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).unwrap();
        }
        let of = |name: &str| fs::metadata(copy.join(name)).unwrap();
        assert_eq!((of("first").nlink(), of("first").mode() & 0o777, of("first").len()), (5, 0o400, 1 << 20));
        for name in ["hidden/inner/one", "hidden/two", "three", "four"] {
            assert_eq!(of(name).ino(), of("first").ino(), "{name}");
        }
        assert_eq!((of("kept").nlink(), of("other").nlink()), (1, 1));
        assert_eq!(fs::read_to_string(copy.join("kept")).unwrap(), "x");
    }
    let names = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names, 3, "the temporary directory of links must be removed");
}

#[test]
fn very_deep_directory_is_refused_but_can_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    fs::create_dir(&top).unwrap();
    let mut at = open_top(&top).unwrap();
    let keep = dir.path().join("keep");
    fs::write(&keep, "safe").unwrap();
    for depth in 0..1000 {
        rustix::fs::mkdirat(&at, c"d", Mode::RWXU).unwrap();
        let next = open_directory(&at, c"d").unwrap();
        if depth % 100 == 0 {
            rustix::fs::symlinkat(&keep, &next, c"out").unwrap();
            rustix::fs::fchmod(&at, Mode::empty()).unwrap();
        }
        at = next;
    }
    assert_eq!(measure(&top, u64::MAX), Err(TreeError::TooDeep));
    fs::set_permissions(&top, fs::Permissions::from_mode(0o700)).unwrap();
    remove(&top).unwrap();
    assert!(!top.exists());
    assert_eq!(fs::read_to_string(keep).unwrap(), "safe");
    remove(&top).unwrap();
}

#[test]
fn symlink_in_place_of_the_directory_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    fs::create_dir(&real).unwrap();
    fs::write(real.join("file"), "x").unwrap();
    symlink(&real, &link).unwrap();
    assert!(remove(&link).is_err());
    assert!(real.join("file").exists());
}

#[test]
fn permissions_are_never_granted_through_a_symlink() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    fs::create_dir(&real).unwrap();
    let mode = || fs::metadata(&real).unwrap().mode() & 0o777;
    fs::set_permissions(&real, fs::Permissions::from_mode(0o500)).unwrap();
    symlink(&real, &link).unwrap();
    let top = open_top(dir.path()).unwrap();
    assert!(grant_permissions(&top, c"link").is_err());
    assert_eq!(mode(), 0o500);
    grant_permissions(&top, c"real").unwrap();
    assert_eq!(mode(), 0o700);
}

/// What a running sandbox can do while its files are copied.
#[test]
fn directory_swapped_for_a_symlink_during_a_copy_is_not_followed() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let (from, secret) = (dir.path().join("from"), dir.path().join("secret"));
    fs::create_dir_all(from.join("a")).unwrap();
    fs::write(from.join("a/file"), "own").unwrap();
    symlink(&secret, from.join("b")).unwrap();
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("file"), "secret").unwrap();
    let done = AtomicBool::new(false);
    let mut led_outside = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let top = open_top(&from).unwrap();
            while !done.load(Ordering::SeqCst) {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(&top, c"a", &top, c"b", exchange).unwrap();
            }
        });
        for round in 0..300 {
            let to = dir.path().join(format!("to-{round}"));
            led_outside += usize::from(copy(&from, &to, 1 << 20).is_err());
            for name in ["a", "b"] {
                let copied = to.join(name);
                let directory = fs::symlink_metadata(&copied).is_ok_and(|found| found.is_dir());
                if directory && let Ok(text) = fs::read_to_string(copied.join("file")) {
                    // Counted, not asserted: a panic here would leave the other thread running for ever.
                    led_outside += usize::from(text != "own");
                }
            }
            led_outside += usize::from(measure(&from, 1 << 20).is_err());
        }
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!(led_outside, 0);
    assert_eq!(fs::read_to_string(secret.join("file")).unwrap(), "secret");
}

#[test]
fn concurrent_removals_of_the_same_directory_succeed() {
    for _ in 0..30 {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        for number in 0..100 {
            fs::create_dir_all(top.join(format!("{}/inner", number / 10))).unwrap();
            fs::write(top.join(format!("{}/inner/{number}", number / 10)), "x").unwrap();
        }
        let removals: Vec<_> =
            [top.clone(), top.clone()].map(|top| std::thread::spawn(move || remove(&top))).into();
        for removal in removals {
            removal.join().unwrap().unwrap();
        }
        assert!(!top.exists());
    }
}

#[test]
fn excluded_paths_are_not_copied_and_stay_in_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("a/ours")).unwrap();
    fs::create_dir_all(from.join("work/inner")).unwrap();
    for file in ["a/.env", "a/ours/key", "a/.env.example", "ours", "b", "work/inner/file"] {
        fs::write(from.join(file), "x").unwrap();
    }
    // A symlink to an excluded file dangles in the copy.
    symlink("a/.env", from.join("link")).unwrap();
    symlink("b", from.join("other-link")).unwrap();
    fs::create_dir(&to).unwrap();
    let without = LeftOut {
        directories: ["a/ours", "nowhere"].map(Into::into).to_vec(),
        files: ["a/.env", "work", "other-link", "b/c"].map(Into::into).to_vec(),
    };
    Copy::new(None, 1 << 20).without(without).run(&from, &to).unwrap();
    let there = |name: &str| fs::read(to.join(name)).is_ok();
    assert_eq!(["a/.env", "a/ours/key", "link"].map(there), [false; 3]);
    // A directory or a symlink that is named as a file has no secret, but possibly all the work.
    assert_eq!(["a/.env.example", "ours", "b", "work/inner/file", "other-link"].map(there), [true; 5]);
    assert!(fs::read(from.join("link")).is_ok() && fs::read(from.join("a/ours/key")).is_ok());
}

/// Runs `work` as an unprivileged user who owns `directory`.
fn as_unprivileged_user<T: Send>(directory: &Path, work: impl FnOnce() -> T + Send) -> T {
    const USER: u32 = 61_235;
    if !rustix::process::geteuid().is_root() {
        return work();
    }
    let chown = std::process::Command::new("chown").args(["-R", &USER.to_string()]).arg(directory).status();
    assert!(chown.unwrap().success());
    let user = rustix::fs::Uid::from_raw(USER);
    let dropped = || {
        // Affects only this thread.
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(dropped).join().unwrap())
}

#[test]
fn files_without_permissions_are_measured_and_copied_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to, again) = (dir.path().join("from"), dir.path().join("to"), dir.path().join("again"));
    fs::create_dir_all(from.join("none/inner")).unwrap();
    fs::create_dir(from.join("list")).unwrap();
    for file in ["none/inner/file", "list/file", "file"] {
        fs::write(from.join(file), vec![1; 1 << 20]).unwrap();
    }
    for (name, mode) in [("none/inner", 0o100), ("none", 0), ("list", 0o600), ("file", 0o200), ("", 0o300)] {
        fs::set_permissions(from.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    as_unprivileged_user(dir.path(), || {
        let size = measure(&from, 1 << 30).unwrap();
        assert!(size.bytes >= 3 << 20 && size.names == 6, "{size:?}");
        assert_eq!(measure(&from, 2 << 20), Err(TreeError::TooLarge(2 << 20)));
        copy(&from, &to, 1 << 30).unwrap();
        // Copies back, as when a snapshot becomes a home.
        copy(&to, &again, 1 << 30).unwrap();
    });
    for top in [from, to, again] {
        let mode = |name: &str| fs::metadata(top.join(name)).unwrap().mode() & 0o777;
        assert_eq!(mode(""), 0o300);
        fs::set_permissions(&top, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(["none", "list", "file"].map(mode), [0, 0o600, 0o200]);
        for (directory, inner) in [("none", "inner"), ("list", "file")] {
            fs::set_permissions(top.join(directory), fs::Permissions::from_mode(0o700)).unwrap();
            assert!(top.join(directory).join(inner).exists());
        }
        assert_eq!(mode("none/inner"), 0o100);
        assert_eq!(fs::metadata(top.join("none/inner/file")).unwrap().len(), 1 << 20);
    }
}

#[test]
#[ignore = "run by files_that_cannot_be_opened_are_errors"]
fn with_few_descriptors() {
    use rustix::process::{Resource, Rlimit};
    let dir = std::env::current_dir().unwrap();
    let few = Rlimit { current: Some(32), maximum: Some(32) };
    rustix::process::setrlimit(Resource::Nofile, few).unwrap();
    let none_left = Err(TreeError::from(Errno::MFILE));
    assert_eq!(copy(&dir.join("from"), &dir.join("to"), 1 << 20), none_left);
    assert_eq!(measure(&dir.join("from"), 1 << 20).map(drop), none_left);
    println!("it was told");
}

/// Runs one ignored test of this file in another process, in this directory.
fn run_in_own_process(test: &str, dir: &Path) {
    let (passed, said) = run_alone(test, dir);
    assert!(passed && said.contains("it was told"), "{said}");
}

fn run_alone(test: &str, dir: &Path) -> (bool, String) {
    let ran = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", &format!("tree::tests::{test}"), "--nocapture"])
        .current_dir(dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    (ran.status.success(), said)
}

#[test]
fn files_that_cannot_be_opened_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("from").join("d/".repeat(60))).unwrap();
    run_in_own_process("with_few_descriptors", dir.path());
}

#[test]
#[ignore = "run by directory_with_many_entries_is_measured_in_constant_memory"]
fn with_little_memory() {
    let dir = std::env::current_dir().unwrap();
    allow_little_memory();
    measure(&dir, u64::MAX).unwrap();
    println!("it was told");
}

#[test]
#[ignore = "run by directory_with_many_entries_is_measured_in_constant_memory"]
fn with_little_memory_and_all_names() {
    let dir = std::env::current_dir().unwrap();
    allow_little_memory();
    let names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    println!("it was told of {}", names.len());
}

/// Leaves this process 2 MiB more than it has.
fn allow_little_memory() {
    use rustix::process::{Resource, Rlimit};
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let data = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    let data: u64 = data.trim().trim_end_matches(" kB").parse().unwrap();
    let little = Some(data * 1024 + (2 << 20));
    rustix::process::setrlimit(Resource::Data, Rlimit { current: little, maximum: little }).unwrap();
}

#[test]
fn directory_with_many_entries_is_measured_in_constant_memory() {
    let dir = tempfile::tempdir().unwrap();
    let directory = open_top(dir.path()).unwrap();
    for number in 0..20_000 {
        let name = format!("{number:0250}");
        rustix::fs::symlinkat(c"x", &directory, name.as_str()).unwrap();
    }
    run_in_own_process("with_little_memory", dir.path());
    let (passed, said) = run_alone("with_little_memory_and_all_names", dir.path());
    assert!(!passed, "so little memory would do for all names, and the test above cannot fail: {said}");
}

#[test]
fn directory_with_many_entries_is_removed_completely() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    fs::create_dir_all(top.join("many")).unwrap();
    for number in 0..5_000 {
        fs::write(top.join(format!("many/{number}")), "").unwrap();
    }
    remove(&top).unwrap();
    assert!(!top.exists());
}
