//! The calls that work in the sandbox of a session: commands, files, differences and logs.

use bytes::{Buf as _, Bytes, BytesMut};
use proto::SessionId;
use proto::http::{
    DiffQuery, ExecCommand, ExecFrame, FileEntry, FileListing, FileQuery, LogQuery, SessionDiff,
};
use reqwest::{Method, RequestBuilder, Response};

use crate::client::{Client, append_query, display_origin, read, send};
use crate::error::{Error, cause};

/// The longest line of a command's output; the gateway sends shorter ones.
const MAX_LINE: usize = 4 * 1024 * 1024;

/// The output of a running command. Dropping it kills the command.
#[derive(Debug)]
pub struct ExecOutput {
    answer: Response,
    buffered: BytesMut,
}

/// The bytes of a file or a log.
#[derive(Debug)]
pub struct Download {
    answer: Response,
}

impl Client {
    /// Runs a command in the sandbox of a session, which must be running.
    pub async fn exec(&self, session: SessionId, command: &ExecCommand) -> Result<ExecOutput, Error> {
        let request = self.post(&["proliferate", &session.to_string(), "exec"], None).json(command);
        Ok(ExecOutput { answer: open(request).await?, buffered: BytesMut::new() })
    }

    /// Lists a directory in the sandbox, or shows one file.
    pub async fn list_files(&self, session: SessionId, path: &str) -> Result<FileListing, Error> {
        let mut url = self.url(&["proliferate", &session.to_string(), "files"]);
        append_query(&mut url, &FileQuery { path: path.to_owned(), mode: None });
        read(self.get(url)).await
    }

    /// Reads a file of the sandbox.
    pub async fn read_file(&self, session: SessionId, path: &str) -> Result<Download, Error> {
        let mut url = self.url(&["proliferate", &session.to_string(), "files", "content"]);
        append_query(&mut url, &FileQuery { path: path.to_owned(), mode: None });
        Ok(Download { answer: open(self.get(url)).await? })
    }

    /// Replaces a file of the sandbox; `mode` has its permissions.
    pub async fn write_file(
        &self,
        session: SessionId,
        path: &str,
        mode: u32,
        content: Vec<u8>,
    ) -> Result<FileEntry, Error> {
        let mut url = self.url(&["proliferate", &session.to_string(), "files", "content"]);
        append_query(&mut url, &FileQuery { path: path.to_owned(), mode: Some(format!("{mode:o}")) });
        read(self.http.request(Method::PUT, url).body(content)).await
    }

    /// Returns the changes in the repositories of the workspace.
    pub async fn diff(&self, session: SessionId, base: Option<&str>) -> Result<SessionDiff, Error> {
        let mut url = self.url(&["proliferate", &session.to_string(), "diff"]);
        append_query(&mut url, &DiffQuery { base: base.map(str::to_owned) });
        read(self.get(url)).await
    }

    /// Reads the log of a service, or of the agent; with `follow`, also new output until it ends.
    pub async fn logs(
        &self,
        session: SessionId,
        service: Option<&str>,
        follow: bool,
    ) -> Result<Download, Error> {
        let mut url = self.url(&["proliferate", &session.to_string(), "logs"]);
        append_query(&mut url, &LogQuery { service: service.map(str::to_owned), follow });
        Ok(Download { answer: open(self.get(url)).await? })
    }
}

/// Sends a request whose answer is a stream, so it has no time limit.
async fn open(request: RequestBuilder) -> Result<Response, Error> {
    let answer = send(request).await?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let body = answer.text().await.unwrap_or_default();
    Err(Error::from_response(status.as_u16(), &body))
}

async fn chunk(answer: &mut Response) -> Result<Option<Bytes>, Error> {
    let url = display_origin(answer.url());
    answer.chunk().await.map_err(|error| Error::Unreachable { url, cause: cause(&error), sent: true })
}

impl ExecOutput {
    /// The next frame; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<ExecFrame>, Error> {
        let unexpected = |answer: &Response, problem: String| Error::UnexpectedResponse {
            url: display_origin(answer.url()),
            problem,
        };
        loop {
            if let Some(end) = self.buffered.iter().position(|byte| *byte == b'\n') {
                let line = self.buffered.split_to(end);
                self.buffered.advance(1);
                let frame = serde_json::from_slice(&line);
                return frame.map(Some).map_err(|error| unexpected(&self.answer, error.to_string()));
            }
            if self.buffered.len() > MAX_LINE {
                return Err(unexpected(&self.answer, "a line is too long".to_owned()));
            }
            match chunk(&mut self.answer).await? {
                Some(bytes) => self.buffered.extend_from_slice(&bytes),
                None if self.buffered.is_empty() => return Ok(None),
                None => return Err(unexpected(&self.answer, "the last line is not complete".to_owned())),
            }
        }
    }
}

impl Download {
    /// The permissions of a file.
    pub fn mode(&self) -> Option<u32> {
        u32::from_str_radix(self.answer.headers().get("x-file-mode")?.to_str().ok()?, 8).ok()
    }

    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        chunk(&mut self.answer).await
    }
}
