//! Files: reading and writing, and that no path leads out of the roots.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use sandboxd::protocol::{Code, Kind, MAX_FILE, Place};

use crate::common::{code, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn written_file_is_read_completely_or_in_part() {
    let sandbox = start().await;
    let client = &sandbox.client;
    let content: Vec<u8> = (0..5_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
    let place = || Place::workspace("a/b/c.bin");
    let stat = client.write_file(place(), content.clone(), Some(0o750)).await.unwrap();
    assert_eq!((stat.kind, stat.size, stat.mode), (Kind::File, 5_000_000, 0o750));
    let read = client.read_file(place(), 0, MAX_FILE).await.unwrap();
    assert!(read.bytes == content && read.size == 5_000_000 && read.mode == 0o750);
    let part = client.read_file(place(), 4_999_990, 100).await.unwrap();
    assert_eq!(part.bytes, content[4_999_990..]);
    assert_eq!(client.read_file(place(), 9_000_000, 100).await.unwrap().bytes, b"");
    client.write_file(place(), "short", None).await.unwrap();
    let file = sandbox.workspace().join("a/b/c.bin");
    assert_eq!(std::fs::read(&file).unwrap(), b"short");
    assert_eq!(
        file.metadata().unwrap().permissions().mode() & 0o777,
        0o750,
        "the mode of the replaced file must be kept"
    );
    client.write_file(Place::home(".profile"), "", None).await.unwrap();
    assert_eq!(client.stat(Place::home(".profile")).await.unwrap().size, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_are_created_listed_moved_and_removed() {
    let sandbox = start().await;
    let client = &sandbox.client;
    client.mkdir(Place::workspace("x/y/z")).await.unwrap();
    client.write_file(Place::workspace("x/file"), "12345", None).await.unwrap();
    symlink("/etc", sandbox.workspace().join("x/link")).unwrap();
    let listing = client.list(Place::workspace("x"), 100).await.unwrap();
    let seen: Vec<(&str, Kind)> =
        listing.entries.iter().map(|entry| (&*entry.name, entry.stat.kind)).collect();
    assert_eq!(seen, [("file", Kind::File), ("link", Kind::Symlink), ("y", Kind::Directory)]);
    assert!(!listing.truncated);
    let listing = client.list(Place::workspace("x"), 2).await.unwrap();
    assert!(listing.truncated && listing.entries.len() == 2);
    client.rename(Place::workspace("x/file"), Place::workspace("x/y/moved")).await.unwrap();
    assert_eq!(client.stat(Place::workspace("x/y/moved")).await.unwrap().size, 5);
    assert_eq!(code(client.stat(Place::workspace("x/file")).await), Code::NotFound);
    assert_eq!(code(client.remove(Place::workspace("x"), false).await), Code::NotEmpty);
    client.remove(Place::workspace("x"), true).await.unwrap();
    assert_eq!(client.list(Place::workspace(""), 10).await.unwrap().entries, []);
    assert_eq!(code(client.remove(Place::workspace("."), true).await), Code::BadRequest);
    for number in 0..3000 {
        std::fs::write(sandbox.workspace().join(format!("a-rather-long-name-{number}")), "").unwrap();
    }
    let listing = client.list(Place::workspace(""), 5000).await.unwrap();
    assert_eq!(
        (listing.entries.len(), listing.truncated),
        (3000, false),
        "a listing longer than a frame must arrive"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_symlink_or_path_leaves_the_root() {
    let sandbox = start().await;
    let client = &sandbox.client;
    let outside = sandbox.directory.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "secret").unwrap();
    let workspace = sandbox.workspace();
    symlink(&outside, workspace.join("absolute")).unwrap();
    symlink("../../outside", workspace.join("relative")).unwrap();
    symlink(outside.join("secret"), workspace.join("file")).unwrap();
    symlink("/proc/self/root/etc", workspace.join("magic")).unwrap();
    symlink("inner", workspace.join("within")).unwrap();
    std::fs::create_dir(workspace.join("inner")).unwrap();
    for path in [
        "absolute/secret",
        "relative/secret",
        "file",
        "magic/passwd",
        "../../outside/secret",
        "/etc/passwd",
        "inner/../../x",
    ] {
        let place = || Place::workspace(path);
        assert_eq!(code(client.read_file(place(), 0, 100).await), Code::Escapes, "read {path}");
        assert_eq!(code(client.write_file(place(), "x", None).await), Code::Escapes, "write {path}");
    }
    for path in ["absolute/secret", "relative/secret", "/etc/passwd", "../x"] {
        let place = || Place::workspace(path);
        assert_eq!(code(client.stat(place()).await), Code::Escapes, "stat {path}");
        let removed = code(client.remove(place(), true).await);
        assert!(matches!(removed, Code::Escapes | Code::NotADirectory), "remove {path}: {removed:?}");
    }
    assert_eq!(code(client.list(Place::workspace("absolute"), 10).await), Code::Escapes);
    assert_eq!(code(client.mkdir(Place::workspace("absolute/made")).await), Code::Escapes);
    let to_outside = client.rename(Place::workspace("inner"), Place::workspace("absolute/inner")).await;
    assert!(matches!(code(to_outside), Code::Escapes | Code::NotADirectory));
    // A symlink that stays inside is followed for reading, and never for writing.
    std::fs::write(workspace.join("inner/text"), "inner").unwrap();
    assert_eq!(client.read_file(Place::workspace("within/text"), 0, 10).await.unwrap().bytes, b"inner");
    assert_eq!(code(client.write_file(Place::workspace("within/text"), "x", None).await), Code::Escapes);
    client.remove(Place::workspace("absolute"), true).await.unwrap();
    assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"secret");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory_swapped_for_a_symlink_never_leaves_the_root() {
    let sandbox = start().await;
    let outside = sandbox.directory.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let workspace = sandbox.workspace();
    std::fs::create_dir(workspace.join("dir")).unwrap();
    symlink(&outside, workspace.join("link")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapping = std::thread::spawn({
        let (stop, real, link) = (Arc::clone(&stop), workspace.join("dir"), workspace.join("link"));
        move || {
            let mut swaps = 0;
            while !stop.load(Ordering::SeqCst) {
                renameat_with(CWD, &real, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                swaps += 1;
            }
            swaps
        }
    });
    let (mut written, mut refused) = (0, 0);
    for number in 0..1500 {
        let place = Place::workspace(format!("dir/file{}", number % 10));
        match sandbox.client.write_file(place, "x", None).await {
            Ok(_) => written += 1,
            Err(_) => refused += 1,
        }
        let place = || Place::workspace("dir/new/file");
        let _ = sandbox.client.write_file(place(), "x", None).await;
        let _ = sandbox.client.rename(place(), Place::workspace("dir/moved")).await;
        let _ = sandbox.client.remove(Place::workspace("dir/new"), true).await;
    }
    let escaped = std::fs::read_dir(&outside).unwrap().count();
    // The control experiment: without the protection, the race leads outside.
    for _ in 0..1000 {
        let _ = std::fs::write(workspace.join("dir/careless"), "x");
    }
    stop.store(true, Ordering::SeqCst);
    let swaps = swapping.join().unwrap();
    println!("{written} written, {refused} refused, {swaps} swaps");
    assert_eq!(escaped, 0, "a file was created outside of the root");
    assert!(written > 0 && refused > 0 && outside.join("careless").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifos_devices_and_directories_are_refused_as_files() {
    let sandbox = start().await;
    let workspace = sandbox.workspace();
    mknodat(CWD, workspace.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(workspace.join("socket")).unwrap();
    for name in ["fifo", "socket"] {
        let place = || Place::workspace(name);
        assert_eq!(code(sandbox.client.read_file(place(), 0, 10).await), Code::NotAFile, "{name}");
        assert_eq!(code(sandbox.client.write_file(place(), "x", None).await), Code::NotAFile, "{name}");
        assert_eq!(sandbox.client.stat(place()).await.unwrap().kind, Kind::Other);
    }
    assert_eq!(code(sandbox.client.read_file(Place::workspace(""), 0, 10).await), Code::IsADirectory);
    assert_eq!(code(sandbox.client.list(Place::workspace("fifo"), 10).await), Code::NotADirectory);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn huge_file_is_read_in_parts_and_failed_write_leaves_nothing() {
    let sandbox = start().await;
    let workspace = sandbox.workspace();
    let file = std::fs::File::create(workspace.join("huge")).unwrap();
    file.set_len(1 << 40).unwrap();
    let part = sandbox.client.read_file(Place::workspace("huge"), 1 << 39, 1000).await.unwrap();
    assert_eq!((part.bytes.len(), part.size), (1000, 1 << 40));
    std::fs::remove_file(workspace.join("huge")).unwrap();

    std::fs::write(workspace.join("kept"), "old").unwrap();
    let inode = workspace.join("kept").metadata().unwrap().ino();
    sandbox.client.write_file(Place::workspace("kept"), "new", None).await.unwrap();
    assert_ne!(
        workspace.join("kept").metadata().unwrap().ino(),
        inode,
        "a write must replace the file atomically"
    );
    let cut = crate::hostile::write_with_limit(sandbox.port, "kept", 10, 1000).await;
    assert!(cut.contains("too_large"), "{cut}");
    let names = || -> Vec<_> {
        std::fs::read_dir(&workspace).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    crate::hostile::write_and_disconnect(sandbox.port, "kept", || names().len() == 2).await;
    crate::common::wait_until("the temporary file is removed", || names() == ["kept"]).await;
    assert_eq!(std::fs::read(workspace.join("kept")).unwrap(), b"new");
}
