//! The environment files of a project: written with their values, and scrubbed before a snapshot of the files is
//! taken.
//!
//! The values arrive with each request and are stored nowhere else, so scrubbing loses nothing that a later apply
//! needs. All paths and required values are checked before anything is written.

use std::path::{Path, PathBuf};

use proto::dotenv::quote;
use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use super::files::{read_small, write_small};
use super::roots::{Roots, clean, refusal};
use crate::protocol::{
    Code, EnvApplyResult, EnvBody, EnvFile, EnvMode, EnvScrubResult, Kind, Place, Refusal, WrittenEnvFile,
};

const MAX_FILES: usize = 100;
const MAX_KEYS: usize = 1_000;
const MAX_EXCLUDE: u64 = 1024 * 1024;

/// An environment file whose paths were validated.
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

/// Lossless, because every part arrived as UTF-8.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

pub(super) fn apply(roots: &Roots, body: &EnvBody, number: u64) -> Result<EnvApplyResult, Refusal> {
    let targets = check(&body.spec)?;
    let missing = missing(body);
    if !missing.is_empty() {
        let message = format!("Missing required environment variables: {}", missing.join(", "));
        return Err(Refusal { code: Code::Missing, message, missing });
    }
    if body.values.values().any(|value| value.contains('\0')) {
        return Err(Refusal::new(Code::BadRequest, "a value contains a NUL"));
    }
    let mut applied = Vec::new();
    for target in &targets {
        let lines: Vec<String> = target.spec.keys.iter().filter_map(|key| line(body, &key.key)).collect();
        // Without variables, the file is a single newline.
        let content = lines.join("\n") + "\n";
        let place = target.place();
        write_small(roots, &place, Some(0o600), content.as_bytes(), number)?;
        exclude(roots, target, number)?;
        applied.push(WrittenEnvFile { path: place.path, key_count: lines.len() });
    }
    Ok(EnvApplyResult { applied })
}

pub(super) fn scrub(roots: &Roots, body: &EnvBody, store: &Path) -> Result<EnvScrubResult, Refusal> {
    let mut scrubbed = Vec::new();
    for target in check(&body.spec)? {
        let place = target.place();
        if target.spec.mode == EnvMode::Secret && unlink(roots, &place)? {
            scrubbed.push(place.path);
        }
    }
    // This removes a symlink at the path, not its target.
    let _ = std::fs::remove_file(store);
    Ok(EnvScrubResult { scrubbed })
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
                return Err(Refusal::new(
                    Code::BadRequest,
                    "the path of a file is empty or contains a line break",
                ));
            }
            if spec.keys.iter().any(|key| !is_name(&key.key)) {
                return Err(Refusal::new(Code::BadRequest, "a key is not a valid variable name"));
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

/// The missing required variables of all files, each once, in the order of the request.
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

/// Keeps the file out of commits. If the project is not a Git repository, nothing needs to be done.
fn exclude(roots: &Roots, target: &Target<'_>, number: u64) -> Result<(), Refusal> {
    let git = Place::workspace(text(&target.project.join(".git")));
    if !roots.stat(&git).is_ok_and(|stat| stat.kind == Kind::Directory) {
        return Ok(());
    }
    let place = Place::workspace(text(&target.project.join(".git/info/exclude")));
    let mut content = match read_small(roots, &place, MAX_EXCLUDE) {
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
    write_small(roots, &place, None, &content, number)
}
