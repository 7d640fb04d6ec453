//! `CONNECT`: relays bytes both ways until both sides have ended or the tunnel is idle.

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes, join};

use crate::client::Client;
use crate::limits::Limits;
use crate::meter::{Meter, Metered};
use crate::record::{Failure, RequestEnd};

const BUFFER_BYTES: usize = 32 * 1024;
const CONNECTION_ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Relays a tunnel until it ends. When one side stops sending, the other is told and may continue.
pub(crate) async fn tunnel<S, T>(
    client: Client<S>,
    mut target: Metered<T>,
    meter: &Meter,
    limits: &Limits,
) -> RequestEnd
where
    S: AsyncRead + AsyncWrite,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut client = join(client.reader, client.writer);
    let relaying = async {
        client.write_all(CONNECTION_ESTABLISHED).await?;
        client.flush().await?;
        copy_bidirectional_with_sizes(&mut client, &mut target, BUFFER_BYTES, BUFFER_BYTES).await
    };
    tokio::select! {
        relayed = relaying => match relayed {
            Ok(_) => RequestEnd::Complete,
            Err(_) if meter.target_failed() => RequestEnd::Failed(Failure::TargetGone),
            Err(_) => RequestEnd::Failed(Failure::ClientGone),
        },
        () = meter.idle(limits.tunnel_idle) => RequestEnd::Failed(Failure::Idle),
    }
}
