//! Writing runs and the ledger: a claim is granted once, a run ends once, and their events form a chain without gaps,
//! however many callers write at once.

use chrono::{DateTime, Utc};
use ledger::{ActionType, Actor, ActorType, Event, Outcome, PolicyVersions, Text, Timestamp, Tree, Verifier};
use proto::{OrgId, RunKind, RunStatus};
use serde_json::json;
use store::{
    CallDetails, Change, ConfigurationEffect, Effect, Ended, EventFilter, GateWrite, JsonText, NewArtifact,
    NewConfiguration, NewEvent, NewOrg, NewRun, Store, Written,
};

use crate::backend::{Backend, on_both};
use crate::found::{all, told};

on_both! {
    a_claim_is_given_once
    a_run_ends_once_and_never_changes_afterwards
    a_call_needs_a_parent_in_flight
    a_child_queued_after_the_end_of_its_parent_is_refused
    a_refused_write_appends_no_event
    an_effect_and_its_claim_are_committed_together
    many_writers_build_one_ledger
    a_refused_write_does_not_fail_others_in_the_batch
    an_orphaned_call_is_found_and_taken_over
    a_lock_and_its_event_are_committed_together
}

const ORG: u128 = 0x1000;

pub(crate) fn org() -> OrgId {
    uuid::Uuid::from_u128(ORG).into()
}

fn now() -> DateTime<Utc> {
    DateTime::parse_from_rfc3339("2026-11-15T08:30:00Z").unwrap().to_utc()
}

pub(crate) fn text<const MIN: usize, const MAX: usize>(text: &str) -> Text<MIN, MAX> {
    Text::new(text).unwrap()
}

pub(crate) fn event(id: &str, run: &str) -> NewEvent {
    let actor =
        Actor { actor_id: text("ada"), actor_type: ActorType::Human, agent_name: None, user_display: None };
    let pins = PolicyVersions { lanes: text("lanes-1"), roles: text("roles-1") };
    let at = Timestamp::try_from("2026-11-15T08:30:00.000Z".to_owned()).unwrap();
    let mut event = Event::new(text(id), at, ActionType::ToolCall, Outcome::Success, actor, pins);
    event.run_id = Some(text(run));
    NewEvent { org: Some(org()), event }
}

pub(crate) fn run(id: &str) -> NewRun {
    NewRun {
        org_id: org(),
        run_id: id.to_owned(),
        kind: RunKind::ToolGateway,
        lanes_version: "lanes-1".to_owned(),
        roles_version: "roles-1".to_owned(),
        parent_run_id: None,
        root_run_id: id.to_owned(),
        run_name: None,
        case_id: Some("case-1".to_owned()),
        session_id: None,
        correlation_id: None,
        actor: JsonText::of(&json!({"actor_type": "human", "actor_id": "ada"})),
        role_id: "OPERATOR".to_owned(),
        lane_id: Some("actions.read".to_owned()),
        call: Some(CallDetails {
            tool: "weather".to_owned(),
            operation: "weather.look".to_owned(),
            request_hash: "f".repeat(64),
            decision: JsonText::of(&json!({"outcome": "allow"})),
            instance: "here".to_owned(),
        }),
        inputs: JsonText::of(&json!([])),
        retry_count: 0,
        retry_reason: None,
        created_at: now(),
        waits: false,
        end: None,
    }
}

pub(crate) fn begin(run: NewRun, events: Vec<NewEvent>) -> GateWrite {
    GateWrite::new(Change::Begin(Box::new(run)), events)
}

pub(crate) fn ended(outcome: &str) -> Box<Ended> {
    Box::new(Ended {
        status: RunStatus::Completed,
        outcome: outcome.to_owned(),
        error: None,
        answer: Some(JsonText::of(&json!({"said": outcome}))),
        response_hash: None,
        outputs: JsonText::of(&json!([])),
        started_at: None,
        at: now(),
    })
}

pub(crate) fn end(id: &str, instance: &str, outcome: &str) -> GateWrite {
    let instance = Some(instance.to_owned());
    let change = Change::End { org: org(), run_id: id.to_owned(), instance, ended: ended(outcome) };
    GateWrite::new(change, vec![event(&format!("end-of-{id}"), id)])
}

pub(crate) async fn done(store: &Store, write: GateWrite) {
    let written = store.gate_write(write).await.unwrap();
    assert!(matches!(written, Written::Done), "{written:?}");
}

/// Verifies the whole ledger as an auditor would, and returns the number of events.
async fn verified(store: &Store) -> u64 {
    let entries = store.ledger_entries(0, 100_000).await.unwrap();
    let mut verifier = Verifier::new(Vec::new(), None);
    let mut tree = Tree::default();
    for entry in &entries {
        verifier.push(entry.to_line().as_bytes()).unwrap();
        tree.push(&entry.hash);
    }
    verifier.finish().unwrap();
    let hashes = store.ledger_hashes(0, 100_000).await.unwrap();
    assert_eq!(hashes, entries.iter().map(|entry| entry.hash).collect::<Vec<_>>());
    assert_eq!(store.ledger_size().await.unwrap(), tree.size());
    tree.size()
}

async fn a_claim_is_given_once(backend: &Backend) {
    let claims = (0..20).map(|number| {
        let store = backend.store.clone();
        let write = begin(run("run-0001"), vec![event(&format!("event-{number:03}"), "run-0001")]);
        tokio::spawn(async move { store.gate_write(write).await.unwrap() })
    });
    let mut fresh = 0;
    for claim in claims.collect::<Vec<_>>() {
        match claim.await.unwrap() {
            Written::Done => fresh += 1,
            Written::Known(known) => assert_eq!(known.run_id, "run-0001"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(fresh, 1);
    assert_eq!(verified(&backend.store).await, 1);
}

async fn a_run_ends_once_and_never_changes_afterwards(backend: &Backend) {
    let store = &backend.store;
    done(store, begin(run("run-0001"), Vec::new())).await;
    let other = store.gate_write(end("run-0001", "elsewhere", "stolen")).await.unwrap();
    assert!(matches!(other, Written::NotYours), "{other:?}");
    done(store, end("run-0001", "here", "first")).await;
    let again = store.gate_write(end("run-0001", "here", "second")).await.unwrap();
    assert!(matches!(again, Written::NotYours), "{again:?}");
    let found = store.run(org(), "run-0001").await.unwrap().unwrap();
    assert_eq!((found.status, found.answer), (RunStatus::Completed, Some(json!({"said": "first"}))));
    let mut raw = backend.raw().await;
    for attempt in ["UPDATE runs SET status = 'failed'", "DELETE FROM runs"] {
        assert!(raw.execute(attempt).await.is_err(), "{attempt}");
    }
    assert!(store.run(uuid::Uuid::from_u128(1).into(), "run-0001").await.unwrap().is_none());
}

async fn a_call_needs_a_parent_in_flight(backend: &Backend) {
    let store = &backend.store;
    let child = |id: &str| NewRun { parent_run_id: Some("parent-1".to_owned()), ..run(id) };
    let early = store.gate_write(begin(child("child-01"), Vec::new())).await.unwrap();
    assert!(matches!(early, Written::ParentInactive), "{early:?}");
    done(store, begin(run("parent-1"), Vec::new())).await;
    done(store, begin(child("child-02"), Vec::new())).await;
    done(store, end("parent-1", "here", "over")).await;
    let late = store.gate_write(begin(child("child-03"), Vec::new())).await.unwrap();
    assert!(matches!(late, Written::ParentInactive), "{late:?}");
    // A refusal is recorded all the same.
    let refused = Ended { status: RunStatus::Denied, ..*ended("denied") };
    done(store, begin(NewRun { end: Some(refused), ..child("child-04") }, Vec::new())).await;
}

/// All three are sent at once; those that are queued during the first commit share a transaction.
async fn a_child_queued_after_the_end_of_its_parent_is_refused(backend: &Backend) {
    let store = &backend.store;
    for round in 0..20 {
        let (first, parent) = (format!("first-run-{round}"), format!("parent-run-{round}"));
        done(store, begin(run(&parent), vec![])).await;
        let mut child = run(&format!("child-run-{round}"));
        child.parent_run_id = Some(parent.clone());
        let (_, ended, begun) = tokio::join!(
            store.gate_write(begin(run(&first), vec![])),
            store.gate_write(end(&parent, "here", "over")),
            store.gate_write(begin(child, vec![])),
        );
        assert!(matches!(ended.unwrap(), Written::Done));
        assert!(matches!(begun.unwrap(), Written::ParentInactive), "round {round}");
    }
}

async fn a_refused_write_appends_no_event(backend: &Backend) {
    let store = &backend.store;
    let artifact = NewArtifact {
        org_id: org(),
        artifact_id: "art-0001".to_owned(),
        kind: "tool_output".to_owned(),
        hash: "a".repeat(64),
        case_id: Some("case-1".to_owned()),
        content_type: "application/json".to_owned(),
        lineage: JsonText::of(&json!({})),
        at: now(),
        content: b"{}".to_vec(),
    };
    let mut first = begin(run("run-0001"), vec![event("event-001", "run-0001")]);
    first.artifacts.push(artifact.clone());
    done(store, first.clone()).await;
    let mut second = begin(run("run-0001"), vec![event("event-002", "run-0001")]);
    second.artifacts.push(NewArtifact { artifact_id: "art-0002".to_owned(), ..artifact });
    assert!(matches!(store.gate_write(second).await.unwrap(), Written::Known(_)));
    assert!(store.artifact(org(), "art-0002").await.unwrap().is_none());
    let kept = store.artifact(org(), "art-0001").await.unwrap().unwrap();
    assert_eq!((kept.byte_size, kept.case_id.as_deref()), (2, Some("case-1")));
    assert_eq!(store.artifact_content(org(), "art-0001").await.unwrap().unwrap(), b"{}");
    assert_eq!(verified(store).await, 1);
}

async fn an_effect_and_its_claim_are_committed_together(backend: &Backend) {
    let store = &backend.store;
    let configuration: proto::ConfigurationId = uuid::Uuid::from_u128(0x2000).into();
    let saved = async || store.configuration(org(), configuration).await.unwrap().unwrap().service_commands;
    let write = |id: &str, command: &str, configuration| {
        let mut whole = run(id);
        whole.end = Some(*ended("done"));
        let effect = Effect::SaveServiceCommands(ConfigurationEffect {
            org: org(),
            configuration,
            value: JsonText::of(&json!([{"name": "web", "command": command}])),
            by: "ada".to_owned(),
            at: now(),
        });
        let events = vec![event(&format!("said-of-{id}"), id)];
        GateWrite { effect: Some(effect), ..begin(whole, events) }
    };
    let gone = store.gate_write(write("run-0001", "walk", configuration)).await.unwrap();
    assert!(matches!(gone, Written::Gone), "{gone:?}");
    assert_eq!(verified(store).await, 0, "what could not be done is not told");

    store.create_org(NewOrg { id: org(), name: "org".to_owned(), at: now() }).await.unwrap();
    let new = NewConfiguration {
        id: configuration,
        org_id: org(),
        name: "app".to_owned(),
        sandbox_provider: "local".to_owned(),
        repos: Vec::new(),
        created_by: None,
        at: now(),
    };
    store.create_configuration(new).await.unwrap();
    done(store, write("run-0001", "run\0", configuration)).await;
    assert_eq!(saved().await, Some(json!([{"name": "web", "command": "run\u{fffd}"}])));
    let known = store.gate_write(write("run-0001", "again", configuration)).await.unwrap();
    assert!(matches!(known, Written::Known(_)), "{known:?}");
    assert_eq!(saved().await, Some(json!([{"name": "web", "command": "run\u{fffd}"}])));
    let mut orphan = write("run-0002", "orphan", configuration);
    if let Change::Begin(run) = &mut orphan.change {
        run.parent_run_id = Some("run-0001".to_owned());
    }
    let inactive = store.gate_write(orphan).await.unwrap();
    assert!(matches!(inactive, Written::ParentInactive), "{inactive:?}");

    // Of several concurrent changes the last one wins, as if they had been sequential.
    let together = (3..40).map(|number| {
        let (store, write) = (store.clone(), write(&format!("run-{number:04}"), "many", configuration));
        tokio::spawn(async move { store.gate_write(write).await.unwrap() })
    });
    for written in together.collect::<Vec<_>>() {
        assert!(matches!(written.await.unwrap(), Written::Done));
    }
    assert_eq!(saved().await, Some(json!([{"name": "web", "command": "many"}])));
    assert_eq!(verified(store).await, 38);
}

async fn many_writers_build_one_ledger(backend: &Backend) {
    let other = backend.reopen().await.unwrap();
    let writing = (0..200).map(|number| {
        // Two instances, as far as the database can tell.
        let store = if number % 2 == 0 { backend.store.clone() } else { other.clone() };
        tokio::spawn(async move {
            let id = format!("run-{number:04}");
            let mut events = vec![event(&format!("event-{number:04}"), &id)];
            if number % 3 == 0 {
                events.push(NewEvent { org: None, ..event(&format!("system-{number:04}"), &id) });
            }
            done(&store, begin(run(&id), events)).await;
            done(&store, end(&id, "here", "fine")).await;
        })
    });
    for one in writing.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    assert_eq!(verified(&backend.store).await, 200 + 67 + 200);
    assert_eq!(
        told(&backend.store, EventFilter { run_id: Some("run-0007".to_owned()), ..all() }).await.len(),
        2
    );
}

async fn a_refused_write_does_not_fail_others_in_the_batch(backend: &Backend) {
    let store = &backend.store;
    done(store, begin(run("run-0001"), vec![event("event-001", "run-0001")])).await;
    let writing = (2..30).map(|number| {
        let store = store.clone();
        tokio::spawn(async move {
            let id = format!("run-{number:04}");
            // Every seventh write has an event that exists already.
            let event_id =
                if number % 7 == 0 { "event-001".to_owned() } else { format!("event-{number:03}") };
            (number, store.gate_write(begin(run(&id), vec![event(&event_id, &id)])).await)
        })
    });
    for one in writing.collect::<Vec<_>>() {
        let (number, written) = one.await.unwrap();
        assert_eq!(written.is_err(), number % 7 == 0, "{number}: {written:?}");
    }
    assert!(store.run(org(), "run-0007").await.unwrap().is_none(), "no claim without its event");
    assert_eq!(verified(store).await, 1 + 28 - 4);
}

async fn an_orphaned_call_is_found_and_taken_over(backend: &Backend) {
    let store = &backend.store;
    store.see_instance("here", None, now()).await.unwrap();
    done(store, begin(run("run-0001"), Vec::new())).await;
    let orphans = async |before| store.orphaned_calls(before, 10).await.unwrap().len();
    assert_eq!(orphans(now()).await, 0);
    assert_eq!(orphans(now() + chrono::TimeDelta::seconds(1)).await, 1);
    store.see_instance("there", None, now()).await.unwrap();
    store.forget_other_instances("there").await.unwrap();
    assert_eq!(orphans(now()).await, 1);
    let take = |from: &str| {
        let (run_id, from) = ("run-0001".to_owned(), from.to_owned());
        GateWrite::new(Change::Take { org: org(), run_id, from, to: "there".to_owned() }, Vec::new())
    };
    assert!(matches!(store.gate_write(take("nobody")).await.unwrap(), Written::NotYours));
    done(store, take("here")).await;
    assert!(matches!(store.gate_write(end("run-0001", "here", "late")).await.unwrap(), Written::NotYours));
    done(store, end("run-0001", "there", "done")).await;
    store.forget_instance("there").await.unwrap();
    assert_eq!(orphans(now()).await, 0, "what has ended has no owner to miss");
}

async fn a_lock_and_its_event_are_committed_together(backend: &Backend) {
    let store = &backend.store;
    assert!(store.safety_lock().await.unwrap().is_none());
    let lock = |locked| store::SafetyLock {
        locked,
        changed_by: "operator".to_owned(),
        reason: "an incident".to_owned(),
        changed_at: now(),
    };
    let write = |locked, id: &str| {
        GateWrite::new(Change::Lock(lock(locked)), vec![NewEvent { org: None, ..event(id, "run-0001") }])
    };
    done(store, write(true, "event-001")).await;
    assert_eq!(store.safety_lock().await.unwrap(), Some(lock(true)));
    assert!(store.gate_write(write(false, "event-001")).await.is_err(), "the event is there already");
    assert_eq!(store.safety_lock().await.unwrap(), Some(lock(true)), "no change without its event");
}
