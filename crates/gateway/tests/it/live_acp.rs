//! Another type of agent: one that speaks ACP. Sessions with it look like any other to clients.

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::{Acp, AcpServer, FakeAgent};

use crate::harness::Setup;
use crate::live::{Live, Socket, assert_unbroken, of_type, tokens};

const FIRST_TEXT: &str = "Running a command.";
const SECOND_TEXT: &str = "The command printed its greeting.";

async fn start() -> (Live, AcpServer, String, Socket) {
    let server = AcpServer::start().await.unwrap();
    let setup = Setup::sqlite().agent_type(Arc::new(Acp));
    let live = Live::at(FakeAgent::start().await.unwrap(), &server.url(), setup).await;
    let session = live.session().await;
    let socket = live.running(&session).await;
    (live, server, session, socket)
}

#[tokio::test]
async fn a_prompt_gets_text_a_tool_call_and_the_end_of_the_turn() {
    let (live, server, session, mut socket) = start().await;
    socket.prompt("greet me").await;
    let frames = socket.until_type("turn_complete").await;
    assert_unbroken(&frames);
    assert_eq!(tokens(&frames), format!("{FIRST_TEXT}{SECOND_TEXT}"));
    let texts = of_type(&frames, "text_part_complete");
    let texts: Vec<&Value> = texts.iter().map(|frame| &frame["payload"]["text"]).collect();
    assert_eq!(texts, [FIRST_TEXT, SECOND_TEXT]);
    let starts = of_type(&frames, "tool_start");
    assert_eq!(starts[0]["payload"]["tool"], "bash");
    assert_eq!(starts.last().unwrap()["payload"]["args"]["command"], "echo hi-from-bash && pwd");
    let ends = of_type(&frames, "tool_end");
    assert_eq!(ends.len(), 1);
    assert_eq!(ends[0]["payload"]["result"], "hi-from-bash\n/sbx/p2/repo\n");
    assert_eq!(ends[0]["payload"]["toolCallId"], starts[0]["payload"]["toolCallId"]);
    let order = ["message", "token", "tool_start", "tool_end", "message_complete", "turn_complete"];
    let first = |kind: &&str| frames.iter().position(|frame| frame["type"] == **kind).unwrap();
    assert!(order.iter().map(first).is_sorted(), "{frames:?}");
    assert_eq!(frames.last().unwrap()["payload"]["outcome"], "ok");

    let methods: Vec<Value> = server.requests().iter().map(|request| request["method"].clone()).collect();
    assert_eq!(methods, AcpServer::recorded_methods());
    assert_eq!(server.requests().last().unwrap()["params"]["prompt"][0]["text"], "greet me");
    // A client that connects later gets the stored conversation.
    let init = live.init(&session).await;
    let messages = init["payload"]["messages"].as_array().unwrap();
    let contents: Vec<&Value> = messages.iter().map(|message| &message["content"]).collect();
    assert_eq!(contents, ["greet me", FIRST_TEXT, SECOND_TEXT]);
    assert_eq!(messages[1]["toolCalls"][0]["tool"], "bash", "{}", messages[1]);
}

#[tokio::test]
async fn the_next_prompt_is_another_turn() {
    let (_live, server, _session, mut socket) = start().await;
    for prompt in ["one", "two"] {
        socket.prompt(prompt).await;
        let frames = socket.until_type("turn_complete").await;
        assert_eq!(frames.last().unwrap()["payload"]["outcome"], json!("ok"), "{frames:?}");
    }
    let prompts = server.requests().into_iter().filter(|request| request["method"] == "session/prompt");
    let texts: Vec<Value> = prompts.map(|request| request["params"]["prompt"][0]["text"].clone()).collect();
    assert_eq!(texts, ["one", "two"]);
}
