//! The queue of prompts: in order, each once, until it is settled.

use proto::PromptState;
use proto::socket::MessageSource;
use store::{NewPrompt, StoreError};

use crate::backend::{Backend, on_both};
use crate::world::{at, id, org, own, session, together};

on_both! {
    prompts_wait_in_order_until_they_are_settled
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

async fn prompts_wait_in_order_until_they_are_settled(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    for (id, content) in [("z", "first"), ("a", "second\0"), ("m", "third")] {
        assert!(b.store.queue_prompt(&owner, prompt(id, content)).await.unwrap());
    }
    let waiting = b.store.queued_prompts(id(40)).await.unwrap();
    let texts: Vec<_> = waiting.iter().map(|prompt| prompt.content.as_str()).collect();
    assert_eq!(texts, ["first", "second\u{fffd}", "third"]);
    assert_eq!(
        (waiting[0].sender_id.as_deref(), waiting[0].source),
        (Some("ada"), Some(MessageSource::Slack))
    );
    assert_eq!((waiting[0].state, waiting[0].images.len()), (PromptState::Queued, 1));
    b.store.set_prompt_state(&owner, "z", PromptState::Dispatched).await.unwrap();
    assert_eq!(b.store.queued_prompts(id(40)).await.unwrap()[0].state, PromptState::Dispatched);
    for (id, state) in
        [("z", PromptState::Answered), ("a", PromptState::Cancelled), ("m", PromptState::Failed)]
    {
        b.store.set_prompt_state(&owner, id, state).await.unwrap();
    }
    assert!(b.store.queued_prompts(id(40)).await.unwrap().is_empty());
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
