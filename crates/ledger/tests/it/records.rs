//! Records are canonical, bound to their place, and refuse what the contract does not know.

use ledger::{AppendError, Chain, Entry, Event, Lineage, MAX_LINE, Text, canonical, parse};

use crate::common::{Ledger, event, key};

#[test]
fn what_is_stored_is_canonical_json() {
    let ledger = Ledger::of(40);
    for (number, entry) in (0..).zip(&ledger.entries) {
        assert_eq!(canonical(&parse(entry.record.as_bytes()).unwrap()).unwrap(), entry.record);
        let line = entry.to_line();
        assert_eq!(canonical(&parse(line.as_bytes()).unwrap()).unwrap(), line);
        assert_eq!(serde_json::from_str::<Event>(&entry.record).unwrap(), event(number));
    }
}

#[test]
fn the_hash_depends_on_chain_place_and_content() {
    let (a, b) = (Chain::new("a").unwrap(), Chain::new("b").unwrap());
    let first = Entry::append(&a, None, 5, &event(1)).unwrap();
    let others = [
        Entry::append(&b, None, 5, &event(1)).unwrap(),
        Entry::append(&a, None, 6, &event(1)).unwrap(),
        Entry::append(&a, None, 5, &event(2)).unwrap(),
        Entry::append(&a, Some(first.head()), 5, &event(1)).unwrap(),
    ];
    for other in others {
        assert_ne!(first.hash, other.hash);
    }
    assert_eq!(first, Entry::append(&a, None, 5, &event(1)).unwrap());
}

#[test]
fn a_ledger_that_cannot_count_on_takes_nothing() {
    let chain = Chain::new("a").unwrap();
    assert!(Entry::append(&chain, None, (1 << 53) - 1, &event(1)).is_ok());
    assert!(Entry::append(&chain, None, 1 << 53, &event(1)).is_err());
}

/// Whatever is written must be short enough to be verified.
#[test]
fn what_a_verifier_would_not_read_is_not_written() {
    let chain = Chain::new("a".repeat(64)).unwrap();
    let mut event = event(4);
    let mut artifact = event.output_artifacts.as_slice()[0].clone();
    let lineage = |parents: usize| Lineage {
        derived_from: vec![Text::new("\u{1}".repeat(120)).unwrap(); parents],
        run_id: None,
        transformation: None,
    };
    let mut written = 0;
    for parents in (1_000..2_000).step_by(100) {
        artifact.lineage = Some(lineage(parents));
        event.output_artifacts = vec![artifact.clone()].try_into().unwrap();
        match Entry::append(&chain, None, (1 << 53) - 1, &event) {
            Ok(entry) => {
                assert!(entry.to_line().len() <= MAX_LINE);
                written += 1;
            }
            Err(error) => assert!(matches!(error, AppendError::TooLarge), "{error}"),
        }
    }
    assert!((1..10).contains(&written), "{written}");
}

#[test]
fn an_event_has_no_room_for_what_the_contract_does_not_know() {
    let text = serde_json::to_string(&event(1)).unwrap();
    for wrong in [
        text.replacen('{', r#"{"payload":"text","#, 1),
        text.replace("event-000001", "short"),
        text.replace("\"v1\"", "\"v2\""),
        text.replace("2026-11-15T08:30:00.001Z", "2026-11-15 08:30:00"),
        text.replace("\"agent\"", "\"robot\""),
    ] {
        assert_ne!(wrong, text);
        assert!(serde_json::from_str::<Event>(&wrong).is_err(), "{wrong}");
    }
    assert!(Chain::new("Org/1").is_err() && Chain::new("").is_err());
    assert!(Text::<8, 120>::new("x".repeat(121)).is_err());
}

/// An export of today must verify for ever: whoever changes these bytes changes what is already stored and signed.
#[test]
fn the_format_has_not_changed() {
    let ledger = Ledger::of(4);
    let kept = include_str!("../fixtures/export.jsonl");
    assert_eq!(ledger.lines().join(&b'\n'), kept.trim_end().as_bytes());
    assert_eq!(ledger.checkpoint(&key(1)).to_string(), include_str!("../fixtures/checkpoint.txt"));
}
