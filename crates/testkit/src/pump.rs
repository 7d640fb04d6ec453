//! One direction of a connection through the fault proxy, where bytes are delayed, lost or cut off.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;

use crate::fault::{Counts, Direction, Faults, Lane};

const BUFFER_BYTES: usize = 16 * 1024;
/// A throttled stream is sent in this many pieces per second.
const PIECES_PER_SECOND: u32 = 20;

/// The connection must be reset.
#[derive(Debug)]
pub(crate) struct ResetRequired;

/// Forwards bytes until the sender closes its side, then closes the other side.
pub(crate) async fn pump(
    mut from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    direction: Direction,
    faults: watch::Receiver<Faults>,
    counts: &watch::Sender<Counts>,
) -> Result<(), ResetRequired> {
    let mut writer = LaneWriter { to, direction, faults, counts, forwarded: 0, lost: false };
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = tokio::select! {
            read = from.read(&mut buffer) => read.map_err(|_| ResetRequired)?,
            healed = wait_until_healed(&mut writer.faults, direction), if writer.lost => return Err(healed),
        };
        if length == 0 {
            return writer.end().await;
        }
        counts.send_modify(|counts| counts.add_received(direction, length as u64));
        writer.forward(&buffer[..length]).await?;
    }
}

/// Waits until the lane is no longer a black hole.
async fn wait_until_healed(faults: &mut watch::Receiver<Faults>, direction: Direction) -> ResetRequired {
    let _ = faults.wait_for(|faults| !faults.lane(direction).black_hole).await;
    ResetRequired
}

struct LaneWriter<'a> {
    to: WriteHalf<'a>,
    direction: Direction,
    faults: watch::Receiver<Faults>,
    counts: &'a watch::Sender<Counts>,
    /// Bytes forwarded by this connection alone.
    forwarded: u64,
    /// Whether a black hole has discarded part of the stream.
    lost: bool,
}

impl LaneWriter<'_> {
    async fn forward(&mut self, mut data: &[u8]) -> Result<(), ResetRequired> {
        let mut delayed = false;
        while !data.is_empty() {
            let lane = self.faults.borrow_and_update().lane(self.direction);
            if lane.black_hole {
                self.lost = true;
                return Ok(());
            }
            if self.lost {
                return Err(ResetRequired);
            }
            let piece = &data[..self.piece_length(lane, data.len())?];
            let latency = if delayed { Duration::ZERO } else { lane.latency };
            if !self.sleep(latency + time_for(piece.len(), lane)).await? {
                continue;
            }
            delayed = true;
            self.to.write_all(piece).await.map_err(|_| ResetRequired)?;
            self.count(piece.len());
            data = &data[piece.len()..];
            if lane.reset_after.is_some_and(|limit| self.forwarded >= limit) {
                return Err(ResetRequired);
            }
        }
        Ok(())
    }

    /// How many bytes may be sent at once; an error if none may be sent any more.
    fn piece_length(&self, lane: Lane, available: usize) -> Result<usize, ResetRequired> {
        let mut length = available;
        if let Some(rate) = lane.bytes_per_second {
            length = length.min((rate.get() / PIECES_PER_SECOND).max(1) as usize);
        }
        if let Some(limit) = lane.reset_after {
            let left = usize::try_from(limit.saturating_sub(self.forwarded)).unwrap_or(usize::MAX);
            length = length.min(left);
        }
        if length == 0 { Err(ResetRequired) } else { Ok(length) }
    }

    /// Returns `false` if the faults changed while waiting, so that the caller must check them again.
    async fn sleep(&mut self, time: Duration) -> Result<bool, ResetRequired> {
        if time.is_zero() {
            return Ok(true);
        }
        tokio::select! {
            () = tokio::time::sleep(time) => Ok(true),
            changed = self.faults.changed() => changed.map(|()| false).map_err(|_| ResetRequired),
        }
    }

    fn count(&mut self, length: usize) {
        let length = length as u64;
        self.forwarded += length;
        self.counts.send_modify(|counts| counts.add_forwarded(self.direction, length));
    }

    async fn end(mut self) -> Result<(), ResetRequired> {
        if self.faults.borrow().lane(self.direction).black_hole || self.lost {
            return Err(wait_until_healed(&mut self.faults, self.direction).await);
        }
        self.to.shutdown().await.map_err(|_| ResetRequired)
    }
}

fn time_for(length: usize, lane: Lane) -> Duration {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    lane.bytes_per_second.map_or(Duration::ZERO, |rate| Duration::from_secs(1) * length / rate.get())
}
