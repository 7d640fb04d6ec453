//! Typical uses of an agent, each in a session of its own.

use agent::instructions::Part;
use agent::{Prompt, prompt_id};
use opencode::history::Entry;
use opencode::translate::{Effect, Translator};
use proto::socket::{ServerMessage, TurnOutcome};
use serde_json::Value;

use crate::agent::{Agent, KEY, MODEL, git};
use crate::watcher::{turn, watch};

/// An image of 8 × 8 pixels.
const PICTURE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC";

pub(crate) async fn plain_text(agent: &Agent) {
    let result = turn(agent, "hello").await;
    assert_eq!((result.outcome, result.messages), (TurnOutcome::Ok, 1), "{result:?}");
    assert_eq!((result.text.as_str(), result.tokens().as_str()), ("A plain answer.", "A plain answer."));
    let completions =
        result.emitted.iter().filter(|emitted| matches!(emitted, ServerMessage::MessageComplete { .. }));
    assert_eq!(completions.count(), 1);
}

pub(crate) async fn instructions_key_and_model_reach_the_model(agent: &Agent) {
    let before = agent.model.requests().len();
    turn(agent, "hello again").await;
    let requests = agent.model.requests();
    assert_eq!(requests.len(), before + 1, "one prompt must cause one model request, and none for a title");
    let request = requests.last().unwrap();
    assert_eq!(request.headers["x-api-key"], KEY);
    let body = request.json();
    assert_eq!(body["model"], "claude-opus-4-6");
    let system = body["system"].to_string();
    for line in Part::Coding.text().lines().filter(|line| line.starts_with("- ")) {
        let line = Value::from(line).to_string();
        assert!(system.contains(line.trim_matches('"')), "the model was not told: {line}");
    }
    assert!(system.contains("house rule of this repository"), "the repository's AGENTS.md must be used too");
}

pub(crate) async fn bash(agent: &Agent) {
    let result = turn(agent, "use the scripted tool").await;
    assert_eq!((result.outcome, result.messages), (TurnOutcome::Ok, 2), "{result:?}");
    assert!(result.text.contains("It printed sum-42 pager-cat"), "our plugin sets the shell up: {result:?}");
    let ends: Vec<_> =
        result.emitted.iter().filter(|emitted| matches!(emitted, ServerMessage::ToolEnd { .. })).collect();
    let [ServerMessage::ToolEnd { tool, result, duration_ms, .. }] = ends[..] else { panic!("{ends:?}") };
    assert_eq!((tool.as_str(), result.trim()), ("bash", "sum-42 pager-cat"));
    assert!(*duration_ms > 0);
}

pub(crate) async fn custom_tool(agent: &Agent) {
    assert!(agent.client().tools().await.unwrap().iter().any(|tool| tool == "probe"));
    let result = turn(agent, "a scripted probe").await;
    assert_eq!((result.outcome, result.text.as_str()), (TurnOutcome::Ok, "It said probed"), "{result:?}");
}

pub(crate) async fn cancel(agent: &Agent) {
    let mut watcher = watch(agent).await;
    watcher.prompt("a scripted slowness").await;
    while !watcher.emitted.iter().any(|emitted| matches!(emitted, ServerMessage::Token { .. })) {
        watcher.step().await;
    }
    watcher.client.abort(&watcher.session).await.unwrap();
    let result = watcher.finish().await;
    assert_eq!((result.outcome, result.messages), (TurnOutcome::Cancelled, 1), "{result:?}");
    assert_eq!(result.errors(), [""; 0]);
    assert!(result.text.starts_with("one") && !result.text.contains("sixteen"), "{}", result.text);
    assert!(
        result
            .emitted
            .iter()
            .any(|emitted| matches!(emitted, ServerMessage::MessageCancelled { message_id: Some(_) }))
    );

    watcher.prompt("and now?").await;
    let result = watcher.finish().await;
    assert_eq!((result.outcome, result.text.as_str()), (TurnOutcome::Ok, "A plain answer."), "{result:?}");
}

pub(crate) async fn model_error(agent: &Agent) {
    let result = turn(agent, "a scripted refusal").await;
    assert_eq!(result.outcome, TurnOutcome::Error);
    let [error] = result.errors()[..] else { panic!("{result:?}") };
    assert!(error.contains("refused by the script"), "{error}");
}

pub(crate) async fn retry(agent: &Agent) {
    let result = turn(agent, "a scripted limit").await;
    assert_eq!((result.outcome, result.text.as_str()), (TurnOutcome::Ok, "after the wait"), "{result:?}");
    let told = |emitted: &ServerMessage| matches!(emitted, ServerMessage::Status { message, .. } if message.starts_with("Retrying (1/5): "));
    assert!(result.emitted.iter().any(told), "{result:?}");
}

pub(crate) async fn duplicate_prompt(agent: &Agent) {
    let before = agent.model.requests().len();
    let mut watcher = watch(agent).await;
    // Pretend that the first response was lost, while the agent is working and after it has answered.
    watcher.prompt("a scripted slowness").await;
    watcher.send("a scripted slowness").await.unwrap();
    let result = watcher.finish().await;
    watcher.send("a scripted slowness").await.unwrap();
    let history = watcher.client.history(&watcher.session, &watcher.prompt_id, &mut |_| true).await.unwrap();
    let entries: Vec<_> = history.messages().filter_map(|message| Entry::parse(&message)).collect();
    let prompts: Vec<_> = entries.iter().filter(|entry| entry.info.role == "user").collect();
    assert_eq!((prompts.len(), prompts[0].parts.len()), (1, 1), "one prompt with one text");
    assert_eq!((result.outcome, result.messages), (TurnOutcome::Ok, 1), "{result:?}");
    // A third prompt is answered only after anything that the second one may have caused.
    watcher.prompt("hello").await;
    watcher.finish().await;
    assert_eq!(agent.model.requests().len(), before + 2, "one model request per prompt");
}

pub(crate) async fn sub_agent(agent: &Agent) {
    let result = turn(agent, "a scripted delegation").await;
    assert_eq!((result.outcome, result.messages), (TurnOutcome::Ok, 2), "{result:?}");
    assert_eq!(result.text, "My helper is done.", "the helper's text must not be shown as the agent's");
    let result = result.emitted.iter().find_map(|emitted| match emitted {
        ServerMessage::ToolEnd { tool, result, .. } if tool == "task" => Some(result),
        _ => None,
    });
    assert!(result.unwrap().contains("I am the helper."), "{result:?}");
}

pub(crate) async fn lost_stream(agent: &Agent) {
    let mut watcher = watch(agent).await;
    watcher.prompt("a scripted slowness").await;
    let tokens = |emitted: &[ServerMessage]| {
        emitted.iter().filter(|emitted| matches!(emitted, ServerMessage::Token { .. })).count()
    };
    while tokens(&watcher.emitted) < 3 {
        watcher.step().await;
    }
    // Resume from the log alone, as a new process would.
    let resumed = Translator::resume(&watcher.session, &watcher.prompt_id, &watcher.emitted);
    watcher.reconnect(resumed).await;
    let result = watcher.finish().await;
    assert_eq!((result.outcome, result.messages), (TurnOutcome::Ok, 1), "{result:?}");
    assert!(result.text.ends_with("sixteen"));
    assert_eq!(result.tokens(), result.text, "no token may be lost or repeated");
    let stubs = result.emitted.iter().filter(|emitted| matches!(emitted, ServerMessage::Message(_))).count();
    assert_eq!(stubs, 1);
}

/// A history of more than one page.
pub(crate) async fn long_history(agent: &Agent) {
    let mut watcher = watch(agent).await;
    let mut prompts = Vec::new();
    for number in 0..12 {
        watcher.prompt(&format!("question {number}")).await;
        watcher.finish().await;
        prompts.push(watcher.prompt_id.clone());
    }
    let whole = watcher.client.history(&watcher.session, &prompts[0], &mut |_| true).await.unwrap();
    let entries: Vec<_> = whole.messages().filter_map(|message| Entry::parse(&message)).collect();
    let asked: Vec<_> =
        entries.iter().filter(|entry| entry.info.role == "user").map(|entry| &*entry.info.id).collect();
    assert_eq!((asked, whole.pages.len()), (prompts.iter().map(String::as_str).collect(), 2));
    let end = watcher.client.history(&watcher.session, &prompts[11], &mut |_| true).await.unwrap();
    assert_eq!((end.pages.len(), end.has(&prompts[11]), end.has(&prompts[0])), (1, true, false));
}

pub(crate) async fn images(agent: &Agent) {
    let mut watcher = watch(agent).await;
    let id = prompt_id(agent.now(), &agent.rng);
    let images = [format!("data:image/png;base64,{PICTURE}")];
    let prompt = Prompt { id: &id, model: MODEL, effort: None, text: "look", images: &images };
    watcher.translator.begin(&id);
    watcher.client.prompt(&watcher.session, &prompt).await.unwrap();
    assert_eq!(watcher.finish().await.outcome, TurnOutcome::Ok);
    let last = agent.model.requests().last().unwrap().json();
    assert!(last["messages"].to_string().contains(PICTURE), "{last}");

    // An invalid image fails before the agent becomes busy, and an error is the only event about it.
    let id = prompt_id(agent.now(), &agent.rng);
    let images = ["data:image/png;base64,iVBORw0KGgo=".to_owned()];
    watcher.translator.begin(&id);
    watcher.prompt_id.clone_from(&id);
    watcher.client.prompt(&watcher.session, &Prompt { id: &id, images: &images, ..prompt }).await.unwrap();
    let result = watcher.finish().await;
    assert_eq!((result.outcome, result.errors().len()), (TurnOutcome::Error, 1), "{result:?}");
}

/// A pooled sandbox is assigned to a session: the key changes, the process stays.
pub(crate) async fn new_key(agent: &Agent) {
    agent.write_key("pls_second_key");
    agent.client().dispose().await.unwrap();
    turn(agent, "hello with another key").await;
    assert_eq!(agent.model.requests().last().unwrap().headers["x-api-key"], "pls_second_key");
}

/// The agent's own copy of the answer is empty afterwards, but emitted messages remain valid.
pub(crate) async fn killed_agent(agent: &mut Agent) {
    let mut watcher = watch(agent).await;
    watcher.prompt("a scripted slowness").await;
    while watcher.emitted.iter().filter(|emitted| matches!(emitted, ServerMessage::Token { .. })).count() < 3
    {
        watcher.step().await;
    }
    let (session, prompt) = (watcher.session.clone(), watcher.prompt_id.clone());
    let mut emitted = std::mem::take(&mut watcher.emitted);
    drop(watcher);
    agent.kill_and_start().await;

    let client = agent.client();
    assert!(client.has_session(&session).await.unwrap());
    let mut translator = Translator::resume(&session, &prompt, &emitted);
    let history = client.history(&session, &prompt, &mut |_| true).await.unwrap();
    assert!(history.has(&prompt) && !history.busy);
    let output = translator.reconcile(&history, agent.now());
    assert!(matches!(&output.effects[..], [Effect::Interrupted { .. }]), "{output:?}");
    let known = emitted.len();
    emitted.extend(output.messages);
    assert!(matches!(&emitted[known], ServerMessage::Error { .. }), "{emitted:?}");
    let end = |emitted: &ServerMessage| {
        matches!(emitted, ServerMessage::TurnComplete { outcome: TurnOutcome::Error, .. })
    };
    assert!(end(emitted.last().unwrap()) && !translator.is_busy(), "{emitted:?}");
}

pub(crate) fn repository_stays_unchanged(agent: &Agent) {
    assert_eq!(git(&agent.repository(), &["status", "--porcelain", "--ignored"]), "");
}
