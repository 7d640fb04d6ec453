//! One direction of one connection through the fault proxy: where bytes are delayed, lost or cut off.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;

use crate::fault::{Counts, Direction, Faults, Lane};

const BUFFER: usize = 16 * 1024;
/// A throttled stream flows in this many pieces a second.
const PIECES_PER_SECOND: u32 = 20;

/// The connection cannot go on and must be reset.
#[derive(Debug)]
pub(crate) struct Broken;

/// Carries bytes until the sender ends, and then passes the end on.
pub(crate) async fn pump(
    mut from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    direction: Direction,
    faults: watch::Receiver<Faults>,
    counts: &watch::Sender<Counts>,
) -> Result<(), Broken> {
    let mut outlet = Outlet { to, direction, faults, counts, forwarded: 0, lost: false };
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = tokio::select! {
            read = from.read(&mut buffer) => read.map_err(|_| Broken)?,
            healed = healed(&mut outlet.faults, direction), if outlet.lost => return Err(healed),
        };
        if length == 0 {
            return outlet.end().await;
        }
        counts.send_modify(|counts| counts.add_received(direction, length as u64));
        outlet.forward(&buffer[..length]).await?;
    }
}

/// Ends when the lane is no black hole any more.
async fn healed(faults: &mut watch::Receiver<Faults>, direction: Direction) -> Broken {
    let _ = faults.wait_for(|faults| !faults.lane(direction).black_hole).await;
    Broken
}

struct Outlet<'a> {
    to: WriteHalf<'a>,
    direction: Direction,
    faults: watch::Receiver<Faults>,
    counts: &'a watch::Sender<Counts>,
    /// By this connection alone.
    forwarded: u64,
    /// A black hole has swallowed a part of the stream.
    lost: bool,
}

impl Outlet<'_> {
    async fn forward(&mut self, mut data: &[u8]) -> Result<(), Broken> {
        let mut delayed = false;
        while !data.is_empty() {
            let lane = self.faults.borrow_and_update().lane(self.direction);
            if lane.black_hole {
                self.lost = true;
                return Ok(());
            }
            if self.lost {
                return Err(Broken);
            }
            let piece = &data[..self.piece(lane, data.len())?];
            let latency = if delayed { Duration::ZERO } else { lane.latency };
            if !self.wait(latency + time_for(piece.len(), lane)).await? {
                continue;
            }
            delayed = true;
            self.to.write_all(piece).await.map_err(|_| Broken)?;
            self.count(piece.len());
            data = &data[piece.len()..];
            if lane.reset_after.is_some_and(|limit| self.forwarded >= limit) {
                return Err(Broken);
            }
        }
        Ok(())
    }

    /// How much may be sent in one go; nothing more at all is an error.
    fn piece(&self, lane: Lane, available: usize) -> Result<usize, Broken> {
        let mut length = available;
        if let Some(rate) = lane.bytes_per_second {
            length = length.min((rate.get() / PIECES_PER_SECOND).max(1) as usize);
        }
        if let Some(limit) = lane.reset_after {
            let left = usize::try_from(limit.saturating_sub(self.forwarded)).unwrap_or(usize::MAX);
            length = length.min(left);
        }
        if length == 0 { Err(Broken) } else { Ok(length) }
    }

    /// `false` when a fault changed meanwhile, so that the waiting has to be thought over.
    async fn wait(&mut self, time: Duration) -> Result<bool, Broken> {
        if time.is_zero() {
            return Ok(true);
        }
        tokio::select! {
            () = tokio::time::sleep(time) => Ok(true),
            changed = self.faults.changed() => changed.map(|()| false).map_err(|_| Broken),
        }
    }

    fn count(&mut self, length: usize) {
        let length = length as u64;
        self.forwarded += length;
        self.counts.send_modify(|counts| counts.add_forwarded(self.direction, length));
    }

    async fn end(mut self) -> Result<(), Broken> {
        if self.faults.borrow().lane(self.direction).black_hole || self.lost {
            return Err(healed(&mut self.faults, self.direction).await);
        }
        self.to.shutdown().await.map_err(|_| Broken)
    }
}

fn time_for(length: usize, lane: Lane) -> Duration {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    lane.bytes_per_second.map_or(Duration::ZERO, |rate| Duration::from_secs(1) * length / rate.get())
}
