//! The event log: in order, each number once, read in pages, pruned no further than the transcript.

use store::{EventBatch, Owner, StoreError};

use crate::backend::{Backend, on_both};
use crate::world::{at, id, org, own, session};

on_both! {
    appended_events_are_read_from_any_cursor
    a_number_is_used_once_and_only_when_it_is_reserved
    a_read_stops_at_its_limit_and_continues_there
    pruning_deletes_only_what_the_transcript_includes
    a_new_owner_learns_the_head
    after_a_database_crash_numbers_continue_after_the_reserved_ones
}

async fn owner(b: &Backend) -> Owner {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    b.store.reserve_numbers(&owner, 1_000).await.unwrap();
    owner
}

async fn append(b: &Backend, owner: &Owner, first: i64, last: i64) -> Result<(), StoreError> {
    let frames: Vec<String> = (first..=last).map(|seq| format!("{{\"seq\":{seq}}}")).collect();
    b.store.append_events(owner, first, last, &frames.join("\n"), at(1)).await
}

async fn appended_events_are_read_from_any_cursor(b: &Backend) {
    let owner = owner(b).await;
    append(b, &owner, 1, 3).await.unwrap();
    append(b, &owner, 4, 4).await.unwrap();
    let all = b.store.events_after(id(40), 0, 1_000).await.unwrap();
    let frames = "{\"seq\":1}\n{\"seq\":2}\n{\"seq\":3}".to_owned();
    assert_eq!(all[0], EventBatch { first_seq: 1, last_seq: 3, frames });
    assert_eq!(all.len(), 2);
    assert_eq!(
        b.store.events_after(id(40), 2, 1_000).await.unwrap(),
        all,
        "the batch that holds the cursor too"
    );
    assert_eq!(b.store.events_after(id(40), 3, 1_000).await.unwrap(), all[1..]);
    assert!(b.store.events_after(id(40), 4, 1_000).await.unwrap().is_empty());
    append(b, &owner, 6, 9).await.unwrap();
    for (cursor, whole) in [(0, false), (4, false), (5, true), (7, true), (9, false), (i64::MAX, false)] {
        assert_eq!(b.store.is_logged_after(id(40), cursor).await.unwrap(), whole, "{cursor}");
    }
    assert!(b.store.events_after(id(41), 0, 1_000).await.unwrap().is_empty(), "another session");
    assert_eq!(b.store.head(id(40)).await.unwrap(), Some(9));
    assert_eq!(b.store.head(id(41)).await.unwrap(), None);
}

async fn a_number_is_used_once_and_only_when_it_is_reserved(b: &Backend) {
    let owner = owner(b).await;
    append(b, &owner, 1, 10).await.unwrap();
    for (first, last) in [(1, 10), (10, 10), (5, 15), (1, 1), (991, 1_001)] {
        let again = append(b, &owner, first, last).await;
        assert!(matches!(again, Err(StoreError::Refused(_))), "{first} {last}: {again:?}");
    }
    b.store.save_messages(&owner, 20, Vec::new()).await.unwrap();
    let passed = append(b, &owner, 20, 21).await;
    assert!(matches!(passed, Err(StoreError::Refused(_))), "{passed:?}");
    append(b, &owner, 21, 22).await.unwrap();
    b.store.reserve_numbers(&owner, 5).await.unwrap();
    append(b, &owner, 23, 1_000).await.unwrap();
}

async fn a_read_stops_at_its_limit_and_continues_there(b: &Backend) {
    let owner = owner(b).await;
    for seq in 1..=80 {
        append(b, &owner, seq, seq).await.unwrap();
    }
    let (mut seen, mut reads) = (Vec::new(), 0);
    while let Some(batches) =
        Some(b.store.events_after(id(40), seen.last().copied().unwrap_or(0), 100).await.unwrap())
            .filter(|batches| !batches.is_empty())
    {
        let bytes: usize = batches.iter().map(|batch| batch.frames.len()).sum();
        assert!(bytes < 120, "{bytes}");
        seen.extend(batches.iter().map(|batch| batch.last_seq));
        reads += 1;
    }
    assert_eq!(seen, (1..=80).collect::<Vec<_>>());
    assert!(reads >= 8, "{reads}");
    assert_eq!(b.store.events_after(id(40), 0, 0).await.unwrap().len(), 1, "at least one");
    assert_eq!(b.store.events_after(id(40), 0, usize::MAX).await.unwrap().len(), 80, "over all pages");
}

async fn pruning_deletes_only_what_the_transcript_includes(b: &Backend) {
    let owner = owner(b).await;
    append(b, &owner, 1, 10).await.unwrap();
    append(b, &owner, 11, 20).await.unwrap();
    append(b, &owner, 21, 30).await.unwrap();
    b.store.prune_events(&owner, 30).await.unwrap();
    assert_eq!(b.store.events_after(id(40), 0, usize::MAX).await.unwrap().len(), 3, "no transcript yet");
    b.store.save_messages(&owner, 25, Vec::new()).await.unwrap();
    b.store.prune_events(&owner, 10).await.unwrap();
    assert_eq!(b.store.events_after(id(40), 0, usize::MAX).await.unwrap().len(), 2);
    b.store.prune_events(&owner, 30).await.unwrap();
    let left = b.store.events_after(id(40), 0, usize::MAX).await.unwrap();
    assert_eq!(left.iter().map(|batch| batch.first_seq).collect::<Vec<_>>(), [21]);
    b.store.save_messages(&owner, 30, Vec::new()).await.unwrap();
    b.store.prune_events(&owner, 30).await.unwrap();
    assert!(b.store.events_after(id(40), 0, usize::MAX).await.unwrap().is_empty());
    assert_eq!(b.store.head(id(40)).await.unwrap(), Some(30));
}

async fn a_new_owner_learns_the_head(b: &Backend) {
    let first = owner(b).await;
    let found = b.store.own_session(id(40), "two").await.unwrap();
    assert_eq!((found.head, found.owner.epoch()), (0, first.epoch() + 1));
    append(b, &found.owner, 1, 7).await.unwrap();
    let found = b.store.own_session(id(40), "three").await.unwrap();
    assert_eq!((found.head, found.record.transcript_seq), (7, 0));
    b.store.save_messages(&found.owner, 7, Vec::new()).await.unwrap();
    b.store.prune_events(&found.owner, 7).await.unwrap();
    let found = b.store.own_session(id(40), "four").await.unwrap();
    assert_eq!((found.head, found.record.transcript_seq), (7, 7));
}

/// The state after a power cut: reservations and messages are there, but not the end of the log.
async fn after_a_database_crash_numbers_continue_after_the_reserved_ones(b: &Backend) {
    let owner = owner(b).await;
    append(b, &owner, 1, 10).await.unwrap();
    append(b, &owner, 11, 20).await.unwrap();
    for (other, reserved) in [("'another life'", 1_000), ("NULL", 2_000)] {
        let cut =
            format!("UPDATE sessions SET seq_incarnation = {other}; DELETE FROM events WHERE last_seq > 10");
        b.raw().await.execute(&cut).await.unwrap();
        let found = b.store.own_session(id(40), "two").await.unwrap();
        assert_eq!(found.head, reserved, "what was reserved may have been seen by somebody");
        b.store.reserve_numbers(&found.owner, reserved + 1_000).await.unwrap();
        let low = append(b, &found.owner, 11, 12).await;
        assert!(matches!(low, Err(StoreError::Refused(_))), "{low:?}");
        let found = b.store.own_session(id(40), "three").await.unwrap();
        assert_eq!(found.head, reserved, "of the new block nothing was used");
        append(b, &found.owner, reserved + 1, reserved + 2).await.unwrap();
        let found = b.store.own_session(id(40), "four").await.unwrap();
        assert_eq!(found.head, reserved + 2, "the log is whole since then");
    }
}
