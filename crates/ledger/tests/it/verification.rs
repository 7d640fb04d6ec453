//! What verification reports for an intact ledger, and what it cannot prove.

use ledger::{
    Checkpoint, Fault, LostKey, PublicKey, RecordProblem, Report, Restore, SigningKey, UnprovenClaim,
    Verifier,
};

use crate::common::{Ledger, key};

fn verify(
    lines: &[Vec<u8>],
    checkpoints: Vec<Checkpoint>,
    key: Option<&SigningKey>,
) -> Result<Report, Fault> {
    let mut verifier = Verifier::new(checkpoints, key.map(|key| PublicKey::clone(key.public())));
    lines.iter().try_for_each(|line| verifier.push(line))?;
    verifier.finish()
}

#[test]
fn an_intact_ledger_verifies_completely() {
    let ledger = Ledger::with_records(50);
    let checkpoints = vec![
        ledger.checkpoint(&key(1)),
        Ledger::with_records(20).checkpoint(&key(1)),
        Ledger::with_records(0).checkpoint(&key(1)),
    ];
    let report = verify(&ledger.lines(), checkpoints, Some(&key(1))).unwrap();
    let expected = Report {
        records: 50,
        chains: 2,
        root: ledger.tree.root(),
        checkpoints: 3,
        rolled_back: Vec::new(),
        unproven: Vec::new(),
    };
    assert_eq!(report, expected);
}

#[test]
fn the_report_lists_what_is_unproven() {
    let ledger = Ledger::with_records(10);
    let alone = verify(&ledger.lines(), Vec::new(), None).unwrap();
    assert_eq!(alone.unproven, [UnprovenClaim::Completeness, UnprovenClaim::Signer]);
    let older =
        verify(&ledger.lines(), vec![Ledger::with_records(7).checkpoint(&key(1))], Some(&key(1))).unwrap();
    assert_eq!(older.unproven, [UnprovenClaim::Tail { from: 7 }]);
    let unsigned = verify(&ledger.lines(), vec![ledger.checkpoint(&key(9))], None).unwrap();
    assert_eq!(unsigned.unproven, [UnprovenClaim::Signer]);
}

#[test]
fn a_checkpoint_signed_by_an_unknown_key_is_rejected() {
    let ledger = Ledger::with_records(10);
    let fault = verify(&ledger.lines(), vec![ledger.checkpoint(&key(2))], Some(&key(1)));
    assert_eq!(fault, Err(Fault::Signature { checkpoint: 10 }));
}

/// Ten records, a key change at position 10, and ten more records.
fn ledger_with_key_change() -> (Ledger, Checkpoint, Checkpoint) {
    let mut ledger = Ledger::with_records(10);
    let before = ledger.checkpoint(&key(1));
    ledger.change_key(&key(1), &key(2));
    for number in 11..20 {
        ledger.append(&crate::common::event(number));
    }
    let after = ledger.checkpoint(&key(2));
    (ledger, before, after)
}

#[test]
fn key_changes_carry_trust_in_both_directions() {
    let (ledger, before, after) = ledger_with_key_change();
    for known in [1, 2] {
        let report = verify(&ledger.lines(), vec![before.clone(), after.clone()], Some(&key(known))).unwrap();
        assert_eq!(report.unproven, []);
    }
    assert_eq!(verify(&ledger.lines(), vec![after], Some(&key(3))), Err(Fault::Key));
}

#[test]
fn a_key_signs_only_while_it_is_in_force() {
    let (ledger, _, _) = ledger_with_key_change();
    let leaked = ledger.checkpoint(&key(1));
    assert_eq!(
        verify(&ledger.lines(), vec![leaked], Some(&key(1))),
        Err(Fault::Signature { checkpoint: 20 })
    );
    let early = Ledger::with_records(10).checkpoint(&key(2));
    assert_eq!(verify(&ledger.lines(), vec![early], Some(&key(1))), Err(Fault::Signature { checkpoint: 10 }));
}

#[test]
fn a_key_change_that_the_old_key_did_not_sign_is_a_fault() {
    let (mut ledger, _, _) = ledger_with_key_change();
    // Key 1 is no longer in force.
    ledger.change_key(&key(1), &key(3));
    let Err(Fault::Record { position: 20, problem: RecordProblem::KeyChange, .. }) =
        verify(&ledger.lines(), Vec::new(), None)
    else {
        panic!("the key change was accepted");
    };
    let mut ledger = Ledger::with_records(3);
    let (name, operation) = ledger::KeyChange::TARGET;
    ledger.append_key_change("no signatures", name, operation);
    assert_eq!(verify(&ledger.lines(), Vec::new(), None).unwrap_err().first_bad_record(), Some(3));
}

#[test]
fn a_checkpoint_of_another_ledger_is_refused() {
    let ledger = Ledger::with_records(5);
    let other = SigningKey::from_seed("another/ledger", &[1; 32]).unwrap();
    let fault = verify(&ledger.lines(), vec![ledger.checkpoint(&other)], Some(&key(1)));
    assert_eq!(fault, Err(Fault::Signature { checkpoint: 5 }));
}

/// Ten records of a backup, a restore from thirty records that `signer` signed, and nine more records.
fn ledger_with_restore(signer: &SigningKey) -> Ledger {
    let mut ledger = Ledger::with_records(10);
    let notes = Restore::sign(signer, 10, &ledger.tree.root(), 30);
    let (name, operation) = Restore::TARGET;
    ledger.append_key_change(&notes, name, operation);
    (11..20).for_each(|number| ledger.append(&crate::common::event(number + 100)));
    ledger
}

#[test]
fn a_signed_restore_explains_checkpoints_of_what_it_rolled_back() {
    let ledger = ledger_with_restore(&key(1));
    let old = |size| Ledger::with_records(size).checkpoint(&key(1));
    let checkpoints = vec![old(5), old(15), old(30), ledger.checkpoint(&key(1))];
    let report = verify(&ledger.lines(), checkpoints, Some(&key(1))).unwrap();
    assert_eq!((report.checkpoints, report.unproven.len()), (2, 0), "{report:?}");
    let [back] = &report.rolled_back[..] else { panic!("{report:?}") };
    let sizes: Vec<_> = back.checkpoints.iter().map(|checkpoint| checkpoint.size).collect();
    assert_eq!((back.record, sizes), (10, vec![15, 30]));
    assert!(back.to_string().contains("rolled back by a restore at 2026-11-15T08:30:00"), "{back}");
}

#[test]
fn a_restore_explains_no_other_mismatch() {
    let old = |size| Ledger::with_records(size).checkpoint(&key(1));
    let forged = ledger_with_restore(&key(9));
    let refused =
        |ledger: &Ledger, checkpoints| verify(&ledger.lines(), checkpoints, Some(&key(1))).unwrap_err();
    assert_eq!(
        refused(&forged, vec![old(15)]),
        Fault::Rewritten { from: 0, to: 15 },
        "a restore signed by another key explains nothing"
    );
    assert_eq!(refused(&forged, vec![old(30)]), Fault::Truncated { records: 20, checkpoint: 30 });
    let ledger = ledger_with_restore(&key(1));
    assert_eq!(
        refused(&ledger, vec![old(31)]),
        Fault::Truncated { records: 20, checkpoint: 31 },
        "the checkpoint is newer than the restore"
    );
    let other = Ledger::with_records(10).checkpoint(&key(1)).to_string().replacen("10", "9", 1);
    let other = Checkpoint::parse_all(&other).unwrap();
    assert_eq!(
        refused(&ledger, other),
        Fault::Rewritten { from: 0, to: 9 },
        "the checkpoint covers records of the backup"
    );
    // A checkpoint signed after the restore cannot have been rolled back by it.
    let mut rewritten = ledger_with_restore(&key(1));
    rewritten.append(&crate::common::event(999));
    let checkpoints = vec![old(30), ledger.checkpoint(&key(1)), old(20)];
    assert!(matches!(refused(&rewritten, checkpoints), Fault::Rewritten { to: 20, .. }));
    let mut copied = Ledger::with_records(11);
    let notes = Restore::sign(&key(1), 10, &Ledger::with_records(10).tree.root(), 30);
    let (name, operation) = Restore::TARGET;
    copied.append_key_change(&notes, name, operation);
    assert_eq!(
        refused(&copied, vec![old(30)]),
        Fault::Truncated { records: 12, checkpoint: 30 },
        "the restore statement is at another position"
    );
}

#[test]
fn after_a_lost_key_each_key_proves_only_its_own_checkpoints() {
    let mut ledger = Ledger::with_records(10);
    let before = ledger.checkpoint(&key(1));
    let (name, operation) = LostKey::TARGET;
    ledger.append_key_change(&key(2).public().to_string(), name, operation);
    let after = ledger.checkpoint(&key(2));
    for known in [1, 2] {
        let report = verify(&ledger.lines(), vec![before.clone(), after.clone()], Some(&key(known))).unwrap();
        assert_eq!(report.unproven, [UnprovenClaim::LostKey { record: 10 }]);
    }
    let forged = vec![before, ledger.checkpoint(&key(3))];
    let fault = verify(&ledger.lines(), forged, Some(&key(2)));
    assert_eq!(fault, Err(Fault::Signature { checkpoint: 11 }));
}
