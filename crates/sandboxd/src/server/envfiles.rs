//! The environment files of a project: their values are written into them, and removed on request.
//!
//! The values arrive with each request and are stored nowhere else, so scrubbing loses nothing that a later apply
//! needs. All paths and required values are checked before anything is written. Other variables in a file are the
//! agent's own and stay.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use proto::dotenv::merge;
use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use super::files::{read_small, write_small};
use super::roots::{Roots, clean, refusal};
use crate::protocol::{
    Code, ENV_RECORD, EnvApplyResult, EnvBody, EnvFile, EnvMode, EnvScrubResult, Kind, Place, Refusal,
    WrittenEnvFile,
};

const MAX_FILES: usize = 100;
const MAX_KEYS: usize = 1_000;
const MAX_EXCLUDE: u64 = 1024 * 1024;
const MAX_TEXT: u64 = 1024 * 1024;
/// Every request reads and rewrites the same record.
static RECORD_LOCK: Mutex<()> = Mutex::new(());

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

/// The content of [`ENV_RECORD`]. Thus a value that nobody has any more is removed, and a value that the agent wrote itself is not.
type WrittenVariables = BTreeMap<String, BTreeSet<String>>;

pub(super) fn apply(roots: &Roots, body: &EnvBody, number: u64) -> Result<EnvApplyResult, Refusal> {
    let targets = check(&body.spec)?;
    let missing = missing_variables(body);
    if !missing.is_empty() {
        let message = format!("Missing required environment variables: {}", missing.join(", "));
        return Err(Refusal { code: Code::Missing, message, missing });
    }
    if body.values.values().any(|value| value.contains('\0')) {
        return Err(Refusal::new(Code::BadRequest, "a value contains a NUL"));
    }
    let _one_at_a_time = RECORD_LOCK.lock();
    let mut written = written(roots);
    let mut applied = Vec::new();
    for target in &targets {
        let keys: Vec<&str> = target.spec.keys.iter().map(|key| key.key.as_str()).collect();
        let values: Vec<(&str, &str)> =
            keys.iter().filter_map(|key| Some((*key, body.values.get(*key)?.as_str()))).collect();
        let place = target.place();
        let names: BTreeSet<String> = values.iter().map(|(key, _)| (*key).to_owned()).collect();
        let before = written.remove(&place.path).unwrap_or_default();
        let gone: Vec<&str> = before.difference(&names).map(String::as_str).collect();
        let old = read_text(roots, &place)?;
        // A file without any value would be of no use to anybody.
        if old.is_none() && values.is_empty() && !keys.is_empty() {
            continue;
        }
        let content = merge(old.as_deref().unwrap_or_default(), &values, &gone);
        exclude(roots, target, number)?;
        // Recorded before the file has the values: if we die in between, a later request still removes them.
        written.insert(place.path.clone(), &before | &names);
        write_record(roots, &written, number)?;
        write_small(roots, &place, Some(0o600), content.as_bytes(), number)?;
        written.insert(place.path.clone(), names);
        write_record(roots, &written, number)?;
        applied.push(WrittenEnvFile { path: place.path, key_count: values.len() });
    }
    Ok(EnvApplyResult { applied })
}

/// Removes the variables of secret files, and the files that have no others. What is in these files afterwards is the
/// agent's own.
pub(super) fn scrub(
    roots: &Roots,
    body: &EnvBody,
    store: &Path,
    number: u64,
) -> Result<EnvScrubResult, Refusal> {
    let _one_at_a_time = RECORD_LOCK.lock();
    let mut written = written(roots);
    let mut scrubbed = Vec::new();
    for target in check(&body.spec)?.iter().filter(|target| target.spec.mode == EnvMode::Secret) {
        let place = target.place();
        let keys = target.spec.keys.iter().map(|key| &key.key);
        let ours: Vec<&str> =
            keys.chain(written.get(&place.path).into_iter().flatten()).map(String::as_str).collect();
        // What cannot be read cannot be separated either.
        let old = read_text(roots, &place).ok().flatten().unwrap_or_default();
        let left = merge(&old, &[], &ours);
        let changed = if left.trim().is_empty() {
            unlink(roots, &place)?
        } else if left == merge(&old, &[], &[]) {
            false
        } else {
            write_small(roots, &place, Some(0o600), left.as_bytes(), number)?;
            true
        };
        if written.remove(&place.path).is_some() {
            write_record(roots, &written, number)?;
        }
        if changed {
            scrubbed.push(place.path);
        }
    }
    // This removes a symlink at the path, not its target.
    let _ = std::fs::remove_file(store);
    Ok(EnvScrubResult { scrubbed })
}

/// Reads an environment file. `None` if there is none.
fn read_text(roots: &Roots, place: &Place) -> Result<Option<String>, Refusal> {
    let content = match read_small(roots, place, MAX_TEXT) {
        Err(Refusal { code: Code::NotFound, .. }) => return Ok(None),
        other => other?,
    };
    let not_text = |_| Refusal::new(Code::BadRequest, format!("{} is not a text in UTF-8", place.path));
    String::from_utf8(content).map(Some).map_err(not_text)
}

/// An unreadable record counts as empty: it only means that values stay which nobody has any more.
fn written(roots: &Roots) -> WrittenVariables {
    let content = read_small(roots, &Place::home(ENV_RECORD), MAX_TEXT);
    content.ok().and_then(|content| serde_json::from_slice(&content).ok()).unwrap_or_default()
}

fn write_record(roots: &Roots, written: &WrittenVariables, number: u64) -> Result<(), Refusal> {
    let content =
        serde_json::to_vec(written).map_err(|_| Refusal::new(Code::Io, "cannot record the variables"))?;
    write_small(roots, &Place::home(ENV_RECORD), Some(0o600), &content, number)
}

fn unlink(roots: &Roots, place: &Place) -> Result<bool, Refusal> {
    let (directory, name) = match roots.parent(place, false) {
        Err(Refusal { code: Code::NotFound, .. }) => return Ok(false),
        other => other?,
    };
    match unlinkat(directory, name, AtFlags::empty()) {
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
fn missing_variables(body: &EnvBody) -> Vec<String> {
    let mut missing: Vec<String> = Vec::new();
    for key in body.spec.iter().flat_map(|file| &file.keys) {
        if key.required && !body.values.contains_key(&key.key) && !missing.contains(&key.key) {
            missing.push(key.key.clone());
        }
    }
    missing
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
