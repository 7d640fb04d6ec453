//! All services, by name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use channel::{Lane, Stream, StreamError};
use clock::Clock;
use parking_lot::{Mutex, MutexGuard};

use super::dispatch::answer;
use super::launch::Launcher;
use super::log::Log;
use super::supervise::Service;
use crate::protocol::{Code, Logs, LogsDone, Nothing, Refusal, ServiceInfo, ServiceSpec};

const MAX_SERVICES: usize = 32;
const MAX_COMMAND: usize = 16 * 1024;

pub(super) struct Services {
    running: Mutex<BTreeMap<String, Arc<Service>>>,
    /// Serialises changes: two starts of the same name must not both run.
    changing: tokio::sync::Mutex<()>,
    launcher: Arc<Launcher>,
    logs: PathBuf,
    clock: Clock,
}

impl Services {
    pub(super) fn new(launcher: Arc<Launcher>, logs: PathBuf, clock: Clock) -> Self {
        let (running, changing) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { running, changing, launcher, logs, clock }
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Service>>> {
        self.running.lock()
    }

    fn find(&self, name: &str) -> Result<Arc<Service>, Refusal> {
        let found = self.running().get(name).cloned();
        found.ok_or_else(|| Refusal::new(Code::NotFound, "no service has this name"))
    }

    /// Replaces the service of the same name, if there is one.
    pub(super) async fn start(&self, spec: ServiceSpec) -> Result<ServiceInfo, Refusal> {
        check(&spec)?;
        let _changing = self.changing.lock().await;
        let (old, count) = {
            let running = self.running();
            (running.get(&spec.name).cloned(), running.len())
        };
        match old {
            Some(old) => old.stop().await,
            None if count >= MAX_SERVICES => {
                return Err(Refusal::new(Code::Limit, format!("there are already {MAX_SERVICES} services")));
            }
            None => {}
        }
        let log = Log::new(self.logs.join(format!("{}.log", spec.name)));
        let service = Arc::new(Service::new(spec, log));
        self.running().insert(service.spec.name.clone(), Arc::clone(&service));
        tokio::spawn(Arc::clone(&service).supervise(Arc::clone(&self.launcher), self.clock.clone()));
        Ok(service.info())
    }

    /// The service stays listed, with its log. Stopping an unknown service is not an error.
    pub(super) async fn stop(&self, name: &str) -> Result<Nothing, Refusal> {
        let _changing = self.changing.lock().await;
        if let Ok(service) = self.find(name) {
            service.stop().await;
        }
        Ok(Nothing {})
    }

    pub(super) async fn restart(&self, name: &str) -> Result<ServiceInfo, Refusal> {
        let spec = self.find(name)?.spec.clone();
        self.start(spec).await
    }

    pub(super) fn list(&self) -> Vec<ServiceInfo> {
        self.running().values().map(|service| service.info()).collect()
    }

    pub(super) async fn stop_all(&self) {
        let all: Vec<_> = self.running().values().cloned().collect();
        let mut stopping = tokio::task::JoinSet::new();
        for service in all {
            stopping.spawn(async move { service.stop().await });
        }
        stopping.join_all().await;
    }

    pub(super) async fn logs(&self, logs: &Logs, mut stream: Stream) {
        let service = match self.find(&logs.name) {
            Ok(service) => service,
            Err(refusal) => return answer::<LogsDone>(stream, Err(refusal)).await,
        };
        if let Ok(skipped) = send_log(&service, logs.follow, &mut stream).await {
            answer(stream, Ok(LogsDone { skipped })).await;
        }
    }
}

/// Sends the existing log and, with `follow`, new output until the service ends or the caller goes away.
async fn send_log(service: &Service, follow: bool, stream: &mut Stream) -> Result<u64, StreamError> {
    let (mut grown, mut done) = (service.log.watch(), service.done());
    // Bytes that were dropped before this request do not count as skipped.
    let (mut at, mut skipped) = (service.log.read_from(0).skipped, 0);
    loop {
        let finished = *done.borrow_and_update();
        grown.borrow_and_update();
        let part = service.log.read_from(at);
        skipped += part.skipped;
        at = part.next;
        if !part.bytes.is_empty() {
            stream.sender.send(Lane::Main, part.bytes).await?;
            continue;
        }
        if !follow || finished {
            return Ok(skipped);
        }
        tokio::select! {
            _ = grown.changed() => {}
            _ = done.changed() => {}
            message = stream.controls.recv() => if message?.is_none() { return Err(StreamError::Finished) },
        }
    }
}

fn check(spec: &ServiceSpec) -> Result<(), Refusal> {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let named = (1..=64).contains(&spec.name.len()) && spec.name.chars().all(letter);
    if !named || spec.name.starts_with('.') {
        return Err(Refusal::new(Code::BadRequest, "the name of the service is not valid"));
    }
    if spec.command.trim().is_empty() || spec.command.len() > MAX_COMMAND {
        return Err(Refusal::new(Code::BadRequest, "the command is empty or too long"));
    }
    Ok(())
}
