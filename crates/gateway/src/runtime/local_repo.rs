//! Repositories in folders of the operator's machine, served to sandboxes by git's own backend: read only, below the
//! roots that the settings name, and with the rights of the folder's owner, since the gateway may be root.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, TryStreamExt as _};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

/// The longest head of what the backend says.
const MAX_HEAD: u64 = 8 * 1024;

/// What git asks, as its backend wants to know it.
pub(crate) struct Question<'a> {
    pub(crate) method: &'a str,
    /// What follows the repository in the URL.
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
    pub(crate) content_type: &'a str,
    pub(crate) content_encoding: &'a str,
}

/// What the backend says.
pub(crate) struct Answer {
    pub(crate) content_type: String,
    pub(crate) body: BoxStream<'static, io::Result<Bytes>>,
}

/// The folder that a path leads to, if it is one of those that may be served. Links are followed first, so that none
/// leads out of a root.
pub(crate) fn allowed(roots: &[PathBuf], path: &Path) -> Option<PathBuf> {
    let folder = path.canonicalize().ok().filter(|folder| folder.is_dir())?;
    let roots = roots.iter().filter_map(|root| root.canonicalize().ok());
    roots.into_iter().any(|root| folder.starts_with(root)).then_some(folder)
}

/// Asks the backend about a folder that is allowed.
pub(crate) async fn ask<S>(folder: &Path, question: &Question<'_>, body: S) -> io::Result<Answer>
where
    S: Stream<Item = io::Result<Bytes>> + Send + 'static,
{
    let mut child = backend(folder, question)?.spawn()?;
    let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    tokio::spawn(async move {
        let mut body = std::pin::pin!(body);
        // Whatever breaks, its end tells the backend.
        while let Ok(Some(piece)) = body.try_next().await {
            if stdin.write_all(&piece).await.is_err() {
                return;
            }
        }
    });
    let mut out = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
    let content_type = head(&mut out).await?;
    // The backend lives as long as somebody reads.
    let body = stream::try_unfold((out, child), |(mut out, child)| async move {
        let piece = Bytes::copy_from_slice(out.fill_buf().await?);
        out.consume(piece.len());
        Ok((!piece.is_empty()).then_some((piece, (out, child))))
    });
    Ok(Answer { content_type, body: Box::pin(body) })
}

/// Nothing of the gateway's own environment or of anybody's settings reaches it.
fn backend(folder: &Path, question: &Question<'_>) -> io::Result<Command> {
    let owner = folder.metadata()?;
    let mut command = Command::new("git");
    command
        .arg("http-backend")
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("PATH_TRANSLATED", format!("{}{}", folder.display(), question.path))
        .env("REQUEST_METHOD", question.method)
        .env("QUERY_STRING", question.query)
        .env("CONTENT_TYPE", question.content_type)
        .env("HTTP_CONTENT_ENCODING", question.content_encoding)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    // Only root may become somebody else, and only root must.
    if Path::new("/proc/self").metadata()?.uid() == 0 {
        command.uid(owner.uid()).gid(owner.gid());
    }
    Ok(command)
}

/// Reads up to the empty line. Anything but a success is an error.
async fn head(out: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut content_type = String::new();
    let mut left = MAX_HEAD;
    loop {
        let mut line = String::new();
        let read = out.take(left).read_line(&mut line).await?;
        left = left.saturating_sub(read as u64);
        match line.trim_end().split_once(": ") {
            _ if read == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            None => return Ok(content_type),
            Some(("Status", _)) => return Err(io::ErrorKind::NotFound.into()),
            Some(("Content-Type", value)) => value.clone_into(&mut content_type),
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_below_a_root_are_served_whatever_leads_to_them() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        std::fs::create_dir_all(root.join("app")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        let roots = [root.clone()];
        let serves = |path: &str| allowed(&roots, Path::new(&format!("{}{path}", root.display()))).is_some();
        assert!(serves("/app") && serves("/app/../app/."));
        for path in ["/link", "/../outside", "/file", "/absent", "2"] {
            assert!(!serves(path), "{path}");
        }
        assert!(allowed(&[], &root).is_none());
    }
}
