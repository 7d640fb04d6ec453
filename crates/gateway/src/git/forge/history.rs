//! What a forge already has: where a branch points, and whether one commit descends from another. The gateway asks the
//! forge itself, with the organization's credential, because a sandbox's claims about history cannot be trusted.

use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::{Method, StatusCode};
use tokio::time::timeout;

use super::super::pack::{CommitScan, Scan, Search};
use super::super::pkt_line::{self, FLUSH_PACKET, Packet};
use super::ForgeRepo;
use crate::outbound::lively;

/// The longest that one question about history may take.
const FETCH_TIMEOUT: Duration = Duration::from_mins(1);
/// The most commits in one fetch request.
const MAX_WANTS: usize = 200;
/// The most bytes of a ref advertisement that are read to find one ref.
const MAX_REFS: usize = 64 * 1024 * 1024;
const DELIMITER_PACKET: &[u8] = b"0001";
/// The bands of a side-band packet.
const PACK_DATA: u8 = 1;
const PROGRESS_BAND: u8 = 2;

/// Why a forge did not say where a branch points.
#[derive(Debug, thiserror::Error)]
pub(in crate::git) enum RefsError {
    #[error("the forge refused the organization's credential")]
    CredentialRefused,
    #[error("the forge has no such repository")]
    NoRepository,
    #[error("the forge cannot be reached: try again")]
    Unreachable,
    #[error("the forge's list of refs is malformed")]
    Malformed,
}

impl ForgeRepo<'_> {
    /// The commit that a ref points to at the forge; `None` if the ref does not exist.
    pub(in crate::git) async fn remote_ref(&self, name: &str) -> Result<Option<String>, RefsError> {
        let request = self.request(Method::GET, "/info/refs?service=git-receive-pack").send();
        let response = timeout(FETCH_TIMEOUT, request).await.map_err(|_| RefsError::Unreachable)?;
        let response = response.map_err(|_| RefsError::Unreachable)?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(RefsError::CredentialRefused),
            StatusCode::NOT_FOUND => return Err(RefsError::NoRepository),
            _ => return Err(RefsError::Unreachable),
        }
        let mut chunks = Box::pin(lively(response.bytes_stream()));
        let (mut unread, mut total, mut flushes) = (Vec::new(), 0, 0);
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| RefsError::Unreachable)?;
            total += chunk.len();
            if total > MAX_REFS {
                return Err(RefsError::Malformed);
            }
            unread.extend_from_slice(&chunk);
            let mut read = 0;
            while let Some(packet) =
                pkt_line::first(unread.get(read..).unwrap_or_default()).map_err(|_| RefsError::Malformed)?
            {
                read += packet.len();
                match packet {
                    // The first flush ends the name of the service, the second the list.
                    Packet::Flush => flushes += 1,
                    Packet::Line(line) => {
                        if let Some(id) = id_of_ref(line, name) {
                            return Ok(Some(id));
                        }
                    }
                }
            }
            unread.drain(..read);
        }
        if flushes < 2 { Err(RefsError::Malformed) } else { Ok(None) }
    }

    /// Whether an update from `old` to `new` is a fast-forward. `pushed` has the commits that the push brings. `false`
    /// also if that cannot be proved.
    pub(in crate::git) async fn is_fast_forward(&self, pushed: &CommitScan, old: &str, new: &str) -> bool {
        match pushed.search(new, old) {
            Search::Found => true,
            // Every path ends in commits that the forge must have. It says whether one of them descends from `old`.
            Search::Missing(tips) if tips.len() <= MAX_WANTS => {
                let answer = timeout(FETCH_TIMEOUT, self.descends(&tips, old)).await;
                answer.ok().flatten().unwrap_or(false)
            }
            Search::Missing(_) => false,
        }
    }

    /// Whether `old` is an ancestor of one of `tips`, all of which the forge has. We fetch the tips as somebody who has
    /// `old`: then `old` is an ancestor if and only if it is the parent of a commit that the forge sends.
    async fn descends(&self, tips: &[String], old: &str) -> Option<bool> {
        let request = self
            .request(Method::POST, "/git-upload-pack")
            .header("content-type", "application/x-git-upload-pack-request")
            .header("accept", "application/x-git-upload-pack-result")
            .header("git-protocol", "version=2")
            .body(fetch_request(tips, old));
        let response = request.send().await.ok().filter(|response| response.status() == StatusCode::OK)?;
        let mut chunks = Box::pin(lively(response.bytes_stream()));
        let (mut unread, mut pack, mut in_pack) = (Vec::new(), Vec::new(), false);
        let mut scan = CommitScan::new(old.len());
        while let Some(chunk) = chunks.next().await {
            unread.extend_from_slice(&chunk.ok()?);
            let (mut read, mut ended) = (0, false);
            while let Some(packet) = pkt_line::first(unread.get(read..).unwrap_or_default()).ok()? {
                read += packet.len();
                match packet {
                    Packet::Line(b"packfile\n" | b"packfile") => in_pack = true,
                    Packet::Line([PACK_DATA, data @ ..]) if in_pack => pack.extend_from_slice(data),
                    Packet::Line([PROGRESS_BAND, ..]) if in_pack => {}
                    // An error message is neither yes nor no.
                    Packet::Line(_) => return None,
                    Packet::Flush => ended = true,
                }
            }
            unread.drain(..read);
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

/// The object id in a line of a ref advertisement, if the line is about this ref.
fn id_of_ref(line: &[u8], name: &str) -> Option<String> {
    let line = line.split(|byte| matches!(byte, 0 | b'\n')).next()?;
    let id = line.strip_suffix(name.as_bytes())?.strip_suffix(b" ")?;
    std::str::from_utf8(id).ok().map(str::to_owned)
}

/// A fetch of protocol version 2: these commits, for a client that has `old` and its ancestors.
fn fetch_request(tips: &[String], old: &str) -> Vec<u8> {
    let mut body = Vec::new();
    pkt_line::write(&mut body, b"command=fetch\n");
    if old.len() == 64 {
        pkt_line::write(&mut body, b"object-format=sha256\n");
    }
    body.extend_from_slice(DELIMITER_PACKET);
    pkt_line::write(&mut body, b"no-progress\n");
    pkt_line::write(&mut body, b"ofs-delta\n");
    for tip in tips {
        pkt_line::write(&mut body, format!("want {tip}\n").as_bytes());
    }
    pkt_line::write(&mut body, format!("have {old}\n").as_bytes());
    pkt_line::write(&mut body, b"done\n");
    body.extend_from_slice(FLUSH_PACKET);
    body
}
