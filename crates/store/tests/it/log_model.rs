//! Tests ownership and the event log against a model: whatever owners, former owners, takeovers and database crashes
//! happen in whatever order, each number is used once, nothing unsaved is pruned, and the head is known.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use store::{NewSession, Owner, Store, StoreError};

use crate::backend::{Backend, Raw, on_both};
use crate::world::{at, id, new_session, org};

on_both! { the_event_log_behaves_like_its_model }

/// An action of one of three instances.
#[derive(Clone, Copy, Debug)]
enum LogStep {
    Own,
    Reserve(i64),
    Append {
        first: i64,
        more: i64,
    },
    Save(i64),
    Prune(i64),
    /// The database loses this many batches, and all owners are gone.
    Crash(usize),
}

/// The result that a caller sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Done,
    Fenced,
    Refused,
}

/// The expected state of a session.
#[derive(Default)]
struct Model {
    epoch: i64,
    reserved: i64,
    saved: i64,
    head: i64,
    log: Vec<(i64, i64)>,
    /// Nothing was lost since the last grant.
    whole: bool,
    floor: i64,
    /// The highest acknowledged number.
    used: i64,
}

impl Model {
    fn act(&mut self, epoch: i64, act: LogStep) -> Seen {
        if epoch != self.epoch {
            return Seen::Fenced;
        }
        match act {
            LogStep::Own | LogStep::Crash(_) => unreachable!("needs no epoch"),
            LogStep::Reserve(up_to) => self.reserved = self.reserved.max(up_to),
            LogStep::Append { first, more } => {
                if first <= self.head.max(self.floor) || first + more > self.reserved {
                    return Seen::Refused;
                }
                self.log.push((first, first + more));
                self.head = first + more;
                self.used = self.used.max(self.head);
            }
            LogStep::Save(seq) => {
                self.saved = self.saved.max(seq);
                self.head = self.head.max(self.saved);
            }
            LogStep::Prune(up_to) => {
                let saved = self.saved;
                self.log.retain(|(_, last)| *last > up_to || *last > saved);
            }
        }
        Seen::Done
    }

    /// The log after a crash that loses its last batches.
    fn crash(&mut self, batches: usize) {
        self.log.truncate(self.log.len().saturating_sub(batches));
        self.head = self.log.last().map_or(0, |(_, last)| *last).max(self.saved);
        self.whole = false;
    }

    /// Where a new owner continues.
    fn own(&mut self) -> i64 {
        self.epoch += 1;
        if !std::mem::replace(&mut self.whole, true) {
            self.floor = self.reserved;
        }
        self.head.max(self.floor)
    }
}

async fn act(store: &Store, owner: &Owner, act: LogStep) -> Seen {
    let done = match act {
        LogStep::Own | LogStep::Crash(_) => unreachable!("needs no owner"),
        LogStep::Reserve(up_to) => store.reserve_numbers(owner, up_to).await,
        LogStep::Append { first, more } => store.append_events(owner, first, first + more, "{}", at(1)).await,
        LogStep::Save(seq) => store.save_messages(owner, seq, Vec::new()).await,
        LogStep::Prune(up_to) => store.prune_events(owner, up_to).await,
    };
    match done {
        Ok(()) => Seen::Done,
        Err(StoreError::Fenced) => Seen::Fenced,
        Err(StoreError::Refused(_)) => Seen::Refused,
        Err(other) => panic!("{other:?}"),
    }
}

async fn follow(store: &Store, raw: &mut Raw, number: u8, acts: Vec<(usize, LogStep)>) {
    let id = id(number);
    store.create_session(NewSession { id, ..new_session(crate::world::id(1), 40) }).await.unwrap();
    let mut model = Model::default();
    let mut owners: [Option<Owner>; 3] = [None; 3];
    for (instance, next) in acts {
        match (next, owners[instance]) {
            (LogStep::Own, _) => {
                let owned = store.own_session(id, "instance").await.unwrap();
                let head = model.own();
                assert_eq!((owned.owner.epoch(), owned.head), (model.epoch, head));
                assert!(owned.head >= model.used, "{} was used and may be used again", model.used);
                assert_eq!(owned.record.transcript_seq, model.saved);
                owners[instance] = Some(owned.owner);
            }
            (LogStep::Crash(batches), _) => {
                model.crash(batches);
                let cut = model.log.last().map_or(0, |(_, last)| *last);
                let sql = format!(
                    "UPDATE sessions SET seq_incarnation = 'another' WHERE id = #{number};
                    DELETE FROM events WHERE session_id = #{number} AND last_seq > {cut}"
                );
                raw.execute(&sql).await.unwrap();
                owners = [None; 3];
            }
            (_, None) => {}
            (next, Some(owner)) => {
                let expected = model.act(owner.epoch(), next);
                assert_eq!(act(store, &owner, next).await, expected, "{next:?} by {owner:?}");
            }
        }
        assert_eq!(store.head(id).await.unwrap(), Some(model.head));
    }
    let log = store.events_after(id, 0, usize::MAX).await.unwrap();
    assert_eq!(log.iter().map(|batch| (batch.first_seq, batch.last_seq)).collect::<Vec<_>>(), model.log);
}

fn acts() -> impl Strategy<Value = Vec<(usize, LogStep)>> {
    let one = prop_oneof![
        2 => Just(LogStep::Own),
        3 => (1..60_i64).prop_map(LogStep::Reserve),
        8 => (1..50_i64, 0..6_i64).prop_map(|(first, more)| LogStep::Append { first, more }),
        2 => (0..50_i64).prop_map(LogStep::Save),
        2 => (0..60_i64).prop_map(LogStep::Prune),
        1 => (0..3_usize).prop_map(LogStep::Crash),
    ];
    prop::collection::vec((0..3_usize, one), 1..40)
}

async fn the_event_log_behaves_like_its_model(b: &Backend) {
    org(&b.store, 1).await;
    let (store, mut raw) = (b.store.clone(), b.raw().await);
    let runtime = tokio::runtime::Handle::current();
    let work = move || {
        let config = ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() };
        let state = std::cell::RefCell::new((40, &mut raw));
        TestRunner::new(config).run(&acts(), |acts| {
            let (number, raw) = &mut *state.borrow_mut();
            *number += 1;
            runtime.block_on(follow(&store, raw, *number, acts));
            Ok(())
        })
    };
    tokio::task::spawn_blocking(work).await.unwrap().unwrap();
}
