//! The stream of one session: what was said lately, held once for everyone who listens.
//!
//! Listeners have a place in it and nothing else: there is no queue for each of them, so a slow one costs no memory. One
//! that reads, if slowly, holds the agent back a little; one that stands still holds nobody back, falls out of the ring, is
//! told so, and comes back by its number.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use axum::extract::ws::Utf8Bytes;
use clock::Clock;
use parking_lot::{Mutex, MutexGuard};
use proto::socket::CloseCode;
use tokio::sync::watch;

/// What the ring holds at most, and what is left of it once nothing is said.
const MOST: usize = 8 * 1024 * 1024;
const RESTING: usize = 16 * 1024;
/// What a listener takes at once: as much as it pins while its connection stands still.
const HELPING: usize = 128 * 1024;
/// How often to look whether those who are waited for have caught up.
const CATCHING_UP: Duration = Duration::from_millis(1);

/// How far behind a listener may be before the agent is held back for it, and before its tokens are joined.
const BEHIND: u64 = 1024 * 1024;
const FAR_BEHIND: u64 = 6 * 1024 * 1024;
/// A listener that has taken nothing for so long stands still.
const STILL: Duration = Duration::from_millis(100);

/// Numbered frames that were logged together. They are sent as they are to everyone.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) first: i64,
    pub(crate) frames: Vec<Utf8Bytes>,
    bytes: usize,
    /// Bytes of the stream up to its end.
    end: u64,
}

impl Batch {
    pub(crate) fn new(first: i64, frames: Vec<Utf8Bytes>) -> Self {
        let bytes = frames.iter().map(|frame| frame.len()).sum();
        Self { first, frames, bytes, end: 0 }
    }

    /// The number of its last frame.
    pub(crate) fn last(&self) -> i64 {
        self.first + i64::try_from(self.frames.len()).unwrap_or(i64::MAX) - 1
    }
}

/// What there is for a listener at a place.
#[derive(Debug)]
pub(crate) enum After {
    /// The next frames, perhaps not all.
    Batches(Vec<Arc<Batch>>),
    /// It has everything.
    Nothing,
    /// What comes next is no longer here.
    Gone,
}

/// The end of the stream that listeners share.
pub(crate) struct Feed {
    ring: Mutex<Ring>,
    head: watch::Sender<i64>,
    closed: OnceLock<CloseCode>,
    listeners: Mutex<Vec<Weak<Listener>>>,
    clock: Clock,
}

/// One who listens, as far as the others are concerned.
pub(crate) struct Listener {
    /// Bytes of the stream up to its place.
    taken: AtomicU64,
    /// When it last took something, in milliseconds of the clock.
    moved: AtomicU64,
}

#[derive(Default)]
struct Ring {
    batches: VecDeque<Arc<Batch>>,
    bytes: usize,
    /// Bytes that were ever said here.
    total: u64,
    /// The number of the last frame that is no longer here.
    gone: i64,
}

impl Feed {
    /// A stream that goes on after `head`.
    pub(crate) fn new(head: i64, clock: Clock) -> Self {
        let ring = Ring { gone: head, ..Ring::default() };
        let (head, closed) = (watch::Sender::new(head), OnceLock::new());
        Self { ring: Mutex::new(ring), head, closed, listeners: Mutex::default(), clock }
    }

    /// Somebody who listens from now on, until it is dropped.
    pub(crate) fn listener(&self) -> Arc<Listener> {
        let taken = AtomicU64::new(self.ring().total);
        let listener = Arc::new(Listener { taken, moved: AtomicU64::new(self.now()) });
        let mut all = self.listeners.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&listener));
        listener
    }

    /// Waits until those who read have nearly everything. They are tasks as well as who says it: where there is more than
    /// they take at once they get their turn, and where their connections are slow, time.
    pub(crate) async fn caught_up(&self) {
        if self.behind() > HELPING as u64 {
            tokio::task::yield_now().await;
        }
        while self.is_held_back() {
            tokio::time::sleep(CATCHING_UP).await;
        }
    }

    /// Whether to wait for somebody who reads and does not keep up.
    fn is_held_back(&self) -> bool {
        self.behind() > BEHIND
    }

    /// How far the slowest is behind of those who read.
    fn behind(&self) -> u64 {
        let (total, now) = (self.ring().total, self.now());
        let still = u64::try_from(STILL.as_millis()).unwrap_or(u64::MAX);
        let all = self.listeners.lock();
        let moving = all
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|listener| now.saturating_sub(listener.moved.load(Ordering::Relaxed)) < still);
        let taken = moving.map(|listener| listener.taken.load(Ordering::Relaxed)).min();
        taken.map_or(0, |taken| total.saturating_sub(taken))
    }

    /// Whether a listener is so far behind that its tokens are joined.
    pub(crate) fn is_far_behind(&self, listener: &Listener) -> bool {
        self.ring().total.saturating_sub(listener.taken.load(Ordering::Relaxed)) > FAR_BEHIND
    }

    /// A listener has sent all of this on.
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

    /// Says something to everyone. Its numbers follow the head.
    pub(crate) fn publish(&self, first: i64, frames: Vec<Utf8Bytes>) {
        let mut batch = Batch::new(first, frames);
        let last = batch.last();
        {
            let mut ring = self.ring();
            ring.bytes += batch.bytes;
            ring.total += batch.bytes as u64;
            batch.end = ring.total;
            ring.batches.push_back(Arc::new(batch));
            ring.forget_beyond(MOST);
        }
        self.head.send_replace(last);
    }

    /// Sends everyone away.
    pub(crate) fn close(&self, why: CloseCode) {
        let _ = self.closed.set(why);
        self.head.send_modify(|_| {});
    }

    /// Why everyone is sent away, if they are.
    pub(crate) fn closed(&self) -> Option<CloseCode> {
        self.closed.get().copied()
    }

    /// Wakes whenever something was said.
    pub(crate) fn listen(&self) -> watch::Receiver<i64> {
        self.head.subscribe()
    }

    /// What follows the frame with this number. A place between two frames of a batch gets the whole batch; the
    /// listener skips what it has.
    pub(crate) fn after(&self, place: i64) -> After {
        let ring = self.ring();
        if place < ring.gone {
            return After::Gone;
        }
        let mut taken = 0;
        let following = ring.batches.range(ring.batches.partition_point(|batch| batch.last() <= place)..);
        let batches: Vec<_> = following
            .take_while(|batch| {
                let fits = taken < HELPING;
                taken += batch.bytes;
                fits
            })
            .cloned()
            .collect();
        if batches.is_empty() { After::Nothing } else { After::Batches(batches) }
    }

    /// Lets go of most, once a turn is over; the log has it all.
    pub(crate) fn rest(&self) {
        self.ring().forget_beyond(RESTING);
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock()
    }
}

impl Ring {
    /// The newest batch stays whatever its size.
    fn forget_beyond(&mut self, most: usize) {
        while self.bytes > most && self.batches.len() > 1 {
            if let Some(old) = self.batches.pop_front() {
                self.bytes -= old.bytes;
                self.gone = old.last();
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
        feed.publish(first, vec![Utf8Bytes::from("x".repeat(size)); frames]);
    }

    /// The numbers that a listener at a place gets until it has all, or nothing if it was too slow.
    fn numbers(feed: &Feed, mut place: i64) -> Option<Vec<i64>> {
        let mut got = Vec::new();
        loop {
            match feed.after(place) {
                After::Nothing => return Some(got),
                After::Gone => return None,
                After::Batches(batches) => {
                    for batch in batches {
                        got.extend((batch.first..=batch.last()).filter(|number| *number > place));
                        place = batch.last();
                    }
                }
            }
        }
    }

    #[test]
    fn a_listener_gets_every_number_once_from_wherever_it_is() {
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
    fn what_does_not_fit_is_gone_and_said_to_be() {
        let feed = Feed::new(0, Clock::system());
        let each = 64 * 1024;
        for number in 1..=1000 {
            publish(&feed, number, 1, each);
        }
        assert!(feed.ring().bytes <= MOST);
        assert!(numbers(&feed, 0).is_none() && numbers(&feed, 500).is_none());
        assert_eq!(numbers(&feed, 990).unwrap().len(), 10);
        feed.rest();
        assert!(feed.ring().bytes <= each, "a stream at rest is small");
        assert!(numbers(&feed, 990).is_none());
        assert_eq!(numbers(&feed, 999).unwrap(), [1000]);
    }

    #[test]
    fn a_listener_takes_little_at_once() {
        let feed = Feed::new(0, Clock::system());
        for number in 1..=100 {
            publish(&feed, number, 1, 64 * 1024);
        }
        let After::Batches(batches) = feed.after(0) else { panic!("nothing to take") };
        assert_eq!(batches.len(), HELPING / (64 * 1024));
        assert_eq!(numbers(&feed, 0).unwrap().len(), 100);
    }

    #[test]
    fn one_who_reads_slowly_is_waited_for_and_one_who_stands_still_is_not() {
        let clock = Clock::manual(chrono::DateTime::UNIX_EPOCH);
        let feed = Feed::new(0, clock.clone());
        let (slow, still) = (feed.listener(), feed.listener());
        assert!(!feed.is_held_back());
        for number in 1..=100 {
            publish(&feed, number, 1, 64 * 1024);
        }
        assert!(feed.is_held_back() && feed.is_far_behind(&slow), "both were there a moment ago");
        clock.advance(STILL);
        assert!(!feed.is_held_back(), "nobody has taken anything for a while");
        let After::Batches(batches) = feed.after(0) else { panic!("nothing to take") };
        feed.taken(&slow, &batches[0]);
        assert!(feed.is_held_back(), "one of them reads");
        let After::Batches(batches) = feed.after(99) else { panic!("nothing to take") };
        feed.taken(&slow, &batches[0]);
        assert!(!feed.is_held_back() && !feed.is_far_behind(&slow) && feed.is_far_behind(&still));
        drop(still);
    }

    #[test]
    fn many_listeners_that_stand_still_hold_little_beside_the_ring() {
        let feed = Feed::new(0, Clock::system());
        let mut held = Vec::new();
        // Each takes its share at another place and stands still, while much more is said.
        for number in 1..=64 {
            for frame in 0..20 {
                publish(&feed, (number - 1) * 20 + frame + 1, 1, 16 * 1024);
            }
            let After::Batches(batches) = feed.after((number - 1) * 20) else { panic!("nothing to take") };
            held.extend(batches);
        }
        for number in 1281..3000 {
            publish(&feed, number, 1, 16 * 1024);
        }
        assert!(feed.ring().bytes <= MOST);
        let pinned: usize =
            held.iter().filter(|batch| Arc::strong_count(batch) == 1).map(|batch| batch.bytes).sum();
        assert!(pinned > 0 && pinned + feed.ring().bytes <= 16 * 1024 * 1024, "{pinned}");
    }
}
