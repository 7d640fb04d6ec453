//! Every kind of tampering at any position is found, and the first bad record is named.

use ledger::{Checkpoint, Entry, Fault, Hash, UnprovenClaim, Verifier, sha256};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::common::{Ledger, event, key};

const RECORDS: u64 = 30;

fn fault(lines: &[Vec<u8>], checkpoints: Vec<Checkpoint>) -> Option<Fault> {
    let mut verifier = Verifier::new(checkpoints, Some(key(1).public().clone()));
    lines.iter().try_for_each(|line| verifier.push(line)).and_then(|()| verifier.finish()).err()
}

/// Asserts that verification names record `first`, with a checkpoint and, if `alone`, also without one.
fn assert_found(lines: &[Vec<u8>], first: usize, alone: bool) -> Result<(), TestCaseError> {
    let checkpoint = Ledger::with_records(RECORDS).checkpoint(&key(1));
    let first = Some(first as u64);
    let held = fault(lines, vec![checkpoint]).expect("tampering was not found");
    prop_assert_eq!(held.first_bad_record(), first, "{}", held);
    if alone {
        let without = fault(lines, Vec::new()).expect("tampering was not found without a checkpoint");
        prop_assert_eq!(without.first_bad_record(), first, "{}", without);
    }
    Ok(())
}

/// Whether the lines verify without a checkpoint, as they do when only the tail is missing or everything was
/// recomputed.
fn verifies_without_checkpoint(lines: &[Vec<u8>]) -> bool {
    fault(lines, Vec::new()).is_none()
}

proptest! {
    #[test]
    fn a_flipped_bit(at in any::<Index>(), byte in any::<Index>(), bit in 0..8_u32) {
        let mut lines = Ledger::with_records(RECORDS).lines();
        let at = at.index(lines.len());
        let byte = byte.index(lines[at].len());
        lines[at][byte] ^= 1_u8 << bit;
        assert_found(&lines, at, true)?;
    }

    #[test]
    fn a_dropped_record(at in any::<Index>(), many in 1_usize..4) {
        let mut lines = Ledger::with_records(RECORDS).lines();
        let at = at.index(lines.len());
        let end = (at + many).min(lines.len());
        lines.drain(at..end);
        // Only a checkpoint reveals records dropped from the end.
        assert_found(&lines, at, at < lines.len())?;
    }

    #[test]
    fn two_swapped_records(a in any::<Index>(), b in any::<Index>()) {
        let mut lines = Ledger::with_records(RECORDS).lines();
        let (a, b) = (a.index(lines.len()), b.index(lines.len()));
        prop_assume!(a != b);
        lines.swap(a, b);
        assert_found(&lines, a.min(b), true)?;
    }

    #[test]
    fn an_inserted_record(at in any::<Index>(), copy in any::<Index>()) {
        let mut lines = Ledger::with_records(RECORDS).lines();
        let (at, copy) = (at.index(lines.len()), copy.index(lines.len()));
        let line = lines[copy].clone();
        lines.insert(at, line);
        // A copy inserted before its original is taken for the original, and the original is then the extra
        // record.
        assert_found(&lines, if at == copy { at + 1 } else { at }, true)?;
    }

    /// A forger who computes the hash of an inserted record is found at the next record. In the last position
    /// before a checkpoint this is a rewritten ledger; see `a_rewritten_ledger`.
    #[test]
    fn an_inserted_record_with_a_correct_hash(at in any::<Index>()) {
        let mut lines = Ledger::with_records(RECORDS).lines();
        let at = at.index(lines.len() - 1);
        let mut forged = Ledger::with_records(at as u64);
        forged.append(&event(777));
        lines.insert(at, forged.lines().pop().unwrap());
        assert_found(&lines, at + 1, true)?;
    }

    /// A forger who computes the hash of a replaced record is found at the next record of its chain.
    #[test]
    fn a_replaced_record_with_a_correct_hash(at in any::<Index>()) {
        let ledger = Ledger::with_records(RECORDS);
        let at = at.index(ledger.entries.len());
        let chain = &ledger.entries[at].chain;
        let next = ledger.entries[at + 1..].iter().position(|entry| entry.chain == *chain);
        let mut forged = Ledger::with_records(at as u64);
        forged.append(&event(777));
        let mut lines = ledger.lines();
        lines[at] = forged.lines().pop().unwrap();
        match next {
            Some(next) => assert_found(&lines, at + 1 + next, true)?,
            None => assert_found(&lines, 0, false)?,
        }
    }

    #[test]
    fn a_cut_off_tail(keep in 0..RECORDS) {
        let lines = Ledger::with_records(keep).lines();
        prop_assert!(verifies_without_checkpoint(&lines));
        assert_found(&lines, lines.len(), false)?;
    }

    /// One record is replaced and everything after it recomputed.
    #[test]
    fn a_rewritten_ledger(at in 0..RECORDS, held in 1..RECORDS) {
        let mut ledger = Ledger::with_records(at);
        ledger.append(&event(999));
        (at + 1..RECORDS).for_each(|number| ledger.append(&event(number)));
        let lines = ledger.lines();
        prop_assert!(verifies_without_checkpoint(&lines));
        let (early, late) = (Ledger::with_records(held).checkpoint(&key(1)), Ledger::with_records(RECORDS).checkpoint(&key(1)));
        let expected = if at < held { Fault::Rewritten { from: 0, to: held } } else { Fault::Rewritten { from: held, to: RECORDS } };
        prop_assert_eq!(fault(&lines, vec![late, early]), Some(expected));
    }

    /// Other encodings of the same JSON count as tampering, because two parsers could read them differently.
    #[test]
    fn a_different_json_encoding(at in any::<Index>(), kind in 0..6) {
        let mut lines = Ledger::with_records(RECORDS).lines();
        let at = at.index(lines.len());
        let line = String::from_utf8(lines[at].clone()).unwrap();
        lines[at] = match kind {
            0 => line + " ",
            1 => line.replacen(':', ": ", 1),
            2 => line.replacen("agent-", "\\u0061gent-", 1),
            3 => line.replacen('{', "{\"chain\":\"system\",", 1),
            4 => line.replacen("\"position\":", "\"position\":0", 1),
            _ => line.replacen("\"record\":{", "\"record\":{\"notes\":null,", 1),
        }.into_bytes();
        assert_found(&lines, at, true)?;
    }
}

/// The hash of a record, implemented from its documentation alone.
fn hash_of(entry: &Entry, record: &str) -> Hash {
    let mut text = b"proliferate/ledger/event/v1\n".to_vec();
    text.extend(entry.prev_hash.as_bytes());
    text.extend(entry.position.to_be_bytes());
    text.extend(entry.sequence.to_be_bytes());
    text.extend((entry.chain.as_str().len() as u64).to_be_bytes());
    text.extend(entry.chain.as_str().bytes());
    text.extend(record.bytes());
    sha256(&text)
}

/// A record has one valid form even if its hash is correct, because two parsers could read another form
/// differently.
#[test]
fn a_non_canonical_record_with_a_correct_hash_is_found() {
    let entry = Ledger::with_records(1).entries.remove(0);
    assert_eq!(hash_of(&entry, &entry.record), entry.hash);
    for record in [
        entry.record.replacen('{', "{ ", 1),
        entry.record.replacen("agent-0", "\\u0061gent-0", 1),
        entry.record.replacen("\"outcome\"", "\"notes\":null,\"outcome\"", 1),
        entry.record.replacen("\"outcome\"", "\"outcome\":\"allow\",\"outcome\"", 1),
        entry.record.replacen("\"outcome\"", "\"payload\":\"text\",\"outcome\"", 1),
    ] {
        assert_ne!(record, entry.record);
        let forged = Entry { hash: hash_of(&entry, &record), record, ..entry.clone() };
        let found = fault(&[forged.to_line().into_bytes()], Vec::new());
        assert_eq!(found.and_then(|fault| fault.first_bad_record()), Some(0), "{}", forged.record);
    }
}

#[test]
fn forging_a_checkpoint_needs_the_key() {
    let mut ledger = Ledger::with_records(5);
    ledger.append(&event(999));
    let forged = ledger.checkpoint(&key(2));
    assert_eq!(fault(&ledger.lines(), vec![forged.clone()]), Some(Fault::Signature { checkpoint: 6 }));
    let mut verifier = Verifier::new(vec![forged], None);
    ledger.lines().iter().for_each(|line| verifier.push(line).unwrap());
    assert_eq!(verifier.finish().unwrap().unproven, [UnprovenClaim::Signer]);
}

#[test]
fn overlong_lines_are_rejected() {
    let mut verifier = Verifier::new(Vec::new(), None);
    let long = vec![b' '; ledger::MAX_LINE + 1];
    assert_eq!(verifier.push(&long).unwrap_err().first_bad_record(), Some(0));
}
