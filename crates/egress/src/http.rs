//! One plain HTTP request and its answer. The target gets a connection of its own for each request, so whatever a
//! client manages to hide in one, it is not read as a second request by somebody else's server.

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

/// How an exchange went, and what may follow it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Whether the client can ask again: it was told so, and its body was read to the end.
    pub(crate) result: Result<bool, Failure>,
    /// The client has a part of the target's answer, so that no answer of ours can follow.
    pub(crate) answered: bool,
}

/// Sends the request and carries the answer back, both at once: a target may answer before it has heard all.
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
    let answered = AtomicBool::new(false);
    let upload = upload(&mut client.reader, &mut to_target, head, limits);
    let download = download(&mut from_target, &mut client.writer, head, limits, &answered);
    let idle = meter.idle(limits.exchange_idle);
    tokio::pin!(upload, download, idle);
    let (mut uploading, mut request_sent) = (true, false);
    let result = loop {
        tokio::select! {
            // In this order: a request that is sent and answered at once must be known to be sent.
            biased;
            sent = &mut upload, if uploading => {
                uploading = false;
                match sent {
                    Ok(()) => request_sent = true,
                    // It does not listen any more, but it may have said why.
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
    Outcome { result, answered: answered.load(Ordering::Relaxed) }
}

async fn upload(
    from: &mut (impl AsyncBufRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    head: &RequestHead,
    limits: &Limits,
) -> Result<(), BodyError> {
    // Known from its head, so the target need not hear of it.
    if matches!(head.body, Framing::Length(length) if length > limits.request_body) {
        return Err(BodyError::TooLong);
    }
    to.write_all(&head.for_target()).await.map_err(|_| BodyError::Sink)?;
    to.flush().await.map_err(|_| BodyError::Sink)?;
    let chunked = head.body == Framing::Chunked;
    Relay { from, to, chunked, left: limits.request_body }.run(head.body).await
}

/// Returns whether the client was told that it can ask again.
async fn download(
    from: &mut (impl AsyncBufRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    head: &RequestHead,
    limits: &Limits,
    answered: &AtomicBool,
) -> Result<bool, Failure> {
    let response = final_response(from, to, head, limits).await?;
    let (announced, keep_alive) = match response.body {
        Framing::Chunked | Framing::UntilClose if head.modern => (Framing::Chunked, head.keep_alive),
        Framing::Chunked | Framing::UntilClose => (Framing::UntilClose, false),
        Framing::None => (response.announced, head.keep_alive),
        Framing::Length(length) => (Framing::Length(length), head.keep_alive),
    };
    answered.store(true, Ordering::Relaxed);
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

/// Passes `100 Continue` and its like on, until the answer itself comes.
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
            // Nobody asked for another protocol: `Upgrade` was taken out.
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
