//! The transcript: messages are read as they were saved, and a later save replaces an earlier one completely.

use proto::socket::{Message, MessageRole, MessageSource, Part, ToolCall, ToolStatus};
use store::{PartBody, StoreError, StoredMessage, StoredPart};

use crate::backend::{Backend, on_both};
use crate::world::{at, id, org, own, session};

on_both! {
    a_message_is_read_back_unchanged
    a_later_save_replaces_the_parts_and_keeps_the_position
    a_failed_save_changes_nothing
    characters_that_postgres_cannot_store_are_replaced
    a_long_transcript_returns_the_newest_messages_that_fit
}

fn answer() -> Message {
    let args: sqlx::types::JsonValue = sqlx::types::JsonValue::Array(vec!["ls".into(), 7.into()]);
    let tool = |id: &str, status, result: Option<&str>| Part::Tool {
        tool_call_id: id.to_owned(),
        tool_name: "bash".to_owned(),
        args: args.clone(),
        result: result.map(str::to_owned),
        status,
    };
    let call = |id: &str, status, result: Option<&str>, completed_at| ToolCall {
        id: id.to_owned(),
        tool: "bash".to_owned(),
        args: args.clone(),
        result: result.map(str::to_owned),
        status,
        started_at: 1_750_000_000_123,
        completed_at,
    };
    Message {
        id: "msg_2".to_owned(),
        role: MessageRole::Assistant,
        content: "Hello, world".to_owned(),
        is_complete: false,
        created_at: 1_750_000_000_042,
        sender_id: None,
        source: None,
        tool_calls: vec![
            call("c1", ToolStatus::Completed, Some("a.txt"), Some(1_750_000_000_456)),
            call("c2", ToolStatus::Running, None, None),
        ],
        parts: vec![
            Part::Text { text: "Hello".to_owned(), part_id: Some("prt_z".to_owned()) },
            tool("c1", ToolStatus::Completed, Some("a.txt")),
            Part::Text { text: ", world".to_owned(), part_id: Some("prt_x".to_owned()) },
            Part::Image { image: "data:image/png;base64,AA==".to_owned() },
            tool("c2", ToolStatus::Running, None),
        ],
        interrupted: true,
        error: None,
    }
}

fn question() -> Message {
    Message {
        id: "msg_9".to_owned(),
        role: MessageRole::User,
        content: "Hi".to_owned(),
        is_complete: true,
        sender_id: Some("ada".to_owned()),
        source: Some(MessageSource::Web),
        tool_calls: Vec::new(),
        parts: Vec::new(),
        interrupted: false,
        ..answer()
    }
}

fn ids() -> impl Iterator<Item = String> {
    ["prt_z", "prt_y", "prt_x", "prt_w", "prt_v"].map(str::to_owned).into_iter()
}

async fn a_message_is_read_back_unchanged(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    let none = b.store.transcript(id(40), usize::MAX).await.unwrap();
    assert_eq!((none.seq, none.messages.len()), (0, 0));
    let saved =
        vec![StoredMessage::from_message(question(), []), StoredMessage::from_message(answer(), ids())];
    b.store.save_messages(&owner, 17, saved.clone()).await.unwrap();
    let kept = b.store.transcript(id(40), usize::MAX).await.unwrap();
    assert_eq!((kept.seq, &kept.messages), (17, &saved));
    assert_eq!(
        kept.messages[1].parts.iter().map(|part| part.id.as_str()).collect::<Vec<_>>(),
        ids().collect::<Vec<_>>()
    );
    let wire: Vec<Message> = kept.messages.into_iter().map(Message::from).collect();
    assert_eq!(wire, [question(), answer()]);
    assert!(b.store.transcript(id(41), usize::MAX).await.unwrap().messages.is_empty(), "another session");
}

async fn a_later_save_replaces_the_parts_and_keeps_the_position(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    let first = StoredMessage::from_message(answer(), ids());
    b.store.save_messages(&owner, 17, vec![first.clone()]).await.unwrap();
    b.store.save_messages(&owner, 18, vec![StoredMessage::from_message(question(), [])]).await.unwrap();
    let mut later = first;
    later.parts.remove(1);
    later.parts.push(StoredPart { id: "prt_new".to_owned(), body: PartBody::Text("!".to_owned()) });
    (later.is_complete, later.interrupted, later.content) = (true, false, "Hello, world!".to_owned());
    b.store.save_messages(&owner, 16, vec![later.clone()]).await.unwrap();
    let kept = b.store.transcript(id(40), usize::MAX).await.unwrap();
    assert_eq!(kept.seq, 18, "an older number does not take it back");
    assert_eq!(kept.messages, [later, StoredMessage::from_message(question(), [])]);
}

async fn a_failed_save_changes_nothing(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    b.store.save_messages(&owner, 5, vec![StoredMessage::from_message(question(), [])]).await.unwrap();
    let before = b.store.transcript(id(40), usize::MAX).await.unwrap();
    let mut twice = StoredMessage::from_message(answer(), ids());
    "prt_z".clone_into(&mut twice.parts[1].id);
    let refused = b.store.save_messages(&owner, 9, vec![twice]).await;
    assert!(matches!(refused, Err(StoreError::Taken("a part with the same id"))), "{refused:?}");
    assert_eq!(b.store.transcript(id(40), usize::MAX).await.unwrap(), before);
}

async fn characters_that_postgres_cannot_store_are_replaced(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    let mut message = answer();
    message.content.insert(1, '\0');
    message.created_at = i64::MIN;
    message.tool_calls[0].completed_at = Some(i64::MAX);
    let Part::Tool { args, result, .. } = &mut message.parts[1] else { panic!("a tool") };
    let mut object = proto::JsonObject::new();
    object.insert("k\0".to_owned(), sqlx::types::JsonValue::Array(vec!["v\0".into()]));
    *args = object.into();
    *result = Some("\0".to_owned());
    b.store.save_messages(&owner, 1, vec![StoredMessage::from_message(message, ids())]).await.unwrap();
    let kept = b.store.transcript(id(40), usize::MAX).await.unwrap().messages.remove(0);
    assert_eq!((kept.content.as_str(), kept.created_at.timestamp()), ("H\u{fffd}ello, world", 0));
    let PartBody::Tool(tool) = &kept.parts[1].body else { panic!("a tool") };
    assert_eq!(tool.args["k\u{fffd}"][0], "v\u{fffd}");
    assert_eq!((tool.result.as_deref(), tool.completed_at.unwrap() > at(0)), (Some("\u{fffd}"), true));
}

async fn a_long_transcript_returns_the_newest_messages_that_fit(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    let numbered = |number: usize| Message { id: format!("msg_{number}"), ..question() };
    let mut saved: Vec<_> = (0..10).map(|number| StoredMessage::from_message(numbered(number), [])).collect();
    saved[9].is_complete = false;
    let large = Part::Image { image: "x".repeat(1_000) };
    saved[5] = StoredMessage::from_message(Message { parts: vec![large], ..numbered(5) }, []);
    b.store.save_messages(&owner, 7, saved).await.unwrap();
    // "Hi" is two bytes, and the image is a thousand.
    for (max_bytes, earlier) in [(0, 9), (2, 9), (5, 8), (8, 6), (1_009, 6), (1_010, 5), (usize::MAX, 0)] {
        let kept = b.store.transcript(id(40), max_bytes).await.unwrap();
        assert_eq!((kept.seq, kept.earlier), (7, earlier), "{max_bytes}");
        let ids: Vec<_> = kept.messages.into_iter().map(|message| message.id).collect();
        assert_eq!(ids, (earlier..10).map(|number| format!("msg_{number}")).collect::<Vec<_>>());
    }
    let before = async |message: &str, max_bytes| {
        let page = b.store.transcript_before(id(40), Some(message), max_bytes).await.unwrap()?;
        let ids: Vec<_> = page.messages.into_iter().map(|message| message.id).collect();
        Some((page.earlier, ids.join(" ")))
    };
    assert_eq!(before("msg_9", 5).await, Some((7, "msg_7 msg_8".to_owned())));
    assert_eq!(before("msg_6", 0).await, Some((5, "msg_5".to_owned())));
    assert_eq!(before("msg_2", usize::MAX).await, Some((0, "msg_0 msg_1".to_owned())));
    assert_eq!(before("msg_0", usize::MAX).await, Some((0, String::new())));
    assert_eq!(before("msg_10", usize::MAX).await, None);
    assert_eq!(b.store.transcript_before(id(41), Some("msg_9"), 5).await.unwrap(), None);
    let reach = b.store.transcript_reach(id(40)).await.unwrap();
    assert_eq!((reach.seq, reach.complete.len(), reach.complete.contains("msg_9")), (7, 9, false));
    assert_eq!(b.store.transcript_reach(id(41)).await.unwrap(), store::TranscriptExtent::default());
}
