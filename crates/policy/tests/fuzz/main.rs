//! Fuzzes policy files for a few seconds, and checks that the fuzzer finds planted bugs.

mod targets;

use std::time::Duration;

use policy::{Files, Policy, PolicyError};
use targets::{POLICY, policy_with};
use testkit::fuzz::{Target, finds, holds};

#[test]
fn policy_loader_upholds_its_invariants() {
    holds(POLICY, Duration::from_secs(8));
}

/// A planted bug: reports line numbers that do not exist.
fn without_lines(files: Files<'_>) -> Result<Policy, PolicyError> {
    Policy::load(files).map_err(|error| PolicyError { line: error.line * 1000, ..error })
}

/// Drops anchors instead of rejecting them, as a parser that resolves them would.
fn resolves_anchors(files: Files<'_>) -> Result<Policy, PolicyError> {
    let lanes = files.lanes.map(|text| text.replace("&a", ""));
    Policy::load(Files { lanes: lanes.as_deref(), ..files })
}

/// A planted bug: panics on multi-byte characters.
fn panics_at_letters(files: Files<'_>) -> Result<Policy, PolicyError> {
    assert!(files.lanes.is_none_or(str::is_ascii), "the index is inside a multi-byte character");
    Policy::load(files)
}

#[test]
fn fuzzer_finds_planted_bugs() {
    let planted: [(targets::Load, &str); 3] = [
        (without_lines, "does not exist"),
        (resolves_anchors, "an anchor was accepted"),
        (panics_at_letters, "panicked"),
    ];
    for (load, problem) in planted {
        finds(Target { run: &|input, _| policy_with(load, input), ..POLICY }, problem);
    }
}
