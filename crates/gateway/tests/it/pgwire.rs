//! Runs SQL on the test PostgreSQL server without a driver: the gateway crate must not depend on one.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::{address_of, within};

const PROTOCOL_VERSION: i32 = 196_608;

/// Runs `sql` on the database of `url`, whose server accepts every loopback connection without a password.
pub(crate) async fn run(url: &str, sql: &str) {
    let parsed = url::Url::parse(url).unwrap();
    let mut stream = TcpStream::connect(address_of(url)).await.unwrap();
    let database = parsed.path().trim_start_matches('/');
    let start = format!("user\0{}\0database\0{database}\0\0", parsed.username());
    let mut hello = length(start.len() + 4).to_vec();
    hello.extend(PROTOCOL_VERSION.to_be_bytes());
    hello.extend(start.as_bytes());
    stream.write_all(&hello).await.unwrap();
    within(until_ready(&mut stream)).await;
    let mut query = vec![b'Q'];
    query.extend(length(sql.len() + 1));
    query.extend(sql.as_bytes());
    query.push(0);
    stream.write_all(&query).await.unwrap();
    within(until_ready(&mut stream)).await;
}

/// The length field of a message, which counts its own four bytes.
fn length(rest: usize) -> [u8; 4] {
    i32::try_from(rest + 4).unwrap().to_be_bytes()
}

async fn until_ready(stream: &mut TcpStream) {
    loop {
        let kind = stream.read_u8().await.unwrap();
        let size = usize::try_from(stream.read_i32().await.unwrap() - 4).unwrap();
        let mut body = vec![0; size];
        stream.read_exact(&mut body).await.unwrap();
        match kind {
            b'E' => panic!("PostgreSQL refuses: {}", String::from_utf8_lossy(&body)),
            b'Z' => return,
            _ => {}
        }
    }
}
