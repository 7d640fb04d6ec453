//! Prompts become turns: one at a time, in order, each exactly once, and cancelled on request.

use proto::PromptState;
use serde_json::{Value, json};
use store::NewPrompt;
use testkit::Abort;

use crate::harness::within;
use crate::live::{Live, Midway, On, assert_unbroken, id, is_status, of_type, on_both, tokens};

on_both! {
    prompts_during_a_turn_are_queued_and_become_turns_in_order
    a_prompt_is_shown_under_the_id_that_the_agent_and_the_history_know
    the_queue_has_an_end
    a_cancel_ends_the_turn_and_keeps_its_text
    a_cancel_never_hits_the_prompt_after_it
    a_cancel_before_the_agent_starts_the_turn_cancels_it
    a_turn_that_never_starts_can_be_cancelled
    a_cancel_without_a_turn_clears_the_queue
    the_initial_prompt_is_sent_once_for_many_clients
    the_initial_prompt_precedes_later_prompts
    the_initial_prompt_is_sent_again_if_it_did_not_reach_the_agent
    an_unsent_initial_prompt_survives_a_restart
    a_prompt_dispatched_but_not_broadcast_before_a_crash_is_broadcast_and_sent_once
    a_prompt_whose_reply_is_lost_is_one_turn
    a_prompt_that_cannot_be_delivered_ends_its_turn_and_the_next_one_is_sent
    a_prompt_that_the_agent_refuses_ends_its_turn_and_the_next_one_is_sent
    an_error_of_the_model_is_shown_and_ends_the_turn
    clients_from_before_a_restart_are_notified_when_no_prompt_waits_any_more
    a_turn_continues_after_a_restart_without_loss_or_repetition
    a_turn_names_the_author_of_its_prompt
}

fn users(frames: &[Value]) -> Vec<&str> {
    let spoken = of_type(frames, "message").into_iter().filter(|frame| frame["payload"]["role"] == "user");
    spoken.map(|frame| frame["payload"]["content"].as_str().unwrap()).collect()
}

fn outcomes(frames: &[Value]) -> Vec<&str> {
    of_type(frames, "turn_complete")
        .iter()
        .map(|frame| frame["payload"]["outcome"].as_str().unwrap())
        .collect()
}

async fn a_turn_names_the_author_of_its_prompt(on: On) {
    let Midway { live, .. } = Midway::start(on, "one ").await;
    let filter = store::EventFilter { after: -1, limit: 100, ..store::EventFilter::default() };
    let events = live.app.store.ledger_events(live.ada.org, &filter).await.unwrap();
    let notes = |record: &str| serde_json::from_str::<Value>(record).unwrap()["notes"].clone();
    let turns: Vec<_> =
        events.iter().filter(|event| event.record.contains("\"operation\":\"agent\"")).collect();
    assert_eq!(turns.len(), 2, "allowed and begun: {events:?}");
    let by = format!("prompted by {}", live.ada.id);
    assert!(turns.iter().all(|event| notes(&event.record).as_str().unwrap().starts_with(&by)), "{turns:?}");
}

async fn prompts_during_a_turn_are_queued_and_become_turns_in_order(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    for prompt in ["a", "b", "c"] {
        socket.prompt(prompt).await;
    }
    let first = live.next_turn().await;
    first.begin();
    let mut frames = socket.until(|frame| frame["type"] == "queue" && frame["payload"]["length"] == 2).await;
    assert_eq!(live.agent.asked("/prompt_async").len(), 1, "the agent got a prompt while it was busy");
    first.say("1");
    first.end();
    for answer in ["2", "3"] {
        live.next_turn().await.answer(answer);
    }
    frames.extend(socket.until_turns(3).await);
    assert_unbroken(&frames);
    assert_eq!(of_type(&frames, "queue").last().unwrap()["payload"]["length"], 0, "nobody waits any more");
    assert_eq!((users(&frames), tokens(&frames).as_str()), (vec!["a", "b", "c"], "123"));
    let sent = live.agent.asked("/prompt_async");
    let texts: Vec<_> = sent.iter().map(|asked| asked.body["parts"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["a", "b", "c"]);
}

async fn a_prompt_is_shown_under_the_id_that_the_agent_and_the_history_know(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("hello").await;
    let frames = socket.until_type("turn_complete").await;
    let id = of_type(&frames, "message")[0]["payload"]["id"].clone();
    assert_eq!(live.agent.asked("/prompt_async")[0].body["messageID"], id);
    let init = live.init(&session).await;
    assert_eq!(init["payload"]["messages"][0]["id"], id);
    assert_eq!(init["payload"]["messages"][0]["senderId"], live.ada.id.to_string());
    assert_eq!(init["payload"]["messages"][0]["source"], "web");
}

async fn the_queue_has_an_end(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    for _ in 0..101 {
        live.prompt(&session, "x").await;
    }
    let body = json!({"type": "prompt", "content": "one too many"});
    let path = format!("/proliferate/{session}/message");
    assert_eq!(live.ask("POST", &path, Some(&live.ada.token), &body, None).await.0, 429);
    socket.prompt("one too many").await;
    let refused = socket.until_type("error").await.pop().unwrap();
    assert!(refused["seq"].is_null(), "only the one who asked is told");
}

async fn a_cancel_ends_the_turn_and_keeps_its_text(on: On) {
    let Midway { live, session, mut socket, .. } = Midway::start(on, "Once upon").await;
    socket.send(&json!({"type": "cancel"})).await;
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(outcomes(&frames), ["cancelled"]);
    let cancelled = of_type(&frames, "message_cancelled");
    assert_eq!(cancelled.len(), 1);
    assert!(cancelled[0]["payload"]["messageId"].is_string());
    assert!(of_type(&frames, "message_complete").is_empty(), "a message ends once: {frames:?}");
    let init = live.init(&session).await;
    assert_eq!(init["payload"]["messages"][1]["content"], "Once upon");
    socket.prompt("and now").await;
    live.next_turn().await.answer("fine");
    assert_eq!(outcomes(&socket.until_type("turn_complete").await), ["ok"]);
}

async fn a_cancel_never_hits_the_prompt_after_it(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    live.agent.behave(|manner| manner.abort = Abort::Late);
    socket.prompt("first").await;
    let first = live.next_turn().await;
    first.begin();
    socket.until(|frame| frame["type"] == "message" && frame["payload"]["role"] == "assistant").await;
    socket.send(&json!({"type": "cancel"})).await;
    socket.prompt("second").await;
    within(live.agent.wait_for_asked("/abort", 1)).await;
    // The turn ends by itself while the cancel request is in flight.
    first.end();
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(outcomes(&frames), ["ok"]);
    // When the session answers again, it has processed the end of the turn.
    live.init(&session).await;
    assert_eq!(live.agent.asked("/prompt_async").len(), 1, "the next prompt was sent into the cancel");
    live.agent.behave(|manner| manner.abort = Abort::Honest);
    let second = live.next_turn().await;
    second.answer("untouched");
    let frames = socket.until_type("turn_complete").await;
    assert_eq!((outcomes(&frames), tokens(&frames).as_str()), (vec!["ok"], "untouched"));
}

async fn a_cancel_before_the_agent_starts_the_turn_cancels_it(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("first").await;
    let turn = live.next_turn().await;
    // An agent that has not started the turn has nothing to abort, and reports success.
    socket.send(&json!({"type": "cancel"})).await;
    within(live.agent.wait_for_asked("/abort", 1)).await;
    turn.begin();
    turn.say("too late?");
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(outcomes(&frames), ["cancelled"]);
}

async fn a_turn_that_never_starts_can_be_cancelled(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("first").await;
    live.next_turn().await;
    socket.send(&json!({"type": "cancel"})).await;
    let frames = socket.until_type("turn_complete").await;
    assert_eq!((outcomes(&frames), of_type(&frames, "message_cancelled").len()), (vec!["cancelled"], 1));
    assert!(of_type(&frames, "error").is_empty(), "{frames:?}");
    socket.prompt("second").await;
    live.next_turn().await.answer("fine");
    assert_eq!(outcomes(&socket.until_type("turn_complete").await), ["ok"]);
}

async fn a_cancel_without_a_turn_clears_the_queue(on: On) {
    let live = Live::start(on).await;
    live.agent.behave(|manner| manner.healthy = false);
    let session = live.session().await;
    let mut socket = live.watch(&session).await;
    socket.until_type("init").await;
    socket.prompt("never mind").await;
    socket.until_type("queue").await;
    socket.send(&json!({"type": "cancel"})).await;
    socket.until_type("message_cancelled").await;
    live.agent.behave(|manner| manner.healthy = true);
    socket.until(|frame| is_status(frame, "running")).await;
    socket.nothing_but_pong().await;
    assert!(live.agent.asked("/prompt_async").is_empty());
}

async fn the_initial_prompt_is_sent_once_for_many_clients(on: On) {
    let live = Live::echoing(on).await;
    // Hold the boot back until both clients are connected; otherwise one would find the prompt in its `init`.
    live.agent.behave(|manner| manner.healthy = false);
    let session = live.session_with(&json!({"initialPrompt": "begin"})).await;
    let (mut one, mut two) = tokio::join!(live.watch(&session), live.watch(&session));
    one.until_type("init").await;
    two.until_type("init").await;
    live.eager_start(&session).await;
    live.agent.behave(|manner| manner.healthy = true);
    let first = one.until_type("turn_complete").await;
    assert_eq!((users(&first), tokens(&first).as_str()), (vec!["begin"], "echo: begin"));
    assert_eq!(users(&two.until_type("turn_complete").await), ["begin"]);
    let live = live.restarted().await;
    let mut again = live.running(&session).await;
    again.nothing_but_pong().await;
    assert_eq!(live.agent.asked("/prompt_async").len(), 1);
}

async fn an_unsent_initial_prompt_survives_a_restart(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session_with(&json!({"initialPrompt": "begin"})).await;
    let live = live.restarted().await;
    let mut socket = live.watch(&session).await;
    assert_eq!(tokens(&socket.until_type("turn_complete").await), "echo: begin");
}

async fn a_prompt_dispatched_but_not_broadcast_before_a_crash_is_broadcast_and_sent_once(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let store = &live.app.store;
    let dead = store.own_session(id(&session), "an instance that died").await.unwrap().owner;
    let prompt = NewPrompt {
        id: "msg_000000000001aaaaaaaaaaaaaa".to_owned(),
        content: "still here".to_owned(),
        images: Vec::new(),
        sender_id: None,
        source: None,
        at: live.app.clock.now(),
    };
    assert!(store.queue_prompt(&dead, prompt.clone()).await.unwrap());
    store.set_prompt_state(&dead, &prompt.id, PromptState::Dispatched).await.unwrap();
    let mut socket = live.watch(&session).await;
    let frames = socket.until_type("turn_complete").await;
    assert_eq!((users(&frames), tokens(&frames).as_str()), (vec!["still here"], "echo: still here"));
    assert_eq!(live.agent.asked("/prompt_async").len(), 1);
}

async fn a_prompt_whose_reply_is_lost_is_one_turn(on: On) {
    let live = Live::start(on).await;
    live.agent.behave(|manner| manner.lost_replies = 2);
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("once").await;
    within(live.agent.wait_for_asked("/prompt_async", 3)).await;
    live.next_turn().await.answer("done");
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(
        (users(&frames), tokens(&frames).as_str(), outcomes(&frames)),
        (vec!["once"], "done", vec!["ok"])
    );
    let ids: Vec<_> =
        live.agent.asked("/prompt_async").iter().map(|asked| asked.body["messageID"].clone()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{ids:?}");
    socket.nothing_but_pong().await;
}

async fn a_prompt_that_cannot_be_delivered_ends_its_turn_and_the_next_one_is_sent(on: On) {
    let live = Live::echoing(on).await;
    live.agent.behave(|manner| manner.refusals = 4);
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("lost").await;
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(of_type(&frames, "error")[0]["payload"]["message"], "Failed to send prompt");
    assert_eq!(outcomes(&frames), ["error"]);
    socket.prompt("found").await;
    assert_eq!(tokens(&socket.until_type("turn_complete").await), "echo: found");
}

/// The agent refuses such a prompt, for example one with an invalid image.
async fn a_prompt_that_the_agent_refuses_ends_its_turn_and_the_next_one_is_sent(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("look").await;
    socket.prompt("and then").await;
    live.next_turn().await.refuse("ImageDecodeError");
    let frames = socket.until_type("turn_complete").await;
    assert_eq!((outcomes(&frames), of_type(&frames, "error").len()), (vec!["error"], 1), "{frames:?}");
    live.next_turn().await.answer("fine");
    assert_eq!(outcomes(&socket.until_type("turn_complete").await), ["ok"]);
    assert_eq!(live.agent.asked("/prompt_async").len(), 2, "it does not get better when it comes again");
}

async fn clients_from_before_a_restart_are_notified_when_no_prompt_waits_any_more(on: On) {
    let Midway { live, session, turn, mut socket, .. } = Midway::start(on, "before ").await;
    socket.prompt("next").await;
    let told = socket.until_type("queue").await;
    let place = told.last().unwrap()["seq"].as_i64().unwrap();
    assert_eq!(told.last().unwrap()["payload"]["length"], 1);
    let live = live.restarted().await;
    let mut socket = live.watch_with(&session, &format!("&since={place}")).await;
    turn.end();
    live.next_turn().await.answer("after");
    let frames = socket.until_turns(2).await;
    assert_eq!(of_type(&frames, "queue").last().unwrap()["payload"]["length"], 0);
}

async fn an_error_of_the_model_is_shown_and_ends_the_turn(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("x").await;
    let turn = live.next_turn().await;
    turn.begin();
    turn.fail("the model is overloaded");
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(of_type(&frames, "error")[0]["payload"]["message"], "the model is overloaded");
    assert_eq!(outcomes(&frames), ["error"]);
    // The next turn starts once the first one is settled, and the ledger records that the first one failed.
    socket.prompt("y").await;
    live.next_turn().await;
    let (_, runs) = live.ask("GET", "/v1/runs", Some(&live.ada.token), &Value::Null, None).await;
    let runs = runs["runs"].as_array().unwrap().clone();
    assert_eq!(runs.iter().filter(|run| run["status"] == "failed").count(), 1, "{runs:?}");
}

async fn a_turn_continues_after_a_restart_without_loss_or_repetition(on: On) {
    let Midway { live, session, turn, mut frames, .. } = Midway::start(on, "before ").await;
    let place = crate::live::numbers(&frames).pop().unwrap();
    let live = live.restarted().await;
    turn.say("between ");
    let mut socket = live.watch_with(&session, &format!("&since={place}")).await;
    frames.extend(socket.until(|frame| is_status(frame, "running")).await);
    turn.say("after");
    turn.end();
    frames.extend(socket.until_type("turn_complete").await);
    assert!(of_type(&frames, "gap").is_empty() && of_type(&frames, "init").is_empty());
    assert_unbroken(&frames);
    assert_eq!((tokens(&frames).as_str(), outcomes(&frames)), ("before between after", vec!["ok"]));
    assert_eq!(live.agent.asked("/prompt_async").len(), 1, "the prompt was sent again");
}

async fn the_initial_prompt_precedes_later_prompts(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session_with(&json!({"initialPrompt": "first"})).await;
    live.prompt(&session, "second").await;
    within(live.agent.wait_for_asked("/prompt_async", 2)).await;
    let sent = live.agent.asked("/prompt_async");
    let texts: Vec<_> = sent.iter().map(|asked| &asked.body["parts"][0]["text"]).collect();
    assert_eq!(texts, [&json!("first"), &json!("second")]);
}

async fn the_initial_prompt_is_sent_again_if_it_did_not_reach_the_agent(on: On) {
    let live = Live::echoing(on).await;
    live.agent.behave(|manner| manner.refusals = 4);
    let session = live.session_with(&json!({"initialPrompt": "first"})).await;
    let mut socket = live.watch(&session).await;
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(of_type(&frames, "error")[0]["payload"]["message"], "Failed to send prompt");
    socket.prompt("second").await;
    let frames = socket.until_turns(2).await;
    assert_eq!(
        (users(&frames), tokens(&frames).as_str()),
        (vec!["first", "second"], "echo: firstecho: second")
    );
    let live = live.restarted().await;
    live.running(&session).await.nothing_but_pong().await;
}

#[tokio::test]
async fn a_prompt_that_the_database_refuses_fails_alone() {
    let live = Live::echoing(On::Postgres).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$; \
        CREATE TRIGGER refuse BEFORE INSERT ON prompts FOR EACH ROW EXECUTE FUNCTION refuse()";
    live.gateway.setup.sql(refuse).await;
    let path = format!("/proliferate/{session}/message");
    let body = json!({"type": "prompt", "content": "refused"});
    let (status, answer) = live.ask("POST", &path, Some(&live.ada.token), &body, None).await;
    assert_eq!(status, 503, "{answer}");
    assert!(answer.to_string().contains("refused the command"), "{answer}");
    live.gateway.setup.sql("DROP TRIGGER refuse ON prompts").await;
    // The watcher stays, and the agent is the same.
    socket.prompt("hello").await;
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(users(&frames), ["hello"]);
    assert_eq!(live.agent.asked("/prompt_async").len(), 1);
}
