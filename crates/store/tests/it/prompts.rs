//! The prompt queue: in order, each prompt once, until it is settled.

use proto::PromptState;
use proto::socket::MessageSource;
use store::{NewPrompt, StoreError};

use crate::backend::{Backend, on_both};
use crate::world::{at, id, org, own, session, together};

on_both! {
    prompts_are_queued_in_order_until_they_are_settled
    the_same_prompt_twice_is_one
}

fn prompt(id: &str, content: &str) -> NewPrompt {
    NewPrompt {
        id: id.to_owned(),
        content: content.to_owned(),
        images: vec!["data:image/png;base64,AA==".to_owned()],
        sender_id: Some("ada".to_owned()),
        source: Some(MessageSource::Slack),
        at: at(1),
    }
}

async fn prompts_are_queued_in_order_until_they_are_settled(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    for (id, content) in [("z", "first"), ("a", "second\0"), ("m", "third")] {
        assert!(b.store.queue_prompt(&owner, prompt(id, content)).await.unwrap());
    }
    let waiting = b.store.queued_prompts(id(40)).await.unwrap();
    let ids: Vec<_> = waiting.iter().map(|prompt| prompt.id.as_str()).collect();
    assert_eq!(ids, ["z", "a", "m"]);
    assert_eq!(waiting[0].state, PromptState::Queued);
    let size = prompt("z", "first").bytes();
    assert!((size..size + 9).contains(&waiting[0].bytes), "{} for {size}", waiting[0].bytes);
    let mut texts = Vec::new();
    for prompt in &waiting {
        let prompt = b.store.unsettled_prompt(id(40), &prompt.id).await.unwrap().unwrap();
        assert_eq!((prompt.sender_id.as_deref(), prompt.source), (Some("ada"), Some(MessageSource::Slack)));
        assert_eq!(prompt.images, ["data:image/png;base64,AA=="]);
        texts.push(prompt.content);
    }
    assert_eq!(texts, ["first", "second\u{fffd}", "third"]);
    b.store.set_prompt_state(&owner, "z", PromptState::Dispatched).await.unwrap();
    assert_eq!(b.store.queued_prompts(id(40)).await.unwrap()[0].state, PromptState::Dispatched);
    for (id, state) in
        [("z", PromptState::Answered), ("a", PromptState::Cancelled), ("m", PromptState::Failed)]
    {
        b.store.set_prompt_state(&owner, id, state).await.unwrap();
    }
    assert!(b.store.queued_prompts(id(40)).await.unwrap().is_empty());
    assert_eq!(b.store.unsettled_prompt(id(40), "z").await.unwrap(), None);
    let unknown = b.store.set_prompt_state(&owner, "no", PromptState::Answered).await;
    assert!(matches!(unknown, Err(StoreError::Missing("this prompt"))), "{unknown:?}");
}

async fn the_same_prompt_twice_is_one(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    let queued = together(8, |_| {
        let store = b.store.clone();
        async move { store.queue_prompt(&owner, prompt("p", "once")).await.unwrap() }
    })
    .await;
    assert_eq!(queued.into_iter().filter(|new| *new).count(), 1);
    assert_eq!(b.store.queued_prompts(id(40)).await.unwrap().len(), 1);
    b.store.set_prompt_state(&owner, "p", PromptState::Answered).await.unwrap();
    assert!(!b.store.queue_prompt(&owner, prompt("p", "again")).await.unwrap());
    assert!(b.store.queued_prompts(id(40)).await.unwrap().is_empty());
}

/// Anybody may request the metrics, which show this number.
#[tokio::test]
async fn counting_queued_prompts_uses_an_index() {
    use sqlx::Connection as _;
    let b = Backend::sqlite().await;
    org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, id(1), 40).await).await;
    for name in ["p1", "p2", "p3"] {
        assert!(b.store.queue_prompt(&owner, prompt(name, "hello")).await.unwrap());
    }
    b.store.set_prompt_state(&owner, "p1", PromptState::Answered).await.unwrap();
    assert_eq!(b.store.waiting_prompts().await.unwrap(), 2);
    let file = format!("sqlite:{}", b.file().display());
    let mut raw = sqlx::SqliteConnection::connect(&file).await.unwrap();
    let sql = "EXPLAIN QUERY PLAN SELECT count(*) FROM prompts WHERE state = 'queued'";
    let plan: Vec<(i64, i64, i64, String)> = sqlx::query_as(sql).fetch_all(&mut raw).await.unwrap();
    assert!(plan.iter().all(|step| step.3.contains("prompts_waiting")), "{plan:?}");
}
