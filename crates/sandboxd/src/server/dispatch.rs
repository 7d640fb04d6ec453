//! Dispatches requests and sends their answers.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use channel::{Lane, MAX_PAYLOAD, Receiver, Stream};
use clock::{Clock, Rng};
use serde::Serialize;

use super::files::{self, blocking};
use super::launch::Launcher;
use super::services::Services;
use super::{dial, envfiles, exec, remove};
use crate::protocol::{
    Answer, Code, EnvBody, MAX_DOCUMENT, MAX_ENV_BODY, Nothing, Refusal, Request, Status, parse,
};

/// The state that requests share.
pub(super) struct Server {
    pub(super) launcher: Arc<Launcher>,
    pub(super) services: Services,
    pub(super) env_store: PathBuf,
    pub(super) clock: Clock,
    pub(super) rng: Rng,
    pub(super) port: u16,
}

pub(super) async fn handle(server: Arc<Server>, request: Bytes, stream: Stream) {
    match parse(&request) {
        Ok(request) => perform(&server, request, stream).await,
        Err(refusal) => answer::<Nothing>(stream, Err(refusal)).await,
    }
}

async fn perform(server: &Server, request: Request, mut stream: Stream) {
    let roots = Arc::clone(&server.launcher.roots);
    let number = u64::from_le_bytes(server.rng.bytes());
    match request {
        Request::Exec(exec) => exec::run(&server.launcher, exec, stream).await,
        Request::Dial(dial) => dial::dial(dial.port, server.port, stream).await,
        Request::Logs(logs) => server.services.logs(&logs, stream).await,
        Request::Status(_) => answer(stream, Ok(server.status())).await,
        Request::Read(read) => {
            let done = files::read(roots, read, &mut stream.sender).await;
            answer(stream, done).await;
        }
        Request::Write(write) => {
            let done = files::write(roots, write, number, &mut stream.receiver).await;
            answer(stream, done).await;
        }
        Request::List(list) => answer(stream, blocking(move || files::list(&roots, &list)).await).await,
        Request::Stat(place) => answer(stream, blocking(move || roots.stat(&place)).await).await,
        Request::Remove(what) => answer(stream, blocking(move || remove::remove(&roots, &what)).await).await,
        Request::Mkdir(place) => answer(stream, blocking(move || files::mkdir(&roots, &place)).await).await,
        Request::Rename(what) => answer(stream, blocking(move || files::rename(&roots, &what)).await).await,
        Request::EnvApply(_) => {
            let done = match env_body(&mut stream.receiver).await {
                Ok(body) => blocking(move || envfiles::apply(&roots, &body, number)).await,
                Err(refusal) => Err(refusal),
            };
            answer(stream, done).await;
        }
        Request::EnvScrub(_) => {
            let store = server.env_store.clone();
            let done = match env_body(&mut stream.receiver).await {
                Ok(body) => blocking(move || envfiles::scrub(&roots, &body, &store, number)).await,
                Err(refusal) => Err(refusal),
            };
            answer(stream, done).await;
        }
        Request::ServiceStart(spec) => answer(stream, server.services.start(spec).await).await,
        Request::ServiceStop(named) => answer(stream, server.services.stop(&named.name).await).await,
        Request::ServiceRestart(named) => answer(stream, server.services.restart(&named.name).await).await,
        Request::ServiceList(_) => answer(stream, Ok(server.services.list())).await,
    }
}

impl Server {
    fn status(&self) -> Status {
        let uptime = self.clock.elapsed();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
            services: self.services.list().len(),
            memory_bytes: resident().unwrap_or_default(),
        }
    }
}

fn resident() -> Option<u64> {
    let pages: u64 = fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

async fn env_body(receiver: &mut Receiver) -> Result<EnvBody, Refusal> {
    let mut body = Vec::new();
    let broken = |_| Refusal::new(Code::Io, "the content ended early");
    while let Some(chunk) = receiver.recv().await.map_err(broken)? {
        if body.len() + chunk.bytes.len() > MAX_ENV_BODY {
            return Err(Refusal::new(Code::TooLarge, format!("more than {MAX_ENV_BODY} bytes")));
        }
        body.extend_from_slice(&chunk.bytes);
    }
    serde_json::from_slice(&body)
        .map_err(|_| Refusal::new(Code::BadRequest, "the body is not a valid list of files and values"))
}

/// How long a caller may take to read an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Finishes a stream with an answer; a long answer is sent on the main lane first. A caller that has gone away is
/// ignored.
pub(super) async fn answer<T: Serialize>(mut stream: Stream, result: Result<T, Refusal>) {
    let result = match result {
        Ok(done) => Answer::Ok(done),
        Err(refusal) => Answer::Refused(refusal),
    };
    let Ok(mut text) = serde_json::to_vec(&result) else {
        return stream.reset("the answer cannot be encoded");
    };
    if text.len() > MAX_PAYLOAD {
        if text.len() > MAX_DOCUMENT {
            return stream.reset("the answer is too long");
        }
        let length = text.len();
        let sending = tokio::time::timeout(ANSWER_TIMEOUT, stream.sender.send(Lane::Main, text));
        if !matches!(sending.await, Ok(Ok(()))) {
            return;
        }
        text = serde_json::to_vec(&Answer::<Nothing>::Document(length)).unwrap_or_default();
    }
    let _ = stream.finish(text);
}
