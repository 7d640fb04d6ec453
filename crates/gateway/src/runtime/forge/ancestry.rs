//! What a forge already has: where a branch stands, and whether one commit descends from another. The gateway asks it
//! itself, with the organisation's credential, since nothing that a sandbox says about history can be believed.

use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::{Method, StatusCode};
use tokio::time::timeout;

use super::Access;
use super::commits::{CommitScan, Scan, Search};
use super::pkt::{self, FLUSH, Packet};
use crate::outbound::lively;

/// The longest that a question about history may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// The most commits that are asked about at once.
const MOST_WANTS: usize = 200;
/// The most refs that are read to find one, as bytes.
const MOST_REFS: usize = 64 * 1024 * 1024;
const DELIMITER: &[u8] = b"0001";
const PACK_DATA: u8 = 1;

/// Why a forge did not say where a branch stands.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RefsError {
    #[error("the forge refused the organisation's credential")]
    Credential,
    #[error("the forge has no such repository")]
    NoRepository,
    #[error("the forge cannot be reached: try again")]
    Unreachable,
    #[error("the forge's answer makes no sense")]
    Senseless,
}

impl Access<'_> {
    /// The commit that a ref points to at the forge; `None` where there is no such ref.
    pub(crate) async fn ref_at_forge(&self, name: &str) -> Result<Option<String>, RefsError> {
        let asking = self.git(Method::GET, "/info/refs?service=git-receive-pack").send();
        let answer = timeout(PATIENCE, asking).await.map_err(|_| RefsError::Unreachable)?;
        let answer = answer.map_err(|_| RefsError::Unreachable)?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(RefsError::Credential),
            StatusCode::NOT_FOUND => return Err(RefsError::NoRepository),
            _ => return Err(RefsError::Unreachable),
        }
        let (mut pieces, mut open, mut total) = (Box::pin(lively(answer.bytes_stream())), Vec::new(), 0);
        let mut flushes = 0;
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|_| RefsError::Unreachable)?;
            total += piece.len();
            if total > MOST_REFS {
                return Err(RefsError::Senseless);
            }
            open.extend_from_slice(&piece);
            let mut read = 0;
            while let Some(packet) =
                pkt::first(open.get(read..).unwrap_or_default()).map_err(|_| RefsError::Senseless)?
            {
                read += packet.len();
                match packet {
                    // The first ends the name of the service, the second the list.
                    Packet::Flush => flushes += 1,
                    Packet::Line(line) => {
                        let line = line.split(|byte| matches!(byte, 0 | b'\n')).next().unwrap_or_default();
                        let found =
                            line.strip_suffix(name.as_bytes()).and_then(|rest| rest.strip_suffix(b" "));
                        if let Some(id) = found.and_then(|id| std::str::from_utf8(id).ok()) {
                            return Ok(Some(id.to_owned()));
                        }
                    }
                }
            }
            open.drain(..read);
        }
        if flushes < 2 { Err(RefsError::Senseless) } else { Ok(None) }
    }

    /// Whether a branch at the forge moves forward from `old` to `new`, of which a push brings these commits. `false` also
    /// where that cannot be shown.
    pub(crate) async fn is_fast_forward(&self, pushed: &CommitScan, old: &str, new: &str) -> bool {
        match pushed.search(new, old) {
            Search::Found => true,
            // Every path ends in commits that the forge must have: it says whether one of them descends from `old`.
            Search::Missing(tips) if tips.len() <= MOST_WANTS => {
                let asked = timeout(PATIENCE, self.descends(&tips, old)).await;
                asked.ok().flatten().unwrap_or(false)
            }
            Search::Missing(_) => false,
        }
    }

    /// Whether `old` is an ancestor of one of `tips`, all of which the forge has. It is asked for what `old` does not
    /// have of their histories: then `old` is an ancestor exactly if it is the parent of a commit that the forge sends.
    async fn descends(&self, tips: &[String], old: &str) -> Option<bool> {
        let request = self
            .git(Method::POST, "/git-upload-pack")
            .header("content-type", "application/x-git-upload-pack-request")
            .header("accept", "application/x-git-upload-pack-result")
            .header("git-protocol", "version=2")
            .body(fetch(tips, old));
        let answer = request.send().await.ok().filter(|answer| answer.status() == StatusCode::OK)?;
        let mut pieces = Box::pin(lively(answer.bytes_stream()));
        let (mut open, mut pack, mut packing) = (Vec::new(), Vec::new(), false);
        let mut scan = CommitScan::new(old.len());
        while let Some(piece) = pieces.next().await {
            open.extend_from_slice(&piece.ok()?);
            let (mut read, mut ended) = (0, false);
            while let Some(packet) = pkt::first(open.get(read..).unwrap_or_default()).ok()? {
                read += packet.len();
                match packet {
                    Packet::Line(b"packfile\n" | b"packfile") => packing = true,
                    Packet::Line([PACK_DATA, data @ ..]) if packing => pack.extend_from_slice(data),
                    // Progress is not asked for; an error is neither yes nor no.
                    Packet::Line([2, ..]) if packing => {}
                    Packet::Line(_) => return None,
                    Packet::Flush => ended = true,
                }
            }
            open.drain(..read);
            let scanned = scan.advance(&pack);
            if scan.has_child_of(old) {
                return Some(true);
            }
            if scanned == Scan::Done || ended {
                return Some(false);
            }
        }
        None
    }
}

/// A fetch of protocol version 2: these commits, for somebody who has `old` and all before it.
fn fetch(tips: &[String], old: &str) -> Vec<u8> {
    let mut body = Vec::new();
    pkt::write(&mut body, b"command=fetch\n");
    if old.len() == 64 {
        pkt::write(&mut body, b"object-format=sha256\n");
    }
    body.extend_from_slice(DELIMITER);
    pkt::write(&mut body, b"no-progress\n");
    pkt::write(&mut body, b"ofs-delta\n");
    for tip in tips {
        pkt::write(&mut body, format!("want {tip}\n").as_bytes());
    }
    pkt::write(&mut body, format!("have {old}\n").as_bytes());
    pkt::write(&mut body, b"done\n");
    body.extend_from_slice(FLUSH);
    body
}
