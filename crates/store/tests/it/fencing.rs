//! A session has one owner at a time: a former owner can change nothing, with any call.

use std::collections::BTreeSet;
use std::path::Path;

use proto::http::AgentConfig;
use proto::socket::{MessageRole, SnapshotTarget};
use proto::{PauseReason, PromptState, SessionStatus, TitleSource};
use store::{
    LatestTask, NewBatch, NewPrompt, Owner, Store, StoreError, StoredMessage, Telemetry, TranscriptWrite,
};
use syn::visit::Visit;

use crate::backend::{Backend, on_both};
use crate::questions::{answered, question};
use crate::world::{at, ending, id, org, own, session, snapshot, together};

on_both! {
    every_call_of_a_former_owner_is_fenced
    racing_owners_get_different_epochs_and_the_last_one_wins
    a_new_owner_sees_every_acknowledged_write_of_the_former_one
    no_number_is_used_twice_after_a_restore
}

async fn no_number_is_used_twice_after_a_restore(b: &Backend) {
    let one = org(&b.store, 1).await;
    let work = session(&b.store, one, 40).await;
    let before = b.store.own_session(work, "one").await.unwrap();
    b.store.reserve_numbers(&before.owner, before.head + 100).await.unwrap();
    b.store.skip_used_numbers().await.unwrap();
    let after = b.store.own_session(work, "two").await.unwrap();
    assert!(after.head >= before.head + 1_000_000_000, "{} {}", before.head, after.head);
}

/// Every public call that takes an owner, found in the sources, so that a new one without a test below fails.
fn fenced_calls() -> BTreeSet<String> {
    let mut found = FencedCalls::default();
    let mut directories = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.visit_file(&syn::parse_file(&std::fs::read_to_string(path).unwrap()).unwrap());
            }
        }
    }
    assert!(found.0.len() > 15, "only {:?}: the search is broken", found.0);
    found.0
}

#[derive(Default)]
struct FencedCalls(BTreeSet<String>);

impl<'ast> Visit<'ast> for FencedCalls {
    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        let owned = function.sig.inputs.iter().any(|input| match input {
            syn::FnArg::Typed(argument) => is_owner(&argument.ty),
            syn::FnArg::Receiver(_) => false,
        });
        if owned && matches!(function.vis, syn::Visibility::Public(_)) {
            self.0.insert(function.sig.ident.to_string());
        }
    }
}

fn is_owner(kind: &syn::Type) -> bool {
    match kind {
        syn::Type::Reference(reference) => is_owner(&reference.elem),
        syn::Type::Path(path) => path.path.segments.last().is_some_and(|last| last.ident == "Owner"),
        _ => false,
    }
}

async fn call(store: &Store, owner: &Owner, name: &str) -> Result<(), StoreError> {
    let task = Telemetry { latest_task: LatestTask::Set("x".to_owned()), ..Telemetry::default() };
    match name {
        "reserve_numbers" => store.reserve_numbers(owner, 500).await,
        "start_session" => store.start_session(owner, at(71)).await,
        "set_running" => store.set_running(owner, "box", None).await,
        "set_sandbox_expiry" => store.set_sandbox_expiry(owner, Some(at(90))).await,
        "set_files_lost" => store.set_files_lost(owner, true).await,
        "new_sandbox_generation" => store.new_sandbox_generation(owner, None).await.map(drop),
        "set_status" => {
            store.set_status(owner, SessionStatus::Paused, Some(PauseReason::Manual), at(72)).await
        }
        "end_session" => store.end_session(owner, ending(at(73))).await,
        "set_agent_config" => store.set_agent_config(owner, &AgentConfig::default()).await,
        "set_title" => store.set_title(owner, "x", TitleSource::Model).await.map(drop),
        "set_agent_session" => store.set_agent_session(owner, Some("ses")).await,
        "record_snapshot" => {
            store.record_snapshot(owner, snapshot("snap", SnapshotTarget::Session)).await.map(drop)
        }
        "set_branch" => store.set_branch(owner, "b", Some("c")).await,
        "mark_initial_prompt" => store.mark_initial_prompt(owner, at(74)).await.map(drop),
        "roll_back_initial_prompt" => store.roll_back_initial_prompt(owner, "p1").await,
        "touch" => store.touch(owner, at(75)).await,
        "flush_telemetry" => store.flush_telemetry(owner, task).await,
        "append_events" => store.append_events(owner, 11, 12, "{}\n{}", at(76)).await,
        "prune_events" => store.prune_events(owner, 10).await,
        "save_messages" => store.save_messages(owner, 12, vec![message("m2")]).await,
        "save_transcript" => {
            let batch = NewBatch { first_seq: 11, last_seq: 12, frames: "{}\n{}".to_owned(), at: at(76) };
            store.save_transcript(owner, Some(batch), 12, vec![TranscriptWrite::Message(message("m2"))]).await
        }
        "queue_prompt" => store.queue_prompt(owner, prompt("p2")).await.map(drop),
        "ask_question" => store.ask_question(owner, question("q2")).await.map(drop),
        "settle_question" => store.settle_question(owner, "q1", answered()).await.map(drop),
        "mark_question_delivered" => store.mark_question_delivered(owner, "q0").await,
        "set_prompt_state" => store.set_prompt_state(owner, "p1", PromptState::Answered).await,
        other => panic!("{other} takes an owner and is not tried here"),
    }
}

fn message(id: &str) -> StoredMessage {
    StoredMessage {
        id: id.to_owned(),
        role: MessageRole::User,
        content: "hello".to_owned(),
        is_complete: true,
        interrupted: false,
        error: None,
        sender_id: None,
        source: None,
        created_at: at(1),
        parts: Vec::new(),
    }
}

fn prompt(id: &str) -> NewPrompt {
    let (id, content) = (id.to_owned(), "hello".to_owned());
    NewPrompt { id, content, images: Vec::new(), sender_id: None, source: None, at: at(1) }
}

/// A session with a log, a message and a prompt, and its owner.
async fn busy(b: &Backend, number: u8) -> Owner {
    let owner = own(&b.store, session(&b.store, id(1), number).await).await;
    b.store.reserve_numbers(&owner, 100).await.unwrap();
    b.store.append_events(&owner, 1, 10, "{}", at(1)).await.unwrap();
    b.store.save_messages(&owner, 10, vec![message("m1")]).await.unwrap();
    b.store.queue_prompt(&owner, prompt("p1")).await.unwrap();
    b.store.ask_question(&owner, question("q0")).await.unwrap();
    b.store.settle_question(&owner, "q0", answered()).await.unwrap();
    b.store.ask_question(&owner, question("q1")).await.unwrap();
    owner
}

/// Everything that a call could change.
async fn everything(b: &Backend, owner: &Owner) -> String {
    let session = owner.session();
    let record = b.store.session_any(session).await.unwrap();
    let log = b.store.events_after(session, 0, usize::MAX).await.unwrap();
    let said = b.store.transcript(session, usize::MAX).await.unwrap();
    let prompts = b.store.queued_prompts(session).await.unwrap();
    let open = b.store.open_questions(session).await.unwrap();
    let undelivered = b.store.undelivered_questions(session).await.unwrap();
    let number = session.uuid().as_u128();
    let reserved =
        b.raw().await.number(&format!("SELECT seq_reserved FROM sessions WHERE id = #{number}")).await;
    format!("{record:?} {log:?} {said:?} {prompts:?} {open:?} {undelivered:?} {reserved}")
}

async fn every_call_of_a_former_owner_is_fenced(b: &Backend) {
    org(&b.store, 1).await;
    for (number, name) in (40..).zip(fenced_calls()) {
        let former = busy(b, number).await;
        if name == "roll_back_initial_prompt" {
            // So that there is something to roll back.
            b.store.mark_initial_prompt(&former, at(2)).await.unwrap();
        }
        let present = own(&b.store, former.session()).await;
        let before = everything(b, &present).await;
        let refused = call(&b.store, &former, &name).await;
        assert!(matches!(refused, Err(StoreError::Fenced)), "{name}: {refused:?}");
        assert_eq!(everything(b, &present).await, before, "{name}");
        call(&b.store, &present, &name).await.unwrap();
        assert_ne!(everything(b, &present).await, before, "{name} does nothing at all");
    }
}

async fn racing_owners_get_different_epochs_and_the_last_one_wins(b: &Backend) {
    let one = org(&b.store, 1).await;
    let work = session(&b.store, one, 40).await;
    let mut owned = together(8, |caller| {
        let store = b.store.clone();
        async move { store.own_session(work, &format!("instance {caller}")).await.unwrap().owner }
    })
    .await;
    owned.sort_unstable_by_key(Owner::epoch);
    assert_eq!(owned.iter().map(Owner::epoch).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert!(owned.iter().all(|owner| (owner.session(), owner.org()) == (work, one)));
    let last = owned.pop().unwrap();
    for former in owned {
        let refused = b.store.touch(&former, at(90)).await;
        assert!(matches!(refused, Err(StoreError::Fenced)), "{former:?}: {refused:?}");
    }
    b.store.touch(&last, at(91)).await.unwrap();
}

/// An append must wait for a grant that is not committed yet. Otherwise its numbers would be acknowledged, and the
/// new owner, which did not see them, would use them again.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_waits_for_a_grant_in_flight() {
    let b = Backend::postgres().await;
    org(&b.store, 1).await;
    let former = busy(&b, 40).await;
    let mut granting = b.raw().await;
    let grant = "BEGIN; UPDATE sessions SET owner_epoch = owner_epoch + 1 WHERE id = #40";
    granting.execute(grant).await.unwrap();
    let store = b.store.clone();
    let append = tokio::spawn(async move { store.append_events(&former, 11, 12, "{}\n{}", at(2)).await });
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    while !append.is_finished() && b.raw().await.number(waiting).await == 0 {
        tokio::task::yield_now().await;
    }
    granting.execute("COMMIT").await.unwrap();
    let refused = append.await.unwrap();
    assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");
}

/// One owner appends as fast as it can while others take over: no acknowledged number is above the
/// head of a later grant, so none is used twice.
async fn a_new_owner_sees_every_acknowledged_write_of_the_former_one(b: &Backend) {
    let one = org(&b.store, 1).await;
    let work = session(&b.store, one, 40).await;
    let runs = together(6, |_| {
        let store = b.store.clone();
        async move {
            let owned = store.own_session(work, "one").await.unwrap();
            let (mut kept, mut next) = (Vec::new(), owned.head + 1);
            if store.reserve_numbers(&owned.owner, owned.head + 100).await.is_err() {
                return (owned, kept);
            }
            while next < owned.head + 50 {
                match store.append_events(&owned.owner, next, next + 1, "{}\n{}", at(1)).await {
                    Ok(()) => kept.extend([next, next + 1]),
                    Err(StoreError::Fenced) => break,
                    Err(other) => panic!("{other:?}"),
                }
                next += 2;
            }
            (owned, kept)
        }
    })
    .await;
    for (owned, kept) in &runs {
        for (later, _) in runs.iter().filter(|(later, _)| later.owner.epoch() > owned.owner.epoch()) {
            assert!(kept.iter().all(|number| *number <= later.head), "{owned:?} {later:?}");
        }
    }
    let mut numbers: Vec<i64> = runs.into_iter().flat_map(|(_, kept)| kept).collect();
    let all = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), all, "a number was used twice");
    let log = b.store.events_after(work, 0, usize::MAX).await.unwrap();
    assert_eq!(log.iter().flat_map(|batch| batch.first_seq..=batch.last_seq).collect::<Vec<_>>(), numbers);
}
