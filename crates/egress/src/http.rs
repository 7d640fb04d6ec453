//! One plain HTTP request and its response. Each request uses its own connection to the target, so bytes smuggled
//! into one are never read as a second request by another server.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, split};

use crate::body::{BodyError, Relay, read_head};
use crate::client::Client;
use crate::fields::{Framing, HeadError};
use crate::head::{Request, RequestHead};
use crate::limits::Limits;
use crate::meter::{Meter, Metered};
use crate::record::Failure;
use crate::response::ResponseHead;

/// How an exchange went, and whether the connection can be reused.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Whether the client can send another request: the response allowed it, and its body was read completely.
    pub(crate) result: Result<bool, Failure>,
    /// Part of the target's response was sent to the client, so the proxy must not add a response of its own.
    pub(crate) response_started: bool,
}

/// Sends the request and relays the response concurrently: a target may respond before it has read everything.
pub(crate) async fn exchange<S, T>(
    client: &mut Client<S>,
    target: Metered<T>,
    head: &RequestHead,
    meter: &Meter,
    limits: &Limits,
) -> Outcome
where
    S: AsyncRead + AsyncWrite,
    T: AsyncRead + AsyncWrite,
    Metered<T>: AsyncRead + AsyncWrite,
{
    let (from_target, mut to_target) = split(target);
    let mut from_target = BufReader::new(from_target);
    let response_started = AtomicBool::new(false);
    let upload = upload(&mut client.reader, &mut to_target, head, limits);
    let download = download(&mut from_target, &mut client.writer, head, limits, &response_started);
    let idle = meter.idle(limits.exchange_idle);
    tokio::pin!(upload, download, idle);
    let (mut uploading, mut request_sent) = (true, false);
    let result = loop {
        tokio::select! {
            // The upload is polled first: it must count as sent when the response arrives at the same time.
            biased;
            sent = &mut upload, if uploading => {
                uploading = false;
                match sent {
                    Ok(()) => request_sent = true,
                    // The target stopped reading, but it may have sent a response that explains why.
                    Err(BodyError::Sink) => {}
                    Err(BodyError::Source) => break Err(Failure::ClientGone),
                    Err(BodyError::Malformed) => break Err(Failure::BadBody),
                    Err(BodyError::TooLong) => break Err(Failure::BodyTooLong),
                }
            }
            received = &mut download => break received.map(|keep_alive| keep_alive && request_sent),
            () = &mut idle => break Err(if uploading { Failure::BodyStalled } else { Failure::Idle }),
        }
    };
    Outcome { result, response_started: response_started.load(Ordering::Relaxed) }
}

async fn upload(
    from: &mut (impl AsyncBufRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    head: &RequestHead,
    limits: &Limits,
) -> Result<(), BodyError> {
    // The announced length is too long, so the target is not contacted at all.
    if matches!(head.body, Framing::Length(length) if length > limits.request_body) {
        return Err(BodyError::TooLong);
    }
    to.write_all(&head.for_target()).await.map_err(|_| BodyError::Sink)?;
    to.flush().await.map_err(|_| BodyError::Sink)?;
    let chunked = head.body == Framing::Chunked;
    Relay { from, to, chunked, left: limits.request_body }.run(head.body).await
}

/// Returns whether the response allows the client to send another request.
async fn download(
    from: &mut (impl AsyncBufRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    head: &RequestHead,
    limits: &Limits,
    response_started: &AtomicBool,
) -> Result<bool, Failure> {
    let response = final_response(from, to, head, limits).await?;
    let (announced, keep_alive) = match response.body {
        Framing::Chunked | Framing::UntilClose if head.modern => (Framing::Chunked, head.keep_alive),
        Framing::Chunked | Framing::UntilClose => (Framing::UntilClose, false),
        Framing::None => (response.announced, head.keep_alive),
        Framing::Length(length) => (Framing::Length(length), head.keep_alive),
    };
    response_started.store(true, Ordering::Relaxed);
    let bytes = response.for_client(announced, keep_alive);
    to.write_all(&bytes).await.map_err(|_| Failure::ClientGone)?;
    to.flush().await.map_err(|_| Failure::ClientGone)?;
    let relay = Relay { from, to, chunked: announced == Framing::Chunked, left: u64::MAX };
    match relay.run(response.body).await {
        Ok(()) => Ok(keep_alive),
        Err(BodyError::Sink) => Err(Failure::ClientGone),
        Err(BodyError::Source) => Err(Failure::TargetGone),
        Err(BodyError::Malformed | BodyError::TooLong) => Err(Failure::BadResponse),
    }
}

/// Relays interim responses such as `100 Continue` until the final response arrives.
async fn final_response(
    from: &mut (impl AsyncBufRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    head: &RequestHead,
    limits: &Limits,
) -> Result<ResponseHead, Failure> {
    let to_head = matches!(&head.request, Request::Http { method, .. } if method == "HEAD");
    loop {
        let bytes = match read_head(from, limits.response_head).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) | Err(HeadError::Incomplete) => return Err(Failure::TargetGone),
            Err(_) => return Err(Failure::BadResponse),
        };
        let response = ResponseHead::parse(&bytes, to_head).map_err(|_| Failure::BadResponse)?;
        match response.status {
            // The proxy removed `Upgrade`, so nobody asked to switch protocols.
            101 => return Err(Failure::BadResponse),
            100..200 if head.modern => {
                let bytes = response.for_client(Framing::None, true);
                to.write_all(&bytes).await.map_err(|_| Failure::ClientGone)?;
                to.flush().await.map_err(|_| Failure::ClientGone)?;
            }
            100..200 => {}
            _ => return Ok(response),
        }
    }
}
