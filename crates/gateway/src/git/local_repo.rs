//! Repositories in directories of the operator's machine, served to sandboxes by `git http-backend`: read-only, below the
//! roots that the settings name, and as the directory's owner, since the gateway may be root.

mod git_dir;

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, TryStreamExt as _};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

use git_dir::Roots;

/// The longest header that the backend may write.
const MAX_HEADER: u64 = 8 * 1024;

/// A request in the terms of CGI, which the backend speaks.
pub(super) struct CgiRequest<'a> {
    pub(super) method: &'a str,
    /// The part of the URL after the repository.
    pub(super) path: &'a str,
    pub(super) query: &'a str,
    pub(super) content_type: &'a str,
    pub(super) content_encoding: &'a str,
}

/// The backend's response.
pub(super) struct CgiResponse {
    pub(super) content_type: String,
    pub(super) body: BoxStream<'static, io::Result<Bytes>>,
}

/// The directory at a path, if it is below one of the roots. Symbolic links are resolved first, so that none leads out of
/// a root.
pub(super) fn allowed(roots: &[PathBuf], path: &Path) -> Option<PathBuf> {
    Roots::new(roots).resolve(path).filter(|directory| directory.is_dir())
}

/// The git directory of a directory that is allowed, if nothing in it leads out of the roots. See [`Roots::git_dir`] for
/// the errors.
pub(super) async fn git_dir(roots: &[PathBuf], directory: &Path) -> io::Result<PathBuf> {
    let (roots, directory) = (Roots::new(roots), directory.to_owned());
    tokio::task::spawn_blocking(move || roots.git_dir(&directory)).await?
}

/// Runs the backend on a git directory that is allowed.
pub(super) async fn serve<S>(git_dir: &Path, request: &CgiRequest<'_>, body: S) -> io::Result<CgiResponse>
where
    S: Stream<Item = io::Result<Bytes>> + Send + 'static,
{
    let mut child = backend(git_dir, request)?.spawn()?;
    let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    tokio::spawn(async move {
        let mut body = std::pin::pin!(body);
        // On an error the backend sees the end of its input, and fails.
        while let Ok(Some(chunk)) = body.try_next().await {
            if stdin.write_all(&chunk).await.is_err() {
                return;
            }
        }
    });
    let mut out = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
    let content_type = read_header(&mut out).await?;
    // The child is killed when the stream is dropped.
    let body = stream::try_unfold((out, child), |(mut out, child)| async move {
        let chunk = Bytes::copy_from_slice(out.fill_buf().await?);
        out.consume(chunk.len());
        Ok((!chunk.is_empty()).then_some((chunk, (out, child))))
    });
    Ok(CgiResponse { content_type, body: Box::pin(body) })
}

/// The backend inherits neither the gateway's environment nor the machine's or the user's git configuration.
fn backend(git_dir: &Path, request: &CgiRequest<'_>) -> io::Result<Command> {
    let owner = git_dir.metadata()?;
    // As text, a path that is not UTF-8 would become another one, which nobody has checked.
    let mut translated: OsString = git_dir.into();
    translated.push(request.path);
    let mut command = Command::new("git");
    command
        .arg("http-backend")
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("PATH_TRANSLATED", translated)
        .env("REQUEST_METHOD", request.method)
        .env("QUERY_STRING", request.query)
        .env("CONTENT_TYPE", request.content_type)
        .env("HTTP_CONTENT_ENCODING", request.content_encoding)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    // Only root can switch to another user, and git refuses repositories of other users.
    if Path::new("/proc/self").metadata()?.uid() == 0 {
        command.uid(owner.uid()).gid(owner.gid());
    }
    Ok(command)
}

/// Reads the header up to the empty line. A `Status` line means failure: the backend omits it on success.
async fn read_header(out: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut content_type = String::new();
    let mut left = MAX_HEADER;
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
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn git_gets_the_path_that_was_checked() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join(OsStr::from_bytes(b"a\xff"));
        std::fs::create_dir(&odd).unwrap();
        let (path, query, content_type, content_encoding) = ("/info/refs", "", "", "");
        let request = CgiRequest { method: "GET", path, query, content_type, content_encoding };
        let command = backend(&odd, &request).unwrap();
        let set = command.as_std().get_envs().find(|(name, _)| *name == "PATH_TRANSLATED");
        let mut expected = odd.into_os_string();
        expected.push("/info/refs");
        assert_eq!(set.and_then(|(_, value)| value), Some(expected.as_os_str()));
    }

    #[test]
    fn only_directories_below_a_root_are_served_by_any_path() {
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
