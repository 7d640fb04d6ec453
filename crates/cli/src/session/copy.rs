//! `session cp`: copies files and directories between this machine and the sandbox of a session.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use client::Client;
use proto::SessionId;
use proto::http::FileKind;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use super::{find, work};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::warn;

/// The number of copied files and bytes.
#[derive(Default)]
struct CopySummary {
    files: u64,
    bytes: u64,
}

/// One side of a copy.
enum Side {
    Here(PathBuf),
    Sandbox { session: String, path: String },
}

pub(super) async fn cp(context: &Context, client: &Client, from: &str, to: &str) -> Result<(), Failure> {
    let mut copied = CopySummary::default();
    match (side(from), side(to)) {
        (Side::Here(from), Side::Sandbox { session, path }) => {
            let id = find(client, &session).await?;
            let _watching = work::wake(client, id).await?;
            let to = remote_target(client, id, &path, &from).await?;
            Box::pin(upload(client, id, &from, &to, &mut copied)).await?;
        }
        (Side::Sandbox { session, path }, Side::Here(to)) => {
            let id = find(client, &session).await?;
            let _watching = work::wake(client, id).await?;
            let to = if to.is_dir() { to.join(last_name(&path)) } else { to };
            Box::pin(download(client, id, &path, &to, &mut copied)).await?;
        }
        _ => {
            let way = "write the one in the sandbox as SESSION:PATH";
            return Err(Failure::usage(format!(
                "one of FROM and TO must be in a sandbox, the other here: {way}"
            )));
        }
    }
    let CopySummary { files, bytes } = copied;
    context
        .out
        .result(&json!({ "files": files, "bytes": bytes }), &format!("copied {files} files, {bytes} bytes"));
    Ok(())
}

/// `SESSION:PATH` is in a sandbox. A path of this machine with a colon can be written as `./a:b`.
fn side(text: &str) -> Side {
    match text.split_once(':') {
        Some((session, path)) if !session.is_empty() && !session.contains('/') => {
            Side::Sandbox { session: session.to_owned(), path: path.to_owned() }
        }
        _ => Side::Here(PathBuf::from(text)),
    }
}

/// The last part of a path in a sandbox; `workspace` for the workspace itself.
fn last_name(path: &str) -> &str {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if matches!(name, "" | "." | "~") { "workspace" } else { name }
}

fn local_file_error(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("{}: {error}", path.display()))
}

/// The path in the sandbox: inside of an existing directory, or as it was given.
async fn remote_target(client: &Client, id: SessionId, path: &str, from: &Path) -> Result<String, Failure> {
    let is_directory = path.is_empty()
        || path.ends_with('/')
        || match client.list_files(id, path).await {
            Ok(listing) => listing.kind == FileKind::Directory,
            Err(error) if error.status() == Some(404) => false,
            Err(error) => return Err(error.into()),
        };
    if !is_directory {
        return Ok(path.to_owned());
    }
    let whole = from.canonicalize().map_err(|error| local_file_error(from, &error))?;
    let name = whole.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::usage("FROM has no name that the sandbox could use"))?;
    Ok(join(path, name))
}

fn join(directory: &str, name: &str) -> String {
    match directory.trim_end_matches('/') {
        "" => name.to_owned(),
        directory => format!("{directory}/{name}"),
    }
}

/// Copies a file, or a directory with everything in it except symlinks.
async fn upload(
    client: &Client,
    id: SessionId,
    from: &Path,
    to: &str,
    copied: &mut CopySummary,
) -> Result<(), Failure> {
    let failed = |error: io::Error| local_file_error(from, &error);
    let about = fs::metadata(from).map_err(failed)?;
    if about.is_file() {
        let content = fs::read(from).map_err(failed)?;
        copied.files += 1;
        copied.bytes += content.len() as u64;
        client.write_file(id, to, about.permissions().mode() & 0o777, content).await?;
        return Ok(());
    }
    if !about.is_dir() {
        return Err(Failure::usage(format!("{} is neither a file nor a directory", from.display())));
    }
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        match entry.file_name().to_str() {
            Some(name) if kind.is_file() || kind.is_dir() => {
                Box::pin(upload(client, id, &entry.path(), &join(to, name), copied)).await?;
            }
            _ => warn(&format!(
                "{} is left out: it is no file or directory, or its name is not UTF-8",
                entry.path().display()
            )),
        }
    }
    Ok(())
}

/// Copies a file, or a directory with everything in it except symlinks. The names come from the sandbox, so each is checked.
async fn download(
    client: &Client,
    id: SessionId,
    from: &str,
    to: &Path,
    copied: &mut CopySummary,
) -> Result<(), Failure> {
    let listing = client.list_files(id, from).await?;
    match listing.kind {
        FileKind::Directory => {}
        FileKind::File => return download_file(client, id, from, to, copied).await,
        FileKind::Symlink | FileKind::Other => {
            return Err(Failure::failed(format!("{from} is neither a file nor a directory")));
        }
    }
    if listing.truncated {
        return Err(Failure::failed(format!(
            "{from} has too many entries: pack them with `session exec … tar` first"
        )));
    }
    fs::create_dir_all(to).map_err(|error| local_file_error(to, &error))?;
    for entry in listing.entries {
        let plain = !entry.name.contains(['/', '\0']) && !matches!(entry.name.as_str(), "" | "." | "..");
        if plain && matches!(entry.kind, FileKind::File | FileKind::Directory) {
            Box::pin(download(client, id, &join(from, &entry.name), &to.join(&entry.name), copied)).await?;
        } else {
            warn(&format!("{} in {from} is left out: it is no file or directory", entry.name));
        }
    }
    Ok(())
}

/// Downloads to a temporary file beside the target, so that a broken connection leaves no half of a file.
async fn download_file(
    client: &Client,
    id: SessionId,
    from: &str,
    to: &Path,
    copied: &mut CopySummary,
) -> Result<(), Failure> {
    let failed = |error: io::Error| local_file_error(to, &error);
    let mut content = client.read_file(id, from).await?;
    let directory =
        to.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let part = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
    let mut out = tokio::fs::File::from_std(part.reopen().map_err(failed)?);
    while let Some(bytes) = content.next().await? {
        out.write_all(&bytes).await.map_err(failed)?;
        copied.bytes += bytes.len() as u64;
    }
    out.flush().await.map_err(failed)?;
    let mode = if content.mode().unwrap_or_default() & 0o100 == 0 { 0o644 } else { 0o755 };
    fs::set_permissions(part.path(), fs::Permissions::from_mode(mode)).map_err(failed)?;
    part.persist(to).map_err(|error| failed(error.error))?;
    copied.files += 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_names_a_session_unless_a_slash_is_before_it() {
        let in_sandbox = |text: &str| matches!(side(text), Side::Sandbox { .. });
        assert!(in_sandbox("abcd:src/main.rs") && in_sandbox("My title:"));
        assert!(!in_sandbox("./a:b") && !in_sandbox("file") && !in_sandbox("/tmp/a:b"));
        assert_eq!([last_name("a/b/"), last_name(""), last_name("~")], ["b", "workspace", "workspace"]);
        assert_eq!([join("", "a"), join("x/", "a"), join("~/y", "a")], ["a", "x/a", "~/y/a"]);
    }
}
