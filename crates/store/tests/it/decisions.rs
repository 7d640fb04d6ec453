//! Runs that wait for approval: of an approval, a denial and an expiry, one succeeds.

use chrono::{DateTime, TimeDelta, Utc};
use proto::{
    ActionMode, ApiKeyId, InvocationStatus, ModeSource, Risk, Role, RunStatus, SessionId, SessionStatus,
};
use serde_json::json;
use store::{
    Change, Ended, GateWrite, InboxFilter, JsonText, NewInvocation, NewOrg, NewRun, RequestEdit, RunDecision,
    RunVerdict, SeenRequest, SessionEnd, Store, Waiting, Written,
};

use crate::backend::{Backend, on_both};
use crate::credentials::key;
use crate::gate::{begin, done, end, ended, event, org, run};
use crate::world::{ending, id, member, own, session};

on_both! {
    of_an_approval_and_an_expiry_one_succeeds
    a_decision_after_the_expiry_changes_nothing
    a_grant_is_redeemed_once_and_only_in_time
    an_approval_counts_only_for_what_its_approver_has_seen
    requests_expire_when_their_session_stops
    requests_expire_when_their_key_is_revoked_or_its_owner_leaves
}

async fn wait(store: &Store, id: &str, number: u128) -> DateTime<Utc> {
    wait_for(store, run(id), number).await
}

pub(crate) async fn wait_for(store: &Store, run: NewRun, number: u128) -> DateTime<Utc> {
    wait_with_key(store, run, number, None).await
}

async fn wait_with_key(store: &Store, run: NewRun, number: u128, key_id: Option<ApiKeyId>) -> DateTime<Utc> {
    let new = NewRun { waits: true, ..run };
    let id = new.run_id.clone();
    let expires_at = new.created_at + TimeDelta::minutes(5);
    let invocation = NewInvocation {
        id: uuid::Uuid::from_u128(number).into(),
        integration: "tools".to_owned(),
        action: "weather.look".to_owned(),
        risk: Risk::Write,
        mode: ActionMode::RequireApproval,
        mode_source: ModeSource::InferredDefault,
        mode_reason: None,
        params: JsonText::of(&json!({})),
        definition_hash: None,
        key_id,
        two_person: false,
        waiting: Some(Waiting { request: JsonText::of(&json!({"a": 1})), expires_at, limit: 10 }),
    };
    let write = begin(new, vec![event(&format!("wait-{id}"), &id)]);
    done(store, GateWrite { invocation: Some(Box::new(invocation)), ..write }).await;
    expires_at
}

pub(crate) fn decision(id: &str, at: DateTime<Utc>, verdict: RunVerdict) -> GateWrite {
    let decision =
        RunDecision { org: org(), run_id: id.to_owned(), by: None, at, verdict, seen: None, edit: None };
    let name = format!("decide-{id}-{}", u64::from_le_bytes(clock::Rng::system().bytes()));
    GateWrite::new(Change::Decide(Box::new(decision)), vec![event(&name, id)])
}

pub(crate) fn start() -> RunVerdict {
    RunVerdict::Start { instance: "here".to_owned() }
}

pub(crate) fn over(status: RunStatus) -> Box<Ended> {
    Box::new(Ended { status, ..*ended("expired") })
}

async fn of_an_approval_and_an_expiry_one_succeeds(backend: &Backend) {
    let store = &backend.store;
    for number in 0..20_u128 {
        let id = format!("run-{number:04}");
        let expires_at = wait(store, &id, number).await;
        let approval = decision(&id, expires_at - TimeDelta::milliseconds(1), start());
        let expiry = decision(&id, expires_at, RunVerdict::Expire(over(RunStatus::Cancelled)));
        // Either may be first in the queue.
        let (approved, expired) = if number.is_multiple_of(2) {
            tokio::join!(store.gate_write(approval), store.gate_write(expiry))
        } else {
            let (expired, approved) = tokio::join!(store.gate_write(expiry), store.gate_write(approval));
            (approved, expired)
        };
        let (approved, expired) = (approved.unwrap(), expired.unwrap());
        assert_eq!(
            matches!(approved, Written::Done),
            matches!(expired, Written::NotYours),
            "{approved:?} {expired:?}"
        );
        let found = store.invocation(org(), uuid::Uuid::from_u128(number).into()).await.unwrap().unwrap();
        assert_eq!(found.request, None, "the request is not kept");
        let status = found.status(expires_at);
        let expected = if matches!(approved, Written::Done) {
            InvocationStatus::Executing
        } else {
            InvocationStatus::Expired
        };
        assert_eq!(status, expected);
    }
}

async fn a_decision_after_the_expiry_changes_nothing(backend: &Backend) {
    let store = &backend.store;
    let expires_at = wait(store, "run-0001", 1).await;
    let early = expires_at - TimeDelta::milliseconds(1);
    let write = async |at, verdict| store.gate_write(decision("run-0001", at, verdict)).await.unwrap();
    assert!(matches!(write(expires_at, start()).await, Written::Overdue));
    assert!(matches!(write(expires_at, RunVerdict::Deny(over(RunStatus::Denied))).await, Written::Overdue));
    assert!(matches!(write(early, RunVerdict::Expire(over(RunStatus::Cancelled))).await, Written::NotYours));
    let other = store.gate_write(end("run-0001", "here", "done")).await.unwrap();
    assert!(matches!(other, Written::NotYours), "a run that waits is not ended by an instance: {other:?}");
    assert!(matches!(write(early, RunVerdict::Deny(over(RunStatus::Denied))).await, Written::Done));
    assert!(matches!(write(early, start()).await, Written::NotYours), "it has been denied");
}

async fn a_grant_is_redeemed_once_and_only_in_time(backend: &Backend) {
    let store = &backend.store;
    let redeem = || RunVerdict::Redeem { instance: "here".to_owned() };
    for (number, late) in [(50_u128, false), (51, true)] {
        let id = format!("run-{number:04}");
        let at = wait(store, &id, number).await - TimeDelta::minutes(1);
        let write = |at, verdict| store.gate_write(decision(&id, at, verdict));
        assert!(matches!(write(at, redeem()).await.unwrap(), Written::NotYours), "nobody has approved it");
        let inbox = || async {
            let filter = InboxFilter { org: org(), of_organization: true, limit: 10, after: None };
            store.inbox(filter, at).await.unwrap().len()
        };
        assert_eq!(inbox().await, 1);
        let until = at + TimeDelta::minutes(5);
        let by = Some(uuid::Uuid::from_u128(9).into());
        let mut grant = decision(&id, at, RunVerdict::Grant { until });
        if let Change::Decide(decision) = &mut grant.change {
            decision.by = by;
        }
        done(store, grant).await;
        assert_eq!(inbox().await, 0, "nobody has to decide about it any more");
        for again in [start(), RunVerdict::Grant { until }, RunVerdict::Deny(over(RunStatus::Denied))] {
            assert!(matches!(write(at, again).await.unwrap(), Written::NotYours), "it is decided");
        }
        let find = || store.invocation(org(), uuid::Uuid::from_u128(number).into());
        let found = find().await.unwrap().unwrap();
        assert_eq!((found.status(at), found.request.is_some()), (InvocationStatus::Approved, true));
        if late {
            assert!(matches!(write(until, redeem()).await.unwrap(), Written::Overdue));
            continue;
        }
        assert!(matches!(write(at, redeem()).await.unwrap(), Written::Done));
        assert!(matches!(write(at, redeem()).await.unwrap(), Written::NotYours), "it was redeemed");
        let found = find().await.unwrap().unwrap();
        assert_eq!((found.status(at), found.request), (InvocationStatus::Executing, None));
        assert_eq!((found.decided_by, found.decided_at), (by, Some(at)));
    }
}

async fn an_approval_counts_only_for_what_its_approver_has_seen(backend: &Backend) {
    let store = &backend.store;
    let at = wait(store, "run-0060", 60).await - TimeDelta::minutes(1);
    let person = |number: u128| proto::UserId::from(uuid::Uuid::from_u128(number));
    let write = |by, first_approved_by, edited_hash: Option<&str>, verdict, edit: Option<RequestEdit>| {
        let mut write = decision("run-0060", at, verdict);
        if let Change::Decide(decision) = &mut write.change {
            let edited_hash = edited_hash.map(str::to_owned);
            decision.seen = Some(SeenRequest { first_approved_by, edited_hash });
            (decision.by, decision.edit) = (Some(by), edit.map(Box::new));
        }
        async { store.gate_write(write).await.unwrap() }
    };
    let (one, two) = (person(1), person(2));
    // Of two people who approve at once, one is the first.
    let (a, b) = tokio::join!(
        write(one, None, None, RunVerdict::FirstApproval, None),
        write(two, None, None, RunVerdict::FirstApproval, None)
    );
    let firsts = [&a, &b].into_iter().filter(|written| matches!(written, Written::Done)).count();
    assert_eq!(firsts, 1, "{a:?} {b:?}");
    let first = if matches!(a, Written::Done) { one } else { two };
    let find = || async { store.invocation(org(), uuid::Uuid::from_u128(60).into()).await.unwrap().unwrap() };
    let found = find().await;
    assert_eq!((found.first_approved_by, found.first_approved_at), (Some(first), Some(at)));
    assert_eq!((found.status(at), found.two_person), (InvocationStatus::Pending, true));
    // Somebody edits the arguments before the second approval arrives.
    let (request, params) = (JsonText::of(&json!({"a": 2})), JsonText::of(&json!({"b": 2})));
    let edit = RequestEdit { request, params, hash: "e".repeat(64) };
    let edited = write(person(3), Some(first), None, RunVerdict::FirstApproval, Some(edit)).await;
    assert!(matches!(edited, Written::Done), "{edited:?}");
    let late = write(two, Some(first), None, start(), None).await;
    assert!(matches!(late, Written::NotYours), "it was for other arguments: {late:?}");
    let found = find().await;
    assert_eq!((found.request, found.params), (Some(json!({"a": 2})), json!({"b": 2})));
    assert_eq!(found.first_approved_by, Some(person(3)));
    let second = write(two, Some(person(3)), Some(&"e".repeat(64)), start(), None).await;
    assert!(matches!(second, Written::Done), "{second:?}");
    assert_eq!((find().await.request, find().await.decided_by), (None, Some(two)));
}

async fn requests_expire_when_their_session_stops(backend: &Backend) {
    let store = &backend.store;
    store
        .create_org(NewOrg { id: org(), name: "org".to_owned(), at: run("run-0070").created_at })
        .await
        .unwrap();
    let (stops, goes_on) = (session(store, org(), 40).await, session(store, org(), 41).await);
    let of = |id: &str, session: SessionId| NewRun { session_id: Some(session), ..run(id) };
    let expires_at = wait_for(store, of("run-0070", stops), 70).await;
    wait_for(store, of("run-0071", goes_on), 71).await;
    wait_for(store, of("run-0072", stops), 72).await;
    let at = expires_at - TimeDelta::minutes(1);
    assert!(matches!(store.gate_write(decision("run-0072", at, start())).await.unwrap(), Written::Done));
    let owner = own(store, stops).await;
    let status = async |number: u128| {
        let found = store.invocation(org(), uuid::Uuid::from_u128(number).into()).await.unwrap().unwrap();
        found.status(at)
    };
    let failed = SessionEnd { status: SessionStatus::Failed, ..ending(at) };
    store.end_session(&owner, failed).await.unwrap();
    assert_eq!(
        status(70).await,
        InvocationStatus::Pending,
        "a session that failed goes on with its next prompt"
    );
    store.end_session(&owner, ending(at)).await.unwrap();
    assert_eq!(
        [status(70).await, status(71).await, status(72).await],
        [InvocationStatus::Expired, InvocationStatus::Pending, InvocationStatus::Executing]
    );
    let late = store.gate_write(decision("run-0070", at, start())).await.unwrap();
    assert!(matches!(late, Written::Overdue), "{late:?}");
}

async fn requests_expire_when_their_key_is_revoked_or_its_owner_leaves(backend: &Backend) {
    let store = &backend.store;
    let created = run("run-0080").created_at;
    store.create_org(NewOrg { id: org(), name: "org".to_owned(), at: created }).await.unwrap();
    let member = |number, role| member(store, org(), number, role);
    let (owner, plain, admin, stays) = (
        member(10, Role::Owner).await,
        member(11, Role::Member).await,
        member(12, Role::Admin).await,
        member(13, Role::Member).await,
    );
    let mut expires_at = created;
    for (number, user) in [(80, owner), (81, plain), (82, admin), (83, stays), (84, owner)] {
        let key = key(org(), user, number);
        let id = key.id;
        store.create_key(key).await.unwrap();
        expires_at = wait_with_key(store, run(&format!("run-00{number}")), number.into(), Some(id)).await;
    }
    let at = expires_at - TimeDelta::minutes(1);
    assert!(matches!(store.gate_write(decision("run-0084", at, start())).await.unwrap(), Written::Done));
    let status = async |number: u128| {
        let found = store.invocation(org(), uuid::Uuid::from_u128(number).into()).await.unwrap().unwrap();
        found.status(at)
    };
    for number in [80, 84] {
        store.revoke_key(org(), id(number), None, at).await.unwrap();
    }
    assert!(store.remove_plain_member(org(), plain, at).await.unwrap());
    assert!(!store.remove_plain_member(org(), admin, at).await.unwrap());
    assert_eq!(status(82).await, InvocationStatus::Pending, "its owner was not removed");
    store.change_member(org(), admin, Some(Role::Member), at).await.unwrap();
    assert_eq!(status(82).await, InvocationStatus::Pending, "its owner is still a member");
    store.change_member(org(), admin, None, at).await.unwrap();
    for number in [80, 81, 82] {
        assert_eq!(status(number).await, InvocationStatus::Expired, "{number}");
    }
    assert_eq!(
        [status(83).await, status(84).await],
        [InvocationStatus::Pending, InvocationStatus::Executing],
        "another key's, and one that was started"
    );
}
