//! Some seconds of mutated policy files, and planted bugs that the fuzzer must find.

mod targets;

use std::time::Duration;

use policy::{Files, Policy, PolicyError};
use targets::{POLICY, policy_with};
use testkit::fuzz::{Target, finds, holds};

#[test]
fn policy_files_keep_their_promises() {
    holds(POLICY, Duration::from_secs(8));
}

/// Forgets to put the line into its message, as a reader without locations does.
fn without_lines(files: Files<'_>) -> Result<Policy, PolicyError> {
    Policy::load(files).map_err(|error| PolicyError { line: error.line * 1000, ..error })
}

/// Takes what stands before an anchor away, as readers do that resolve it.
fn resolves_anchors(files: Files<'_>) -> Result<Policy, PolicyError> {
    let lanes = files.lanes.map(|text| text.replace("&a", ""));
    Policy::load(Files { lanes: lanes.as_deref(), ..files })
}

/// Forgets that letters may have several bytes.
fn panics_at_letters(files: Files<'_>) -> Result<Policy, PolicyError> {
    assert!(files.lanes.is_none_or(str::is_ascii), "the index is inside of a letter");
    Policy::load(files)
}

#[test]
fn planted_bugs_are_found() {
    let planted: [(targets::Load, &str); 3] = [
        (without_lines, "is not there"),
        (resolves_anchors, "an anchor was accepted"),
        (panics_at_letters, "panicked"),
    ];
    for (load, problem) in planted {
        finds(Target { run: &|input, _| policy_with(load, input), ..POLICY }, problem);
    }
}
