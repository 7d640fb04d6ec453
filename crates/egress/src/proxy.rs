//! The proxy of one sandbox: serves its connections, and checks, answers and records every request.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use clock::Clock;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};

use crate::address::AddressPolicy;
use crate::client::Client;
use crate::connect::tunnel;
use crate::dial::{DialError, Dialer};
use crate::error_response::ErrorResponse;
use crate::fields::{Framing, HeadError};
use crate::head::{Request, RequestHead};
use crate::host::Target;
use crate::http::exchange;
use crate::limits::Limits;
use crate::meter::Metered;
use crate::rate_limit::RateLimiter;
use crate::record::{Counters, Entry, Failure, Kind, Recorder, Refusal, RequestEnd, RequestLog, Verdict};
use crate::resolve::Resolve;
use crate::rules::{AllowReason, Rules};

/// The settings and parts of a proxy.
pub struct Config {
    /// Read for each request, and again for open requests whenever the rules change.
    pub rules: watch::Receiver<Arc<Rules>>,
    pub resolver: Arc<dyn Resolve>,
    pub addresses: AddressPolicy,
    pub limits: Limits,
    pub clock: Clock,
    pub recorder: Arc<dyn Recorder>,
}

/// The proxy of one sandbox; cheap to clone, and clones share limits and counters.
#[derive(Clone)]
pub struct Proxy(Arc<Shared>);

struct Shared {
    rules: watch::Receiver<Arc<Rules>>,
    dialer: Dialer,
    limits: Limits,
    rate_limit: RateLimiter,
    log: RequestLog,
    slots: Semaphore,
}

impl Proxy {
    pub fn new(config: Config) -> Self {
        let Config { rules, resolver, addresses, limits, clock, recorder } = config;
        Self(Arc::new(Shared {
            rules,
            dialer: Dialer { resolver, addresses, limits },
            limits,
            rate_limit: RateLimiter::new(&limits, clock.clone()),
            log: RequestLog::new(clock, recorder),
            slots: Semaphore::new(limits.connections),
        }))
    }

    /// Serves one accepted connection until it ends. Dropping the future ends it too, and the request is still
    /// recorded. Connections beyond the limit get an error response after their head was read; the caller must
    /// bound their number.
    pub async fn serve<S: AsyncRead + AsyncWrite + Send>(&self, stream: S) {
        let client = Client::new(stream);
        match self.0.slots.try_acquire() {
            Ok(_slot) => self.0.serve_requests(client).await,
            Err(_) => self.0.refuse_connection(client).await,
        }
    }

    pub fn counters(&self) -> Counters {
        let open = self.0.limits.connections - self.0.slots.available_permits();
        self.0.log.counters(open as u64)
    }
}

impl Shared {
    async fn serve_requests<S: AsyncRead + AsyncWrite + Send>(&self, mut client: Client<S>) {
        let mut first = true;
        loop {
            let head = match client.next_head(&self.limits, first).await {
                Ok(Some(bytes)) => RequestHead::parse(&bytes),
                Ok(None) => break,
                Err(error) => Err(error),
            };
            first = false;
            self.rate_limit.acquire().await;
            match head {
                Err(error) => {
                    self.refuse_malformed(&mut client, error).await;
                    break;
                }
                Ok(head) if head.request == Request::Connect => return self.connect(client, &head).await,
                Ok(head) => {
                    if !self.http(&mut client, &head).await {
                        break;
                    }
                }
            }
        }
        client.close(&self.limits).await;
    }

    async fn connect<S: AsyncRead + AsyncWrite + Send>(&self, mut client: Client<S>, head: &RequestHead) {
        let (mut entry, reached) = self.reach(Kind::Connect, head).await;
        match reached {
            Ok(stream) => {
                let meter = entry.meter();
                let target = Metered::new(stream, Arc::clone(&meter));
                let refused = self.until_refused(&head.target, entry.address());
                entry.end(tokio::select! {
                    ended = Box::pin(tunnel(client, target, &meter, &self.limits)) => ended,
                    () = refused => RequestEnd::Failed(Failure::RefusedSince),
                });
            }
            Err(response) => {
                drop(entry);
                client.respond(&response, false, true, &self.limits).await;
                client.close(&self.limits).await;
            }
        }
    }

    /// Returns whether the client may send another request on this connection.
    async fn http<S: AsyncRead + AsyncWrite + Send>(
        &self,
        client: &mut Client<S>,
        head: &RequestHead,
    ) -> bool {
        let (mut entry, reached) = self.reach(Kind::Http, head).await;
        let with_body = !matches!(&head.request, Request::Http { method, .. } if method == "HEAD");
        let stream = match reached {
            Ok(stream) => stream,
            Err(response) => {
                // An unwanted body would have to be read before the next request.
                let keep_alive = head.keep_alive && head.body == Framing::None;
                drop(entry);
                client.respond(&response, keep_alive, with_body, &self.limits).await;
                return keep_alive;
            }
        };
        let meter = entry.meter();
        let target = Metered::new(stream, Arc::clone(&meter));
        let refused = self.until_refused(&head.target, entry.address());
        let outcome = tokio::select! {
            outcome = Box::pin(exchange(client, target, head, &meter, &self.limits)) => outcome,
            () = refused => {
                entry.end(RequestEnd::Failed(Failure::RefusedSince));
                return false;
            }
        };
        entry.end(outcome.result.map_or_else(RequestEnd::Failed, |_| RequestEnd::Complete));
        drop(entry);
        match outcome.result {
            Ok(keep_alive) => return keep_alive,
            Err(failure) if !outcome.response_started => {
                client.respond(&failure.into(), false, with_body, &self.limits).await;
            }
            Err(_) => {}
        }
        false
    }

    /// Checks the current rules, resolves and connects.
    async fn reach(&self, kind: Kind, head: &RequestHead) -> (Entry<'_>, Result<TcpStream, ErrorResponse>) {
        let rules = Arc::clone(&self.rules.borrow());
        let target = Some(head.target.clone());
        let grounds = match rules.decide(&head.target) {
            Ok(grounds) => grounds,
            Err(denial) => {
                let refusal = Refusal::Rule(denial);
                let response = ErrorResponse::from(&refusal);
                return (self.log.open(kind, target, Verdict::Refused(refusal)), Err(response));
            }
        };
        let mut entry = self.log.open(kind, target, Verdict::Allowed(grounds.clone()));
        let reached = self.dial(&rules, head, &grounds, &mut entry).await;
        (entry, reached)
    }

    async fn dial(
        &self,
        rules: &Rules,
        head: &RequestHead,
        grounds: &AllowReason,
        entry: &mut Entry<'_>,
    ) -> Result<TcpStream, ErrorResponse> {
        let refusal = match self.dialer.dial(rules, &head.target, grounds).await {
            Ok((stream, address)) => {
                entry.set_address(SocketAddr::ip(&address));
                return Ok(stream);
            }
            Err(DialError::Denied(denial)) => Refusal::Rule(denial),
            Err(DialError::Address(address, class)) => {
                entry.set_address(address);
                Refusal::Address { target: head.target.clone(), class }
            }
            Err(DialError::Failed(failure)) => {
                entry.end(RequestEnd::Failed(failure));
                return Err(failure.into());
            }
        };
        let response = ErrorResponse::from(&refusal);
        entry.refuse(refusal);
        Err(response)
    }

    /// Resolves when a change of the rules forbids what was connected to.
    async fn until_refused(&self, target: &Target, address: Option<IpAddr>) {
        let mut rules = self.rules.clone();
        loop {
            let now = Arc::clone(&rules.borrow_and_update());
            let allowed = now.decide(target).is_ok_and(|grounds| {
                address.is_none_or(|address| self.dialer.check(&now, target, &grounds, address).is_ok())
            });
            if !allowed {
                return;
            }
            if rules.changed().await.is_err() {
                // The sender was dropped, so the rules cannot change any more.
                return std::future::pending().await;
            }
        }
    }

    async fn refuse_malformed<S: AsyncRead + AsyncWrite + Send>(
        &self,
        client: &mut Client<S>,
        error: HeadError,
    ) {
        let refusal = Refusal::Malformed(error);
        let response = ErrorResponse::from(&refusal);
        drop(self.log.open(Kind::Unknown, None, Verdict::Refused(refusal)));
        client.respond(&response, false, true, &self.limits).await;
    }

    /// Reads the request anyway, so that the record contains its target.
    async fn refuse_connection<S: AsyncRead + AsyncWrite + Send>(&self, mut client: Client<S>) {
        let head = client.next_head(&self.limits, true).await.ok().flatten();
        let (kind, target) = match head.map(|bytes| RequestHead::parse(&bytes)) {
            Some(Ok(head)) if head.request == Request::Connect => (Kind::Connect, Some(head.target)),
            Some(Ok(head)) => (Kind::Http, Some(head.target)),
            _ => (Kind::Unknown, None),
        };
        let refusal = Refusal::TooManyConnections(self.limits.connections);
        let response = ErrorResponse::from(&refusal);
        self.rate_limit.acquire().await;
        drop(self.log.open(kind, target, Verdict::Refused(refusal)));
        client.respond(&response, false, true, &self.limits).await;
        client.close(&self.limits).await;
    }
}
