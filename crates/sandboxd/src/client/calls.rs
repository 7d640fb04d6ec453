//! The requests of the client, except running programs.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use channel::{Lane, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{ClientError, Sandboxd, collect, collect_answer, read_answer, send_all};
use crate::protocol::{
    CONNECTED, Dial, EnvApplyResult, EnvBody, EnvFile, EnvScrubResult, List, Listing, Logs, LogsDone,
    MAX_FILE, Nothing, Place, Read, ReadDone, Remove, Rename, Request, ServiceInfo, ServiceName, ServiceSpec,
    Stat, Status, Write,
};

/// A file, or the requested part of it.
#[derive(Clone, Debug)]
pub struct FileContent {
    pub bytes: Vec<u8>,
    /// The size of the entire file, as reported by the sandbox.
    pub size: u64,
    pub mode: u32,
}

impl Sandboxd {
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.call(&Request::Status(Nothing {})).await
    }

    /// Reads at most `limit` bytes from `offset`.
    pub async fn read_file(&self, place: Place, offset: u64, limit: u64) -> Result<FileContent, ClientError> {
        let limit = limit.min(MAX_FILE);
        let mut stream = self.open(&Request::Read(Read { place, offset, limit: Some(limit) })).await?;
        stream.sender.end();
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        let reading = async {
            let bytes = collect(&mut stream.receiver, most).await?;
            let done: ReadDone = match read_answer(&stream.receiver.outcome().await?)? {
                Ok(done) => done,
                Err(_) => return Err(ClientError::InvalidAnswer("unexpected document after a file")),
            };
            if done.sent != bytes.len() as u64 {
                return Err(ClientError::InvalidAnswer("a file of the wrong length"));
            }
            Ok(FileContent { bytes, size: done.size, mode: done.mode })
        };
        self.with_deadline(reading).await
    }

    /// Replaces a file atomically, and creates missing parent directories.
    pub async fn write_file(
        &self,
        place: Place,
        content: impl Into<Bytes>,
        mode: Option<u32>,
    ) -> Result<Stat, ClientError> {
        let content = content.into();
        let most = Some(content.len() as u64);
        let request = Request::Write(Write { place, mode, parents: true, most });
        let Stream { mut sender, mut receiver, controls: _controls } = self.open(&request).await?;
        let writing = async {
            send_all(&mut sender, content).await?;
            collect_answer(&mut receiver).await
        };
        self.with_deadline(writing).await
    }

    pub async fn list(&self, place: Place, most: usize) -> Result<Listing, ClientError> {
        let mut listing: Listing = self.call(&Request::List(List { place, most: Some(most) })).await?;
        listing.truncated |= listing.entries.len() > most;
        listing.entries.truncate(most);
        // A hostile server could return a path as a name, which would escape when joined.
        listing.entries.retain(|entry| !entry.name.contains('/') && !matches!(&*entry.name, "" | "." | ".."));
        Ok(listing)
    }

    pub async fn stat(&self, place: Place) -> Result<Stat, ClientError> {
        self.call(&Request::Stat(place)).await
    }

    pub async fn remove(&self, place: Place, recursive: bool) -> Result<(), ClientError> {
        self.call(&Request::Remove(Remove { place, recursive })).await.map(|Nothing {}| ())
    }

    pub async fn mkdir(&self, place: Place) -> Result<(), ClientError> {
        self.call(&Request::Mkdir(place)).await.map(|Nothing {}| ())
    }

    pub async fn rename(&self, from: Place, to: Place) -> Result<(), ClientError> {
        self.call(&Request::Rename(Rename { from, to })).await.map(|Nothing {}| ())
    }

    /// Writes environment files. If required values are missing, the error names all of them and nothing is
    /// written.
    pub async fn env_apply(
        &self,
        spec: Vec<EnvFile>,
        values: BTreeMap<String, String>,
    ) -> Result<EnvApplyResult, ClientError> {
        self.call_with(&Request::EnvApply(Nothing {}), &EnvBody { spec, values }).await
    }

    pub async fn env_scrub(&self, spec: Vec<EnvFile>) -> Result<EnvScrubResult, ClientError> {
        self.call_with(&Request::EnvScrub(Nothing {}), &EnvBody { spec, values: BTreeMap::new() }).await
    }

    pub async fn service_start(&self, spec: ServiceSpec) -> Result<ServiceInfo, ClientError> {
        self.call(&Request::ServiceStart(spec)).await
    }

    pub async fn service_stop(&self, name: &str) -> Result<(), ClientError> {
        self.call(&Request::ServiceStop(service_name(name))).await.map(|Nothing {}| ())
    }

    pub async fn service_restart(&self, name: &str) -> Result<ServiceInfo, ClientError> {
        self.call(&Request::ServiceRestart(service_name(name))).await
    }

    pub async fn service_list(&self) -> Result<Vec<ServiceInfo>, ClientError> {
        self.call(&Request::ServiceList(Nothing {})).await
    }

    /// Reads the retained part of a service's log; with `follow`, also new output until the service ends.
    pub async fn logs(&self, name: &str, follow: bool) -> Result<LogStream, ClientError> {
        let mut stream = self.open(&Request::Logs(Logs { name: name.to_owned(), follow })).await?;
        stream.sender.end();
        Ok(LogStream(stream))
    }

    /// Connects to a port on the sandbox's loopback. Dropping the connection resets it; a shutdown ends one
    /// direction.
    pub async fn dial(&self, port: u16) -> Result<Connection, ClientError> {
        let mut stream = self.open(&Request::Dial(Dial { port })).await?;
        let dialling = async {
            match stream.controls.recv().await? {
                Some(said) if said == CONNECTED => Ok(Connection(stream)),
                Some(_) => Err(ClientError::InvalidAnswer("unexpected message before the connection")),
                None => match collect_answer::<Nothing>(&mut stream.receiver).await {
                    Ok(_) => Err(ClientError::InvalidAnswer("the stream ended before the connection")),
                    Err(error) => Err(error),
                },
            }
        };
        self.with_deadline(dialling).await
    }
}

fn service_name(name: &str) -> ServiceName {
    ServiceName { name: name.to_owned() }
}

/// A service's log as a stream.
pub struct LogStream(Stream);

impl LogStream {
    /// The next part; `None` when the log has ended.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        match self.0.receiver.recv().await? {
            Some(chunk) if chunk.lane == Lane::Main => Ok(Some(chunk.bytes)),
            Some(_) => Err(ClientError::InvalidAnswer("unexpected stderr output")),
            None => match read_answer::<LogsDone>(&self.0.receiver.outcome().await?)? {
                Ok(_) => Ok(None),
                Err(_) => Err(ClientError::InvalidAnswer("unexpected document after a log")),
            },
        }
    }
}

/// A connection to a port inside the sandbox.
pub struct Connection(Stream);

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, out)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
