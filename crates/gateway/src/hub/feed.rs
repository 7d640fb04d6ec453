//! The stream of one session: a ring buffer of recent frames that all listeners share.
//!
//! A listener is only a position in the ring. There is no queue per listener, so a slow one costs no memory. A listener
//! that reads slowly applies some backpressure to the agent. A listener that has stalled does not: it falls out of the
//! ring, is told so, and reconnects with the last sequence number it received.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use clock::Clock;
use parking_lot::{Mutex, MutexGuard};
use proto::socket::CloseCode;
use tokio::sync::watch;

use super::frame::FrameText;

/// The maximum number of bytes in the ring, and the number kept once the session is quiet.
const MAX_BYTES: usize = 8 * 1024 * 1024;
const QUIET_BYTES: usize = 16 * 1024;
/// The number of bytes a listener takes at a time, which is also what it pins in memory while its connection stalls.
const TAKE_BYTES: usize = 128 * 1024;
/// How often we check whether slow listeners have caught up.
const LAG_CHECK: Duration = Duration::from_millis(1);

/// How many bytes a listener may lag before the agent is held back for it, and before its tokens are merged.
const HOLD_BACK_LAG: u64 = 1024 * 1024;
const MERGE_LAG: u64 = 6 * 1024 * 1024;
/// A listener that has taken nothing for this long counts as stalled.
const STALLED_AFTER: Duration = Duration::from_millis(100);

/// Numbered frames that were logged together. Every listener is sent the same bytes.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) first: i64,
    pub(crate) frames: Vec<FrameText>,
    bytes: usize,
    /// The total number of bytes in the stream up to the end of this batch.
    end: u64,
}

impl Batch {
    pub(crate) fn new(first: i64, frames: Vec<FrameText>) -> Self {
        let bytes = frames.iter().map(FrameText::len).sum();
        Self { first, frames, bytes, end: 0 }
    }

    /// The sequence number of the last frame.
    pub(crate) fn last(&self) -> i64 {
        self.first + i64::try_from(self.frames.len()).unwrap_or(i64::MAX) - 1
    }
}

/// The result of reading the stream from a position.
#[derive(Debug)]
pub(crate) enum FeedRead {
    /// The next frames, possibly not all of them.
    Batches(Vec<Arc<Batch>>),
    /// The listener is up to date.
    Nothing,
    /// The next frames have been evicted from the ring.
    Gone,
}

/// The recent end of the stream, shared by all listeners.
pub(crate) struct Feed {
    ring: Mutex<Ring>,
    head: watch::Sender<i64>,
    closed: OnceLock<CloseCode>,
    listeners: Mutex<Vec<Weak<Listener>>>,
    clock: Clock,
}

/// The progress of one listener, as the feed tracks it.
pub(crate) struct Listener {
    /// The number of bytes of the stream that the listener has taken.
    taken: AtomicU64,
    /// The time at which the listener last took a batch, in milliseconds of the clock.
    moved: AtomicU64,
}

#[derive(Default)]
struct Ring {
    batches: VecDeque<Arc<Batch>>,
    bytes: usize,
    /// The total number of bytes ever published to this feed.
    total: u64,
    /// The sequence number of the last frame that was evicted.
    evicted: i64,
}

impl Feed {
    /// Creates a feed whose first frame follows the sequence number `head`.
    pub(crate) fn new(head: i64, clock: Clock) -> Self {
        let ring = Ring { evicted: head, ..Ring::default() };
        let (head, closed) = (watch::Sender::new(head), OnceLock::new());
        Self { ring: Mutex::new(ring), head, closed, listeners: Mutex::default(), clock }
    }

    /// Registers a listener at the current end of the stream. Dropping the listener unregisters it.
    pub(crate) fn listener(&self) -> Arc<Listener> {
        let taken = AtomicU64::new(self.ring().total);
        let listener = Arc::new(Listener { taken, moved: AtomicU64::new(self.now()) });
        let mut all = self.listeners.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&listener));
        listener
    }

    /// Waits until every listener that is not stalled has nearly caught up. Listeners are tasks on the same runtime as
    /// the publisher, so we yield to them when they lag by more than they take at a time, and sleep while their
    /// connections are slow.
    pub(crate) async fn caught_up(&self) {
        if self.lag() > TAKE_BYTES as u64 {
            tokio::task::yield_now().await;
        }
        while self.is_held_back() {
            tokio::time::sleep(LAG_CHECK).await;
        }
    }

    /// Whether some listener that still reads lags so far that the agent must wait.
    fn is_held_back(&self) -> bool {
        self.lag() > HOLD_BACK_LAG
    }

    /// The lag in bytes of the slowest listener that is not stalled.
    fn lag(&self) -> u64 {
        let (total, now) = (self.ring().total, self.now());
        let stall = u64::try_from(STALLED_AFTER.as_millis()).unwrap_or(u64::MAX);
        let all = self.listeners.lock();
        let moving = all
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|listener| now.saturating_sub(listener.moved.load(Ordering::Relaxed)) < stall);
        let taken = moving.map(|listener| listener.taken.load(Ordering::Relaxed)).min();
        taken.map_or(0, |taken| total.saturating_sub(taken))
    }

    /// Whether a listener lags so far that its tokens are merged.
    pub(crate) fn is_far_behind(&self, listener: &Listener) -> bool {
        self.ring().total.saturating_sub(listener.taken.load(Ordering::Relaxed)) > MERGE_LAG
    }

    /// Records that a listener has sent this whole batch to its client.
    pub(crate) fn taken(&self, listener: &Listener, batch: &Batch) {
        listener.taken.store(batch.end, Ordering::Relaxed);
        listener.moved.store(self.now(), Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn head(&self) -> i64 {
        *self.head.borrow()
    }

    /// Publishes frames to every listener. Their sequence numbers follow the head.
    pub(crate) fn publish(&self, first: i64, frames: Vec<FrameText>) {
        let mut batch = Batch::new(first, frames);
        let last = batch.last();
        {
            let mut ring = self.ring();
            ring.bytes += batch.bytes;
            ring.total += batch.bytes as u64;
            batch.end = ring.total;
            ring.batches.push_back(Arc::new(batch));
            ring.evict_beyond(MAX_BYTES);
        }
        self.head.send_replace(last);
    }

    /// Disconnects every listener.
    pub(crate) fn close(&self, code: CloseCode) {
        let _ = self.closed.set(code);
        self.head.send_modify(|_| {});
    }

    /// The reason why the feed is closed, if it is.
    pub(crate) fn closed(&self) -> Option<CloseCode> {
        self.closed.get().copied()
    }

    /// Returns a receiver that wakes on every publish.
    pub(crate) fn listen(&self) -> watch::Receiver<i64> {
        self.head.subscribe()
    }

    /// Returns the frames after this sequence number. A position inside a batch gets the whole batch; the listener
    /// skips the frames it already has.
    pub(crate) fn read_after(&self, position: i64) -> FeedRead {
        let ring = self.ring();
        if position < ring.evicted {
            return FeedRead::Gone;
        }
        let mut taken = 0;
        let following = ring.batches.range(ring.batches.partition_point(|batch| batch.last() <= position)..);
        let batches: Vec<_> = following
            .take_while(|batch| {
                let fits = taken < TAKE_BYTES;
                taken += batch.bytes;
                fits
            })
            .cloned()
            .collect();
        if batches.is_empty() { FeedRead::Nothing } else { FeedRead::Batches(batches) }
    }

    /// Evicts most of the ring once a turn is over. The log still has every frame.
    pub(crate) fn shrink(&self) {
        self.ring().evict_beyond(QUIET_BYTES);
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock()
    }
}

impl Ring {
    /// Evicts the oldest batches until at most `most` bytes are left. The newest batch always stays, whatever its size.
    fn evict_beyond(&mut self, most: usize) {
        while self.bytes > most && self.batches.len() > 1 {
            if let Some(old) = self.batches.pop_front() {
                self.bytes -= old.bytes;
                self.evicted = old.last();
            }
        }
        if self.batches.len() < self.batches.capacity() / 4 {
            self.batches.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(feed: &Feed, first: i64, frames: usize, size: usize) {
        feed.publish(first, vec![FrameText::from("x".repeat(size)); frames]);
    }

    /// The sequence numbers that a listener at a position receives until it is up to date, or `None` if it was too
    /// slow.
    fn numbers(feed: &Feed, mut place: i64) -> Option<Vec<i64>> {
        let mut got = Vec::new();
        loop {
            match feed.read_after(place) {
                FeedRead::Nothing => return Some(got),
                FeedRead::Gone => return None,
                FeedRead::Batches(batches) => {
                    for batch in batches {
                        got.extend((batch.first..=batch.last()).filter(|number| *number > place));
                        place = batch.last();
                    }
                }
            }
        }
    }

    #[test]
    fn a_listener_gets_every_number_once_from_any_position() {
        let feed = Feed::new(10, Clock::system());
        publish(&feed, 11, 3, 10);
        publish(&feed, 14, 2, 10);
        assert_eq!(feed.head(), 15);
        assert_eq!(numbers(&feed, 10).unwrap(), [11, 12, 13, 14, 15]);
        assert_eq!(numbers(&feed, 12).unwrap(), [13, 14, 15], "in the middle of a batch");
        assert_eq!(numbers(&feed, 15).unwrap(), [0; 0]);
        assert!(numbers(&feed, 9).is_none(), "from before this stream");
    }

    #[test]
    fn frames_beyond_the_limit_are_evicted_and_reported_as_gone() {
        let feed = Feed::new(0, Clock::system());
        let each = 64 * 1024;
        for number in 1..=1000 {
            publish(&feed, number, 1, each);
        }
        assert!(feed.ring().bytes <= MAX_BYTES);
        assert!(numbers(&feed, 0).is_none() && numbers(&feed, 500).is_none());
        assert_eq!(numbers(&feed, 990).unwrap().len(), 10);
        feed.shrink();
        assert!(feed.ring().bytes <= each, "a quiet stream is small");
        assert!(numbers(&feed, 990).is_none());
        assert_eq!(numbers(&feed, 999).unwrap(), [1000]);
    }

    #[test]
    fn a_listener_takes_a_limited_number_of_bytes() {
        let feed = Feed::new(0, Clock::system());
        for number in 1..=100 {
            publish(&feed, number, 1, 64 * 1024);
        }
        let FeedRead::Batches(batches) = feed.read_after(0) else { panic!("nothing to take") };
        assert_eq!(batches.len(), TAKE_BYTES / (64 * 1024));
        assert_eq!(numbers(&feed, 0).unwrap().len(), 100);
    }

    #[test]
    fn a_slow_listener_holds_the_agent_back_and_a_stalled_one_does_not() {
        let clock = Clock::manual(chrono::DateTime::UNIX_EPOCH);
        let feed = Feed::new(0, clock.clone());
        let (slow, still) = (feed.listener(), feed.listener());
        assert!(!feed.is_held_back());
        for number in 1..=100 {
            publish(&feed, number, 1, 64 * 1024);
        }
        assert!(feed.is_held_back() && feed.is_far_behind(&slow), "both were there a moment ago");
        clock.advance(STALLED_AFTER);
        assert!(!feed.is_held_back(), "nobody has taken anything for a while");
        let FeedRead::Batches(batches) = feed.read_after(0) else { panic!("nothing to take") };
        feed.taken(&slow, &batches[0]);
        assert!(feed.is_held_back(), "one of them reads");
        let FeedRead::Batches(batches) = feed.read_after(99) else { panic!("nothing to take") };
        feed.taken(&slow, &batches[0]);
        assert!(!feed.is_held_back() && !feed.is_far_behind(&slow) && feed.is_far_behind(&still));
        drop(still);
    }

    #[test]
    fn many_stalled_listeners_pin_little_memory_beside_the_ring() {
        let feed = Feed::new(0, Clock::system());
        let mut held = Vec::new();
        // Each listener takes its share at a different position and stalls, while much more is published.
        for number in 1..=64 {
            for frame in 0..20 {
                publish(&feed, (number - 1) * 20 + frame + 1, 1, 16 * 1024);
            }
            let FeedRead::Batches(batches) = feed.read_after((number - 1) * 20) else {
                panic!("nothing to take")
            };
            held.extend(batches);
        }
        for number in 1281..3000 {
            publish(&feed, number, 1, 16 * 1024);
        }
        assert!(feed.ring().bytes <= MAX_BYTES);
        let pinned: usize =
            held.iter().filter(|batch| Arc::strong_count(batch) == 1).map(|batch| batch.bytes).sum();
        assert!(pinned > 0 && pinned + feed.ring().bytes <= 16 * 1024 * 1024, "{pinned}");
    }
}
