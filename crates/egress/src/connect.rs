//! `CONNECT`: bytes both ways until both have ended or nothing passes any more.

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes, join};

use crate::client::Client;
use crate::limits::Limits;
use crate::meter::{Meter, Metered};
use crate::record::{Ended, Failure};

const BUFFER: usize = 32 * 1024;
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Carries a tunnel to its end. When one side stops sending, the other is told and may go on.
pub(crate) async fn tunnel<S, T>(
    client: Client<S>,
    mut target: Metered<T>,
    meter: &Meter,
    limits: &Limits,
) -> Ended
where
    S: AsyncRead + AsyncWrite,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut client = join(client.reader, client.writer);
    let carrying = async {
        client.write_all(ESTABLISHED).await?;
        client.flush().await?;
        copy_bidirectional_with_sizes(&mut client, &mut target, BUFFER, BUFFER).await
    };
    tokio::select! {
        carried = carrying => match carried {
            Ok(_) => Ended::Complete,
            Err(_) if meter.target_broke() => Ended::Failed(Failure::TargetGone),
            Err(_) => Ended::Failed(Failure::ClientGone),
        },
        () = meter.idle(limits.tunnel_idle) => Ended::Failed(Failure::Idle),
    }
}
