//! Reads JSON that a command gets in a file or on standard input.

use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use crate::failure::Failure;

/// More than any command accepts.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file, or standard input for `-`. A key that occurs twice is refused, because another parser could read
/// another value.
pub(crate) fn read_json(option: &str, file: &Path) -> Result<Value, Failure> {
    let failed = |error| Failure::usage(format!("{option}: cannot read {}: {error}", file.display()));
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().take(MAX_BYTES + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
    };
    if read.map_err(failed)? as u64 > MAX_BYTES {
        return Err(Failure::usage(format!("{option} has more than 1 MiB")));
    }
    let wrong = |error: String| Failure::usage(format!("{option}: {} is {error}", file.display()));
    ledger::check(text.as_bytes()).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| wrong(format!("not JSON: {error}")))
}
