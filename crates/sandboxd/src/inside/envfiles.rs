//! The environment files of a project: written with their values, and scrubbed before the files are captured.
//!
//! The values come with each request and are kept nowhere else, so a scrub loses nothing that a later apply needs. All
//! paths and all required values are looked at before anything is written.

use std::path::{Path, PathBuf};

use proto::dotenv::quote;
use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use super::beneath::{Roots, clean, refusal};
use super::files::{put, slurp};
use crate::protocol::{
    Code, EnvApplied, EnvBody, EnvFile, EnvMode, EnvScrubbed, EnvWritten, Kind, Place, Refusal,
};

const MAX_FILES: usize = 100;
const MAX_KEYS: usize = 1_000;
const MAX_EXCLUDE: u64 = 1024 * 1024;

/// A file whose paths hold what they must.
struct Target<'a> {
    spec: &'a EnvFile,
    /// Relative to the workspace.
    project: PathBuf,
    /// Relative to the project.
    path: PathBuf,
}

impl Target<'_> {
    fn place(&self) -> Place {
        Place::workspace(text(&self.project.join(&self.path)))
    }
}

/// Only made of what came as UTF-8.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

pub(super) fn apply(roots: &Roots, body: &EnvBody, number: u64) -> Result<EnvApplied, Refusal> {
    let targets = check(&body.spec)?;
    let missing = missing(body);
    if !missing.is_empty() {
        let message = format!("Missing required environment variables: {}", missing.join(", "));
        return Err(Refusal { code: Code::Missing, message, missing });
    }
    if body.values.values().any(|value| value.contains('\0')) {
        return Err(Refusal::new(Code::BadRequest, "a value holds a NUL"));
    }
    let mut applied = Vec::new();
    for target in &targets {
        let lines: Vec<String> = target.spec.keys.iter().filter_map(|key| line(body, &key.key)).collect();
        // Without lines, this is one newline.
        let content = lines.join("\n") + "\n";
        let place = target.place();
        put(roots, &place, Some(0o600), content.as_bytes(), number)?;
        exclude(roots, target, number)?;
        applied.push(EnvWritten { path: place.path, key_count: lines.len() });
    }
    Ok(EnvApplied { applied })
}

pub(super) fn scrub(roots: &Roots, body: &EnvBody, store: &Path) -> Result<EnvScrubbed, Refusal> {
    let mut scrubbed = Vec::new();
    for target in check(&body.spec)? {
        let place = target.place();
        if target.spec.mode == EnvMode::Secret && unlink(roots, &place)? {
            scrubbed.push(place.path);
        }
    }
    // A link there is removed, and not what it leads to.
    let _ = std::fs::remove_file(store);
    Ok(EnvScrubbed { scrubbed })
}

fn unlink(roots: &Roots, place: &Place) -> Result<bool, Refusal> {
    let (folder, name) = match roots.parent(place, false) {
        Err(Refusal { code: Code::NotFound, .. }) => return Ok(false),
        other => other?,
    };
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(refusal(error)),
    }
}

fn check(spec: &[EnvFile]) -> Result<Vec<Target<'_>>, Refusal> {
    if spec.len() > MAX_FILES || spec.iter().any(|file| file.keys.len() > MAX_KEYS) {
        return Err(Refusal::new(Code::Limit, "too many files or keys"));
    }
    spec.iter()
        .map(|spec| {
            let (project, path) = (clean(&spec.workspace_path)?, clean(&spec.path)?);
            if path.as_os_str().is_empty() || spec.path.contains(['\n', '\r']) {
                return Err(Refusal::new(Code::BadRequest, "a file has no path, or one of several lines"));
            }
            if spec.keys.iter().any(|key| !is_name(&key.key)) {
                return Err(Refusal::new(Code::BadRequest, "a key is no name of a variable"));
            }
            Ok(Target { spec, project, path })
        })
        .collect()
}

fn is_name(key: &str) -> bool {
    !key.is_empty()
        && !key.starts_with(|c: char| c.is_ascii_digit())
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Over all files, each once, in the order in which they are asked for.
fn missing(body: &EnvBody) -> Vec<String> {
    let mut missing: Vec<String> = Vec::new();
    for key in body.spec.iter().flat_map(|file| &file.keys) {
        if key.required && !body.values.contains_key(&key.key) && !missing.contains(&key.key) {
            missing.push(key.key.clone());
        }
    }
    missing
}

fn line(body: &EnvBody, key: &str) -> Option<String> {
    body.values.get(key).map(|value| format!("{key}={}", quote(value)))
}

/// Git must not offer the file for commit. Where the project is no repository of its own, nothing is to be done.
fn exclude(roots: &Roots, target: &Target<'_>, number: u64) -> Result<(), Refusal> {
    let git = Place::workspace(text(&target.project.join(".git")));
    if !roots.stat(&git).is_ok_and(|stat| stat.kind == Kind::Directory) {
        return Ok(());
    }
    let place = Place::workspace(text(&target.project.join(".git/info/exclude")));
    let mut content = match slurp(roots, &place, MAX_EXCLUDE) {
        Err(Refusal { code: Code::NotFound, .. }) => Vec::new(),
        other => other?,
    };
    let line = text(&target.path);
    if content.split(|byte| *byte == b'\n').any(|known| known.trim_ascii_end() == line.as_bytes()) {
        return Ok(());
    }
    if !content.is_empty() && !content.ends_with(b"\n") {
        content.push(b'\n');
    }
    content.extend_from_slice(line.as_bytes());
    content.push(b'\n');
    put(roots, &place, None, &content, number)
}
