//! Records are canonical, bound to their position, and reject anything outside the contract.

use ledger::{AppendError, Chain, Entry, Event, Lineage, MAX_LINE, Text, canonical, parse};

use crate::common::{Ledger, event, key};

#[test]
fn records_are_canonical_json() {
    let ledger = Ledger::with_records(40);
    for (number, entry) in (0..).zip(&ledger.entries) {
        assert_eq!(canonical(&parse(entry.record.as_bytes()).unwrap()).unwrap(), entry.record);
        let line = entry.to_line();
        assert_eq!(canonical(&parse(line.as_bytes()).unwrap()).unwrap(), line);
        assert_eq!(serde_json::from_str::<Event>(&entry.record).unwrap(), event(number));
    }
}

#[test]
fn the_hash_covers_chain_position_and_content() {
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
fn appending_past_the_last_position_fails() {
    let chain = Chain::new("a").unwrap();
    assert!(Entry::append(&chain, None, (1 << 53) - 1, &event(1)).is_ok());
    assert!(Entry::append(&chain, None, 1 << 53, &event(1)).is_err());
}

#[test]
fn records_too_large_to_verify_are_not_written() {
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
fn unknown_fields_and_invalid_values_are_rejected() {
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

/// Exports must stay verifiable for ever: changing these bytes invalidates what is already stored and signed.
#[test]
fn the_format_has_not_changed() {
    let ledger = Ledger::with_records(4);
    let fixture = include_str!("../fixtures/export.jsonl");
    assert_eq!(ledger.lines().join(&b'\n'), fixture.trim_end().as_bytes());
    assert_eq!(ledger.checkpoint(&key(1)).to_string(), include_str!("../fixtures/checkpoint.txt"));
}
