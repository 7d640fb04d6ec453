//! Real agents with models of each API: the Messages API and the Chat Completions API.

use serde_json::{Value, json};
use testkit::ScriptedModel;

use crate::live::{Real, Watching, outcome, tokens};

const SCRIPT: &str = r#"
[[rule]]
system = "title generator"
[[rule.step]]
text = "A title"

[[rule]]
when = "use bash"
[[rule.step]]
text = "I will ask the shell."
chunk = 4
tool = [{ name = "bash", input = { command = "echo from-$((6 * 7))", description = "Ask" } }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
[[rule.step]]
text = "You said: {prompt}"
"#;

/// The key of the provider, which no sandbox may see.
const KEY: &str = "sk-of-the-provider";

/// A model API, and where its requests differ.
struct Api {
    path: &'static str,
    /// The settings that configure its provider, with the base URL of the scripted model.
    settings: fn(&str) -> Vec<(&'static str, String)>,
    key: fn(&testkit::ModelRequest) -> Option<String>,
    /// The field of a request that says how much to think.
    effort: fn(&Value) -> &Value,
    /// The model that a session gets that chooses none.
    default_model: &'static str,
}

const APIS: [Api; 2] = [
    Api {
        path: "/v1/messages",
        settings: messages,
        key: |request| header(request, "x-api-key"),
        effort: |body| &body["output_config"]["effort"],
        default_model: "claude-sonnet-4-6",
    },
    Api {
        path: "/v1/chat/completions",
        settings: chat,
        key: |request| header(request, "authorization")?.strip_prefix("Bearer ").map(str::to_owned),
        effort: |body| &body["reasoning_effort"],
        // The first of the endpoint's list.
        default_model: model::MODELS[0],
    },
];

fn messages(url: &str) -> Vec<(&'static str, String)> {
    vec![("ANTHROPIC_API_KEY", KEY.to_owned()), ("ANTHROPIC_BASE_URL", url.to_owned())]
}

fn chat(url: &str) -> Vec<(&'static str, String)> {
    vec![("OPENAI_API_KEY", KEY.to_owned()), ("OPENAI_BASE_URL", format!("{url}/v1"))]
}

fn header(request: &testkit::ModelRequest, name: &str) -> Option<String> {
    request.headers.get(name).map(|value| value.to_str().unwrap().to_owned())
}

/// A gateway with a model that records what it is sent.
struct Recorded {
    real: Real,
    model: ScriptedModel,
    _threads: tokio::runtime::Runtime,
}

impl Recorded {
    fn start(settings: impl Fn(&str) -> Vec<(&'static str, String)>) -> Self {
        // The model answers on threads of its own, while the test waits.
        let threads = tokio::runtime::Runtime::new().unwrap();
        let model = threads.block_on(ScriptedModel::start(model::Script::parse(SCRIPT).unwrap())).unwrap();
        let settings = settings(&model.url());
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Self { real: Real::serving(&settings), model, _threads: threads }
    }

    /// Requests for answers, without those for the list of models and for titles.
    fn requests(&self) -> Vec<testkit::ModelRequest> {
        let all = self.model.requests().into_iter();
        all.filter(|request| request.method == "POST" && request.json()["tools"].is_array()).collect()
    }

    fn turn(&self, prompt: &str) -> Vec<Value> {
        let mut socket = self.running();
        socket.prompt(prompt);
        socket.until_type("turn_complete")
    }

    fn running(&self) -> Watching {
        let mut socket = self.real.watch("");
        socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
        socket
    }
}

#[test]
fn the_same_session_works_on_each_model_api() {
    for api in APIS {
        let mut recorded = Recorded::start(api.settings);
        recorded.real.new_session(&json!({"agentConfig": {"reasoningEffort": "deep"}}));
        let frames = recorded.turn("please use bash");
        assert_eq!(outcome(&frames), "ok", "{}", api.path);
        let text = tokens(&frames);
        assert!(text.starts_with("I will ask the shell.It said: from-42"), "{}: {text}", api.path);
        let streamed = frames.iter().filter(|frame| frame["type"] == "token").count();
        assert!(streamed > 3, "{}: {streamed} tokens", api.path);
        let ended = frames.iter().find(|frame| frame["type"] == "tool_end").unwrap();
        assert!(ended["payload"]["result"].as_str().unwrap().contains("from-42"), "{ended}");

        let requests = recorded.requests();
        assert_eq!(requests.len(), 2, "{}", api.path);
        for request in &requests {
            let body = request.json();
            assert_eq!(request.path, api.path);
            assert_eq!((api.key)(request).as_deref(), Some(KEY));
            assert_eq!(body["model"], api.default_model);
            assert_eq!((api.effort)(&body), "high", "{}", api.path);
        }
        let inside = recorded.real.shell(
            &recorded.real.sandbox(),
            "env; cat ~/.proliferate/agent/*.json ~/.proliferate/agent/model-key",
        );
        assert!(!inside.contains(KEY), "{}: the provider's key is in the sandbox", api.path);

        let usage = recorded.real.get("/v1/usage?by=model");
        let entry = &usage["entries"][0];
        assert_eq!(entry["key"], api.default_model, "{usage}");
        for figure in ["inputTokens", "outputTokens", "costMicros"] {
            assert!(
                entry[figure].as_i64().is_some_and(|figure| figure > 0),
                "{}: {figure} in {usage}",
                api.path
            );
        }
    }
}

/// OpenCode decides by its name whether a model supports reasoning. The session's choice must reach every model.
#[test]
fn reasoning_effort_reaches_every_chat_model() {
    let mut recorded = Recorded::start(|url| {
        let mut settings = chat(url);
        // The endpoint does not list it, but the operator vouches for it.
        settings.push(("DEFAULT_MODEL", "deepseek-r1".to_owned()));
        settings
    });
    for (effort, sent) in [("quick", json!("low")), ("normal", Value::Null), ("deep", json!("high"))] {
        recorded.real.new_session(&json!({"agentConfig": {"reasoningEffort": effort}}));
        assert_eq!(outcome(&recorded.turn("hello")), "ok");
        let body = recorded.requests().last().unwrap().json();
        assert_eq!((&body["model"], &body["reasoning_effort"]), (&json!("deepseek-r1"), &sent), "{effort}");
    }
}

/// The title comes from the prompt at first. The agent asks its model for another one, at the session's expense.
#[test]
fn a_model_of_each_api_titles_the_session() {
    for api in APIS {
        let mut recorded = Recorded::start(api.settings);
        recorded.real.new_session(&json!({}));
        let mut socket = recorded.running();
        socket.prompt("Say hello. Then stop.");
        let titles = socket.until(|frame| frame["payload"]["title"] == "A title");
        let titles: Vec<_> = titles.iter().filter(|frame| frame["type"] == "title_update").collect();
        assert_eq!(titles[0]["payload"]["title"], "Say hello.", "{}: {titles:?}", api.path);
        let listed = recorded.real.machine.run(&["session", "ls"]);
        assert!(listed.out.contains("A title"), "{}", listed.out);
        let all = recorded.model.requests().into_iter().filter(|request| request.method == "POST");
        let asked = all.filter(|request| request.json()["tools"].is_null()).count();
        assert_eq!(asked, 1, "{}: requests for a title", api.path);
    }
}

#[test]
fn the_model_can_be_changed_between_prompts_also_to_another_api() {
    let mut recorded = Recorded::start(|url| [messages(url), chat(url)].concat());
    recorded.real.new_session(&json!({"title": "Two models"}));
    let (session, machine) = (recorded.real.session.clone(), &recorded.real.machine);
    let served = |requests: &[testkit::ModelRequest]| {
        let last = requests.last().unwrap();
        (last.path.clone(), last.json()["model"].as_str().unwrap().to_owned())
    };
    assert_eq!(outcome(&recorded.turn("one")), "ok");
    assert_eq!(served(&recorded.requests()), ("/v1/messages".to_owned(), "claude-sonnet-4-6".to_owned()));
    for (model, stored, path, name) in [
        ("litellm/claude-opus-4-5", "litellm/claude-opus-4-5", "/v1/chat/completions", "claude-opus-4-5"),
        ("claude-opus-4-6", "claude-opus-4.6", "/v1/messages", "claude-opus-4-6"),
    ] {
        let changed = machine.json(&["session", "model", &session, model]);
        assert_eq!(changed["modelId"], stored);
        assert_eq!(outcome(&recorded.turn("again")), "ok", "{model}");
        assert_eq!(served(&recorded.requests()), (path.to_owned(), name.to_owned()));
        // The other model's part of the conversation is not lost.
        assert!(recorded.requests().last().unwrap().json()["messages"].to_string().contains("You said: one"));
    }
    let refused = machine.run(&["session", "model", &session, "hal-9000"]);
    assert_eq!(refused.code, 1, "{}", refused.err);
    assert!(
        refused.err.contains("modelId: No configured provider serves the model hal-9000"),
        "{}",
        refused.err
    );
}

/// The agent runs since before the endpoint was configured, so it has never heard of its models.
#[test]
fn a_model_that_is_listed_after_the_agent_started_can_be_chosen() {
    let mut recorded = Recorded::start(messages);
    recorded.real.new_session(&json!({"title": "A later model"}));
    assert_eq!(outcome(&recorded.turn("one")), "ok");
    let later = [messages(&recorded.model.url()), chat(&recorded.model.url())].concat();
    let later: Vec<_> = later.iter().map(|(name, value)| (*name, value.as_str())).collect();
    recorded.real.restart_with(&later);
    let (session, sandbox) = (recorded.real.session.clone(), recorded.real.sandbox());
    let agent = || recorded.real.shell(&sandbox, "pgrep -f '^/opt/agent serve'");
    let before = agent();
    for model in ["litellm/claude-opus-4-5", "litellm/claude-sonnet-4-5"] {
        recorded.real.machine.json(&["session", "model", &session, model]);
        let frames = recorded.turn("please use bash");
        assert_eq!(outcome(&frames), "ok", "{frames:?}");
        let last = recorded.requests().pop().unwrap();
        assert_eq!(last.path, "/v1/chat/completions");
        assert_eq!(last.json()["model"], model.trim_start_matches("litellm/"));
        assert!(last.json()["messages"].to_string().contains("You said: one"), "the conversation is lost");
    }
    assert_eq!(agent(), before, "the agent was restarted");
}

/// The agent asks its model for a title beside its first answer, and is refused both.
#[test]
fn a_session_whose_budget_is_used_up_keeps_the_title_of_its_prompt() {
    let mut recorded = Recorded::start(|url| {
        [messages(url), vec![("SESSION_BUDGET_DOLLARS", "0.0001".to_owned())]].concat()
    });
    recorded.real.new_session(&json!({}));
    let mut socket = recorded.running();
    socket.prompt("Fix the login. It fails on Mondays.");
    let frames = socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "paused");
    let titles: Vec<_> = frames.iter().filter(|frame| frame["type"] == "title_update").collect();
    assert!(titles.len() == 1 && titles[0]["payload"]["title"] == "Fix the login.", "{titles:?}");
    let why = frames.last().unwrap()["payload"]["message"].as_str().unwrap().to_owned();
    assert!(why.contains("of this session's budget of"), "{why}");
    let listed = recorded.real.get("/proliferate/sessions")["sessions"][0].clone();
    assert_eq!(
        (&listed["title"], &listed["pauseReason"]),
        (&json!("Fix the login."), &json!("credit_limit"))
    );
    assert!(recorded.model.requests().iter().all(|request| request.method != "POST"), "nothing was paid for");
}
