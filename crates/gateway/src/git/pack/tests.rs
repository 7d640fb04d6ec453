//! Packs that git itself wrote, split at any point and corrupted.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;

fn git(directory: &Path, arguments: &[&str], input: &str) -> Vec<u8> {
    let mut command = Command::new("git");
    command.current_dir(directory).args(["-c", "user.name=Ada", "-c", "user.email=a@example.com"]);
    let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let ran = child.wait_with_output().unwrap();
    assert!(ran.status.success(), "{arguments:?}");
    ran.stdout
}

fn id(directory: &Path, name: &str) -> String {
    String::from_utf8(git(directory, &["rev-parse", name], "")).unwrap().trim().to_owned()
}

/// Forty commits with long, similar messages, so that git stores deltas of them, and a merge on top.
fn history(directory: &Path, format: &str) {
    git(directory, &["init", "-q", "-b", "main", &format!("--object-format={format}")], "");
    let words = "the same words again and again ".repeat(20);
    for number in 0..40 {
        std::fs::write(directory.join("file"), format!("{number}")).unwrap();
        git(directory, &["add", "file"], "");
        git(directory, &["commit", "-qm", &format!("{words}{number}")], "");
    }
    git(directory, &["checkout", "-qb", "side", "HEAD~3"], "");
    git(directory, &["commit", "-q", "--allow-empty", "-m", "side"], "");
    git(directory, &["tag", "-a", "-m", "a tag", "v1"], "");
    git(directory, &["merge", "-q", "-m", "merge", "main"], "");
}

fn pack(directory: &Path, range: &str, more: &[&str]) -> Vec<u8> {
    git(directory, &[&["pack-objects", "--stdout", "--revs", "-q"], more].concat(), range)
}

fn scan(pack: &[u8], chunk: usize, id_length: usize) -> CommitScan {
    let mut scan = CommitScan::new(id_length);
    for end in (0..pack.len()).step_by(chunk).chain([pack.len()]) {
        if scan.advance(&pack[..end]) == Scan::Done {
            break;
        }
    }
    scan
}

#[test]
fn ancestors_are_found_in_packs_written_by_git() {
    for (format, length) in [("sha1", 40), ("sha256", 64)] {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        history(directory, format);
        let (tip, old) = (id(directory, "side"), id(directory, "main~30"));
        let (main, root) = (id(directory, "main"), id(directory, "main~39"));
        let range = format!("side\nv1\n^{old}\n");
        for more in [&["--delta-base-offset", "--thin"][..], &["--thin"], &["--window=50", "--depth=50"]] {
            let pack = pack(directory, &range, more);
            for chunk in [101, 4000, pack.len()] {
                let scan = scan(&pack, chunk, length);
                assert_eq!(scan.search(&tip, &old), Search::Found, "{format} {more:?} {chunk}");
                assert_eq!(scan.search(&tip, &main), Search::Found);
                assert!(scan.has_child_of(&old) && !scan.has_child_of(&tip));
                // The pack does not contain `old`, so nothing is known about its ancestors.
                assert_eq!(scan.search(&tip, &root), Search::Missing(vec![old.clone()]));
                assert_eq!(scan.search(&root, &old), Search::Missing(vec![root.clone()]));
            }
        }
    }
}

#[test]
fn corrupt_packs_end_the_scan_and_prove_no_false_ancestry() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    history(directory, "sha1");
    let (tip, old) = (id(directory, "side"), id(directory, "main~30"));
    let intact = pack(directory, &format!("side\n^{old}\n"), &["--delta-base-offset"]);
    let stranger = "1".repeat(40);
    for at in (0..intact.len().min(6000)).step_by(7) {
        for change in [0x01, 0x80, 0xff] {
            let mut corrupt = intact.clone();
            corrupt[at] ^= change;
            let scan = scan(&corrupt, corrupt.len(), 40);
            assert_ne!(scan.search(&tip, &stranger), Search::Found);
            assert!(!scan.has_child_of(&stranger));
        }
    }
    for nothing in [&b""[..], b"PACK", b"PACK\0\0\0\x09\0\0\0\x01", b"HTTP/1.1 200 OK\r\n"] {
        let scan = scan(nothing, 1, 40);
        assert_eq!(scan.search(&tip, &old), Search::Missing(vec![tip.clone()]));
    }
    // A commit with a huge declared size is not inflated.
    let mut bomb = b"PACK\0\0\0\x02\0\0\0\x01".to_vec();
    bomb.extend([0x9f, 0xff, 0xff, 0x7f, 0x78, 0x9c]);
    assert_eq!(CommitScan::new(40).advance(&bomb), Scan::Done);
    // A commit of empty deflate blocks does not keep the scan busy.
    let mut empty = b"PACK\0\0\0\x02\0\0\0\x01\x11\x78\x9c".to_vec();
    empty.extend([0, 0, 0, 0xff, 0xff].repeat(1000));
    assert_eq!(CommitScan::new(40).advance(&empty), Scan::Done);
}
