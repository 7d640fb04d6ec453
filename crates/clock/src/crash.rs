//! Places where tests let the process die.

/// Aborts the process where a test asked for it by this name (`FAILPOINTS`). Does nothing in a build that is not for
/// tests.
pub fn crash_point(name: &str) {
    // The macro expands to nothing without its feature.
    let _ = name;
    fail::fail_point!(name, |_| std::process::abort());
}
