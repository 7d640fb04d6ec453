//! Checks `docs/faults.md`: it has a row for every known fault, and every test that it names exists. Also
//! checks the tests that `docs/contract.md` names for attacks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const FAULT_COUNT: u32 = 105;

/// The problems of the table. A row is `| D-nn | text | tests |`; tests are `` `file::function` `` or
/// *later*.
fn problems(table: &str, exists: &dyn Fn(&str, &str) -> bool) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for line in table.lines().filter(|line| line.starts_with("| D-")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, text, tests] = cells[..] else {
            wrong.push(format!("not three cells: {line}"));
            continue;
        };
        if !seen.insert(name.to_owned()) {
            wrong.push(format!("{name} has two rows"));
        }
        if text.is_empty() {
            wrong.push(format!("{name} does not say what was wrong"));
        }
        wrong.extend(missing_tests(name, tests, exists));
    }
    let wanted = (1..=FAULT_COUNT).map(|n| format!("D-{n:02}"));
    wrong.extend(wanted.filter(|name| !seen.contains(name)).map(|name| format!("{name} has no row")));
    wrong
}

fn missing_tests(name: &str, tests: &str, exists: &dyn Fn(&str, &str) -> bool) -> Vec<String> {
    if tests == "*later*" {
        return Vec::new();
    }
    let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
    if named.is_empty() {
        return vec![format!("{name} names no test")];
    }
    let is_missing =
        |test: &&str| !test.split_once("::").is_some_and(|(file, function)| exists(file, function));
    named.into_iter().filter(is_missing).map(|test| format!("{name}: there is no test {test}")).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn exists(file: &str, function: &str) -> bool {
    fs::read_to_string(root().join(file)).is_ok_and(|text| text.contains(&format!("fn {function}(")))
}

#[test]
fn every_fault_has_a_row_and_every_named_test_exists() {
    let table = fs::read_to_string(root().join("docs/faults.md")).unwrap();
    let wrong = problems(&table, &exists);
    assert!(wrong.is_empty(), "docs/faults.md:\n  {}", wrong.join("\n  "));
}

#[test]
fn every_test_against_an_attack_exists() {
    let document = fs::read_to_string(root().join("docs/contract.md")).unwrap();
    let rows: Vec<&str> = document.lines().filter(|line| line.starts_with("| T-")).collect();
    assert!(rows.len() >= 20, "too few rows: the table of attacks was not found");
    let wrong: Vec<_> = rows.iter().flat_map(|row| missing_tests(&row[2..6], row, &exists)).collect();
    assert!(wrong.is_empty(), "docs/contract.md:\n  {}", wrong.join("\n  "));
}

#[test]
fn missing_rows_duplicate_rows_and_unknown_tests_are_found() {
    let exists = |file: &str, function: &str| (file, function) == ("a.rs", "real");
    let table = "| D-01 | x | `a.rs::real` |\n| D-01 | x | *later* |\n| D-02 | x | `a.rs::unreal` |\n| D-03 |  | none |\n";
    let found = problems(table, &exists).join("\n");
    for text in [
        "D-01 has two rows",
        "no test a.rs::unreal",
        "D-03 does not say",
        "D-03 names no test",
        "D-04 has no row",
    ] {
        assert!(found.contains(text), "missing: {text} in\n{found}");
    }
    assert!(!found.contains("a.rs::real"), "{found}");
}
