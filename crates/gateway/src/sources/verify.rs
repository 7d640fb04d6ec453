//! `verify`: the agent uploads a directory with evidence of its work, such as screenshots and test logs. People see the
//! files in the session.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use clock::Clock;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, Failure, Output, Outside, Permit};
use ledger::Redactor;
use proto::{AgentMode, JsonObject, SessionId};
use sandboxd::protocol::{Code, Kind, Place};
use sandboxd::{ClientError, Sandboxd};
use serde_json::{Value, json};
use store::{NewEvidence, NewEvidenceFile, Store};
use tokio::sync::Semaphore;

use super::live_sandboxes::LiveSandboxes;
use super::platform::{Implementation, PlatformTool, ToolHost, session_with, store_failure};
use crate::runtime::EVIDENCE_DIR;

/// What one upload may have. A sandbox is hostile: it may have endless files, directories and bytes.
/// The event of the call names each file and the call's output.
const MAX_FILES: usize = ledger::MAX_ARTIFACTS - 1;
const MAX_DIRECTORIES: usize = 50;
/// The entries of a directory that are looked at, and the files that the answer names as left out.
const MAX_ENTRIES: usize = 100;
const MAX_FILE: u64 = 10 * 1024 * 1024;
const MAX_UPLOAD: u64 = 40 * 1024 * 1024;
/// The bytes of evidence that a session may have in all.
const MAX_SESSION: i64 = 200 * 1024 * 1024;
/// The longest path of a file in the directory.
const MAX_PATH: usize = 300;
/// The uploads that are read at a time, because each holds its files in memory.
pub(crate) const MAX_CONCURRENT_UPLOADS: usize = 2;

pub(super) static TOOL: PlatformTool = PlatformTool {
    name: "verify",
    aliases: &[],
    argument_aliases: &[],
    version: 2,
    description: "Upload evidence that the work is right: screenshots, test logs, recordings. Put the files into a \
        directory first, then call this with the directory. The user sees them in the session.",
    guidance: |mode| match mode {
        AgentMode::Setup => {
            "uploads evidence. Collect what shows that the project runs (test logs, screenshots of its pages) in \
            .proliferate/.verification, and upload it before you save a snapshot."
        }
        AgentMode::Coding | AgentMode::Automation | AgentMode::Scratch => {
            "uploads evidence of your work from .proliferate/.verification, such as test logs and screenshots. Do it \
            when the user can judge the result better by seeing it. Never commit that directory."
        }
    },
    schema,
    place: ToolHost::Gateway {
        timeout: Duration::from_secs(110),
        implement: |platform| {
            Implementation::Outside(Box::new(Verify {
                store: platform.store.clone(),
                clock: platform.clock.clone(),
                sandboxes: platform.sandboxes.clone(),
                slots: platform.upload_slots.clone(),
            }))
        },
    },
};

fn schema() -> Value {
    let directory = json!({"type": "string", "minLength": 1, "maxLength": 500, "format": "workspace-path",
        "description": "The directory with the files, inside the workspace; .proliferate/.verification by default"});
    json!({
        "type": "object",
        "properties": {"folder": directory},
        "required": [],
        "additionalProperties": false,
    })
}

struct Verify {
    store: Store,
    clock: Clock,
    sandboxes: Arc<dyn LiveSandboxes>,
    slots: Arc<Semaphore>,
}

impl Outside for Verify {
    /// The files of a call replace those that it uploaded before.
    fn replay_safe(&self) -> bool {
        true
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        call: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        async move {
            let session = session_with(&self.store, call, &TOOL).await?;
            let directory = call.target.parameters["folder"].as_str().unwrap_or(EVIDENCE_DIR);
            let directory = plain_path(directory).ok_or_else(|| {
                Failure::Refused("folder must be a directory inside the workspace".to_owned())
            })?;
            let stopping = |_| Failure::Down("the gateway is stopping".to_owned());
            let _slot = self.slots.acquire().await.map_err(stopping)?;
            let inside = self.sandboxes.enter(permit, session.id).await.map_err(Failure::Refused)?;
            let secret = self.store.secret_paths(session.id).await.map_err(|error| store_failure(&error))?;
            let secret: HashSet<String> = secret.into_iter().collect();
            let found = read_directory(&inside.supervisor, &directory, &secret).await?;
            let found = redact(found, permit.redactor().clone()).await?;
            self.save(permit, call, session.id, found).await
        }
        .boxed()
    }
}

impl Verify {
    async fn save(
        &self,
        permit: &Permit,
        call: &CallRequest,
        session: SessionId,
        found: Found,
    ) -> Result<Output, Failure> {
        if found.files.is_empty() {
            return Ok(Output { text: nothing(&found.skipped), data: None });
        }
        // A call that is executed again replaces its files.
        let size = self.store.evidence_size(session, &call.run.id).await;
        let size = size.map_err(|error| store_failure(&error))?;
        let new: i64 = found.files.iter().filter_map(|(_, bytes)| i64::try_from(bytes.len()).ok()).sum();
        if size.saturating_add(new) > MAX_SESSION {
            let limit = MAX_SESSION / 1024 / 1024;
            return Err(Failure::Refused(format!(
                "The evidence of a session has at most {limit} MiB in all."
            )));
        }
        let now = self.clock.now();
        // Unique by the call, sorted by the time.
        let upload: String = call.run.id.chars().rev().take(8).collect();
        let prefix = format!("sessions/{session}/verification/{}-{upload}/", now.timestamp());
        let file = |(path, bytes): (String, Vec<u8>)| NewEvidenceFile {
            key: format!("{prefix}{path}"),
            artifact: gate::file_artifact(call, session, content_type(&path), bytes, now),
        };
        let count = found.files.len();
        let files: Vec<_> = found.files.into_iter().map(file).collect();
        for file in &files {
            permit.add_evidence(&file.artifact);
        }
        let new = NewEvidence {
            org_id: call.caller.org,
            session_id: session,
            run_id: call.run.id.clone(),
            files,
            at: now,
        };
        self.store.save_evidence(new).await.map_err(|error| store_failure(&error))?;
        Ok(upload_output(&prefix, count, &found.skipped))
    }
}

fn upload_output(prefix: &str, count: usize, skipped: &[String]) -> Output {
    let mut data = JsonObject::new();
    data.insert("uploadedCount".to_owned(), json!(count));
    data.insert("prefix".to_owned(), json!(prefix));
    let mut text = json!({"key": prefix});
    if !skipped.is_empty() {
        text["skipped"] = json!(skipped);
    }
    Output { text: text.to_string(), data: Some(data) }
}

fn nothing(skipped: &[String]) -> String {
    if skipped.is_empty() {
        "There are no files in the directory, so nothing was uploaded. Put evidence there first.".to_owned()
    } else {
        format!("Nothing was uploaded. Skipped: {}", skipped.join(", "))
    }
}

/// The files of a directory, by their paths in it, and what was left out and why.
#[derive(Default)]
struct Found {
    files: Vec<(String, Vec<u8>)>,
    skipped: Vec<String>,
}

impl Found {
    fn skip(&mut self, path: &str, why: &str) {
        if self.skipped.len() < MAX_ENTRIES {
            self.skipped.push(format!("{path} ({why})"));
        }
    }
}

/// Whether there is a directory at a path of the workspace. A path through a symbolic link is none: it could be another
/// path of a file with secrets.
async fn is_directory(inside: &Sandboxd, directory: &str) -> Result<bool, Failure> {
    let ends = directory.match_indices('/').map(|(at, _)| at).chain([directory.len()]);
    for end in ends {
        match inside.stat(Place::workspace(&directory[..end])).await {
            Ok(stat) if stat.kind == Kind::Directory => {}
            Ok(_) => return Err(Failure::Refused("folder is not a directory".to_owned())),
            Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => return Ok(false),
            Err(error) => return Err(unreadable(&error)),
        }
    }
    Ok(true)
}

/// Reads a directory of the workspace without the files at these paths of the workspace. Symbolic links are not followed:
/// their targets are not evidence.
async fn read_directory(
    inside: &Sandboxd,
    directory: &str,
    secret: &HashSet<String>,
) -> Result<Found, Failure> {
    if !is_directory(inside, directory).await? {
        return Ok(Found::default());
    }
    let (mut found, mut left, mut visited) = (Found::default(), MAX_UPLOAD, 0);
    let mut directories = vec![String::new()];
    while let Some(path) = directories.pop() {
        visited += 1;
        let listed = inside.list(Place::workspace(join(directory, &path)), MAX_ENTRIES).await;
        let listing = listed.map_err(|error| unreadable(&error))?;
        if listing.truncated {
            found.skip(&join(&path, "…"), "too many files");
        }
        for entry in listing.entries {
            let path = join(&path, &entry.name);
            match entry.stat.kind {
                Kind::Directory if visited + directories.len() < MAX_DIRECTORIES => directories.push(path),
                Kind::Directory => found.skip(&path, "too many directories"),
                Kind::Symlink | Kind::Other => found.skip(&path, "not a regular file"),
                Kind::File if secret.contains(&join(directory, &path)) => {
                    found.skip(&path, "a file with secrets");
                }
                Kind::File => match may_upload(&path, entry.stat.size, found.files.len(), left) {
                    Err("empty") => {}
                    Err(why) => found.skip(&path, why),
                    Ok(()) => {
                        let content = read_file(inside, &join(directory, &path), left).await?;
                        left = left.saturating_sub(content.len() as u64);
                        found.files.push((path, content));
                    }
                },
            }
        }
    }
    found.files.retain(|(_, content)| !content.is_empty());
    Ok(found)
}

/// Removes known secrets from texts, because people of the whole organization see evidence. It is done off the async
/// workers: an upload is large.
async fn redact(mut found: Found, redactor: Redactor) -> Result<Found, Failure> {
    let redacted = tokio::task::spawn_blocking(move || {
        for (path, content) in &mut found.files {
            redact_file(path, content, &redactor);
        }
        found
    });
    redacted.await.map_err(|_| Failure::Down("the evidence could not be searched for secrets".to_owned()))
}

/// Removes known secrets from a file if its name or its content says that it is a text. Other files stay as they are:
/// no program could read them if their bytes were replaced.
fn redact_file(path: &str, content: &mut Vec<u8>, redactor: &Redactor) {
    let named_text = content_type(path).starts_with("text/") || content_type(path) == "application/json";
    let text = match std::str::from_utf8(content) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) if named_text => String::from_utf8_lossy(content),
        Err(_) => return,
    };
    let redacted = redactor.known_in_text(&text);
    if redacted != text {
        *content = redacted.into_bytes();
    }
}

/// Whether a file is uploaded. Environment files never are, wherever they come from.
fn may_upload(path: &str, size: u64, files: usize, left: u64) -> Result<(), &'static str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let odd =
        path.len() > MAX_PATH || path.contains(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER);
    match () {
        () if size == 0 => Err("empty"),
        () if odd => Err("unusual name"),
        () if name.starts_with(".env") => Err("an environment file"),
        () if size > MAX_FILE => Err("larger than 10 MiB"),
        () if size > left => Err("more than 40 MiB in all"),
        () if files >= MAX_FILES => Err("more than 63 files"),
        () => Ok(()),
    }
}

/// Reads a file, which may have grown since it was listed.
async fn read_file(inside: &Sandboxd, path: &str, left: u64) -> Result<Vec<u8>, Failure> {
    let read = inside.read_file(Place::workspace(path), 0, MAX_FILE.min(left)).await;
    Ok(read.map_err(|error| unreadable(&error))?.bytes)
}

fn unreadable(error: &ClientError) -> Failure {
    tracing::info!(%error, "evidence cannot be read");
    Failure::Refused("The directory cannot be read; nothing was uploaded.".to_owned())
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

/// The names of a path. `None` for the workspace itself, which has more than evidence.
fn plain_path(path: &str) -> Option<String> {
    let names: Vec<_> = path.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    (!names.is_empty()).then(|| names.join("/"))
}

/// The content type by the name. Types that a browser would execute are not among them.
fn content_type(path: &str) -> &'static str {
    let extension = path.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    match extension.as_deref() {
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("gif") => "image/gif",
        Some("webp") => "image/webp",
        Some("mp4") => "video/mp4",
        Some("webm") => "video/webm",
        Some("json") => "application/json",
        Some("txt" | "log" | "md" | "diff" | "patch" | "csv" | "xml") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_too_large_secret_or_oddly_named_are_left_out() {
        assert_eq!(may_upload("a/shot.png", MAX_FILE, 0, MAX_UPLOAD), Ok(()));
        for (path, size, files, left, why) in [
            ("a", 0, 0, MAX_UPLOAD, "empty"),
            ("a", MAX_FILE + 1, 0, MAX_UPLOAD, "larger than 10 MiB"),
            ("a", 2, 0, 1, "more than 40 MiB in all"),
            ("a", 2, MAX_FILES, MAX_UPLOAD, "more than 63 files"),
            ("a/.env.local", 2, 0, MAX_UPLOAD, "an environment file"),
            ("a\nb", 2, 0, MAX_UPLOAD, "unusual name"),
            ("a\u{fffd}", 2, 0, MAX_UPLOAD, "unusual name"),
        ] {
            assert_eq!(may_upload(path, size, files, left), Err(why), "{path:?}");
        }
        assert!(may_upload(&"x".repeat(MAX_PATH + 1), 1, 0, MAX_UPLOAD).is_err());
    }

    #[test]
    fn known_secrets_are_removed_from_texts_and_other_files_stay_as_they_are() {
        let redactor = Redactor::new(["canary-41"]).unwrap();
        let redacted = |path: &str, content: &[u8]| {
            let mut content = content.to_vec();
            redact_file(path, &mut content, &redactor);
            content
        };
        assert_eq!(redacted("a.log", b"key=canary-41, 7 pass"), b"key=[REDACTED], 7 pass");
        assert_eq!(redacted("a.json", br#"{"key":"canary-41"}"#), br#"{"key":"[REDACTED]"}"#);
        assert_eq!(redacted("no-extension", b"canary-41"), b"[REDACTED]");
        assert_eq!(redacted("a.log", b"\xff canary-41"), "\u{fffd} [REDACTED]".as_bytes());
        for (path, same) in [("a.png", &b"\x89PNG\xff canary-41"[..]), ("a.log", b"\xff no secret")] {
            assert_eq!(redacted(path, same), same, "{path}");
        }
    }

    #[test]
    fn the_workspace_itself_is_not_uploaded() {
        assert_eq!(plain_path("./a//b/").as_deref(), Some("a/b"));
        for whole in ["", ".", "./", "//"] {
            assert_eq!(plain_path(whole), None, "{whole}");
        }
    }

    #[test]
    fn executable_files_are_served_without_their_content_type() {
        assert_eq!(content_type("a/b.PNG"), "image/png");
        for risky in ["a.html", "a.svg", "a.js", "a", ".html", "a.xhtml"] {
            assert_eq!(content_type(risky), "application/octet-stream", "{risky}");
        }
        assert!(content_type("a.xml").starts_with("text/plain"));
    }
}
