//! Folders as an attacker would make them.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::*;

fn copy(from: &Path, to: &Path, most: u64) -> Result<(), TreeError> {
    fs::create_dir(to).unwrap();
    Copy::new(None, most).run(from, to)
}

#[test]
fn a_copy_keeps_links_modes_and_times_and_drops_what_is_dangerous() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("a/b")).unwrap();
    fs::write(from.join("a/b/run"), "x").unwrap();
    fs::set_permissions(from.join("a/b/run"), fs::Permissions::from_mode(0o4755)).unwrap();
    symlink("/etc/shadow", from.join("evil")).unwrap();
    symlink("/etc", from.join("folder")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap());
    copy(&from, &to, 1 << 20).unwrap();
    assert_eq!(fs::read_link(to.join("evil")).unwrap(), Path::new("/etc/shadow"));
    assert!(fs::symlink_metadata(to.join("folder")).unwrap().is_symlink());
    assert!(!to.join("socket").exists());
    let (old, new) = (fs::metadata(from.join("a/b/run")).unwrap(), fs::metadata(to.join("a/b/run")).unwrap());
    assert_eq!(new.mode() & 0o7777, 0o755);
    assert_eq!((old.mtime(), old.mtime_nsec()), (new.mtime(), new.mtime_nsec()));
}

#[test]
fn a_sparse_file_costs_what_it_holds_and_a_large_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    let file = File::create(from.join("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    copy(&from, &dir.path().join("to"), 1 << 20).unwrap();
    assert_eq!(fs::metadata(dir.path().join("to/sparse")).unwrap().len(), 1 << 40);
    assert!(measure(&from, 1 << 20).unwrap() < 1 << 20);
    fs::write(from.join("full"), vec![1; 2 << 20]).unwrap();
    assert_eq!(measure(&from, 1 << 20), Err(TreeError::TooLarge(1 << 20)));
    assert_eq!(copy(&from, &dir.path().join("to2"), 1 << 20), Err(TreeError::TooLarge(1 << 20)));
}

#[test]
fn a_very_deep_folder_is_refused_and_still_removed() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    fs::create_dir(&top).unwrap();
    let mut at = open_top(&top).unwrap();
    let keep = dir.path().join("keep");
    fs::write(&keep, "safe").unwrap();
    for depth in 0..1000 {
        rustix::fs::mkdirat(&at, c"d", Mode::RWXU).unwrap();
        let next = open_folder(&at, c"d").unwrap();
        if depth % 100 == 0 {
            rustix::fs::symlinkat(&keep, &next, c"out").unwrap();
            rustix::fs::fchmod(&at, Mode::empty()).unwrap();
        }
        at = next;
    }
    // As an ordinary user the folders without rights hide the depth from the measure, never from the removal.
    fs::set_permissions(&top, fs::Permissions::from_mode(0o700)).unwrap();
    if rustix::process::geteuid().is_root() {
        assert_eq!(measure(&top, u64::MAX), Err(TreeError::TooDeep));
    }
    remove(&top).unwrap();
    assert!(!top.exists());
    assert_eq!(fs::read_to_string(keep).unwrap(), "safe");
    remove(&top).unwrap();
}

#[test]
fn a_link_in_place_of_the_folder_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    fs::create_dir(&real).unwrap();
    fs::write(real.join("file"), "x").unwrap();
    symlink(&real, &link).unwrap();
    assert!(remove(&link).is_err());
    assert!(real.join("file").exists());
}

#[test]
fn rights_are_given_to_a_folder_and_never_through_a_link_that_took_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    fs::create_dir(&real).unwrap();
    let mode = || fs::metadata(&real).unwrap().mode() & 0o777;
    fs::set_permissions(&real, fs::Permissions::from_mode(0o500)).unwrap();
    symlink(&real, &link).unwrap();
    let top = open_top(dir.path()).unwrap();
    assert!(remove::give_rights(&top, c"link").is_err());
    assert_eq!(mode(), 0o500);
    remove::give_rights(&top, c"real").unwrap();
    assert_eq!(mode(), 0o700);
}

/// What a sandbox that is not stopped can do while its files are copied.
#[test]
fn a_folder_swapped_for_a_link_in_the_middle_leads_nowhere() {
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
                let folder = fs::symlink_metadata(&copied).is_ok_and(|found| found.is_dir());
                if folder && let Ok(text) = fs::read_to_string(copied.join("file")) {
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
fn two_may_remove_the_same_folder_at_once() {
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
fn what_is_to_be_left_out_is_not_in_the_copy_and_stays_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("a/ours")).unwrap();
    for file in ["a/.env", "a/ours/key", "a/.env.example", "ours", "b"] {
        fs::write(from.join(file), "x").unwrap();
    }
    // A link to what is left out leads nowhere in the copy.
    symlink("a/.env", from.join("link")).unwrap();
    fs::create_dir(&to).unwrap();
    let without = ["a/.env", "a/ours", "nowhere", "b/c"].map(std::path::PathBuf::from);
    Copy::new(None, 1 << 20).without(without.to_vec()).run(&from, &to).unwrap();
    let there = |name: &str| fs::read(to.join(name)).is_ok();
    assert_eq!(["a/.env", "a/ours/key", "link"].map(there), [false; 3]);
    assert_eq!(["a/.env.example", "ours", "b"].map(there), [true; 3]);
    assert!(fs::read(from.join("link")).is_ok() && fs::read(from.join("a/ours/key")).is_ok());
}
