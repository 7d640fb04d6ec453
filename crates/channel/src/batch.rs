//! What goes into one write: several frames, where large payloads are referred to and not copied.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

use crate::frame::Frame;

/// From here on a payload is a piece of its own; below, a copy is cheaper than one more piece.
const LARGE: usize = 4 * 1024;

#[derive(Default)]
pub(crate) struct Batch {
    pieces: VecDeque<Bytes>,
    /// Heads and small payloads, until a large payload follows them.
    small: BytesMut,
    length: usize,
}

impl Batch {
    pub(crate) fn push(&mut self, frame: &Frame) {
        let before = self.small.len();
        let payload = frame.encode_head(&mut self.small);
        self.length += self.small.len() - before + payload.len();
        if payload.len() < LARGE {
            self.small.extend_from_slice(&payload);
        } else {
            self.seal();
            self.pieces.push_back(payload);
        }
    }

    /// Must come before reading: what is small becomes a piece.
    pub(crate) fn seal(&mut self) {
        if !self.small.is_empty() {
            self.pieces.push_back(self.small.split().freeze());
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
        self.pieces.front().map_or(&[], Bytes::as_ref)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pairs = slices.iter_mut().zip(&self.pieces);
        pairs.map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
    }

    fn advance(&mut self, mut count: usize) {
        self.length -= count;
        while let Some(piece) = self.pieces.front_mut() {
            if count < piece.len() {
                return piece.advance(count);
            }
            count -= piece.len();
            self.pieces.pop_front();
        }
    }
}
