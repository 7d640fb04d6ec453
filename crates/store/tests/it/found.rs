//! Reading what the gate wrote: by run, by case, by id or prefix, and by many callers at once.

use ledger::{ActionType, Chain, Entry, KeyChange, Target, TargetType};
use proto::OrgId;
use store::{Change, EventFilter, GateWrite, ListedEvent, NewRun, RunFilter, Store};

use crate::backend::{Backend, on_both};
use crate::gate::{begin, done, end, event, org, run, text};

on_both! {
    events_and_decisions_are_found_by_id_and_prefix
    events_are_found_by_run_and_case_whether_attached_or_not
    concurrent_lookups_return_the_right_rows
}

async fn events_and_decisions_are_found_by_id_and_prefix(backend: &Backend) {
    let store = &backend.store;
    done(store, begin(run("run-0001"), vec![event("event-001", "run-0001")])).await;
    assert_eq!(store.last_key_change().await.unwrap(), None);
    let mut change = event("event-002", "run-none");
    change.org = None;
    change.event.action_type = ActionType::System;
    let (name, operation) = KeyChange::TARGET;
    change.event.target = Some(Target {
        artifact_ref: None,
        name: text(name),
        operation: Some(text(operation)),
        target_type: TargetType::System,
    });
    done(store, GateWrite::new(Change::Nothing, vec![change])).await;
    done(store, end("run-0001", "here", "fine")).await;
    done(store, begin(run("run-0002"), vec![event("event-003", "run-0002")])).await;

    let positions = |entries: Vec<Entry>| entries.iter().map(|entry| entry.position).collect::<Vec<_>>();
    assert_eq!(positions(store.last_ledger_entries(None, 2).await.unwrap()), [2, 3]);
    let chain = Chain::new(org().uuid().to_string()).unwrap();
    assert_eq!(positions(store.last_ledger_entries(Some(&chain), 10).await.unwrap()), [0, 2, 3]);
    assert_eq!(positions(store.ledger_entries_about("run-0001", 10).await.unwrap()), [0, 2]);
    assert_eq!(positions(store.ledger_entries_about("event-002", 10).await.unwrap()), [1]);
    assert!(store.ledger_entries_about("nothing", 10).await.unwrap().is_empty());
    assert!(store.last_key_change().await.unwrap().unwrap().contains("event-002"));

    let decisions = store.recorded_decisions(Some(org()), "", 10).await.unwrap();
    assert_eq!(
        decisions.iter().map(|found| found.run_id.as_str()).collect::<Vec<_>>(),
        ["run-0001", "run-0002"]
    );
    assert_eq!(store.recorded_decisions(None, "run-0001", 10).await.unwrap().len(), 1);
    assert_eq!(store.recorded_decisions(Some(uuid::Uuid::from_u128(7).into()), "", 10).await.unwrap(), []);
}

pub(crate) fn all() -> EventFilter {
    EventFilter { after: -1, limit: 100, ..EventFilter::default() }
}

/// The ids of events that match a filter.
pub(crate) async fn told(store: &Store, filter: EventFilter) -> Vec<String> {
    let id = |event: ListedEvent| {
        serde_json::from_str::<serde_json::Value>(&event.record).unwrap()["event_id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    store.ledger_events(org(), &filter).await.unwrap().into_iter().map(id).collect()
}

/// A run references its events; unattached events are found by their own index.
async fn events_are_found_by_run_and_case_whether_attached_or_not(backend: &Backend) {
    let store = &backend.store;
    let of = |id: &str, run: &str, case: &str| {
        let mut new = event(id, run);
        new.event.case_id = Some(text(case));
        new
    };
    let case = |case: &str| EventFilter { case_id: Some(case.to_owned()), ..all() };
    let run_of = |run: &str| EventFilter { run_id: Some(run.to_owned()), ..all() };
    let in_case = |id: &str, case: &str| NewRun { case_id: Some(case.to_owned()), ..run(id) };
    // More than a run references, and one of another run among them.
    let mut many: Vec<_> =
        (0..6).map(|number| of(&format!("many-{number:03}"), "run-0001", "case-1")).collect();
    many[1] = of("stranger", "run-0009", "case-9");
    done(store, begin(in_case("run-0001", "case-1"), many)).await;
    done(store, begin(in_case("run-0002", "case-2"), vec![of("begin-002", "run-0002", "case-2")])).await;
    let conflict = of("conflict", "run-0002", "case-3");
    done(store, GateWrite::new(Change::Nothing, vec![conflict])).await;
    done(store, end("run-0001", "here", "fine")).await;
    let mut last = end("run-0002", "here", "fine");
    last.events = vec![of("end-of-2", "run-0002", "case-2"), of("also-of-2", "run-0002", "case-2")];
    done(store, last).await;

    let first = ["many-000", "many-002", "many-003", "many-004", "many-005", "end-of-run-0001"];
    assert_eq!(told(store, run_of("run-0001")).await, first);
    assert_eq!(told(store, run_of("run-0002")).await, ["begin-002", "conflict", "end-of-2", "also-of-2"]);
    assert_eq!(told(store, run_of("run-0009")).await, ["stranger"]);
    assert_eq!(told(store, case("case-2")).await, ["begin-002", "end-of-2", "also-of-2"]);
    assert_eq!(told(store, case("case-3")).await, ["conflict"]);
    assert_eq!(
        told(store, EventFilter { after: 7, limit: 2, ..case("case-2") }).await,
        ["end-of-2", "also-of-2"]
    );
    assert_eq!(
        told(store, EventFilter { case_id: Some("case-3".to_owned()), ..run_of("run-0002") }).await,
        ["conflict"]
    );
    let elsewhere = uuid::Uuid::from_u128(9).into();
    assert_eq!(store.ledger_events(elsewhere, &run_of("run-0001")).await.unwrap(), []);
    let listed = |filter: RunFilter| async move {
        let runs = store.runs(org(), &filter).await.unwrap();
        runs.into_iter().map(|run| run.run_id).collect::<Vec<_>>()
    };
    let filter = RunFilter { case_id: Some("case-2".to_owned()), limit: 10, ..RunFilter::default() };
    assert_eq!(listed(filter).await, ["run-0002"]);
}

/// Autovacuum analyzes once a minute, and until then the server plans for empty tables.
#[tokio::test]
async fn tables_are_analyzed_when_they_have_grown() {
    let backend = Backend::postgres().await;
    for number in 0..260 {
        let id = format!("run-{number:04}");
        done(&backend.store, begin(run(&id), vec![event(&format!("event-{number:04}"), &id)])).await;
    }
    let mut raw = backend.raw().await;
    let known = "SELECT count(*) FROM pg_class WHERE relname IN ('runs', 'ledger_events') AND reltuples > 250
        AND relnamespace = current_schema()::regnamespace";
    let looked = async {
        while raw.number(known).await < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_mins(1), looked).await.expect("nobody looked");
}

/// On PostgreSQL they share statements, and there are more than fit into one.
async fn concurrent_lookups_return_the_right_rows(backend: &Backend) {
    let store = &backend.store;
    for id in ["run-0001", "run-0002"] {
        done(store, begin(run(id), vec![event(&format!("event-of-{id}"), id)])).await;
    }
    let stranger: OrgId = uuid::Uuid::from_u128(9).into();
    let looks = (0..1200_u32).map(|number| {
        let store = store.clone();
        let (of, id, there) = match number % 4 {
            0 => (org(), "run-0001", true),
            1 => (org(), "run-0002", true),
            2 => (org(), "run-0003", false),
            _ => (stranger, "run-0001", false),
        };
        tokio::spawn(async move {
            let found = store.run(of, id).await.unwrap().map(|run| (run.org_id, run.run_id));
            assert_eq!(found, there.then(|| (of, id.to_owned())));
        })
    });
    for look in looks.collect::<Vec<_>>() {
        look.await.unwrap();
    }
    // A lookup sees every write that was committed before it.
    for number in 10..40 {
        let id = format!("run-00{number}");
        done(store, begin(run(&id), vec![event(&format!("event-of-{id}"), &id)])).await;
        let (first, second) = tokio::join!(store.run(org(), &id), store.run(org(), "run-0003"));
        assert!(first.unwrap().is_some() && second.unwrap().is_none());
    }
}
