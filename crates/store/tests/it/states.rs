//! State changes by the owner of a session.

use proto::{Outcome, PauseReason, SessionStatus, TitleSource};
use store::{LatestTask, SessionRecord, Store, Telemetry};

use crate::backend::{Backend, on_both};
use crate::world::{at, ending, id, org, own, session, together};

on_both! {
    a_session_that_runs_again_has_neither_pause_nor_end
    leaving_the_live_states_clears_the_task
    a_new_generation_has_no_sandbox
    expired_sessions_are_found_by_their_owner_and_by_all_once_it_is_gone
    only_one_caller_sends_the_initial_prompt
    counters_rise_and_pull_requests_are_listed_once
    branch_agent_session_and_activity_are_stored
    a_title_is_replaced_only_by_one_of_a_later_source
}

async fn record(store: &Store) -> SessionRecord {
    store.session_any(id(40)).await.unwrap().unwrap()
}

async fn a_session_that_runs_again_has_neither_pause_nor_end(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    let paused = Some(PauseReason::Inactivity);
    b.store.set_status(&owner, SessionStatus::Paused, paused, at(50)).await.unwrap();
    let now = record(&b.store).await;
    assert_eq!((now.status, now.pause_reason, now.paused_at), (SessionStatus::Paused, paused, Some(at(50))));
    b.store.end_session(&owner, ending(at(60))).await.unwrap();
    let now = record(&b.store).await;
    assert_eq!(
        (now.status, now.outcome, now.ended_at),
        (SessionStatus::Stopped, Some(Outcome::Completed), Some(at(60)))
    );
    assert_eq!(now.stop_reason.as_deref(), Some("asked"));

    let clean = |now: &SessionRecord| {
        (now.pause_reason, now.paused_at, now.ended_at, now.outcome) == (None, None, None, None)
            && now.stop_reason.is_none()
    };
    b.store.set_running(&owner, "box", Some(at(99))).await.unwrap();
    let now = record(&b.store).await;
    assert!(clean(&now), "{now:?}");
    assert_eq!((now.status, now.sandbox_id.as_deref()), (SessionStatus::Running, Some("box")));
    assert_eq!(now.sandbox_expires_at, Some(at(99)));
    b.store.end_session(&owner, ending(at(61))).await.unwrap();
    b.store.set_status(&owner, SessionStatus::Pending, None, at(62)).await.unwrap();
    assert!(clean(&record(&b.store).await));
    b.store.end_session(&owner, ending(at(63))).await.unwrap();
    b.store.start_session(&owner, at(64)).await.unwrap();
    let now = record(&b.store).await;
    assert!(clean(&now), "{now:?}");
    assert_eq!((now.status, now.last_activity_at), (SessionStatus::Starting, at(64)));
}

async fn leaving_the_live_states_clears_the_task(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    for status in SessionStatus::ALL {
        let task = Telemetry { latest_task: LatestTask::Set("tests".to_owned()), ..Telemetry::default() };
        b.store.flush_telemetry(&owner, task).await.unwrap();
        b.store.set_status(&owner, *status, None, at(50)).await.unwrap();
        let live = [SessionStatus::Pending, SessionStatus::Starting, SessionStatus::Running].contains(status);
        assert_eq!(record(&b.store).await.latest_task.is_some(), live, "{status}");
    }
    let task = Telemetry { latest_task: LatestTask::Set("tests".to_owned()), ..Telemetry::default() };
    b.store.flush_telemetry(&owner, task).await.unwrap();
    b.store.end_session(&owner, ending(at(60))).await.unwrap();
    assert_eq!(record(&b.store).await.latest_task, None);
}

async fn a_new_generation_has_no_sandbox(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    b.store.set_running(&owner, "box", Some(at(99))).await.unwrap();
    assert_eq!(b.store.new_sandbox_generation(&owner, None).await.unwrap(), 1);
    let now = record(&b.store).await;
    assert_eq!((now.sandbox_generation, now.sandbox_id, now.sandbox_expires_at), (1, None, None));
}

async fn expired_sessions_are_found_by_their_owner_and_by_all_once_it_is_gone(b: &Backend) {
    let one = org(&b.store, 1).await;
    let mut owners = Vec::new();
    for (number, instance, expires) in
        [(40, "mine", 60), (41, "other", 50), (42, "gone", 40), (43, "mine", 61)]
    {
        let made = session(&b.store, one, number).await;
        let owner = b.store.own_session(made, instance).await.unwrap().owner;
        b.store.set_running(&owner, "box", Some(at(expires))).await.unwrap();
        owners.push(owner);
    }
    b.store.see_instance("other", None, at(55)).await.unwrap();
    b.store.see_instance("gone", None, at(20)).await.unwrap();
    let found = async |limit| b.store.expired_sessions(at(60), "mine", at(30), limit).await.unwrap();
    assert_eq!(
        found(9).await,
        [id(42), id(40)],
        "one that is alive keeps its own, and whose time comes is left"
    );
    assert_eq!(found(1).await, [id(42)]);
    let states = [SessionStatus::Paused, SessionStatus::Failed, SessionStatus::Starting];
    for status in states {
        b.store.set_status(&owners[0], status, None, at(60)).await.unwrap();
        assert_eq!(found(9).await, [id(42), id(40)], "{status}");
    }
    b.store.set_sandbox_expiry(&owners[2], None).await.unwrap();
    b.store.new_sandbox_generation(&owners[0], None).await.unwrap();
    assert_eq!(found(9).await, []);
    b.store.forget_instance("other").await.unwrap();
    assert_eq!(found(9).await, [id(41)]);
}

async fn only_one_caller_sends_the_initial_prompt(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    let marked = together(8, |_| {
        let store = b.store.clone();
        async move { store.mark_initial_prompt(&owner, at(50)).await.unwrap() }
    })
    .await;
    assert_eq!(marked.into_iter().filter(|marked| *marked).count(), 1);
    assert_eq!(record(&b.store).await.initial_prompt_sent_at, Some(at(50)));
}

async fn counters_rise_and_pull_requests_are_listed_once(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    let flush = |urls: &[&str], latest_task| Telemetry {
        tool_calls: 2,
        messages: 3,
        active_seconds: 5,
        new_pr_urls: urls.iter().map(ToString::to_string).collect(),
        latest_task,
    };
    let set = LatestTask::Set("tests".to_owned());
    b.store.flush_telemetry(&owner, flush(&["b", "a", "b"], set)).await.unwrap();
    b.store.flush_telemetry(&owner, flush(&["a", "c"], LatestTask::Keep)).await.unwrap();
    let now = record(&b.store).await;
    assert_eq!(
        (now.metrics.tool_calls, now.metrics.messages_exchanged, now.metrics.active_seconds),
        (4, 6, 10)
    );
    assert_eq!(now.pr_urls, ["b", "a", "c"]);
    assert_eq!(now.latest_task.as_deref(), Some("tests"));
    together(8, |_| {
        let store = b.store.clone();
        let one = Telemetry { tool_calls: 1, latest_task: LatestTask::Clear, ..Telemetry::default() };
        async move { store.flush_telemetry(&owner, one).await.unwrap() }
    })
    .await;
    let many: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    b.store.flush_telemetry(&owner, Telemetry { new_pr_urls: many, ..Telemetry::default() }).await.unwrap();
    let now = record(&b.store).await;
    assert_eq!((now.metrics.tool_calls, now.latest_task, now.pr_urls.len()), (12, None, 100));
}

async fn branch_agent_session_and_activity_are_stored(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    b.store.set_agent_session(&owner, Some("ses_1")).await.unwrap();
    b.store.set_branch(&owner, "main", Some("c0ffee")).await.unwrap();
    b.store.set_branch(&owner, "fix", Some("another")).await.unwrap();
    b.store.touch(&owner, at(70)).await.unwrap();
    let now = record(&b.store).await;
    assert_eq!(now.agent_session_id.as_deref(), Some("ses_1"));
    assert_eq!((now.branch_name.as_deref(), now.base_commit_sha.as_deref()), (Some("fix"), Some("c0ffee")));
    assert_eq!(now.last_activity_at, at(70));
    b.store.set_agent_session(&owner, None).await.unwrap();
    assert_eq!(record(&b.store).await.agent_session_id, None);
}

async fn a_title_is_replaced_only_by_one_of_a_later_source(b: &Backend) {
    use TitleSource::{Model, Person, Prompt};
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    b.store.rename_session(one, id(40), "a person's").await.unwrap();
    for source in [Prompt, Model] {
        assert!(!b.store.set_title(&owner, "x", source).await.unwrap(), "{source} replaces a person's title");
    }
    let now = record(&b.store).await;
    assert_eq!((now.title.as_deref(), now.title_source), (Some("a person's"), Some(Person)));

    let id = session(&b.store, one, 41).await;
    let owner = own(&b.store, id).await;
    for (source, title, set) in
        [(Prompt, "one", true), (Prompt, "two", false), (Model, "three", true), (Model, "four", false)]
    {
        assert_eq!(b.store.set_title(&owner, title, source).await.unwrap(), set, "{title}");
    }
    let now = b.store.session_any(id).await.unwrap().unwrap();
    assert_eq!((now.title.as_deref(), now.title_source), (Some("three"), Some(Model)));
}
