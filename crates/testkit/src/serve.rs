//! A small HTTP server for all test services. Unlike `axum::serve`, it can close a connection without a
//! response, and it closes every connection when the service is dropped.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt;

/// A running service; dropping it closes its connections.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

/// A response extension: send nothing and close the connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HangUp;

impl Server {
    pub(crate) async fn start(router: Router) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let task = AbortOnDropHandle::new(tokio::spawn(accept(listener, router)));
        Ok(Self { address, _task: task })
    }

    /// The base URL, without a trailing slash.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn accept(listener: TcpListener, router: Router) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(serve_connection(stream, router.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_connection(stream: TcpStream, router: Router) {
    let service = service_fn(move |request| answer(router.clone(), request));
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // Broken connections are expected here.
    let _ = connection.await;
}

async fn answer(router: Router, request: Request<Incoming>) -> io::Result<Response<Body>> {
    let response = match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    if response.extensions().get::<HangUp>().is_some() {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    Ok(response)
}
