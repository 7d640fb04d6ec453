//! What people do with an agent, each in a session of its own.

use opencode::api::Prompt;
use opencode::files::Instructions;
use opencode::ids::PromptIds;
use opencode::translate::{Effect, Translator};
use proto::socket::{ServerMessage, TurnOutcome};
use serde_json::Value;

use crate::agent::{Agent, KEY, MODEL, git};
use crate::watcher::{turn, watch};

/// Eight by eight.
const PICTURE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC";

pub(crate) async fn plain_text(agent: &Agent) {
    let seen = turn(agent, "hello").await;
    assert_eq!((seen.outcome, seen.messages), (TurnOutcome::Ok, 1), "{seen:?}");
    assert_eq!((seen.text.as_str(), seen.tokens().as_str()), ("A plain answer.", "A plain answer."));
    let completions = seen.said.iter().filter(|said| matches!(said, ServerMessage::MessageComplete { .. }));
    assert_eq!(completions.count(), 1);
}

pub(crate) async fn instructions_key_and_model_reach_the_model(agent: &Agent) {
    let before = agent.model.requests().len();
    turn(agent, "hello again").await;
    let requests = agent.model.requests();
    assert_eq!(
        requests.len(),
        before + 1,
        "one prompt is one question to the model, and none is for a title"
    );
    let request = requests.last().unwrap();
    assert_eq!(request.headers["x-api-key"], KEY);
    let body = request.json();
    assert_eq!(body["model"], "claude-opus-4-6");
    let system = body["system"].to_string();
    for line in Instructions::Coding.text().lines().filter(|line| line.starts_with("- ")) {
        let line = Value::from(line).to_string();
        assert!(system.contains(line.trim_matches('"')), "the model was not told: {line}");
    }
    assert!(system.contains("house rule of this repository"), "AGENTS.md of the repository counts too");
}

pub(crate) async fn bash(agent: &Agent) {
    let seen = turn(agent, "use the scripted tool").await;
    assert_eq!((seen.outcome, seen.messages), (TurnOutcome::Ok, 2), "{seen:?}");
    assert!(seen.text.contains("It printed sum-42 pager-cat"), "our plugin sets the shell up: {seen:?}");
    let ends: Vec<_> =
        seen.said.iter().filter(|said| matches!(said, ServerMessage::ToolEnd { .. })).collect();
    let [ServerMessage::ToolEnd { tool, result, duration_ms, .. }] = ends[..] else { panic!("{ends:?}") };
    assert_eq!((tool.as_str(), result.trim()), ("bash", "sum-42 pager-cat"));
    assert!(*duration_ms > 0);
}

pub(crate) async fn tool_of_ours(agent: &Agent) {
    assert!(agent.client().tools().await.unwrap().iter().any(|tool| tool == "probe"));
    let seen = turn(agent, "a scripted probe").await;
    assert_eq!((seen.outcome, seen.text.as_str()), (TurnOutcome::Ok, "It said probed"), "{seen:?}");
}

pub(crate) async fn cancel(agent: &Agent) {
    let mut watcher = watch(agent).await;
    watcher.prompt("a scripted slowness").await;
    while !watcher.said.iter().any(|said| matches!(said, ServerMessage::Token { .. })) {
        watcher.step().await;
    }
    watcher.client.abort(&watcher.session).await.unwrap();
    let seen = watcher.finish().await;
    assert_eq!((seen.outcome, seen.messages), (TurnOutcome::Cancelled, 1), "{seen:?}");
    assert_eq!(seen.errors(), [""; 0]);
    assert!(seen.text.starts_with("one") && !seen.text.contains("sixteen"), "{}", seen.text);
    assert!(
        seen.said.iter().any(|said| matches!(said, ServerMessage::MessageCancelled { message_id: Some(_) }))
    );

    watcher.prompt("and now?").await;
    let seen = watcher.finish().await;
    assert_eq!((seen.outcome, seen.text.as_str()), (TurnOutcome::Ok, "A plain answer."), "{seen:?}");
}

pub(crate) async fn model_error(agent: &Agent) {
    let seen = turn(agent, "a scripted refusal").await;
    assert_eq!(seen.outcome, TurnOutcome::Error);
    let [error] = seen.errors()[..] else { panic!("{seen:?}") };
    assert!(error.contains("refused by the script"), "{error}");
}

pub(crate) async fn retry(agent: &Agent) {
    let seen = turn(agent, "a scripted limit").await;
    assert_eq!((seen.outcome, seen.text.as_str()), (TurnOutcome::Ok, "after the wait"), "{seen:?}");
    let told = |said: &ServerMessage| matches!(said, ServerMessage::Status { message, .. } if message.starts_with("Retrying (1/5): "));
    assert!(seen.said.iter().any(told), "{seen:?}");
}

pub(crate) async fn the_same_prompt_twice(agent: &Agent) {
    let before = agent.model.requests().len();
    let mut watcher = watch(agent).await;
    // The reply to the first is taken for lost, while the agent is at work and after it has answered.
    watcher.prompt("a scripted slowness").await;
    watcher.send("a scripted slowness").await.unwrap();
    let seen = watcher.finish().await;
    watcher.send("a scripted slowness").await.unwrap();
    let history =
        watcher.client.history(&watcher.session, &watcher.ids.message, &mut |_| true).await.unwrap();
    let entries: Vec<_> = history.messages().filter_map(|message| message.entry()).collect();
    let prompts: Vec<_> = entries.iter().filter(|entry| entry.info.role == "user").collect();
    assert_eq!((prompts.len(), prompts[0].parts.len()), (1, 1), "one prompt with one text");
    assert_eq!((seen.outcome, seen.messages), (TurnOutcome::Ok, 1), "{seen:?}");
    // A third prompt can only be answered after whatever the second one may have caused.
    watcher.prompt("hello").await;
    watcher.finish().await;
    assert_eq!(agent.model.requests().len(), before + 2, "one question for each prompt");
}

pub(crate) async fn sub_agent(agent: &Agent) {
    let seen = turn(agent, "a scripted delegation").await;
    assert_eq!((seen.outcome, seen.messages), (TurnOutcome::Ok, 2), "{seen:?}");
    assert_eq!(seen.text, "My helper is done.", "what the helper said is not said by us");
    let result = seen.said.iter().find_map(|said| match said {
        ServerMessage::ToolEnd { tool, result, .. } if tool == "task" => Some(result),
        _ => None,
    });
    assert!(result.unwrap().contains("I am the helper."), "{seen:?}");
}

pub(crate) async fn lost_stream(agent: &Agent) {
    let mut watcher = watch(agent).await;
    watcher.prompt("a scripted slowness").await;
    let tokens = |said: &[ServerMessage]| {
        said.iter().filter(|said| matches!(said, ServerMessage::Token { .. })).count()
    };
    while tokens(&watcher.said) < 3 {
        watcher.step().await;
    }
    // As a new process would, from the log alone.
    let resumed = Translator::resume(&watcher.session, &watcher.ids.message, &watcher.said);
    watcher.reconnect(resumed).await;
    let seen = watcher.finish().await;
    assert_eq!((seen.outcome, seen.messages), (TurnOutcome::Ok, 1), "{seen:?}");
    assert!(seen.text.ends_with("sixteen"));
    assert_eq!(seen.tokens(), seen.text, "nothing is lost and nothing said twice");
    let stubs = seen.said.iter().filter(|said| matches!(said, ServerMessage::Message(_))).count();
    assert_eq!(stubs, 1);
}

/// More than a page of it.
pub(crate) async fn long_history(agent: &Agent) {
    let mut watcher = watch(agent).await;
    let mut prompts = Vec::new();
    for number in 0..12 {
        watcher.prompt(&format!("question {number}")).await;
        watcher.finish().await;
        prompts.push(watcher.ids.message.clone());
    }
    let whole = watcher.client.history(&watcher.session, &prompts[0], &mut |_| true).await.unwrap();
    let entries: Vec<_> = whole.messages().filter_map(|message| message.entry()).collect();
    let asked: Vec<_> =
        entries.iter().filter(|entry| entry.info.role == "user").map(|entry| &*entry.info.id).collect();
    assert_eq!((asked, whole.pages.len()), (prompts.iter().map(String::as_str).collect(), 2));
    let end = watcher.client.history(&watcher.session, &prompts[11], &mut |_| true).await.unwrap();
    assert_eq!((end.pages.len(), end.has(&prompts[11]), end.has(&prompts[0])), (1, true, false));
}

pub(crate) async fn images(agent: &Agent) {
    let mut watcher = watch(agent).await;
    let ids = PromptIds::new(agent.now(), 2, &agent.rng);
    let images = [format!("data:image/png;base64,{PICTURE}")];
    let prompt = Prompt { ids: &ids, model: MODEL, text: "look", images: &images };
    watcher.translator.begin(&ids.message);
    watcher.client.prompt(&watcher.session, &prompt).await.unwrap();
    assert_eq!(watcher.finish().await.outcome, TurnOutcome::Ok);
    let last = agent.model.requests().last().unwrap().json();
    assert!(last["messages"].to_string().contains(PICTURE), "{last}");

    // A picture that is none fails before the agent is busy, and nothing but an error is ever said of it.
    let ids = PromptIds::new(agent.now(), 2, &agent.rng);
    let images = ["data:image/png;base64,iVBORw0KGgo=".to_owned()];
    watcher.translator.begin(&ids.message);
    watcher.ids = ids.clone();
    watcher.client.prompt(&watcher.session, &Prompt { ids: &ids, images: &images, ..prompt }).await.unwrap();
    let seen = watcher.finish().await;
    assert_eq!((seen.outcome, seen.errors().len()), (TurnOutcome::Error, 1), "{seen:?}");
}

/// A sandbox that was started for nobody is given to somebody: the key changes, the process stays.
pub(crate) async fn new_key(agent: &Agent) {
    agent.write_key("pls_second_key");
    agent.client().dispose().await.unwrap();
    turn(agent, "hello with another key").await;
    assert_eq!(agent.model.requests().last().unwrap().headers["x-api-key"], "pls_second_key");
}

/// The agent's own copy of the answer is empty afterwards; what was said stays said.
pub(crate) async fn killed_agent(agent: &mut Agent) {
    let mut watcher = watch(agent).await;
    watcher.prompt("a scripted slowness").await;
    while watcher.said.iter().filter(|said| matches!(said, ServerMessage::Token { .. })).count() < 3 {
        watcher.step().await;
    }
    let (session, prompt) = (watcher.session.clone(), watcher.ids.message.clone());
    let mut said = std::mem::take(&mut watcher.said);
    drop(watcher);
    agent.kill_and_start().await;

    let client = agent.client();
    assert!(client.has_session(&session).await.unwrap());
    let mut translator = Translator::resume(&session, &prompt, &said);
    let history = client.history(&session, &prompt, &mut |_| true).await.unwrap();
    assert!(history.has(&prompt) && !history.busy);
    let output = translator.reconcile(&history, agent.now());
    assert!(matches!(&output.effects[..], [Effect::Interrupted { .. }]), "{output:?}");
    let known = said.len();
    said.extend(output.messages);
    assert!(matches!(&said[known], ServerMessage::Error { .. }), "{said:?}");
    let end = |said: &ServerMessage| {
        matches!(said, ServerMessage::TurnComplete { outcome: TurnOutcome::Error, .. })
    };
    assert!(end(said.last().unwrap()) && !translator.is_busy(), "{said:?}");
}

pub(crate) fn the_repository_is_untouched(agent: &Agent) {
    assert_eq!(git(&agent.repository(), &["status", "--porcelain", "--ignored"]), "");
}
