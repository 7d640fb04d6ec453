//! Connections to a PostgreSQL server at an address that the caller has checked. With TLS, the certificate must be valid for
//! the name of the host.

use std::io;
use std::net::SocketAddr;

use secrecy::ExposeSecret as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Client, Config, Connection, NoTls};
use tokio_rustls::rustls::pki_types::ServerName;

use super::Server;
use super::guard::{Exceeded, Guarded};
use crate::Problem;

/// The request for TLS: its length and its code.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

/// A connection, plain or with TLS.
pub(super) type Stream = Box<dyn Duplex>;

pub(super) type ServerConnection = Connection<Guarded<Stream>, NoTlsStream>;

/// A connection, and the task that drives its protocol.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) connection: ServerConnection,
    pub(super) exceeded: Exceeded,
    /// Where the session is, so that a cancellation reaches the same server.
    pub(super) address: SocketAddr,
}

/// Logs in, and lets the server send at most `max_bytes`.
pub(super) async fn log_in(server: &Server, max_bytes: usize) -> Result<Session, Problem> {
    let (stream, address) = connect_any(server).await?;
    let guarded = Guarded::new(stream, max_bytes);
    let exceeded = guarded.exceeded();
    let mut config = Config::new();
    config
        .user(&server.user)
        .dbname(&server.database)
        .application_name("proliferate")
        .ssl_mode(SslMode::Disable);
    if let Some(password) = &server.password {
        config.password(password.expose_secret());
    }
    let (client, connection) =
        config.connect_raw(guarded, NoTls).await.map_err(|error| login_problem(&error))?;
    Ok(Session { client, connection, exceeded, address })
}

fn login_problem(error: &tokio_postgres::Error) -> Problem {
    match error.as_db_error().map(|error| error.code().code()) {
        // Too many connections, or the server starts or stops.
        Some(code) if code.starts_with("53") || code.starts_with("57") => Problem::Unreachable,
        Some(_) => Problem::Credential,
        None if error.to_string().contains("authentication")
            || error.to_string().contains("configuration") =>
        {
            Problem::Credential
        }
        None => Problem::Broken,
    }
}

async fn connect_any(server: &Server) -> Result<(Stream, SocketAddr), Problem> {
    let mut problem = Problem::Unreachable;
    for address in &server.addresses {
        match connect(server, *address).await {
            Ok(stream) => return Ok((stream, *address)),
            Err(found) => problem = found,
        }
    }
    Err(problem)
}

/// Connects to one address.
pub(super) async fn connect(server: &Server, address: SocketAddr) -> Result<Stream, Problem> {
    let mut stream = TcpStream::connect(address).await.map_err(|_| Problem::Unreachable)?;
    // A query is small messages in both directions, which Nagle's algorithm would delay.
    stream.set_nodelay(true).map_err(|_| Problem::Broken)?;
    let Some(tls) = &server.tls else { return Ok(Box::new(stream)) };
    stream.write_all(&SSL_REQUEST).await.map_err(|_| Problem::Broken)?;
    // Exactly one byte: whatever follows in plain text must not count as received over TLS.
    if stream.read_u8().await.map_err(|_| Problem::Broken)? != b'S' {
        return Err(Problem::NoTls);
    }
    let name = ServerName::try_from(server.host.clone()).map_err(|_| Problem::Certificate)?;
    let stream = tls.0.connect(name, stream).await.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => Problem::Certificate,
        _ => Problem::Broken,
    })?;
    Ok(Box::new(stream))
}
