//! The deltas of a planned turn: sent at a fixed rate or as fast as they are read, each with its send time.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::turn::Turn;
use crate::clock::{self, now_ns};

/// Maximum number of deltas per chunk.
const CHUNK: u64 = 64;
/// Deltas per chunk if there is no rate.
const UNPACED_CHUNK: u64 = 16;
/// How many chunks to send between two checks for an abort.
const CHECK_EVERY: u64 = 64;
/// Open loop: an event that is sent later than this after its due time is stamped with (due time + this), so
/// that delay forced on the sender counts as latency.
const TOLERANCE_NS: u64 = 2_000_000;

/// The parameters of a prompt such as `loadgen rate=100 secs=5 pad=0 cum=0 start=<ns>`.
pub struct Plan {
    rate: f64,
    secs: f64,
    pad: usize,
    cum: usize,
    start: u64,
}

impl Plan {
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        if words.next()? != "loadgen" {
            return None;
        }
        let mut plan = Self { rate: 10.0, secs: 1.0, pad: 0, cum: 0, start: 0 };
        for word in words {
            let (key, value) = word.split_once('=')?;
            match key {
                "rate" => plan.rate = value.parse().ok()?,
                "secs" => plan.secs = value.parse().ok()?,
                "pad" => plan.pad = value.parse().ok()?,
                "cum" => plan.cum = value.parse().ok()?,
                "start" => plan.start = value.parse().ok()?,
                _ => {}
            }
        }
        Some(plan)
    }

    fn has_rate(&self) -> bool {
        self.rate > 0.0
    }
}

pub struct Deltas<'a> {
    turn: &'a Turn,
    plan: Plan,
    start: u64,
    padding: String,
    seq: u64,
    part: String,
    /// Number of deltas in the current part.
    deltas_in_part: usize,
    /// The text of the current part.
    accumulated: String,
    line: String,
}

impl<'a> Deltas<'a> {
    pub fn new(turn: &'a Turn, plan: Plan, part: String) -> Self {
        Self {
            turn,
            start: plan.start.max(now_ns()),
            padding: "x".repeat(plan.pad),
            plan,
            seq: 0,
            part,
            deltas_in_part: 0,
            accumulated: String::new(),
            line: String::with_capacity(512),
        }
    }

    /// Sends all deltas; returns the id of the last part.
    pub async fn send(mut self) -> String {
        clock::sleep_until(self.start).await;
        let end = self.start + clock::ns(self.plan.secs);
        let total = if self.plan.has_rate() { (self.plan.rate * self.plan.secs) as u64 } else { u64::MAX };
        let state = &self.turn.state;
        let listeners = state.listeners(&self.turn.sandbox);
        let mut chunks = 0;
        while self.seq < total && (self.plan.has_rate() || now_ns() < end) {
            let due = self.due(now_ns()).min(total);
            if due <= self.seq {
                let wait = self.due_at(self.seq).saturating_sub(now_ns()).max(1000);
                tokio::time::sleep(Duration::from_nanos(wait)).await;
                continue;
            }
            let count = (due - self.seq).min(CHUNK);
            let chunk = self.chunk(count);
            state.emitted.fetch_add(count, Ordering::Relaxed);
            for listener in &listeners {
                let _ = listener.send(chunk.clone()).await;
            }
            chunks += 1;
            if chunks % CHECK_EVERY == 0 && self.was_superseded() {
                break;
            }
        }
        self.part
    }

    fn was_superseded(&self) -> bool {
        let sandboxes = self.turn.state.sandboxes();
        sandboxes.get(&self.turn.sandbox).is_none_or(|sandbox| sandbox.generation != self.turn.generation)
    }

    /// How many deltas are due by now.
    fn due(&self, now: u64) -> u64 {
        if self.plan.has_rate() {
            (now.saturating_sub(self.start) as f64 / (1e9 / self.plan.rate)) as u64 + 1
        } else {
            self.seq + UNPACED_CHUNK
        }
    }

    fn due_at(&self, seq: u64) -> u64 {
        self.start + (seq as f64 * (1e9 / self.plan.rate)) as u64
    }

    fn chunk(&mut self, count: u64) -> Bytes {
        let mut chunk = BytesMut::with_capacity(256 * count as usize);
        for _ in 0..count {
            let mut stamp = now_ns();
            if self.plan.has_rate() {
                stamp = stamp.min(self.due_at(self.seq) + TOLERANCE_NS);
            }
            self.write_line(stamp);
            chunk.extend_from_slice(self.line.as_bytes());
            self.seq += 1;
            self.deltas_in_part += 1;
            if self.plan.cum > 0 && self.deltas_in_part >= self.plan.cum {
                self.part = self.turn.state.id("prt");
                self.accumulated.clear();
                self.deltas_in_part = 0;
            }
        }
        chunk.freeze()
    }

    /// The results of `write!` are ignored because writing to a String cannot fail.
    fn write_line(&mut self, stamp: u64) {
        let Self { turn: Turn { session, answer, .. }, seq, padding, part, line, accumulated, .. } = self;
        line.clear();
        if self.turn.state.delta_events {
            let _ = write!(
                line,
                "data: {{\"type\":\"message.part.delta\",\"properties\":{{\"sessionID\":\"{session}\",\
                 \"messageID\":\"{answer}\",\"partID\":\"{part}\",\"field\":\"text\",\
                 \"delta\":\"@T{seq}:{stamp};{padding}\"}}}}\n\n"
            );
            return;
        }
        if self.plan.cum > 0 {
            let _ = write!(accumulated, "@T{seq}:{stamp};{padding}");
        }
        let _ = write!(
            line,
            "data: {{\"type\":\"message.part.updated\",\"properties\":{{\"part\":{{\"id\":\"{part}\",\
             \"sessionID\":\"{session}\",\"messageID\":\"{answer}\",\"type\":\"text\",\
             \"text\":\"{accumulated}\"}},\"delta\":\"@T{seq}:{stamp};{padding}\"}}}}\n\n"
        );
    }
}
