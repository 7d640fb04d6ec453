//! How an agent is reached: the gateway opens byte streams to its port, wherever it runs.

use std::io;

use async_trait::async_trait;
use secrecy::SecretString;
use tokio::io::{AsyncRead, AsyncWrite};

/// A connection to an agent. Its other end is hostile.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Opens connections to the agent's port.
#[async_trait]
pub trait Dial: Send + Sync {
    async fn dial(&self) -> io::Result<Box<dyn ByteStream>>;
}

/// How requests address the agent once a connection is open.
pub struct Endpoint {
    /// Host and port, such as `host:80`.
    pub authority: String,
    /// The prefix of all paths, such as `/s/1`.
    pub path: String,
    /// A secret that every request carries in this header.
    pub header: Option<(&'static str, SecretString)>,
}

impl Endpoint {
    /// An agent in one of our sandboxes, on a port of its own.
    pub fn local() -> Self {
        Self { authority: "localhost".to_owned(), path: String::new(), header: None }
    }
}
