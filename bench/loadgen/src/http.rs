//! A minimal keep-alive HTTP/1.1 client; a larger one would influence the measurement.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::Result;

/// One connection, opened on demand and reopened if the server closed it.
pub struct Connection {
    addr: String,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    pub fn new(addr: &str) -> Self {
        Self { addr: addr.to_owned(), sender: None }
    }

    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        token: &str,
        body: Option<String>,
    ) -> Result<(u16, Bytes)> {
        let body = body.map(Bytes::from);
        for last in [false, true] {
            let request = self.request(method, path, token, body.clone())?;
            let sender = self.sender().await?;
            if sender.ready().await.is_err() {
                self.sender = None;
                continue;
            }
            match sender.send_request(request).await {
                Ok(answer) => {
                    let status = answer.status().as_u16();
                    return Ok((status, answer.into_body().collect().await?.to_bytes()));
                }
                Err(error) => {
                    self.sender = None;
                    if last {
                        return Err(error.into());
                    }
                }
            }
        }
        Err("connection failed".into())
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        token: &str,
        body: Option<Bytes>,
    ) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::builder().method(method).uri(path).header("host", &self.addr);
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        Ok(request.body(Full::new(body.unwrap_or_default()))?)
    }

    async fn sender(&mut self) -> Result<&mut SendRequest<Full<Bytes>>> {
        let open = self.sender.take().filter(|sender| !sender.is_closed());
        let sender = match open {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        Ok(self.sender.insert(sender))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(&self.addr).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}
