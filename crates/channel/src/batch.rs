//! Collects several frames for one vectored write; large payloads are shared, not copied.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

use crate::frame::Frame;

/// Payloads of at least this size become a chunk of their own; below it, a copy is cheaper than another chunk.
const MIN_SHARED_PAYLOAD: usize = 4 * 1024;

#[derive(Default)]
pub(crate) struct Batch {
    chunks: VecDeque<Bytes>,
    /// Frame heads and small payloads, collected until a large payload follows.
    small: BytesMut,
    length: usize,
}

impl Batch {
    pub(crate) fn push(&mut self, frame: &Frame) {
        let before = self.small.len();
        let payload = frame.encode_head(&mut self.small);
        self.length += self.small.len() - before + payload.len();
        if payload.len() < MIN_SHARED_PAYLOAD {
            self.small.extend_from_slice(&payload);
        } else {
            self.seal();
            self.chunks.push_back(payload);
        }
    }

    /// Moves the collected small bytes into `chunks`; must be called before the batch is read as a `Buf`.
    pub(crate) fn seal(&mut self) {
        if !self.small.is_empty() {
            self.chunks.push_back(self.small.split().freeze());
        }
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

impl Buf for Batch {
    fn remaining(&self) -> usize {
        self.length
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.front().map_or(&[], Bytes::as_ref)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pairs = slices.iter_mut().zip(&self.chunks);
        pairs.map(|(slice, chunk)| *slice = IoSlice::new(chunk)).count()
    }

    fn advance(&mut self, mut count: usize) {
        self.length -= count;
        while let Some(chunk) = self.chunks.front_mut() {
            if count < chunk.len() {
                return chunk.advance(count);
            }
            count -= chunk.len();
            self.chunks.pop_front();
        }
    }
}
