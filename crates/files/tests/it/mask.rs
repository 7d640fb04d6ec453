//! Texts that are overwritten in plain files and in databases of SQLite, which must stay as valid as they were.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use rusqlite::Connection;
use tempfile::TempDir;

const SECRET: &str = "canary-4711-of-a-test";

fn find(bytes: &[u8]) -> Vec<Range<usize>> {
    let windows = bytes.windows(SECRET.len()).enumerate();
    windows.filter(|(_, window)| *window == SECRET.as_bytes()).map(|(at, _)| at..at + SECRET.len()).collect()
}

/// Masks a directory's `history`.
fn mask(top: &TempDir) -> u64 {
    files::mask(top.path(), Path::new("data/history"), &find).unwrap()
}

fn history() -> TempDir {
    let top = tempfile::tempdir().unwrap();
    fs::create_dir_all(top.path().join("data/history/inner")).unwrap();
    top
}

fn has_secret(path: &Path) -> bool {
    !find(&fs::read(path).unwrap()).is_empty()
}

/// A copy of a database with its log, made while the database is open.
fn copy(from: &Path, to: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let name = |path: &Path| format!("{}{suffix}", path.display());
        fs::copy(name(from), name(to)).unwrap();
    }
}

fn texts(database: &Connection) -> Vec<(i64, String)> {
    let mut rows = database.prepare("SELECT id, data FROM part ORDER BY id").unwrap();
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

/// Every offset of the secret in a page, so that some rows have half of it in one page and half in the next.
fn fill(database: &Connection) -> Vec<(i64, String)> {
    database.execute_batch("CREATE TABLE part(id INTEGER PRIMARY KEY, data TEXT NOT NULL)").unwrap();
    let text = |before: i64| {
        let before = usize::try_from(before).unwrap();
        format!("{}{SECRET}{}", "a".repeat(before), "b".repeat(3_000))
    };
    for id in 0..1_200 {
        database.execute("INSERT INTO part VALUES (?1, ?2)", (id, text(id))).unwrap();
    }
    // A shorter text leaves the longer one in free pages.
    let short = format!("x{SECRET}");
    database.execute("UPDATE part SET data = ?1 WHERE id % 3 = 0", [&short]).unwrap();
    let wanted = |id: i64| if id % 3 == 0 { short.clone() } else { text(id) };
    (0..1_200).map(|id| (id, wanted(id).replace(SECRET, &"*".repeat(SECRET.len())))).collect()
}

#[test]
fn every_row_of_a_database_is_masked_and_the_others_stay() {
    for (page_size, checkpoints) in [(512, false), (512, true), (4_096, false), (65_536, true)] {
        let (origin, top) = (tempfile::tempdir().unwrap(), history());
        let (from, to) = (origin.path().join("agent.db"), top.path().join("data/history/agent.db"));
        let database = Connection::open(&from).unwrap();
        database.pragma_update(None, "page_size", page_size).unwrap();
        database.pragma_update(None, "journal_mode", "WAL").unwrap();
        database.pragma_update(None, "wal_autocheckpoint", if checkpoints { 100 } else { 0 }).unwrap();
        let wanted = fill(&database);
        // What nobody has committed is in the log too, and gone afterwards.
        database.execute_batch("PRAGMA cache_spill = 1; PRAGMA cache_size = 1; BEGIN").unwrap();
        database.execute("UPDATE part SET data = 'lost'", []).unwrap();
        copy(&from, &to);
        assert!(has_secret(&to) || has_secret(&to.with_extension("db-wal")));

        assert_eq!(mask(&top), 0);
        assert_eq!(fs::read_dir(to.parent().unwrap()).unwrap().count(), 2, "the log is in the database now");
        assert!(!has_secret(&to), "pages of {page_size}");
        let masked = Connection::open(&to).unwrap();
        let integrity: String = masked.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(integrity, "ok", "pages of {page_size}");
        assert!(texts(&masked) == wanted, "pages of {page_size}, checkpoints: {checkpoints}");
    }
}

/// Such a row is read in parts.
#[test]
fn a_row_of_megabytes_is_masked_wherever_the_text_is() {
    for page_size in [512, 4_096] {
        let top = history();
        let file = top.path().join("data/history/agent.db");
        let database = Connection::open(&file).unwrap();
        database.pragma_update(None, "page_size", page_size).unwrap();
        database.execute_batch("CREATE TABLE part(id INTEGER PRIMARY KEY, data TEXT NOT NULL)").unwrap();
        let parts: Vec<_> = (0..60).map(|at| format!("{}{SECRET}", "a".repeat(50_000 + at))).collect();
        let text = parts.concat();
        database.execute("INSERT INTO part VALUES (1, ?1)", [&text]).unwrap();
        drop(database);
        assert_eq!(mask(&top), 0);
        assert!(!has_secret(&file));
        let masked = texts(&Connection::open(&file).unwrap());
        assert!(masked == [(1, text.replace(SECRET, &"*".repeat(SECRET.len())))], "pages of {page_size}");
    }
}

#[test]
fn a_file_with_too_many_texts_is_removed() {
    let top = history();
    let [full, file] = ["a", "b"].map(|name| top.path().join("data/history").join(name));
    fs::write(&full, "x.".repeat(1_000_001)).unwrap();
    fs::write(&file, "nothing").unwrap();
    let every_x = |bytes: &[u8]| -> Vec<Range<usize>> {
        bytes.iter().enumerate().filter(|(_, byte)| **byte == b'x').map(|(at, _)| at..at + 1).collect()
    };
    assert_eq!(files::mask(top.path(), Path::new("data/history"), &every_x).unwrap(), 1);
    assert!(!full.exists() && file.exists());
}

#[test]
fn plain_files_are_masked_wherever_the_text_is() {
    let top = history();
    let file = top.path().join("data/history/inner/log");
    let filler = "é".repeat(523_000);
    for before in [0, 1_048_570, 2_000_000] {
        fs::write(&file, format!("{}{SECRET}{filler}{SECRET}", "a".repeat(before))).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
        mask(&top);
        let hidden = "*".repeat(SECRET.len());
        let masked = fs::read_to_string(&file).unwrap();
        assert!(masked == format!("{}{hidden}{filler}{hidden}", "a".repeat(before)), "{before}");
    }
}

#[test]
fn a_number_stays_a_number() {
    let top = history();
    let file = top.path().join("data/history/part.json");
    fs::write(&file, r#"{"time":4711471147,"text":"4711471147"}"#).unwrap();
    let number = |bytes: &[u8]| -> Vec<Range<usize>> {
        let found = bytes.windows(10).enumerate().filter(|(_, window)| *window == b"4711471147");
        found.map(|(at, _)| at..at + 10).collect()
    };
    files::mask(top.path(), Path::new("data/history"), &number).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), r#"{"time":1111111111,"text":"1111111111"}"#);
}

/// A database whose second page has 60 times a row of 2 MiB, of which every piece but the first is the third page.
fn endless_row() -> Vec<u8> {
    let mut database = b"SQLite format 3\0".to_vec();
    database.extend([2, 0]);
    database.resize(512, 0);
    let mut leaf = vec![0x0d, 0, 0, 0, 60, 0, 0, 0];
    leaf.extend([0, 200].repeat(60));
    leaf.resize(200, 0);
    // The length and the number of the row.
    leaf.extend([0x81, 0x80, 0x80, 0x00, 1]);
    leaf.resize(512, 0);
    // After 128 bytes of the row comes the number of the next page.
    leaf[333..337].copy_from_slice(&[0, 0, 0, 3]);
    let mut piece = vec![0, 0, 0, 3];
    piece.extend(SECRET.as_bytes());
    piece.resize(512, b'\n');
    [database, leaf, piece].concat()
}

#[test]
fn links_lead_nowhere_and_hostile_databases_end() {
    let top = history();
    let (outside, directory) = (top.path().join("outside"), top.path().join("data/history"));
    fs::write(&outside, SECRET).unwrap();
    symlink(&outside, directory.join("link")).unwrap();
    symlink(top.path(), directory.join("directory")).unwrap();
    // Its pages and its log name themselves and what does not exist.
    let mut database = b"SQLite format 3\0".to_vec();
    database.extend([2, 0]);
    database.resize(20, 0);
    database.push(0);
    database.resize(100, 0);
    database.extend([0x0d, 0, 0, 255, 255]);
    database.resize(512, 0xff);
    let page: Vec<u8> = [&[0x0d, 0, 0, 255, 255, 0, 0, 0][..], &[1; 504]].concat();
    fs::write(directory.join("hostile.db"), [database, page].concat()).unwrap();
    symlink(&outside, directory.join("hostile.db-wal")).unwrap();
    let endless = directory.join("endless.db");
    fs::write(&endless, endless_row()).unwrap();
    fs::File::options().write(true).open(&endless).unwrap().set_len(5 << 20).unwrap();
    fs::write(directory.join("odd.db"), b"SQLite format 3\0").unwrap();
    let claims = fs::File::create(directory.join("sparse")).unwrap();
    claims.set_len(1 << 40).unwrap();
    assert_eq!(mask(&top), 1, "the file of a terabyte is removed");
    assert!(has_secret(&outside) && !directory.join("sparse").exists());
    assert!(!has_secret(&endless));
    assert_eq!(fs::metadata(directory.join("hostile.db")).unwrap().size(), 1_024);

    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(mask(&top), 0, "there is no history yet");
    symlink(top.path(), &directory).unwrap();
    assert_eq!(mask(&top), 0);
    assert!(has_secret(&outside));
}
